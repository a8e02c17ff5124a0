"""Environments behind OpenEnv's own server: `openenv_app`, which `envsdk serve` and the folders of `envsdk init` use.

Three levels share its WebSocket. At the message level, an action is a reply, and envsdk plays the episode. At the token
level, an action is tokens. At the method level, a `RemoteEnv` calls the author's methods one by one.
"""

import asyncio
import contextlib
import functools
import hmac
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, TypeAlias, cast, get_args
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, ValidationError, create_model
from pydantic_core import to_jsonable_python

from ..._describing import message_of, what_is_invalid
from ..._packages import load
from ..._untrusted import is_loopback
from ...contexts._protocol import Action
from ...episodes._actions import action_of
from ...episodes._agent import StepResult
from ...errors import ActionError, ConfigError, EnvsdkError, EpisodeError
from ...messages import Message
from .._env import Env
from .._making import make
from ._hosted import HostedEnv, MakeEnv, describe, in_split
from ._wire import schemas_as_json, text_of_json

App: TypeAlias = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
_MIN_TOKEN = 16
_MAX_LISTED = 10_000
_TASK_API = frozenset({"splits", "tasks", "num_tasks", "task", "task_range"})
_LEVELS = ("message", "token")
_log = logging.getLogger(__name__)


def openenv_app(
    envs: str | type[Env] | Sequence[str | type[Env]] | Mapping[str, MakeEnv],
    *,
    token: str | None = None,
    max_sessions: int = 256,
    idle_timeout_s: float = 600.0,
    max_message_bytes: int = 2**26,
    **options: Any,
) -> App:
    """Return an application for a server such as uvicorn that serves environments through OpenEnv's `create_app`.

    Each environment has the paths of an OpenEnv server below its name: `/GuessNumber-v1/ws`, `/GuessNumber-v1/schema`.
    A single environment also has them at the root.

    Args:
        envs: Ids or classes of environments, or names with functions that make them. Such a function is given
            `split=` if a client chooses one.
        token: The bearer token that every request must have. None admits only requests to `localhost`.
        max_sessions: The maximum number of open sessions of each environment.
        idle_timeout_s: A session ends after this many seconds without a message, and so does a connection whose client
            does not read for this long.
        max_message_bytes: The size of the largest message and request.
        **options: The options of every environment: `renderer`, `tokenizer`, `history`, `limits`, and its own.

    Raises:
        MissingPackage: If openenv is not installed.
        ConfigError: If an argument is not valid, or two environments have the same name.
    """
    if token is not None and len(token) < _MIN_TOKEN:
        raise ConfigError(f"the token has {len(token)} characters; expected at least {_MIN_TOKEN} random ones")
    makers = _makers(envs, options)
    apps = {name: _app_of(name, maker, max_sessions, idle_timeout_s) for name, maker in makers.items()}
    return _Guard(apps, token, idle_timeout_s, max_message_bytes)


def _makers(envs: Any, options: Mapping[str, Any]) -> dict[str, MakeEnv]:
    if isinstance(envs, Mapping):
        return {name: functools.partial(maker, **options) for name, maker in cast("Any", envs).items()}
    makers: dict[str, MakeEnv] = {}
    for env in [envs] if isinstance(envs, (str, type)) else cast("Sequence[Any]", envs):
        name = env.rpartition("/")[2] if isinstance(env, str) else env.__name__
        if name in makers:
            raise ConfigError(f"two environments are named {name!r}; give a mapping of other names to functions")
        makers[name] = functools.partial(make, env, **options) if isinstance(env, str) else env
        makers[name] = functools.partial(makers[name], **({} if isinstance(env, str) else options))
    if not makers:
        raise ConfigError("there is no environment to serve; give at least one")
    return makers


