"""Environments that are coroutines of another framework: they ask a model for replies, and return a score at the end.

The coroutine runs as a task inside `start` and `respond`, from one request to the next. A request has a whole
conversation, as the framework keeps it. What is new in it becomes the turn; a conversation that does not continue the
earlier one is a declared edit. A copy of the environment runs the coroutine again with the same replies.
"""

import asyncio
import contextvars
import pkgutil
import types
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from ...contexts._edits import Edit, shared_length
from ...episodes._agent import MAIN
from ...episodes._turn import Opening, Turn
from ...errors import ConfigError, EpisodeError, MissingPackage
from ...limits import Limits
from ...messages import Message, ToolSchema
from .._env import Env
from .._loop_tasks import collect
from ._random_state import GlobalRandom

_state: contextvars.ContextVar[GlobalRandom | None] = contextvars.ContextVar("envsdk_random_state", default=None)


@types.coroutine
def _isolating(coroutine: Coroutine[Any, Any, Any], state: GlobalRandom) -> Generator[Any, Any, Any]:
    resume: Callable[[Any], Any] = coroutine.send
    value: Any = None
    try:
        while True:
            try:
                with state.active(may_print=True):
                    waits_for = resume(value)
            except StopIteration as end:
                return end.value
            try:
                value, resume = (yield waits_for), coroutine.send
            except GeneratorExit:
                raise
            except BaseException as error:
                value, resume = error, coroutine.throw
    finally:  # a garbage collection may have closed it already
        coroutine.close()


async def isolated(coroutine: Coroutine[Any, Any, Any], state: GlobalRandom) -> Any:
    """Run a coroutine with a state of the global random generators, which is left wherever the coroutine waits."""
    return await _isolating(coroutine, state)


def _isolate_tasks(loop: Any) -> None:
    """Let the tasks that a coroutine of another framework starts have its random state, too."""
    plain: Any = asyncio.Task
    make: Any = loop.get_task_factory()
    if getattr(make, "isolates", False):
        return

    def create_task(loop: Any, coroutine: Any, **options: Any) -> Any:
        state = _state.get()
        coroutine = coroutine if state is None else isolated(coroutine, state)
        return plain(coroutine, loop=loop, **options) if make is None else make(loop, coroutine, **options)

    cast("Any", create_task).isolates = True
    loop.set_task_factory(create_task)


class ReplyRequest(NamedTuple):
    """A request for a model's reply.

    Attributes:
        messages: The whole conversation.
        tools: The tools that the model may call.
        agent: The name of the agent, which is the role of its contexts; None if there is only one.
        is_trainable: Whether its contexts give samples.
        options: Further arguments of the `Turn`: `stop`, `max_tokens`, `sampling`.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    agent: str | None = None
    is_trainable: bool = True
    options: Mapping[str, Any] = {}


Ask = Callable[[ReplyRequest], Awaitable[Message]]
"""Returns the model's reply."""


class _Shown(NamedTuple):
    """The messages and the tools of a context."""

    context: str | None
    agent: str | None
    messages: list[Message]
    tools: Sequence[ToolSchema]


