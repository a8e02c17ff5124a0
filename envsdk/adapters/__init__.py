"""Environments made of what others have: data sets, Gymnasium's games, reasoning-gym; and tools of MCP servers.

Each module imports the package that it needs when it is used, and says what to install if it is not there.
"""
