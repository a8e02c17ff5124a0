"""An environment whose author's methods run on a server (`envsdk serve`). Renderer, history and samples stay here."""

import asyncio
import builtins
import contextlib
import functools
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Mapping, Sequence
from http.client import HTTPException
from importlib.metadata import version
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from ... import errors
from ..._describing import what_is_invalid
from ..._packages import load
from ..._untrusted import check_values, is_loopback
from ..._visible import brief
from ...contexts._edits import shared_length
from ...contexts._history import is_named
from ...episodes._handoff import Handoff, HandoffResult
from ...errors import ConfigError, EnvsdkError, InvalidRecord, RemoteEnvError, ToolError
from ...messages import Message, ToolSchema
from .._concurrent import take_error
from .._env import Env, Returned
from .._event_loops import LoopThread, MethodThread
from ._wire import (
    PROTOCOL,
    AgentData,
    Answer,
    Call,
    Description,
    HandoffData,
    MessageTable,
    ResultData,
    Versions,
    text_of_json,
)

M = TypeVar("M", bound=BaseModel)
_MAX_FRAME = 2**28
_OURS = (RemoteEnvError, StopIteration)
"""Exceptions that have a meaning here which an author's has not."""
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""How long to wait before each attempt to connect again; the last one repeats."""


class Observed(BaseModel):
    """What a server answers."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False


class _Refusal(BaseModel):
    code: str
    message: str = ""
    errors: Any = ""


class _Frame(BaseModel):
    data: Observed | _Refusal


class _Created(BaseModel):
    class Result(BaseModel):
        session_id: str

    result: Result | None = None
    error: Any = None


@functools.cache
def io_thread(process: int) -> LoopThread:
    """Return the thread of a process that has all connections to servers."""
    return LoopThread("envsdk-remote")


class _UnknownSession(Exception):
    """The server does not have the session: it was idle for too long, or the server was restarted."""


class _NotTaken(ConnectionError):
    """The server is full, or another connection has the session: it has not run the message."""


