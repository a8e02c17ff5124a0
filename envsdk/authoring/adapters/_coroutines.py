"""Environments that are coroutines of another framework: they ask a model for replies, and return a score at the end.

The coroutine runs as a task inside `start` and `respond`, from one request to the next. A request has a whole
conversation, as the framework keeps it. What is new in it becomes the turn; a conversation that does not continue the
earlier one is a declared edit. A copy of the environment runs the coroutine again with the same replies.
"""

import asyncio
import contextvars
import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from ...contexts._edits import Edit
from ...episodes._agent import MAIN
from ...episodes._turn import Opening, Turn
from ...limits import Limits
from ...messages import Message, ToolSchema
from .._env import Env

_lock = threading.RLock()
"""The global random generators belong to the process."""


class RandomState:
    """The state of the global random generators inside `with`. Outside, they keep their own."""

    def __init__(self, seed: int) -> None:
        python, legacy = random.Random(seed), np.random.RandomState(seed % 2**32)
        self._inside: tuple[Any, Any] = python.getstate(), legacy.get_state(legacy=False)
        self._outside: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        _lock.acquire()
        self._outside.append((random.getstate(), np.random.get_state(legacy=False)))
        random.setstate(self._inside[0])
        np.random.set_state(self._inside[1])

    def __exit__(self, *_: object) -> None:
        self._inside = random.getstate(), np.random.get_state(legacy=False)
        python, legacy = self._outside.pop()
        random.setstate(python)
        np.random.set_state(legacy)
        _lock.release()


_state: contextvars.ContextVar[RandomState | None] = contextvars.ContextVar("envsdk_random_state", default=None)


class _Isolated:
    """Runs a coroutine with a `RandomState`, which is left wherever the coroutine waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], state: RandomState) -> None:
        self._coroutine, self._random = coroutine, state

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            try:
                with self._random:
                    waits_for = resume(value)
            except StopIteration as end:
                return end.value
            try:
                value, resume = (yield waits_for), self._coroutine.send
            except BaseException as error:
                value, resume = error, self._coroutine.throw


async def isolated(coroutine: Coroutine[Any, Any, Any], state: RandomState) -> Any:
    """Run a coroutine with a random state, which is left wherever the coroutine waits."""
    return await _Isolated(coroutine, state)


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


class _Shown(NamedTuple):
    """The messages and the tools of a context."""

    context: str | None
    agent: str | None
    messages: list[Message]
    tools: Sequence[ToolSchema]


class _Run:
    """A coroutine that runs, and its requests that are not answered yet."""

    def __init__(self, play: Callable[[], Coroutine[Any, Any, Turn]], seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        _isolate_tasks(self.loop)
        self._requests: asyncio.Queue[tuple[ReplyRequest, asyncio.Future[Message]] | None] = asyncio.Queue()
        self._reply: asyncio.Future[Message] | None = None
        context = contextvars.copy_context()
        context.run(_state.set, RandomState(seed))
        self._task: asyncio.Task[Turn] = context.run(self.loop.create_task, play())
        self._task.add_done_callback(lambda _: self._requests.put_nowait(None))

    async def ask(self, request: ReplyRequest) -> Message:
        reply: asyncio.Future[Message] = self.loop.create_future()
        self._requests.put_nowait((request, reply))
        return await reply

    async def advance(self, reply: Message | None = None) -> ReplyRequest | Turn:
        """Answer the last request, and return the next one, or the last turn."""
        if self._reply is not None and reply is not None:
            self._reply.set_result(reply)
        asked = await self._requests.get()
        if asked is None:
            return self._task.result()
        request, self._reply = asked
        return request


class CoroutineEnv(Env):
    """An environment that is a coroutine of another framework. Subclasses write `_play`."""

    default_limits: ClassVar[Limits] = Limits(max_steps=100)
    _envsdk_run: _Run | None = None

    @abstractmethod
    async def _play(self) -> Turn:
        """Play an episode, with the replies of `_ask`, and return the last turn."""

    async def _ask(self, request: ReplyRequest) -> Message:
        """Return the model's reply."""
        assert self._envsdk_run is not None
        return await self._envsdk_run.ask(request)

    async def start(self) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the coroutine, and return its first request."""
        self._envsdk_replies: list[Message] = []
        self._envsdk_contexts: list[_Shown] = []  # the one that was asked last is last
        self._envsdk_seed = int(self.np_random.integers(2**63))
        self._envsdk_run = _Run(self._play, self._envsdk_seed)
        return self._turn(await self._envsdk_run.advance())

    async def respond(self, reply: Message) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next request, or the score."""
        if (
            self._envsdk_run is None or self._envsdk_run.loop is not asyncio.get_running_loop()
        ):  # a copy, or another thread
            self._envsdk_run = _Run(self._play, self._envsdk_seed)
            _ = await self._envsdk_run.advance()
            for earlier in self._envsdk_replies:
                _ = await self._envsdk_run.advance(earlier)
        self._envsdk_replies.append(reply)
        self._envsdk_contexts[-1].messages.append(reply)
        return self._turn(await self._envsdk_run.advance(reply))

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
        known = [(_common(shown.messages, messages), shown) for shown in reversed(own)]
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


def _common(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Return the number of equal messages at the start. Reasoning and ids may differ."""

    def content(message: Message) -> Any:
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        return message.role, message.content.strip(), message.images, calls

    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if content(a) != content(b)), min(len(first), len(second)))
