"""Measured reply grammars: how a chat template writes replies, as data that one writer and one reader use."""
