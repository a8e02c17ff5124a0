"""Tools of an MCP (Model Context Protocol) server, for a `ToolEnv`.

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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from pydantic_core import to_json

from ...errors import ConfigError, EnvsdkError, ToolError
from .._loop_tasks import is_being_cancelled
from .._tools import Tool

_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_PROTOCOL_CODES = range(-32768, -31999)  # JSON-RPC's own: the connection was lost, the session ended, ...


class MCPServerError(EnvsdkError, ConnectionError):
    """An MCP server cannot be reached, or closed the connection. The episode fails and is not scored."""


class _Connection(NamedTuple):
    client: Any
    portal: Any
    """Runs coroutines in the client's thread."""
    end: Callable[[], object]
    """Ends the client and its thread. Further calls do nothing."""
    process: int
    """The id of the process that opened it. A forked process does not have the thread."""


@dataclass(eq=False, repr=False)
class _SharedConnection:
    """The state that copies of an `MCPServer` share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: _Connection | None = None
    users: int = 0
    """The number of copies that use the connection and are not closed."""


class MCPServer:
    """A connection to an MCP server. It is opened when it is first used, and runs in a separate thread.

    Any number of environments may share it. A fork of an environment shares the connection, which ends when both are
    closed. The state of the server is not copied, so if a tool changes it, original and fork affect each other. An
    unpickled copy opens a new connection.

    If the server closes the connection, the episodes that call it at that time fail with an `MCPServerError`. Later
    calls open a new connection, to a server without the earlier state.

    Args:
        server: The URL of a server (Streamable HTTP), or the command of one that uses stdio.
        timeout_s: The time limit for connecting and for each call, in seconds. A call that takes longer is a
            `ToolError`, which the model sees.
        env: Environment variables of the command, in addition to the few that the package `mcp` passes on (`PATH`,
            ...).
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
            raise ConfigError(f"timeout_s is {timeout_s!r}; expected a number above 0")
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            raise ConfigError(f"server is {server!r}; expected a URL, or a command as a list: {server.split()}")
        self.name = server if isinstance(server, str) else " ".join(server)
        self._arguments = (server, timeout_s, env, cwd)
        self._timeout_s = timeout_s
        try:
            self._mcp: Any = importlib.import_module("mcp")
            _ = self._mcp.Client
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                "MCPServer needs the package mcp, version 2.3 or newer: pip install 'envsdk[mcp]'"
            ) from error
        self._shared = _SharedConnection()
        self._is_user = False

    def tools(self) -> list[Tool]:
        """Return the server's tools. Characters that are not valid in tool names are replaced by `_`.

        Raises:
            MCPServerError: If the server cannot be reached.
            ConfigError: If two tools would have the same name.
        """
        connection = self._connected()
        listed: list[Any] = []
        try:
            page = connection.portal.call(connection.client.list_tools)
            listed += page.tools
            while page.next_cursor is not None:
                page = connection.portal.call(partial(connection.client.list_tools, cursor=page.next_cursor))
                listed += page.tools
        except Exception as error:  # the client may raise anything
            self._end(connection)
            raise self._failed("does not list its tools", error) from error
        tools = [
            Tool(
                name=_INVALID_IN_NAMES.sub("_", tool.name)[:64],
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
        """End the connection and the command, unless another copy uses them.

        You may call it twice. A later call of a tool opens a new connection.
        """
        with self._shared.lock:
            was_used, self._is_user = self._is_user, False
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
            self._shared.users += self._is_user
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        server, timeout_s, env, cwd = self._arguments
        return partial(MCPServer, server, timeout_s=timeout_s, env=env, cwd=cwd), ()

    async def _call(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool. It works in any event loop."""
        connection = (self._current() if self._is_user else None) or await asyncio.to_thread(self._connected)
        try:
            future = connection.portal.start_task_soon(partial(connection.client.call_tool, tool, arguments))
            result = await asyncio.wrap_future(future)
        except self._mcp.MCPError as error:
            if error.code == self._mcp.types.REQUEST_TIMEOUT:
                raise ToolError(f"{tool}: it did not finish within {self._timeout_s:g} s") from error
            if error.code == self._mcp.types.INVALID_PARAMS or error.code not in _PROTOCOL_CODES:
                raise ToolError(f"{tool}: {error}") from error
            await asyncio.to_thread(self._end, connection)
            raise self._failed("does not answer", error) from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise self._failed("was closed", error) from error
        except Exception as error:  # a tool's own failure is a result, so the connection failed
            await asyncio.to_thread(self._end, connection)
            raise self._failed("does not answer", error) from error
        texts: list[str] = []
        for block in result.content:  # a part that is not text, such as an image, is named
            shown: str | None = getattr(block, "text", getattr(getattr(block, "resource", None), "text", None))
            kind: str = getattr(block, "mime_type", None) or getattr(block, "uri", None) or ""
            texts.append(shown if shown is not None else f"[{block.type}{kind and ' '}{kind}, which cannot be shown]")
        text = "\n".join(texts)
        if not result.content and result.structured_content is not None:
            text = to_json(result.structured_content).decode()
        if result.is_error:
            raise ToolError(text or f"{tool} failed")
        return text

    def _current(self) -> _Connection | None:
        connection = self._shared.connection
        return connection if connection is not None and connection.process == os.getpid() else None

    def _connected(self) -> _Connection:
        """Return the connection, which is opened if there is none."""
        anyio: Any = importlib.import_module("anyio.from_thread")
        with self._shared.lock, ExitStack() as stack:
            connection = self._current()
            if connection is None:
                try:
                    portal = stack.enter_context(anyio.start_blocking_portal(name="envsdk-mcp"))
                    server, _, env, cwd = self._arguments
                    if not isinstance(server, str):
                        command, *args = server
                        variables = env and {**env}
                        server = self._mcp.StdioServerParameters(command=command, args=args, env=variables, cwd=cwd)
                    opened = self._mcp.Client(server, read_timeout_seconds=self._timeout_s)
                    client = stack.enter_context(portal.wrap_async_context_manager(_within(opened, self._timeout_s)))
                except Exception as error:  # a missing command, no listener, ...
                    raise self._failed("cannot be reached", error) from error
                end = weakref.finalize(self._shared, _close, stack.pop_all(), os.getpid())  # at the latest at exit
                connection = self._shared.connection = _Connection(client, portal, end, os.getpid())
            self._shared.users += not self._is_user
            self._is_user = True
            return connection

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
        with contextlib.suppress(Exception):  # a caller of a tool has already got the error
            stack.close()


@contextlib.asynccontextmanager
async def _within(client: Any, timeout_s: float) -> AsyncGenerator[Any]:
    """Connect a client within a time limit."""
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(timeout_s):
            await stack.enter_async_context(client)
        yield client
