"""Checks that a renderer of one's own, or an environment of one's own, does what every one must."""

from .renderers import Check, RendererReport, check_renderer

__all__ = ["Check", "RendererReport", "check_renderer"]
