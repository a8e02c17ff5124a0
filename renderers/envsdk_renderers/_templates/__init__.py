"""Measurements of a chat template, which the renderer `fixed_base` is made from."""
