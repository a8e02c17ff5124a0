"""Agent programs as environments, and the server in front of them."""

from .._arguments import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
