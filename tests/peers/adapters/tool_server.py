"""An MCP server with tools of every kind: `tool_server.py`, over stdio, or `tool_server.py PORT`, over HTTP."""

import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents

server = MCPServer("tools", log_level="CRITICAL")
count = 0


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def counter() -> int:
    """How often it was called."""
    global count
    count += 1
    return count


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("there is no such thing")


@server.tool()
def slow(seconds: float) -> str:
    """Take a while."""
    time.sleep(seconds)
    return "done"


@server.tool()
def die() -> str:
    """Take the whole server down."""
    os._exit(3)


@server.tool()
def process() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def picture() -> Image:
    """Draw."""
    return Image(data=b"\x89PNG", format="png")


@server.tool(name="a.b/c")
def dotted(self: str = "", tool: str = "") -> str:
    """Its name and its arguments' names are awkward."""
    return f"{self}{tool}"


@server.tool()
def table() -> dict[str, Any]:
    """Structured content alone."""
    return CallToolResult(content=[], structured_content={"rows": [1, 2]})


@server.tool()
def note() -> list[Any]:
    """A text and a resource."""
    resource = TextResourceContents(uri="file:///notes.txt", text="milk")
    return [TextContent(type="text", text="a note:"), EmbeddedResource(type="resource", resource=resource)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
