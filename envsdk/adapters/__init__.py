"""Adapters for existing tasks and tools: data sets, Gymnasium environments, reasoning-gym, and tools of MCP servers.

Each module imports the package that it adapts when it is used. If the package is missing, the error names what to
install.
"""
