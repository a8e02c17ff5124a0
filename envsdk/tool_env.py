"""Environments in which a model calls tools until it answers."""

import asyncio
import contextlib
import contextvars
import copy
import functools
import inspect
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from pydantic import Field, ValidationError
from pydantic_core import to_json

from .env import Env, EnvConfig
from .errors import ConfigError, EnvsdkError, ToolError, what_is_invalid
from .messages import Message, ToolCall, ToolSchema
from .renderer import NOT_ENDED
from .tools import Tool, as_tool
from .turn import Turn

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ToolEnvConfig(EnvConfig):
    """The options of every `ToolEnv`. A subclass declares its own in a subclass of this, named `Config`."""

    max_bad_replies: int = Field(default=3, ge=0)
    """So many replies in a row of which nothing could be used are answered with what was wrong; one more ends the
    episode."""
    max_result_chars: int = Field(default=20_000, ge=1)
    """A longer result is cut, and says so."""
    tool_timeout_s: float | None = Field(default=None, gt=0)
    """How long a call of a tool without a limit of its own may take, in seconds; see `Tool.timeout_s`."""
    concurrent_tools: bool = False
    """Whether the calls of one reply run at the same time. Their results come in the order of the calls in any case."""


class Answer(NamedTuple):
    """What a call is answered with."""

    text: str
    is_error: bool = False


class ToolEnv(Env):
    """An environment in which the model calls tools until it answers without a call. Write `start` and `finish`.

    Tools are the methods that `envsdk.tool` decorates, and what is in `tools`. A call that fails is answered with what
    was wrong, so that the model can do better: JSON that cannot be read, a tool that is not there, wrong arguments, an
    exception in the tool, a time limit.

    Each step has the metrics `tool_calls`, `tool_errors` (calls that failed) and `bad_replies`.
    """

    Config: ClassVar[type[EnvConfig]] = ToolEnvConfig
    tools: "Sequence[Tool | Callable[..., Any]]" = ()
    """Tools that are no methods; functions are made tools. It may be set in `__init__`."""
    told_exceptions: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """Exceptions of a tool that are told to the model. Others end the episode as failed, and so do errors of envsdk but
    `ToolError`."""

    def finish(self, reply: Message) -> Turn | Awaitable[Turn]:
        """Answer a reply without a call: mostly, score it and end the episode. It may be `async def`."""
        raise NotImplementedError(f"{type(self).__name__} has no finish(): it answers a reply without a call")

    def after_tools(self, reply: Message, results: list[Message]) -> Turn | Awaitable[Turn]:
        """Answer a reply whose calls were run: with the results, and perhaps a reward or an end. It may be `async def`.

        Args:
            reply: The reply.
            results: A tool message for each of its calls, in order.
        """
        return Turn(results)

    def on_bad_reply(self, reply: Message, corrections: list[Message], in_a_row: int) -> Turn | Awaitable[Turn]:
        """Answer a reply of which nothing could be used: no call can be run, and what else it says is malformed.

        Args:
            reply: The reply; `reply.errors` says what is wrong.
            corrections: Messages that say so, too: one for each call, or a user's.
            in_a_row: How many such replies came one after the other, this one included.
        """
        return Turn(corrections, terminated=in_a_row > self.config.max_bad_replies)

    def respond(self, reply: Message) -> Turn | Awaitable[Turn]:
        """Run the calls of a reply, or finish."""
        responding = self._respond(reply)
        return responding if self._must_wait else _run_at_once(responding)

    # How it works.

    def _read_config(self, config: Any) -> EnvConfig:
        if not issubclass(self.Config, ToolEnvConfig):
            raise ConfigError(f"{type(self).__name__}.Config is no subclass of ToolEnvConfig, as that of a ToolEnv is")
        return super()._read_config(config)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        super()._begin(seed, options)
        self._by_name = self._tools()
        self._must_wait = self._waits()
        self._bad_replies = 0

    def _default_tools(self) -> list[ToolSchema]:
        return [tool.schema for tool in self._by_name.values()]

    def _waits(self) -> bool:
        """Whether anything has to be waited for; if not, `step` needs no event loop."""
        hooks = (self.start, self.finish, self.after_tools, self.on_bad_reply)
        return any(map(inspect.iscoroutinefunction, hooks)) or any(
            tool.is_async or self._timeout_s(tool) is not None for tool in self._tools().values()
        )

    def _tools(self) -> dict[str, Tool]:
        """The tools by name."""
        methods = [getattr(self, name) for name in _tool_methods(type(self))]
        tools = [*methods, *map(as_tool, self.tools)]
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) < len(tools):
            raise ConfigError(f"{type(self).__name__} has two tools of one name: {', '.join(t.name for t in tools)}")
        return by_name

    def _timeout_s(self, tool: Tool) -> float | None:
        return self.config.tool_timeout_s if tool.timeout_s is None else tool.timeout_s

    async def _respond(self, reply: Message) -> Turn:
        answers = await self._run_calls(reply.tool_calls)
        messages = [
            Message(role="tool", content=answer.text, name=call.name or None, tool_call_id=call.id)
            for call, answer in zip(reply.tool_calls, answers, strict=True)
        ]
        is_bad = all(call.error for call in reply.tool_calls) and any(error != NOT_ENDED for error in reply.errors)
        self._bad_replies = self._bad_replies + 1 if is_bad else 0
        if is_bad:
            turn = self.on_bad_reply(reply, messages or [_correction(reply)], self._bad_replies)
        elif messages:
            turn = self.after_tools(reply, messages)
        else:
            turn = self.finish(reply)
        failed = sum(answer.is_error for answer in answers)
        metrics = {"tool_calls": len(answers), "tool_errors": failed, "bad_replies": int(is_bad)}
        return _with_metrics(await turn if inspect.isawaitable(turn) else turn, metrics)

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Answer]:
        left = self._running.tool_calls_left(calls)
        running = (self._answer(call, self._by_name.get(call.name), index < left) for index, call in enumerate(calls))
        return await _together(running) if self.config.concurrent_tools else [await answer for answer in running]

    async def _answer(self, call: ToolCall, tool: Tool | None, is_allowed: bool) -> Answer:
        """Run a call. Whatever is wrong with it, there is an answer."""
        if call.error is not None:
            return self._failed(call.error)
        if tool is None:
            return self._failed(f"the tool {call.name!r} has no function in this environment")
        if not is_allowed:
            return self._failed("it was not run: no more calls of tools are allowed")
        try:
            arguments = tool.read(_arguments(call))
        except ValidationError as error:
            return self._failed(f"{tool.name}: wrong arguments: {what_is_invalid(error)}")
        except ValueError as error:
            return self._failed(f"{tool.name}: wrong arguments: {error}")
        try:
            return Answer(self._cut(_as_text(await self._call(tool, arguments))))
        except ToolError as error:
            return self._failed(str(error))
        except EnvsdkError:
            raise
        except self.told_exceptions as error:
            _log.info("tool %s: %r", tool.name, error)
            return self._failed(f"{tool.name}: {type(error).__name__}: {error}")
        except Exception as error:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        limit = self._timeout_s(tool)
        if limit is None:
            result = tool.function(**arguments)
            return await result if inspect.isawaitable(result) else result
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                if tool.is_async:
                    return await tool.function(**arguments)
                return await _in_thread(functools.partial(tool.function, **arguments))
        except TimeoutError:
            if not clock.expired():
                raise  # it is the tool's own
            raise ToolError(f"{tool.name}: it did not finish within {limit:g} s") from None

    def _failed(self, what: str) -> Answer:
        return Answer(self._cut(f"Error: {what}"), is_error=True)

    def _cut(self, text: str) -> str:
        limit = self.config.max_result_chars
        return text if len(text) <= limit else f"{text[:limit]}\n[cut: {limit:,} of {len(text):,} characters are shown]"


