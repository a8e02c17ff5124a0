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
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, ValidationError, create_model
from pydantic_core import to_jsonable_python

from ..._describing import message_of, what_is_invalid
from ..._packages import load
from ..._untrusted import is_loopback
from ..._visible import brief
from ...contexts._edits import shared_length
from ...contexts._protocol import Action
from ...episodes._actions import action_of
from ...episodes._agent import Observation
from ...errors import ActionError, ConfigError, EnvsdkError, EpisodeError
from ...messages import Message
from .._env import Env
from .._making import make, splits_of
from ._hosted import EnvsBySplit, HostedEnv, MakeEnv, describe
from ._wire import schemas_as_json

App: TypeAlias = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
_MIN_TOKEN = 16
_MAX_LISTED = 10_000
_TYPES = "openenv.core.env_server.types"
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
        makers[name] = functools.partial(make, env) if isinstance(env, str) else env
        makers[name] = functools.partial(makers[name], **options)
    if not makers:
        raise ConfigError("there is no environment to serve; give at least one")
    return makers


def _load(module: str) -> Any:
    return load(module, "a server of environments needs", "pip install 'envsdk[serve]'")


class _Served:
    """An environment for OpenEnv's server. A session has one object, and its own thread.

    It plays episodes at the message or the token level, or runs the methods of a `RemoteEnv`.

    Args:
        make: Makes an environment.
        known: Environments that all sessions share and that are not played. They describe themselves and their tasks.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    observation: Any
    """The class of observations, which subclasses have."""

    def __init__(self, make: MakeEnv, known: EnvsBySplit) -> None:
        super().__init__()
        self._known, self._made, self._hosted = known, EnvsBySplit(make), HostedEnv(make)
        self._env: Env | None = None
        self._level = "message"
        self._shown: dict[str, list[Message | None]] = {}
        self._steps = 0

    # Episodes.

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: Any = None,
        split: str | None = None,
        level: str = "message",
        **unknown: Any,
    ) -> Any:
        """Begin an episode.

        Args:
            seed: See `Env.reset`; likewise `episode_id` and `task`.
            episode_id: The id.
            task: The task: its index, or the row itself.
            split: The split of the tasks, for an environment with the option `split`.
            level: `message` or `token`.
            **unknown: Arguments that are refused.
        """
        if unknown:
            raise ConfigError(f"reset does not have the arguments {sorted(unknown)}; see the page on OpenEnv")
        if level not in _LEVELS:
            raise ConfigError(f"level is {brief(level)}; expected one of {_LEVELS}")
        env, given = self._made[split], {"task": task, "episode_id": episode_id}
        result = env.reset(seed=seed, options={name: value for name, value in given.items() if value is not None})
        self._env, self._level, self._shown, self._steps = env, level, {}, 0
        return self._observed(env, result[0], None, False, False, result[1])

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """Take an action."""
        if action.call is not None:
            return self.observation(answer=self._hosted.call(action.call))
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
        self._steps += 1
        return self._observed(env, *result)

    @property
    def state(self) -> Any:
        """The id of the episode, and how many actions it had."""
        episode_id = None if self._env is None else self._env.episode_id
        return _load(_TYPES).State(episode_id=episode_id, step_count=self._steps)

    def close(self) -> None:
        """Close the environments."""
        for one in (*self._made.values(), self._hosted):
            one.close()

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

    def _observed(
        self, env: Env, observation: Observation, reward: float | None, terminated: bool, truncated: bool, info: Any
    ) -> Any:
        fields: dict[str, Any] = {"done": terminated or truncated, "reward": reward, "terminated": terminated}
        fields |= {"truncated": truncated, "context": observation.context, "base": observation.base}
        fields["info"] = to_jsonable_python(info, fallback=_plain)
        fields |= {name: info[name] for name in ("rewards", "metrics")}
        if self._level == "token":
            if observation.media:
                media = [{"start": one.start, "stop": one.stop, "image": one.image.url} for one in observation.media]
                fields["info"]["media"] = media
            fields |= {name: getattr(observation, name) for name in ("keep", "extends")}
            return self.observation(**fields, tokens=observation.tokens.tolist())
        if observation.context not in env.episode.contexts:
            return self.observation(**fields)
        pending = env.episode.pending_reply(observation.context)
        view, turn = list(pending.context.view), pending.turn
        had = self._shown.get(observation.base, [])
        if turn.continuation is not None and not fields["done"]:
            self._shown[observation.context] = had
            return self.observation(**fields, keep=len(had), continues=_start(turn.continuation))
        keep = shared_length(had, view, _is_shown)
        self._shown[observation.context] = list(view)
        return self.observation(
            **fields,
            keep=keep,
            messages=[message.to_openai() for message in view[keep:]],
            tools=schemas_as_json(pending.context.tools),
            prefill=None if turn.prefill is None or fields["done"] else _start(turn.prefill),
        )

    # What OpenEnv's server also requests. A task is a mapping of arguments of `reset`.

    def get_metadata(self) -> Any:
        """Return the name and the description."""
        env = self._known[None]
        description = (inspect.getdoc(type(env)) or env.name).partition("\n")[0]
        return _load(_TYPES).EnvironmentMetadata(name=env.name, description=description, version=version("envsdk"))

    def list_splits(self) -> list[str]:
        """Return the values of the environment's option `split`, or `train` without one."""
        return splits_of(type(self._known[None])) or ["train"]

    def num_tasks(self, split: str) -> int:
        """Return how many tasks a split has.

        Raises:
            NotImplementedError: If every seed has its own.
        """
        env, _ = self._split(split)
        if env.tasks is None and env.n_tasks is None:
            raise NotImplementedError
        return len(env.tasks) if env.tasks is not None else env.n_tasks or 0

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return the arguments of `reset` that choose a task."""
        env, chosen = self._split(split)
        if index < 0 or (env.tasks is not None and index >= len(env.tasks)):
            raise IndexError(index)
        return {**chosen, "seed" if env.tasks is None else "task": index}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Return several of them, at most 10,000."""
        first, last = start or 0, self.num_tasks(split) if stop is None else stop
        if not 0 <= first <= last or last - first > _MAX_LISTED:
            raise IndexError(last)
        return [self.get_task(split, index) for index in range(first, last)]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return all of them."""
        return self.get_task_range(split)

    def _split(self, split: str) -> tuple[Env, dict[str, str]]:
        """Return an environment whose tasks are those of a split, and the argument of `reset` that chooses it."""
        if split not in self.list_splits():
            raise ConfigError(f"there is no split {brief(split)}; there are {self.list_splits()}")
        chosen = {"split": split} if "split" in self._known[None].Config.model_fields else {}
        return self._known[chosen.get("split")], chosen


def _is_shown(shown: Message | None, message: Message) -> bool:
    return shown is message or (shown is None and message.role == "assistant")


def _start(start: str | Message) -> dict[str, Any]:
    return {"content": start} if isinstance(start, str) else start.to_openai()


def _plain(value: Any) -> Any:
    return cast("Any", value).tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


@functools.cache
def _classes() -> tuple[type[Any], type[Any], type[Any]]:
    """Return OpenEnv's environment, action and observation for us."""
    core = _load(_TYPES)
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

    base = _load("openenv.core.env_server.interfaces").Environment
    return type("ServedEnvironment", (_Served, base), {"observation": observation}), action, observation


