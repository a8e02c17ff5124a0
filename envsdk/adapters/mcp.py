"""The tools of an MCP server (Model Context Protocol), for a `ToolEnv`.

class Files(ToolEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.server = MCPServer(["python", "files_server.py"])  # or the URL of one
        self.tools = self.server.tools()

    def close(self):
        self.server.close()
        super().close()
"""

import asyncio
import contextlib
import importlib
import os
import re
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from pydantic_core import to_json

from ..authoring.tools import Tool
from ..episodes.driver import is_being_cancelled
from ..errors import ConfigError, EnvsdkError, ToolError

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_CODES_OF_THE_PROTOCOL = range(-32768, -31999)  # JSON-RPC's own: a connection is lost, a session is over, ...


class MCPServerError(EnvsdkError, ConnectionError):
    """An MCP server cannot be reached, or went away: the episode fails, and is not scored."""


class _Connection(NamedTuple):
    client: Any
    portal: Any
    """Runs what is awaited in the thread that the client lives in."""
    end: Callable[[], object]
    """Ends the client and the thread; the first call of it, that is."""
    process: int
    """Which process made it: in one that was forked off, there is no such thread."""


class _Shared:
    """What copies of a server share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: _Connection | None = None
        self.users = 0
        """How many copies use it and are not closed."""


class MCPServer:
    """A connection to a server, which is made when it is first needed, and lives in a thread of its own.

    Any number of environments may share it. A fork of an environment shares the connection, which ends when both are
    closed: what a server remembers is not copied, so tools that change something on it make original and fork depend
    on each other. A pickled one connects anew where it is read.

    A server that goes away fails the episodes that call it then, with an `MCPServerError`. Later calls connect anew,
    and find a server that remembers nothing.

    Args:
        server: The URL of a server (Streamable HTTP), or the command line of one that speaks over stdio.
        timeout_s: How long connecting, and each call, may take. The model is told of a call that takes longer.
        env: Environment variables of the command, besides the few that the protocol's package passes on (`PATH`, ...).
        cwd: The folder that the command runs in.

    Raises:
        ConfigError: If the package `mcp` is not installed, or an argument is not valid.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        if not server or not all(isinstance(part, str) for part in server):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"server is {server!r}; expected a URL, or a command such as ['python', 'server.py']")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s!r}; expected more than 0")
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            raise ConfigError(f"server is {server!r}, which is no URL; a command is a list: {server.split()}")
        self.name = server if isinstance(server, str) else " ".join(server)
        self._arguments = (server, timeout_s, env, cwd)
        self._timeout_s = timeout_s
        self._mcp = _package()
        self._shared = _Shared()
        self._uses_it = False

    def tools(self) -> list[Tool]:
        """The server's tools. In their names, what no tool's name may have is written as `_`.

        Raises:
            MCPServerError: If the server cannot be reached.
            ConfigError: If two tools would have the same name.
        """
        connection = self._connected()
        try:
            listed = connection.portal.call(_list_tools, connection.client)
        except Exception as error:  # whatever it is, there is no list
            self._end(connection)
            raise self._failed("does not list its tools", error) from error
        tools = [
            Tool(
                name=_NO_NAME.sub("_", tool.name)[:64],
                description=tool.description or "",
                parameters={"type": "object", "properties": {}, **tool.input_schema},
                function=partial(self._call, tool.name),
            )
            for tool in listed
        ]
        names = [tool.name for tool in tools]
        if len({*names}) < len(names):
            raise ConfigError(f"two tools of {self.name!r} have the same name: {', '.join(sorted(names))}")
        return tools

    def close(self) -> None:
        """End the connection, and the command, if no copy uses it any more.

        It may be called again; a later call of a tool connects anew.
        """
        with self._shared.lock:
            was_used, self._uses_it = self._uses_it, False
            self._shared.users -= was_used
            connection = None if self._shared.users else self._current()
        if connection is not None:
            self._end(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = type(self).__new__(type(self))
        with self._shared.lock:
            other.__dict__.update(self.__dict__)
            self._shared.users += self._uses_it
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, self._arguments

    async def _call(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool, from any event loop."""
        connection = (self._current() if self._uses_it else None) or await asyncio.to_thread(self._connected)
        try:
            asked = connection.portal.start_task_soon(partial(connection.client.call_tool, tool, arguments))
            result = await asyncio.wrap_future(asked)
        except self._mcp.MCPError as error:
            if error.code == self._mcp.types.REQUEST_TIMEOUT:
                raise ToolError(f"{tool}: it did not finish within {self._timeout_s:g} s") from error
            if error.code == self._mcp.types.INVALID_PARAMS or error.code not in _CODES_OF_THE_PROTOCOL:
                raise ToolError(f"{tool}: {error}") from error
            await asyncio.to_thread(self._end, connection)
            raise self._failed("does not answer", error) from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise self._failed("was closed", error) from error
        except Exception as error:  # the tool's own failures are results: this is the connection's
            await asyncio.to_thread(self._end, connection)
            raise self._failed("does not answer", error) from error
        text = _text_of(result)
        if result.is_error:
            raise ToolError(text or f"{tool} failed")
        return text

    def _current(self) -> _Connection | None:
        connection = self._shared.connection
        return connection if connection is not None and connection.process == os.getpid() else None

    def _connected(self) -> _Connection:
        with self._shared.lock:
            connection = self._shared.connection = self._current() or self._connect()
            self._shared.users += not self._uses_it
            self._uses_it = True
            return connection

    def _connect(self) -> _Connection:
        anyio: Any = importlib.import_module("anyio.from_thread")
        with ExitStack() as stack:
            try:
                portal = stack.enter_context(anyio.start_blocking_portal(name="envsdk-mcp"))
                opened = self._mcp.Client(_place(self._mcp, *self._arguments), read_timeout_seconds=self._timeout_s)
                client = stack.enter_context(portal.wrap_async_context_manager(_within(opened, self._timeout_s)))
            except Exception as error:  # a command that is not there, an address where nobody listens, another protocol
                raise self._failed("cannot be reached", error) from error
            end = weakref.finalize(
                self._shared, _close, stack.pop_all(), os.getpid()
            )  # at the latest when the program ends
            return _Connection(client, portal, end, os.getpid())

    def _end(self, connection: _Connection) -> None:
        with self._shared.lock:
            if self._shared.connection is connection:
                self._shared.connection = None
        connection.end()

    def _failed(self, what: str, error: BaseException) -> MCPServerError:
        while isinstance(error, BaseExceptionGroup):
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        return MCPServerError(f"the MCP server {self.name!r} {what}: {type(error).__name__}: {error}")


def _close(stack: ExitStack, process: int) -> None:
    if process == os.getpid():
        with contextlib.suppress(Exception):  # why it ended was told to whoever called a tool
            stack.close()


def _package() -> Any:
    try:
        package: Any = importlib.import_module("mcp")
        _ = package.Client
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            "tools of an MCP server need the package mcp, 2.3 or newer: pip install 'envsdk[mcp]'"
        ) from error
    return package


def _place(
    mcp: Any, server: str | Sequence[str], _timeout_s: float, env: Mapping[str, str] | None, cwd: str | Path | None
) -> Any:
    """What the package takes as a server."""
    if isinstance(server, str):
        return server
    return mcp.StdioServerParameters(command=server[0], args=[*server[1:]], env=env and {**env}, cwd=cwd)


def _made_again(server: Any, timeout_s: float, env: Mapping[str, str] | None, cwd: str | Path | None) -> MCPServer:
    return MCPServer(server, timeout_s=timeout_s, env=env, cwd=cwd)


@contextlib.asynccontextmanager
async def _within(client: Any, timeout_s: float) -> AsyncGenerator[Any]:
    """The client, connected in time."""
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(timeout_s):
            await stack.enter_async_context(client)
        yield client


async def _list_tools(client: Any) -> list[Any]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def _text_of(result: Any) -> str:
    """A result as text. What is none, such as a picture, is named."""
    if not result.content and result.structured_content is not None:
        return to_json(result.structured_content).decode()
    return "\n".join(map(_block, result.content))


def _block(block: Any) -> str:
    text: str | None = getattr(block, "text", getattr(getattr(block, "resource", None), "text", None))
    kind: str = getattr(block, "mime_type", None) or getattr(block, "uri", None) or ""
    return text if text is not None else f"[{block.type}{kind and ' '}{kind}, which cannot be shown]"
