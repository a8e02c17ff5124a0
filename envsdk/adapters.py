"""Adapters for existing tasks and tools: data sets, Gymnasium environments, reasoning-gym, and tools of MCP servers.

Each adapter imports the package that it adapts when it is used. If the package is missing, the error names what to
install.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("envsdk", __file__)  # pyright: ignore[reportUnknownVariableType]