class _Tasks:
    """The tasks of an environment for OpenEnv's task API. A task is a mapping of arguments of `reset`."""

    def __init__(self, maker: MakeEnv) -> None:
        self._maker = maker
        self._envs: dict[str | None, Env] = {}

    def env(self, split: str | None = None) -> Env:
        """Return an environment whose tasks are those of a split; it is not played."""
        if split not in self._envs:
            self._envs[split] = in_split(self._maker, split)
        return self._envs[split]

    @property
    def options(self) -> Mapping[str, Any]:
        """The fields of the environment's own options."""
        return cast("Any", type(self.env().config)).model_fields

    def splits(self) -> list[str]:
        """Return the values of the environment's option `split`, or `train` without one."""
        annotation = self.options["split"].annotation if "split" in self.options else None
        return [value for value in get_args(annotation) if value] or ["train"]

    def count(self, split: str) -> int:
        """Return how many tasks a split has.

        Raises:
            NotImplementedError: If every seed has its own.
        """
        env = self._of(split)
        if env.tasks is not None:
            return len(env.tasks)
        if env.n_tasks is None:
            raise NotImplementedError
        return env.n_tasks

    def task(self, split: str, index: int) -> dict[str, Any]:
        """Return the arguments of `reset` that choose a task."""
        rows = self._of(split).tasks
        chosen = {"split": split} if "split" in self.options else {}
        if rows is None:
            if index < 0:
                raise IndexError(index)
            return {**chosen, "seed": index}
        if not 0 <= index < len(rows):
            raise IndexError(index)
        return {**chosen, "task": index}

    def range(self, split: str, start: int | None, stop: int | None) -> list[dict[str, Any]]:
        """Return several of them, at most 10,000."""
        first, last = start or 0, self.count(split) if stop is None else stop
        if not 0 <= first <= last or last - first > _MAX_LISTED:
            raise IndexError(last)
        return [self.task(split, index) for index in range(first, last)]

    def _of(self, split: str) -> Env:
        if split not in self.splits():
            raise ConfigError(f"there is no split {split!r:.80}; there are {self.splits()}")
        return self.env(split if "split" in self.options else None)


class _Session:
    """What a client plays: episodes at the message or the token level, or the methods of a `RemoteEnv`."""

    def __init__(self, maker: MakeEnv) -> None:
        self._maker = maker
        self._made: dict[str | None, Env] = {}
        self._env: Env | None = None
        self._hosted: HostedEnv | None = None
        self._level = "message"
        self._shown: dict[str, list[Message | None]] = {}
        self._is_closed = False
        self.steps = 0

    @property
    def episode_id(self) -> str | None:
        """The id of the episode that is played."""
        return None if self._env is None else self._env.episode_id

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: Any = None,
        split: str | None = None,
        level: str = "message",
        **unknown: Any,
    ) -> dict[str, Any]:
        """Begin an episode, and return the fields of the observation.

        Args:
            seed: See `Env.reset`; likewise `episode_id` and `task`.
            episode_id: The id.
            task: The task: its index, or the row itself.
            split: The split of the tasks, for an environment with the option `split`.
            level: `message` or `token`.
            **unknown: Arguments that are refused.
        """
        self._check_open()
        if unknown:
            raise ConfigError(f"reset does not have the arguments {sorted(unknown)}; see the page on OpenEnv")
        if level not in _LEVELS:
            raise ConfigError(f"level is {level!r:.80}; expected one of {_LEVELS}")
        if split not in self._made:
            self._made[split] = in_split(self._maker, split)
        env = self._made[split]
        given = {"task": task, "episode_id": episode_id}
        result = env.reset(seed=seed, options={name: value for name, value in given.items() if value is not None})
        self._env, self._level, self._shown, self.steps = env, level, {}, 0
        fields = self._observed(StepResult(result[0], 0.0, False, False, result[1]))
        return {**fields, "reward": None}

    def step(self, action: Any) -> dict[str, Any]:
        """Take an action, and return the fields of the observation."""
        self._check_open()
        if action.call is not None:
            if self._hosted is None:
                self._hosted = HostedEnv(self._maker)
            return {"answer": self._hosted.call(action.call)}
        env = self._env
        if env is None:
            raise EpisodeError("there is no episode: send reset first, over the same WebSocket")
        taken = self._action(env, action)
        try:
            result = env.step(taken)
        except (ActionError, EpisodeError):
            raise
        except BaseException as error:  # authors' code may raise anything
            with contextlib.suppress(EpisodeError):
                env.fail(error)
            if isinstance(error, EnvsdkError):
                raise
            raise EpisodeError(f"the environment failed: {type(error).__name__}: {message_of(error)}") from error
        self.steps += 1
        return self._observed(result)

    def close(self) -> None:
        """Close the environments."""
        self._is_closed = True
        for one in (*self._made.values(), *([] if self._hosted is None else [self._hosted])):
            one.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EpisodeError("the session was closed, because it was idle for too long")

    def _action(self, env: Env, action: Any) -> Action:
        """Return an action of OpenEnv as an `Action`.

        Raises:
            ActionError: If it does not fit the level, or is not a reply.
        """
        is_reply = any(part is not None for part in (action.content, action.reasoning, action.tool_calls))
        if is_reply == (action.tokens is not None) or is_reply != (self._level == "message"):
            expected = "content, reasoning or tool_calls" if self._level == "message" else "tokens"
            raise ActionError(f"the action does not fit an episode at the {self._level} level: give {expected}")
        if not is_reply:
            return Action(action.tokens, action.logprobs, action.finish_reason, action.temperature)
        data = {"role": "assistant", "content": action.content or "", "tool_calls": action.tool_calls or ()}
        try:
            message = Message.from_openai({**data, "reasoning": action.reasoning})
        except (ValidationError, ValueError, RecursionError) as error:
            why = what_is_invalid(error) if isinstance(error, ValidationError) else message_of(error)
            raise ActionError(f"the action is not a reply: {why}") from error
        observation, info = env.pending()
        pending = env.episode.pending_reply(observation.context)
        shown = self._shown.setdefault(observation.context, [])
        made = action_of(message, pending.context.renderer, stop=pending.turn.stop, max_tokens=info["max_tokens"])
        if not shown or shown[-1] is not None:  # a reply that continues is one message
            shown.append(None)
        return made

    def _observed(self, result: StepResult) -> dict[str, Any]:
        env, (observation, reward, terminated, truncated, info) = self._env, result
        assert env is not None
        fields: dict[str, Any] = {"done": terminated or truncated, "reward": reward, "terminated": terminated}
        fields |= {"truncated": truncated, "context": observation.context, "base": observation.base}
        fields["info"] = to_jsonable_python(info, fallback=_plain)
        fields |= {name: info[name] for name in ("rewards", "metrics")}
        if self._level == "token":
            media = [
                {"start": placed.start, "stop": placed.stop, "image": placed.image.url} for placed in observation.media
            ]
            fields["info"].update(media=media) if media else None
            return {
                **fields,
                "tokens": observation.tokens.tolist(),
                "keep": observation.keep,
                "extends": observation.extends,
            }
        if observation.context not in env.episode.contexts:
            return fields
        pending = env.episode.pending_reply(observation.context)
        view, turn = list(pending.context.view), pending.turn
        had = self._shown.get(observation.base, [])
        if turn.continuation is not None and not fields["done"]:
            self._shown[observation.context] = had
            return {**fields, "keep": len(had), "continues": _start(turn.continuation)}
        pairs = enumerate(zip(had, view, strict=False))
        known = min(len(had), len(view))
        keep = next((i for i, (one, other) in pairs if not (one is other or _is_reply(one, other))), known)
        self._shown[observation.context] = list(view)
        return {
            **fields,
            "keep": keep,
            "messages": [message.to_openai() for message in view[keep:]],
            "tools": schemas_as_json(pending.context.tools),
            "prefill": None if turn.prefill is None or fields["done"] else _start(turn.prefill),
        }