class Session:
    """A session of an OpenEnv server, and its connection. It is opened when it is first used.

    Its coroutines run in `thread`. A process that was forked has no part in the session of its parent.

    Args:
        url: The URL of the server, or of one of its environments.
        token: The bearer token, if the server has one.
        timeout_s: The time limit of each call, in seconds.
        reconnect_s: How long the server may be unreachable, in seconds.
        is_resumable: Whether a new connection continues the session.
    """

    _connection: Any = None
    _id: str | None = None
    _process = 0
    is_lost = True

    def __init__(self, url: str, token: str | None, timeout_s: float, reconnect_s: float, is_resumable: bool) -> None:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
        if scheme not in ("http", "https") or not host:
            raise ConfigError(
                f"url is {brief(url, 200)}; expected http://HOST:PORT, or that of one environment of a server"
            )
        if not timeout_s > 0 or not reconnect_s >= 0:
            raise ConfigError(f"timeout_s is {timeout_s}, reconnect_s is {reconnect_s}; expected a number of seconds")
        self._arguments = (url, token, timeout_s, reconnect_s, is_resumable)
        self.url, self._timeout_s, self._reconnect_s = url.rstrip("/"), timeout_s, reconnect_s
        self._is_resumable = is_resumable
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._proxy = {"proxy": None} if is_loopback(host) else {}
        advice = "pip install 'envsdk[serve]'"
        self._websockets: Any = load("websockets.asyncio.client", "a remote environment needs", advice)

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, self._arguments

    def __del__(self) -> None:
        if self._process == os.getpid() and not sys.is_finalizing() and (self._connection or self._id):
            self.thread.submit(self.close())  # without waiting: this may be the thread of the connections

    @property
    def thread(self) -> LoopThread:
        """The thread of the connections."""
        if self._process != os.getpid():
            self._process, self._connection, self._id, self.is_lost = os.getpid(), None, None, True
            self.lock = asyncio.Lock()
        return io_thread(self._process)

    def get(self, path: str) -> bytes:
        """Return a page of the server.

        Raises:
            RemoteEnvError: If the server cannot be reached.
            ConfigError: If it refuses the token, or does not have the page.
        """
        return self.thread.run(self._request(path))

    def read(self, model: type[M], text: Any) -> M:
        """Return the values of JSON text that the server sent.

        Raises:
            RemoteEnvError: If it is not what was expected, or too large.
        """
        try:
            data = text.encode() if isinstance(text, str) else text
            check_values(data)
            return model.model_validate_json(data)
        except (ValueError, TypeError, InvalidRecord) as error:
            why = what_is_invalid(error) if isinstance(error, ValidationError) else error
            raise RemoteEnvError(f"{self.url} sent an answer that cannot be read: {why}") from error

    async def begin(self) -> None:
        """Begin a new session. The next exchange opens it."""
        await self.close()
        self.is_lost = False

    async def exchange(self, message: Mapping[str, Any]) -> Observed:
        """Send a message, and return the answer. A new connection sends it again.

        Raises:
            RemoteEnvError: If the server cannot be reached, does not answer in time, or lost the session, which is
                closed then.
            ToolError: If it refuses the message. The session continues.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(text_of_json(message))
        except ToolError:
            raise
        except BaseException as error:  # cancelled: an answer may still come
            await self.close()
            if isinstance(error, TimeoutError):
                raise RemoteEnvError(f"{self.url} did not answer within {self._timeout_s:g} s") from None
            raise

    async def close(self) -> None:
        """End the session, also on the server if it can be reached. An exchange that waits for its answer fails."""
        self.is_lost, self._id, session = True, None, self._id
        await self._disconnect()
        if session is not None:
            await _briefly(self._manage("close", session_id=session))

    async def _exchange(self, text: str) -> Observed:
        closed: Any = (load("websockets.exceptions", "it", "").WebSocketException, OSError)
        give_up, pauses = time.monotonic() + self._reconnect_s, iter(_PAUSES_S)
        while not self.is_lost:
            try:
                connection = self._connection or await self._connect()
                with contextlib.suppress(*closed):  # a server that refuses a session says why before it closes it
                    await connection.send(text)
                return self._observed(await connection.recv())
            except _UnknownSession as error:
                raise RemoteEnvError(f"{self.url} no longer has the session: {error}") from error
            except RemoteEnvError:
                raise
            except closed as error:
                may_have_run = self._connection is not None and not isinstance(error, _NotTaken)
                await self._disconnect()
                if time.monotonic() >= give_up or (may_have_run and not self._is_resumable):
                    raise RemoteEnvError(f"{self.url} cannot be reached: {type(error).__name__}: {error}") from error
            await asyncio.sleep(next(pauses, _PAUSES_S[-1]))
        raise RemoteEnvError(f"the session with {self.url} has ended; begin another episode")

    async def _connect(self) -> Any:
        if self._is_resumable and self._id is None:
            self._id = await self._manage("create")
        query = "" if self._id is None else f"?session_id={quote(self._id)}"
        self._connection = await self._websockets.connect(
            f"ws{self.url.removeprefix('http')}/ws{query}",
            additional_headers=self._headers,
            max_size=_MAX_FRAME,
            compression=None,
            open_timeout=self._timeout_s,
            **self._proxy,
        )
        return self._connection

    def _observed(self, frame: str | bytes) -> Observed:
        """Return an answer, or raise what the server refuses."""
        answer = self.read(_Frame, frame).data
        if isinstance(answer, Observed):
            return answer
        code, text = answer.code, answer.message
        if code == "SESSION_ERROR" and "Unknown session_id" in text:
            raise _UnknownSession(text)
        if code == "CAPACITY_REACHED" or (code == "SESSION_ERROR" and "attached" in text):
            raise _NotTaken(text)  # the server may not have seen yet that the last connection was lost
        if code in ("EXECUTION_ERROR", "VALIDATION_ERROR"):
            raise ToolError(f"{text} {answer.errors}".strip())
        raise RemoteEnvError(f"{self.url} answered {code}: {text}")

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _briefly(connection.close())

    async def _manage(self, action: str, **params: str) -> str | None:
        """Create or close a session, and return the id of a new one.

        Raises:
            ConnectionError: If the server cannot be reached, or has as many sessions as it may have.
        """
        call = {"jsonrpc": "2.0", "id": 1, "method": f"openenv/session/{action}", "params": params}
        try:
            answer = self.read(_Created, await self._request("/mcp", text_of_json(call).encode()))
        except RemoteEnvError as error:
            raise ConnectionError(str(error)) from error
        if answer.result is None:
            raise _NotTaken(f"{call['method']}: {answer.error}")
        return answer.result.session_id

    async def _request(self, path: str, body: bytes | None = None) -> bytes:
        def fetch() -> bytes:
            headers = {**self._headers, "Content-Type": "application/json"}
            request = urllib.request.Request(self.url + path, body, headers)
            opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if self._proxy else []))
            with opener.open(request, timeout=self._timeout_s) as response:
                return response.read(_MAX_FRAME)

        try:
            async with asyncio.timeout(self._timeout_s):
                return await MethodThread().call(fetch)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise ConfigError(f"{self.url} refuses the token (HTTP {error.code}); give token=") from error
            if error.code == 404:
                raise ConfigError(
                    f"{self.url} has no {path}. If it has several environments, give http://HOST:PORT/NAME; an "
                    "environment that envsdk does not serve is an OpenEnv(url)"
                ) from error
            text = f"{self.url}{path} answered HTTP {error.code}: {error.read(500).decode(errors='replace')}"
            raise (ConfigError if error.code == 409 else RemoteEnvError)(text) from error
        except (OSError, ValueError, HTTPException) as error:
            raise RemoteEnvError(f"{self.url}{path} cannot be read: {error or type(error).__name__}") from error


async def _briefly(ending: Awaitable[Any]) -> None:
    """Await an end that may never come, or fail, for at most a second."""
    ended = asyncio.ensure_future(ending)
    ended.add_done_callback(take_error)
    await asyncio.wait([ended], timeout=_PAUSES_S[-1])


class _RemoteMethods(Env):
    """An environment with a number in a session, whose methods are called there."""

    _envsdk_session: Session
    _envsdk_shared: "_Shared"
    _envsdk_number: int
    _envsdk_tools: Sequence[ToolSchema]

    _envsdk_why_no_fork: ClassVar[str | None] = "its methods run on a server; play the episode again with the same seed"

    def default_tools(self) -> Sequence[ToolSchema]:
        """See `Env`."""
        return self._envsdk_tools

    async def start(self) -> Returned:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call `start` on the server."""
        return await self._call("start")

    async def respond(self, reply: Message) -> Returned:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call `respond` on the server."""
        text = reply.new_text
        return await self._call("respond", new_text=None if text == reply.content else text)

    async def resume(self, result: Any) -> Returned:
        """Call `resume` on the server."""
        is_list = not isinstance(result, HandoffResult)
        return await self._call("resume", results=result if is_list else [result], is_list=is_list)

    def reference_reply(self) -> Message | str:
        """Call `reference_reply` on the server."""
        return self._reply("reference_reply")

    def null_reply(self) -> Message | str:
        """Call `null_reply` on the server."""
        return self._reply("null_reply")

    def _reply(self, method: str) -> Message | str:
        return self._envsdk_session.thread.run(self._exchanged(method, {}))

    async def _call(self, method: str, **argument: Any) -> Returned:
        return await asyncio.wrap_future(self._envsdk_session.thread.submit(self._exchanged(method, argument)))

    async def _exchanged(self, method: str, argument: dict[str, Any]) -> Any:
        """Call a method, in the thread of the connections. The calls of a session come one after the other."""
        session, shared = self._envsdk_session, self._envsdk_shared
        async with session.lock:
            if method != "start" or self._envsdk_number:
                return await self._sent(method, argument)
            for is_new in (session.is_lost, True):
                shared.clear()
                if is_new:
                    shared.calls = 0
                    await session.begin()
                try:
                    return await self._sent(method, argument)
                except RemoteEnvError as error:
                    if is_new or not isinstance(error.__cause__, _UnknownSession):
                        raise
            return None

    async def _sent(self, method: str, argument: dict[str, Any]) -> Any:
        """Send a call, and return what the method returned."""
        session, shared, agent, given = self._envsdk_session, self._envsdk_shared, self._envsdk.running, dict(argument)
        if "results" in given:
            given["results"] = [ResultData.of(result, shared.messages) for result in given["results"]]
        if method == "start":
            given["seed"] = None if self.episode.seed is None else self.np_random_seed
            if not self._envsdk_number:
                options = {"task": self.task, "episode_id": self.episode_id, "group_id": self.episode.header.group_id}
                given["options"] = {name: value for name, value in options.items() if value is not None}
                given["history"] = self.history.specification() if is_named(self.history) else None
                given["split"] = shared.split
        current, keep, new = agent.current, 0, list[Message]()
        if current is not None:
            had = shared.sent.setdefault((self._envsdk_number, current.name), [])
            keep = shared_length(had, current.messages)
            new = had[keep:] = current.messages[keep:]
        call = Call(
            number=shared.calls + 1,
            method=method,
            env=self._envsdk_number,
            name=agent.name,
            agents=[
                AgentData(steps=one.steps, sampled=one.sampled, tool_calls=one.tool_calls, limits=one.limits)
                for one in (agent, *agent.ancestors)
            ],
            context=None if current is None else current.name,
            keep=keep,
            messages=[shared.messages.write(message) for message in new],
            **given,
        )
        step = {"type": "step", "data": {"call": call.model_dump_json(exclude_defaults=True)}}
        try:
            answer = session.read(Answer, (await session.exchange(step)).observation.get("answer"))
        except ToolError as error:  # the two sides do not agree on the state of the session
            await session.close()
            raise RemoteEnvError(f"{session.url} refused a call: {error}") from error
        shared.calls += 1
        if answer.error is not None:
            raise _exception(*answer.error)
        if answer.tools is not None:
            self._envsdk_tools = answer.tools
        if method == "start":
            self.task = agent.task = answer.task
        if answer.config is not None:
            self.episode.header.config = answer.config
        if method.endswith("_reply"):
            return answer.reply if isinstance(answer.reply, str) else MessageTable().read(answer.reply or {})
        if answer.turn is not None:
            return answer.turn.turn(shared.messages)
        handoffs = [self._handoff(data) for data in answer.handoffs or ()]
        return handoffs[0] if len(handoffs) == 1 and not answer.is_list else handoffs

    def _handoff(self, data: HandoffData) -> Handoff:
        envs = self._envsdk_shared.envs
        if data.env not in envs:
            envs[data.env] = _RemoteSubAgent(self, data)
        return Handoff(
            envs[data.env],
            role=data.role,
            limits=data.limits,
            history="full" if data.full_history else "fresh",
            adds_reward=data.adds_reward,
            timeout_s=data.timeout_s,
        )


def _exception(name: str, text: str) -> Exception:
    """Return the exception of the author's method, of the same class if it is Python's or envsdk's."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _OURS):
        with contextlib.suppress(TypeError):  # it has other arguments
            return found(text)
        if issubclass(found, EnvsdkError):
            return EnvsdkError(text)
    return RuntimeError(f"{name}: {text}")