def _app_of(name: str, maker: MakeEnv, max_sessions: int, idle_timeout_s: float) -> Any:
    """Return OpenEnv's application of one environment."""
    served, action, observation = _classes()
    server, responses = _load("openenv.core.env_server"), _load("starlette.responses")
    known = EnvsBySplit(maker)
    known[None]  # an environment that cannot be made is refused here, and not in a session
    app = server.create_app(
        functools.partial(served, maker, known),
        action,
        observation,
        env_name=name,
        concurrency_config=server.ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=idle_timeout_s),
    )

    async def about(request: Any) -> Any:
        page = describe(known[request.query_params.get("split")]).model_dump_json()
        return responses.Response(page, media_type="application/json")

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
        self.names = list(apps)
        self._apps = apps
        self._token = None if token is None else token.encode()
        self._idle_timeout_s, self._max_bytes = idle_timeout_s, max_bytes
        self._json = _load("starlette.responses").JSONResponse
        pages = {"/health": {"status": "healthy"}, "/list_environments": self.names}
        routes = [_load("starlette.routing").Route(path, self._json(page)) for path, page in pages.items()]
        self._root = _load("starlette.applications").Starlette(routes=routes, lifespan=self._live)

    @contextlib.asynccontextmanager
    async def _live(self, _: Any) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for app in self._apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request of ASGI."""
        if scope["type"] == "lifespan":
            await self._root(scope, receive, send)
            return
        path = scope["path"]
        first, _, rest = path.lstrip("/").partition("/")
        app = self._apps[self.names[0]] if len(self._apps) == 1 else self._root
        if first in self._apps:
            app = self._apps[first]
            path = path if rest in _TASK_API else f"/{rest}"  # paths of the task API begin with the name there, too
        is_health = scope["type"] == "http" and path == "/health"  # which reveals nothing
        refusal = None if is_health else self._refusal(dict(scope["headers"]))
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self._pass(app, {**scope, "path": path, "raw_path": path.encode()}, receive, send)

    def _refusal(self, headers: Mapping[bytes, bytes]) -> Any:
        """Return the answer to a request that is refused, or None."""
        if self._token is not None:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                detail = "the token is missing or wrong; send it as a bearer token"
                return self._json({"detail": detail}, 401, {"www-authenticate": "Bearer"})
        else:
            for host in (b"//" + headers.get(b"host", b""), headers.get(b"origin", b"//localhost")):
                name = ""
                with contextlib.suppress(ValueError):
                    name = urlsplit(host.decode("latin-1")).hostname or ""
                if not is_loopback(name):  # against pages of other sites, and DNS rebinding
                    detail = f"without a token, only requests from and to localhost are answered, not {brief(name)}"
                    return self._json({"detail": detail}, 403)
        if b"transfer-encoding" in headers:
            return self._json({"detail": "send the length of the request, and not its parts"}, 411)
        if int(headers.get(b"content-length", b"0")) > self._max_bytes:
            return self._json({"detail": f"the request has more than {self._max_bytes:,} bytes"}, 413)
        return None

    async def _pass(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, and end it if its client sends too much, or sends or reads nothing for too long."""

        async def bounded() -> Any:
            code = 1001
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(receive(), self._idle_timeout_s)
                content = message.get("text") or message.get("bytes") or b""
                size = len(content.encode() if isinstance(content, str) else content)
                if size <= self._max_bytes:
                    return message
                code = 1009
            return {"type": f"{scope['type']}.disconnect", "code": code}

        async def watched(message: Any) -> None:
            await asyncio.wait_for(send(message), self._idle_timeout_s)

        try:
            await app(scope, bounded, watched)
        except Exception as error:  # such as an answer that cannot be written
            if scope["type"] == "http":
                raise
            _log.info("a session of %s ended: %s", scope["path"], type(error).__name__)
            with contextlib.suppress(Exception):
                await watched({"type": "websocket.close", "code": 1011})