def _is_reply(shown: Message | None, message: Message) -> bool:
    return shown is None and message.role == "assistant"


def _start(start: str | Message) -> dict[str, Any]:
    return {"content": start} if isinstance(start, str) else start.to_openai()


def _plain(value: Any) -> Any:
    return cast("Any", value).tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


@functools.cache
def _classes() -> tuple[type[Any], type[Any], type[Any]]:
    """Return OpenEnv's environment, action and observation for us."""
    core = load("openenv.core.env_server.types", "a server of environments needs", "pip install 'envsdk[serve]'")
    interfaces: Any = load("openenv.core.env_server.interfaces", "it needs", "pip install 'envsdk[serve]'")
    base: Any = interfaces.Environment
    described: Any = Field
    action: Any = create_model(
        "ReplyAction",
        __base__=core.Action,
        __doc__="A reply: its content, reasoning and tool calls. At the token level, its tokens.",
        content=(str | None, described(None, description="The text of the reply.")),
        reasoning=(str | None, described(None, description="The reasoning.")),
        tool_calls=(
            list[dict[str, Any]] | None,
            described(None, description="Calls in the OpenAI form, or mappings with name and arguments."),
        ),
        tokens=(list[int] | None, described(None, description="Token level: the sampled token ids.")),
        logprobs=(list[float] | None, described(None, description="Token level: their log-probabilities.")),
        finish_reason=(Literal["stop", "length", "abort"], "stop"),
        temperature=(float, 1.0),
        call=(str | None, described(None, description="For envsdk's RemoteEnv: the call of a method.")),
    )
    observation: Any = create_model(
        "TurnObservation",
        __base__=core.Observation,
        __doc__="The environment's answer: contexts[context] = contexts[base][:keep] + messages (or tokens).",
        context=(str, "main"),
        base=(str, "main"),
        keep=(int, described(0, description="How many messages (tokens) of the base stay, your reply included.")),
        messages=(list[dict[str, Any]], described([], description="The messages after them, in the OpenAI form.")),
        tools=(list[dict[str, Any]], described([], description="The JSON schemas of the tools of the context.")),
        prefill=(dict[str, Any] | None, described(None, description="The beginning of the next reply.")),
        continues=(dict[str, Any] | None, described(None, description="What is appended to your reply; continue it.")),
        tokens=(list[int], described([], description="Token level: the new tokens.")),
        extends=(bool, described(False, description="Token level: whether the context only grew.")),
        terminated=(bool, False),
        truncated=(bool, False),
        rewards=(dict[str, float], {}),
        metrics=(dict[str, float], {}),
        info=(dict[str, Any], {}),
        answer=(str | None, described(None, description="For envsdk's RemoteEnv: what the method returned.")),
    )

    class ServedEnvironment(base):
        """An environment of envsdk for OpenEnv's server. A session has one object, and its own thread."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self, maker: MakeEnv, tasks: _Tasks) -> None:
            base.__init__(self)
            self._session, self._tasks = _Session(maker), tasks

        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Any:
            return observation(**self._session.reset(seed, episode_id, **options))

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            return observation(**self._session.step(action))

        @property
        def state(self) -> Any:
            return core.State(episode_id=self._session.episode_id, step_count=self._session.steps)

        def get_metadata(self) -> Any:
            env = self._tasks.env()
            description = (inspect.getdoc(type(env)) or env.name).partition("\n")[0]
            return core.EnvironmentMetadata(name=env.name, description=description, version=version("envsdk"))

        def list_splits(self) -> list[str]:
            return self._tasks.splits()

        def num_tasks(self, split: str) -> int:
            return self._tasks.count(split)

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            return self._tasks.task(split, index)

        def get_task_range(self, split: str, start: int | None, stop: int | None) -> list[dict[str, Any]]:
            return self._tasks.range(split, start, stop)

        def list_tasks(self, split: str) -> list[dict[str, Any]]:
            return self._tasks.range(split, None, None)

        def close(self) -> None:
            self._session.close()

    return ServedEnvironment, action, observation


def _app_of(name: str, maker: MakeEnv, max_sessions: int, idle_timeout_s: float) -> Any:
    """Return OpenEnv's application of one environment."""
    served, action, observation = _classes()
    server: Any = load("openenv.core.env_server", "it needs", "pip install 'envsdk[serve]'")
    responses: Any = load("starlette.responses", "it needs", "pip install 'envsdk[serve]'")
    tasks = _Tasks(maker)
    tasks.env()  # an environment that cannot be made is refused here, and not in a session
    app = server.create_app(
        functools.partial(served, maker, tasks),
        action,
        observation,
        env_name=name,
        concurrency_config=server.ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=idle_timeout_s),
    )

    async def about(request: Any) -> Any:
        env = tasks.env(request.query_params.get("split"))
        return responses.Response(describe(env).model_dump_json(), media_type="application/json")

    async def refuse(request: Any, error: Exception) -> Any:
        return responses.JSONResponse({"detail": f"{type(error).__name__}: {message_of(error)}"}, 409)

    app.add_route("/envsdk", about)
    app.add_exception_handler(EnvsdkError, refuse)
    return app