class _Shared:
    """What the environments of a session share.

    Args:
        split: The split of the tasks.
    """

    def __init__(self, split: str | None) -> None:
        self.split = split
        self.calls = 0
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shared, (self.split,)

    def clear(self) -> None:
        """Forget the last episode."""
        self.messages = MessageTable()
        self.sent: dict[tuple[int, str], list[Message]] = {}
        self.envs: dict[int, Env] = {}


class _RemoteSubAgent(_RemoteMethods):
    """A sub-agent's environment, which is closed with its session."""

    def __init__(self, above: _RemoteMethods, data: HandoffData) -> None:
        self._envsdk_session, self._envsdk_shared = above._envsdk_session, above._envsdk_shared
        self._envsdk_number, self._envsdk_tools = data.env, data.tools
        root = cast("Env", above._envsdk.running_episode.root.env)
        super().__init__(history=root.history if data.history is None else data.history, limits=data.limits)


class RemoteEnv(_RemoteMethods):
    """An environment whose author's methods (`start`, `respond`, `resume`, tools) run on a server: `envsdk serve`.

    The renderer, the history policy, the limits and the samples stay here, so prompts, rewards and trajectories are
    those of the same environment on this machine. Everything that is sent is messages. A handoff goes to an environment
    on the server, whose replies are sampled here.

    If the connection is lost, a new one continues the session. An episode whose session is lost, such as because the
    server was restarted, fails with a `RemoteEnvError`, and rollouts play it again. Calls of sub-agents that run side
    by side wait for each other. A remote environment cannot be forked.

    Args:
        url: The URL of a server with one environment, or of one environment of a server: `http://HOST:PORT/NAME`.
        token: The server's token. None for the environment variable `ENVSDK_SERVE_TOKEN`, if it is set.
        split: A split of the environment's tasks; None for what the server was started with.
        timeout_s: The time limit of each call of a method, in seconds.
        reconnect_s: How long the server may be unreachable or full, in seconds.
        **options: `renderer`, `tokenizer`, `history`, `limits` and `render_mode` of `Env`. The environment's own
            options are given to the server. By default, the limits are those of the server's environment.

    Raises:
        MissingPackage: If websockets is not installed.
        RemoteEnvError: If the server cannot be reached.
        ConfigError: If an argument is not valid, the server has another version of envsdk, or the environment cannot be
            remote: it is a `ProgramEnv`, or has its own `renderer_of`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        split: str | None = None,
        timeout_s: float = 120.0,
        reconnect_s: float = 30.0,
        **options: Any,
    ) -> None:
        if options.get("tasks") is not None:
            raise ConfigError("tasks are given to the server; choose one with reset(options={'task': index_or_row})")
        token = os.environ.get("ENVSDK_SERVE_TOKEN") if token is None else token
        self._envsdk_session = session = Session(url, token, timeout_s, reconnect_s, True)
        page = session.get("/envsdk" if split is None else f"/envsdk?split={quote(split)}")
        there, here = session.read(Versions, page), version("envsdk")
        if there.protocol != PROTOCOL or there.envsdk.split(".")[:2] != here.split(".")[:2]:
            raise ConfigError(
                f"{url} has envsdk {there.envsdk} with version {there.protocol} of the protocol; this is envsdk "
                f"{here} with version {PROTOCOL}. Install the same version on both sides"
            )
        about = session.read(Description, page)
        if about.refused is not None:
            raise ConfigError(f"{about.name} of {url} cannot be remote: {about.refused}")
        self._envsdk_shared, self._envsdk_number, self._envsdk_tools = _Shared(split), 0, about.tools
        self.__dict__.update(default_limits=about.limits, reward_range=about.reward_range)
        self.__dict__.update(n_tasks=about.n_tasks, shows_images=about.shows_images)
        super().__init__(**options, tasks=range(about.n_rows) if about.n_rows else None)
        self._envsdk.given_name = about.name

    def close(self) -> None:
        """End the session. A later `reset` begins another one."""
        super().close()
        self._envsdk_session.thread.run(self._envsdk_session.close())
