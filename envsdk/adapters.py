"""Adapters for existing tasks and tools: data sets, Gymnasium environments, reasoning-gym, and tools of MCP servers.

Each adapter imports the package that it adapts when it is used. If the package is missing, the error names what to
install.
"""

from ._arguments import attach

__getattr__, __dir__, __all__ = attach("envsdk", __file__)