class _Guard:
    """Admits requests with the token, bounds their size and idle time, and passes them on by their first path segment.

    Args:
        apps: OpenEnv's application of each environment by name.
        token: The token, or None.
        idle_timeout_s: How long a client may send nothing, or read nothing.
        max_bytes: The size of the largest message and request.
    """

    def __init__(self, apps: Mapping[str, Any], token: str | None, idle_timeout_s: float, max_bytes: int) -> None:
        self._apps = apps
        self._token = None if token is None else token.encode()
        self._idle_timeout_s, self._max_bytes = idle_timeout_s, max_bytes

    @property
    def names(self) -> list[str]:
        """The names of the environments."""
        return list(self._apps)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request of ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app, path = self._find(scope["path"])
        is_health = scope["type"] == "http" and scope["path"].rpartition("/")[2] == "health"  # which reveals nothing
        refused = None if is_health else self._why_refused(dict(scope["headers"]))
        if app is None and refused is None and path in ("/health", "/list_environments"):
            await _answer(scope, send, 200, {"status": "healthy"} if is_health else self.names)
            return
        if refused is None and app is None:
            refused = 404, f"there is no such page; the environments are {', '.join(self._apps)}"
        if refused is not None:
            await _answer(scope, send, refused[0], {"detail": refused[1]})
        elif scope["type"] == "http":
            await self._pass_http(app, {**scope, "path": path, "raw_path": path.encode()}, receive, send)
        else:
            await self._pass_websocket(app, {**scope, "path": path, "raw_path": path.encode()}, receive, send)

    def _why_refused(self, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        if self._token is not None:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token):
                return None
            return 401, "the token is missing or wrong; send it as a bearer token"
        hosts = [b"//" + headers.get(b"host", b""), headers.get(b"origin", b"//localhost")]
        for host in hosts:  # against pages of other sites, and DNS rebinding
            try:
                name = urlsplit(host.decode("latin-1")).hostname or ""
            except ValueError:
                name = ""
            if not is_loopback(name):
                return 403, f"without a token, only requests from and to localhost are answered, not {name!r:.80}"
        return None

    def _find(self, path: str) -> tuple[Any, str]:
        """Return the application that a path names, and the path within it."""
        first, _, rest = path.lstrip("/").partition("/")
        if first in self._apps:
            is_task = rest in _TASK_API  # whose paths in OpenEnv's application begin with the name, too
            return self._apps[first], path if is_task else f"/{rest}"
        return (next(iter(self._apps.values())), path) if len(self._apps) == 1 else (None, path)

    async def _live(self, receive: Any, send: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await receive()
            try:
                for app in self._apps.values():
                    await stack.enter_async_context(app.router.lifespan_context(app))
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": message_of(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass_http(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        size, has_begun, is_refused = 0, False, False

        async def bounded() -> Any:
            nonlocal size, is_refused
            message: Any = {"type": "http.disconnect"}
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(receive(), self._idle_timeout_s)
            size += len(message.get("body", b""))
            if size > self._max_bytes and not has_begun and not is_refused:
                is_refused = True
                await _answer(scope, send, 413, {"detail": f"the request has more than {self._max_bytes:,} bytes"})
            return {"type": "http.disconnect"} if is_refused else message

        async def watched(message: Any) -> None:
            nonlocal has_begun
            if not is_refused:
                has_begun = True
                await asyncio.wait_for(send(message), self._idle_timeout_s)

        try:
            await app(scope, bounded, watched)
        except Exception as error:
            _log.warning("a request to %s failed: %s", scope["path"], type(error).__name__, exc_info=error)
            if not has_begun and not is_refused:
                await _answer(scope, send, 500, {"detail": "the request failed; the log of the server has the reason"})

    async def _pass_websocket(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        async def bounded() -> Any:
            code, message = 0, dict[str, Any]()
            try:
                message = await asyncio.wait_for(receive(), self._idle_timeout_s)
            except TimeoutError:
                code = 1001
            content: Any = message.get("text") or message.get("bytes") or ""
            if len(content) > self._max_bytes or (
                isinstance(content, str) and not content.isascii() and len(content.encode()) > self._max_bytes
            ):
                code = 1009
            if not code and message.get("type") == "websocket.receive" and message.get("text") is None:
                code = 1003  # OpenEnv's messages are text
            if not code:
                return message
            with contextlib.suppress(Exception):
                await watched({"type": "websocket.close", "code": code})
            return {"type": "websocket.disconnect", "code": code}

        async def watched(message: Any) -> None:
            try:
                await asyncio.wait_for(send(message), self._idle_timeout_s)
            except (TimeoutError, RuntimeError) as error:
                raise OSError("the client does not read, or has gone") from error  # as servers report it

        try:
            await app(scope, bounded, watched)
        except Exception as error:  # such as an answer that cannot be written
            _log.info("a session of %s ended: %s", scope["path"], type(error).__name__)
            with contextlib.suppress(Exception):
                await watched({"type": "websocket.close", "code": 1011})


async def _answer(scope: Any, send: Any, status: int, answer: Any) -> None:
    """Answer a request with JSON; refuse a WebSocket, which a server shows as HTTP 403."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = text_of_json(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