class _Run:
    """A coroutine that runs, and its requests that are not answered yet."""

    def __init__(self, play: Callable[[Ask], Coroutine[Any, Any, Turn]], seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        _isolate_tasks(self.loop)
        self._requests: asyncio.Queue[tuple[ReplyRequest, asyncio.Future[Message]] | None] = asyncio.Queue()
        self._reply: asyncio.Future[Message] | None = None
        context = contextvars.copy_context()
        context.run(_state.set, GlobalRandom(seed))
        self._task: asyncio.Task[Turn] = context.run(self.loop.create_task, play(self._ask))
        self._task.add_done_callback(lambda _: self._requests.put_nowait(None))
        collect(self._task)  # so that it ends with the episode, in a caller's event loop, too

    async def _ask(self, request: ReplyRequest) -> Message:
        reply: asyncio.Future[Message] = self.loop.create_future()
        self._requests.put_nowait((request, reply))
        return await reply

    async def advance(self, reply: Message | None = None) -> ReplyRequest | Turn:
        """Answer the last request, and return the next one, or the last turn."""
        if self._reply is not None and reply is not None and not self._reply.done():  # or cancelled: another failed
            self._reply.set_result(reply)
        asked = await self._requests.get()
        if asked is None:
            return self._task.result()
        request, self._reply = asked
        return request


def names_of(package: str, version: str, paths: str) -> Any:
    """Return an object with what the paths in a package name: `module:name module:name`.

    Raises:
        MissingPackage: If the package is not installed, or is another version that lacks a name.
    """
    try:
        found = {path.rpartition(":")[2].lstrip("_"): pkgutil.resolve_name(path) for path in paths.split()}
    except (ImportError, AttributeError) as error:
        raise MissingPackage(
            f"the adapter needs {package} {version} ({error}): pip install '{package}=={version}'"
        ) from error
    return types.SimpleNamespace(**found)


@dataclass(eq=False, slots=True)
class Source:
    """An environment of another framework with its tasks, which all copies of an adapter share.

    Attributes:
        owner: The environment.
        items: Its tasks.
        rows: A row for each task.
        made_by: The function that made this, and its arguments. A pickle contains only them.
    """

    owner: Any
    items: list[Any]
    rows: list[dict[str, Any]]
    made_by: tuple[Callable[..., "Source"], tuple[Any, ...]]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Source":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made_by


class CoroutineEnv(Env):
    """An environment that is a coroutine of another framework. Subclasses write `_load` and `_play`."""

    default_limits: ClassVar[Limits] = Limits(max_steps=100)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    _envsdk_run: _Run | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.tasks is not None:
            raise ConfigError(f"tasks= is given to {self.name}, whose tasks are those of the environment that it plays")
        self._envsdk_source = self._load()
        self.tasks = self._envsdk_source.rows

    @abstractmethod
    def _load(self) -> Source:
        """Return the environment that `config` describes."""

    @abstractmethod
    async def _play(self, ask: Ask) -> Turn:
        """Play an episode, with the replies that `ask` returns, and return the last turn."""

    async def start(self) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the coroutine, and return its first request."""
        self._envsdk_replies: list[Message] = []
        self._envsdk_contexts: list[_Shown] = []  # the one that was asked last is last
        self._envsdk_seed = int(self.np_random.integers(2**63))
        self._envsdk_run = _Run(self._play, self._envsdk_seed)
        return self._turn(await self._envsdk_run.advance())

    async def respond(self, reply: Message) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next request, or the score.

        Raises:
            EpisodeError: If this is a copy, and the coroutine asked something else when it ran again.
        """
        run, known = self._envsdk_run, self._envsdk_contexts[-1].messages
        if run is None or run.loop is not asyncio.get_running_loop():  # a copy, or another thread
            run = self._envsdk_run = _Run(self._play, self._envsdk_seed)
            asked = await run.advance()
            for earlier in self._envsdk_replies:
                asked = await run.advance(earlier) if isinstance(asked, ReplyRequest) else asked
            if isinstance(asked, Turn) or not len(known) == len(asked.messages) == shared_length(
                known, asked.messages, _has_same_content
            ):
                raise EpisodeError(
                    f"the code that {self.name} plays asked something else when it ran again for a copy: it depends on "
                    "more than its seed and the replies, such as the time, a service or a mutable global"
                )
        self._envsdk_replies.append(reply)
        known.append(reply)
        return self._turn(await run.advance(reply))

    def _turn(self, asked: ReplyRequest | Turn) -> Turn:
        """Return the turn of a request: the part of its conversation that no context has yet.

        The context is the one of the agent whose conversation the request continues, or changes the least.
        """
        if isinstance(asked, Turn):
            return asked
        messages = list(asked.messages)
        has_system = bool(messages) and messages[0].role == "system"
        options: dict[str, Any] = {"reward": {}, **asked.options, "tools": list(asked.tools)}
        own = [shown for shown in self._envsdk_contexts if shown.agent == asked.agent]
        known = [(shared_length(shown.messages, messages, _has_same_content), shown) for shown in reversed(own)]
        keep, shown = max(known, key=lambda pair: pair[0], default=(0, None))
        if shown is None or not has_system < keep < len(messages):
            name = asked.agent if not own else f"{asked.agent or 'main'}-{len(own) + 1}"
            if name is not None:
                options["opening"] = Opening(asked.agent or "main", is_trainable=asked.is_trainable)
            self._envsdk_contexts.append(_Shown(name, asked.agent, messages, asked.tools))
            system = messages[0].content if has_system else None
            return Turn(messages[has_system:], system=system, context=name, **options)
        if shown.tools == asked.tools:
            del options["tools"]
        if keep < len(shown.messages):
            options["edit"] = Edit(keep, "the framework changed the conversation")
        self._envsdk_contexts.remove(shown)
        self._envsdk_contexts.append(shown._replace(messages=messages, tools=asked.tools))
        return Turn(messages[keep:], context=shown.context or MAIN, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_envsdk_run": None}


def _has_same_content(first: Message, second: Message) -> bool:
    """Return whether two messages are equal, except for reasoning and ids."""

    def content(message: Message) -> Any:
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        return message.role, message.content.strip(), message.images, calls

    return content(first) == content(second)