@functools.cache
def _tool_methods(env: type) -> list[str]:
    """The names of the methods that are tools, in the order in which the classes define them."""
    names = dict.fromkeys(name for cls in reversed(env.__mro__) for name in vars(cls))
    methods = [name for name in names if isinstance(inspect.getattr_static(env, name), Tool)]
    hidden = [name for name in methods if hasattr(ToolEnv, name)]
    if hidden:
        raise ConfigError(
            f"the tool {hidden[0]!r} of {env.__name__} hides a method that every environment has; give the function "
            f"another name, and the tool this one: @tool(name={hidden[0]!r})"
        )
    return methods


def _run_at_once(responding: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        responding.send(None)
    except StopIteration as result:
        return result.value
    responding.close()
    raise ConfigError("a plain function of a ToolEnv returned something to wait for; declare it `async def`")


async def _together(running: Any) -> list[Answer]:
    """Wait for all; if one raises, for none."""
    tasks = [asyncio.ensure_future(answer) for answer in running]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own; one that never ends does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def tell(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            method, value = future.set_result, context.run(function)
        except BaseException as error:
            method, value = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, method, value)

    context = contextvars.copy_context()
    threading.Thread(target=run, daemon=True, name="envsdk-tool").start()
    return await future


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments by name; a text in their place may be JSON, as it is in the OpenAI form."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"they are no JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"they are no JSON object, but a {type(arguments).__name__}")
    return cast("dict[str, Any]", arguments)


def _as_text(result: Any) -> str:
    """What the model gets of a result."""
    text = result if isinstance(result, str) else to_json(result).decode()
    text.encode()  # half of a surrogate pair is no text
    return text


def _correction(reply: Message) -> Message:
    wrong = "; ".join(reply.errors)
    return Message(role="user", content=f"Your reply could not be read: {wrong}. Please reply again.")


def _with_metrics(turn: Turn, metrics: Mapping[str, float]) -> Turn:
    if not isinstance(turn, Turn):  # pyright: ignore[reportUnnecessaryIsInstance]
        return turn  # it will be refused where all turns are
    turn = copy.copy(turn)
    turn.metrics = {**metrics, **turn.metrics}
    return turn
