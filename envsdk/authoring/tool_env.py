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
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from pydantic import Field, ValidationError
from pydantic_core import to_json

from ..episodes.driver import driver_of, is_being_cancelled
from ..episodes.functions import is_async
from ..episodes.handoff import Handoff, HandoffResult, is_handoff
from ..episodes.method_errors import wrong_turn
from ..episodes.turn import Turn
from ..errors import ConfigError, EnvsdkError, ToolError, message_of, what_is_invalid
from ..limits import StopReason
from ..messages import Message, ToolCall, ToolSchema, check_json
from .env import Env, Returned
from .machinery import DRIVERS, EnvConfig, EnvDriver
from .mistakes import refuse_without_tools
from .tools import Tool, as_tool

_MAX_REPORTED = 8
_MAX_ERROR_CHARS = 1000
_log = logging.getLogger(__name__)
_logged: set[tuple[str, str, str, str, int]] = set()
"""Which crashes of tools were logged, by environment, tool, exception and place in the code."""


class ToolEnvConfig(EnvConfig):
    """The options of every `ToolEnv`. A subclass declares its own in a subclass of this, named `Config`."""

    max_bad_replies: int = Field(default=3, ge=0)
    """So many replies in a row of which nothing could be used are answered with what was wrong; one more ends the
    episode."""
    max_result_chars: int = Field(default=20_000, ge=1)
    """A longer result is cut, and says so."""
    tool_timeout_s: float | None = Field(default=None, gt=0)
    """How long a call of a tool without a limit of its own may take, in seconds; see `Tool.timeout_s`."""
    raise_tool_errors: bool = False
    """Whether an exception of a tool that is no `ToolError` ends the episode, in place of being told to the model: for
    looking for a tool's own mistakes."""
    concurrent_tools: bool = False
    """Whether the calls of one reply run at the same time, plain functions in threads. Their results come in the order
    of the calls in any case."""


class Answer(NamedTuple):
    """What a call is answered with."""

    text: str
    is_error: bool = False
    was_run: bool = True
    """Whether its tool was called at all."""
    handoffs: tuple[Handoff, ...] = ()
    """To whom the tool handed over; their results are the answer."""
    is_crash: bool = False
    """Whether the tool itself failed, and not what the model asked of it."""


class ToolEnv(Env):
    """An environment in which the model calls tools until it answers without a call. Write `start` and `finish`.

    Tools are the methods that `envsdk.tool` decorates, and what is in `tools`. A call that fails is answered with what
    was wrong, so that the model can do better: JSON that cannot be read, a tool that is not there, wrong arguments, an
    exception in the tool, a time limit.

    A tool raises a `ToolError` for what the model got wrong. Any other exception is a crash: the model is told of it,
    too, but it is the tool's own mistake until `told_exceptions` names its class. The first of each place in the code
    is logged with its traceback, all are counted, and `raise_tool_errors=True` raises them.

    Each step has the metrics `tool_calls`, `tool_errors` (calls that failed), `tool_crashes` and `bad_replies`.
    """

    Config: ClassVar[type[EnvConfig]] = ToolEnvConfig
    tools: "Sequence[Tool | Callable[..., Any]]" = ()
    """Tools that are no methods; functions are made tools. It may be set in `__init__`."""
    told_exceptions: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """Exceptions of a tool that are told to the model. Others end the episode as failed, and so do errors of envsdk but
    `ToolError`. A class that is named here, other than `Exception` itself, is expected, and no crash."""

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
        """Answer a reply of which nothing could be used: none of its calls could be run, or it says nothing at all.

        Args:
            reply: The reply; `reply.errors` says what is wrong.
            corrections: Messages that say so, too: one for each call, or a user's.
            in_a_row: How many such replies came one after the other, this one included.
        """
        return Turn(corrections, terminated=in_a_row > self.config.max_bad_replies)

    async def respond(self, reply: Message) -> Returned:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the calls of a reply, or finish. Of a reply that went on, only what is new is answered.

        What tools handed over to goes first; its results are their answers.
        """
        return await tool_driver_of(self).respond(reply)

    async def resume(self, result: list[HandoffResult]) -> Returned:
        """Answer the calls that handed over with what came of it, and go on as after any tool."""
        return await tool_driver_of(self).resume(result)

    def after_handoff(self, result: Any) -> Turn | Awaitable[Turn]:
        """Go on after a handoff of `finish`, `after_tools` or `on_bad_reply`, such as to a judge; see `Env.resume`."""
        raise NotImplementedError(f"{type(self).__name__} has no after_handoff(): it returns the Turn after a Handoff")

    def default_tools(self) -> list[ToolSchema]:
        """See `Env.default_tools`."""
        return [tool.schema for tool in tool_driver_of(self).tools().values()]


class ToolDriver(EnvDriver):
    """The machinery of a `ToolEnv`."""

    env: ToolEnv
    config_base: ClassVar[type[EnvConfig]] = ToolEnvConfig
    runs_tools: ClassVar[bool] = True
    may_be_async: ClassVar[tuple[str, ...]] = ("start", "finish", "after_tools", "on_bad_reply", "after_handoff")

    async def respond(self, reply: Message) -> Returned:
        """See `ToolEnv.respond`."""
        calls = reply.tool_calls[self._answered :]
        answers = self._without_busy(await self._run_calls(calls))
        handoffs = [handoff for answer in answers for handoff in answer.handoffs]
        if handoffs:
            self._handed_over = reply, calls, answers
            return handoffs
        return await self._conclude(reply, calls, answers)

    async def resume(self, result: list[HandoffResult]) -> Returned:
        """See `ToolEnv.resume`."""
        if self._handed_over is None:
            turn = await self._asked("after_handoff", result)
            if isinstance(turn, Turn) and turn.tools is not None:
                self._functions = {**self.tools(), **turn.functions}
            return turn
        (reply, calls, answers), self._handed_over = self._handed_over, None
        left = iter(result)
        answers = [self._with_results(answer, [next(left) for _ in answer.handoffs]) for answer in answers]
        return await self._conclude(reply, calls, answers)

    def _without_busy(self, answers: list[Answer]) -> list[Answer]:
        """An environment can be one sub-agent at a time: a second call of a reply for the same one is told so."""
        seen: set[int] = set()
        free: list[Answer] = []
        for answer in answers:
            envs = {id(handoff.env) for handoff in answer.handoffs}
            is_busy = len(envs) < len(answer.handoffs) or bool(envs & seen)
            seen |= envs
            free.append(
                self._failed("it is busy with another call of this reply; call it again") if is_busy else answer
            )
        return free

    def _with_results(self, answer: Answer, results: Sequence[HandoffResult]) -> Answer:
        if not results:
            return answer
        texts = [_as_answer(one) for one in results]
        if len(texts) > 1:
            texts = [f"{one.context.rpartition('/')[2]}: {text}" for one, text in zip(results, texts, strict=True)]
        failed = any(one.error is not None for one in results)
        return Answer(self._cut("\n\n".join(texts)), is_error=failed)

    async def _conclude(self, reply: Message, calls: Sequence[ToolCall], answers: Sequence[Answer]) -> Returned:
        """Answer a reply, when all its calls have an answer."""
        messages = [
            Message(role="tool", content=answer.text, name=call.name or None, tool_call_id=call.id)
            for call, answer in zip(calls, answers, strict=True)
        ]
        says_nothing = bool(reply.errors) and not reply.content.strip() and not self._answered
        is_bad = not any(answer.was_run for answer in answers) if answers else says_nothing
        self._bad_replies = self._bad_replies + 1 if is_bad else 0
        if is_bad:
            turn = await self._asked("on_bad_reply", reply, messages or [_correction(reply)], self._bad_replies)
        elif messages:
            turn = await self._asked("after_tools", reply, messages)
        else:
            turn = await self._asked("finish", reply)
        if not isinstance(turn, Turn):
            return turn
        if turn.tools is not None:
            self._functions = {**self.tools(), **turn.functions}
        self._answered = len(reply.tool_calls) if turn.continuation is not None else 0
        metrics = {
            "tool_calls": len(answers),
            "tool_errors": sum(answer.is_error for answer in answers),
            "tool_crashes": sum(answer.is_crash for answer in answers),
            "bad_replies": int(is_bad),
        }
        return _with_metrics(turn, metrics)

    async def _asked(self, method: str, *arguments: Any) -> Returned:
        """What a method of the author says."""
        said: object = getattr(self.env, method)(*arguments)
        said = await said if inspect.isawaitable(said) else said
        if isinstance(said, Turn) or is_handoff(said):
            return cast("Returned", said)
        raise wrong_turn(self.env, method, said)

    def _read_config(self, config: Any) -> EnvConfig:
        _tool_methods(type(self.env))
        self._functions: dict[str, Tool] | None = None  # those of the current episode
        return super()._read_config(config)

    def _prepare(self, seed: int | None, chosen: list[Any]) -> None:
        super()._prepare(seed, chosen)
        self._functions = None
        self._handed_over: tuple[Message, Sequence[ToolCall], list[Answer]] | None = None
        self._bad_replies = 0
        self._answered = 0  # how many calls of a reply that goes on were answered

    def started(self, turn: Turn | Handoff) -> None:
        """Learn the tools of the first turn; an environment without a tool is refused."""
        self._functions = {**self.tools(), **getattr(turn, "functions", {})}
        if not self._functions and getattr(turn, "tools", ()) is None:  # a handoff has none
            refuse_without_tools(self.env)

    def waits(self) -> bool:
        """Whether anything has to be waited for; if not, `step` needs no event loop."""
        hooks = (getattr(self.env, name) for name in self.may_be_async)
        is_own = type(self.env).respond is ToolEnv.respond
        if not is_own or self.config.concurrent_tools or any(map(is_async, hooks)):
            return True
        tools = self.tools() if self._functions is None else self._functions
        return any(tool.is_async or self._timeout_s(tool) is not None for tool in tools.values())

    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        try:
            given = [as_tool(tool) for tool in self.env.tools]
        except TypeError as error:
            raise ConfigError(
                f"`tools` of {type(self.env).__name__} is a list of tools and functions: {error}"
            ) from error
        tools = [*map(self._bound, _tool_methods(type(self.env))), *given]
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) < len(tools):
            raise ConfigError(
                f"{type(self.env).__name__} has two tools of one name: {', '.join(t.name for t in tools)}"
            )
        return by_name

    def _bound(self, name: str) -> Tool:
        tool = getattr(self.env, name)
        if not isinstance(tool, Tool):
            raise ConfigError(f"the tool {name!r} of {type(self.env).__name__} is hidden by an attribute of that name")
        return tool

    def _timeout_s(self, tool: Tool) -> float | None:
        return self.config.tool_timeout_s if tool.timeout_s is None else tool.timeout_s

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Answer]:
        left = self.running.usage.tool_calls_left(len(calls))
        running = (self._answer(call, index < left) for index, call in enumerate(calls))
        return await _together(list(running)) if self.config.concurrent_tools else [await answer for answer in running]

    async def _answer(self, call: ToolCall, is_allowed: bool) -> Answer:
        """Run a call. Whatever is wrong with it, there is an answer."""
        if self._functions is None:  # this is a copy
            self._functions = self.tools()
        tool = self._functions.get(call.name)
        if call.error is not None:
            return self._refused(call.error)
        if tool is None:
            return self._refused(f"the tool {call.name!r} has no function in this environment")
        if not is_allowed:
            return self._refused("it was not run: no more calls of tools are allowed")
        try:
            arguments = tool.read(_arguments(call))
        except ValueError as error:
            return self._refused(f"{tool.name}: wrong arguments: {_what_is_wrong(error)}")
        except Exception as error:  # what converts arguments may be anybody's code
            refused = self._refused(f"{tool.name}: wrong arguments: {_what_is_wrong(error)}")
            return self._crashed(tool, error, refused)
        return await self._run(tool, arguments)

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Answer:
        try:
            result = await self._call(tool, arguments)
            if is_handoff(result):
                return Answer("", handoffs=(result,) if isinstance(result, Handoff) else tuple(result))
            return Answer(self._cut(_as_text(result)))
        except ToolError as error:
            return self._failed(message_of(error))
        except EnvsdkError:
            raise
        except (*self.env.told_exceptions, SystemExit) as error:
            return self._crashed(tool, error, self._failed(f"{tool.name}: {type(error).__name__}: {message_of(error)}"))
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            return self._failed(f"{tool.name}: CancelledError")
        except Exception as error:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        limit = self._timeout_s(tool)
        call = functools.partial(tool.function, **arguments)
        in_thread = not tool.is_async and (limit is not None or self.config.concurrent_tools)
        if limit is None:
            return await _result(call, in_thread)
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                return await _result(call, in_thread)
        except TimeoutError:
            if not clock.expired():
                raise  # it is the tool's own
            raise ToolError(f"{tool.name}: it did not finish within {limit:g} s") from None

    def _crashed(self, tool: Tool, error: BaseException, answer: Answer) -> Answer:
        """Log, count or raise what a tool raised, unless it is expected."""
        if any(isinstance(error, kind) for kind in self.env.told_exceptions if kind is not Exception):
            return answer
        if self.config.raise_tool_errors:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise error
        place = (type(self.env).__qualname__, tool.name, type(error).__qualname__, *_place(error))
        if place not in _logged:
            _logged.add(place)
            _log.error(
                "the tool %r of %s crashed; the model is told so, and this is logged once. Raise a ToolError for what "
                "the model got wrong",
                tool.name,
                self.name,
                exc_info=error,
            )
        return answer._replace(is_crash=True)

    def _failed(self, what: str) -> Answer:
        return Answer(self._cut(f"Error: {what}"), is_error=True)

    def _refused(self, what: str) -> Answer:
        return self._failed(what)._replace(was_run=False)

    def _cut(self, text: str) -> str:
        limit = self.config.max_result_chars
        return text if len(text) <= limit else f"{text[:limit]}\n[cut: {limit:,} of {len(text):,} characters are shown]"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_functions": None}  # they are bound to this very object


def tool_driver_of(env: ToolEnv) -> ToolDriver:
    """Return the machinery of an environment with tools."""
    return cast("ToolDriver", driver_of(env))


DRIVERS[ToolEnv] = ToolDriver


@functools.cache
def _tool_methods(env: type) -> list[str]:
    """The names of the methods that are tools, in the order in which the classes define them.

    Raises:
        ConfigError: If a method is no tool any more, is wrapped, or hides what every environment has.
    """
    defined = [(name, value) for cls in reversed(env.__mro__) for name, value in vars(cls).items()]
    names = dict.fromkeys(name for name, value in defined if isinstance(_unwrapped(value), Tool))
    methods: list[str] = []
    for name in names:
        value = inspect.getattr_static(env, name)
        if value is None:
            continue  # a subclass does without it
        if hasattr(ToolEnv, name):
            raise ConfigError(
                f"the tool {name!r} of {env.__name__} hides what every environment has; give the function another "
                f"name, and the tool this one: @tool(name={name!r})"
            )
        if not isinstance(value, Tool) and not isinstance(value, staticmethod):
            raise ConfigError(
                f"{env.__name__}.{name} stands in the place of a tool and is none: decorate the method itself with "
                f"@tool, or set {name} = None to do without it"
            )
        methods.append(name)
    return methods


def _place(error: BaseException) -> tuple[str, int]:
    """Where in the code an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)


def _as_answer(result: HandoffResult) -> str:
    """What the model is told of a sub-agent: what it said last, and whether that is all."""
    if result.error is not None:
        return f"Error: {result.error}"
    if result.stop_reason == StopReason.TERMINATED:
        return result.content
    return f"{result.content}\n[It did not finish: {result.stop_reason}]".lstrip()


def _unwrapped(value: Any) -> Any:
    """What a static method, class method or property is made of."""
    return getattr(value, "__func__", getattr(value, "fget", value))


async def _together(running: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Wait for all; if one raises, for none."""
    tasks = [asyncio.ensure_future(answer) for answer in running]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _result(call: Callable[[], Any], in_thread: bool) -> Any:
    result = await _in_thread(call) if in_thread else call()
    return await result if inspect.isawaitable(result) else result


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own; one that never ends does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        try:
            outcome = context.run(function), None
        except BaseException as error:
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, outcome)

    context = contextvars.copy_context()
    threading.Thread(target=run, daemon=True, name="envsdk-tool").start()
    result, error = await future
    if error is not None:
        raise error
    return result


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments by name; a text in their place may be JSON, as it is in the OpenAI form."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
            check_json(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"they are no JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"they are no JSON object, but a {type(arguments).__name__}")
    return cast("dict[str, Any]", arguments)


def _what_is_wrong(error: Exception) -> str:
    match error:
        case ValidationError():
            return what_is_invalid(error)
        case ValueError():
            return message_of(error)
        case _:
            return f"{type(error).__name__}: {message_of(error)}"


def _as_text(result: Any) -> str:
    """What the model gets of a result."""
    text = result if isinstance(result, str) else to_json(result, fallback=_plain).decode()
    text.encode()  # half of a surrogate pair is no text
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return cast("Any", value).tolist()
    raise TypeError(f"a tool returned a {type(value).__name__}, which cannot be written as JSON")


def _correction(reply: Message) -> Message:
    more = [f"and {len(reply.errors) - _MAX_REPORTED} more"] if len(reply.errors) > _MAX_REPORTED else []
    wrong = "; ".join([*(error[:_MAX_ERROR_CHARS] for error in reply.errors[:_MAX_REPORTED]), *more])
    return Message(role="user", content=f"Your reply could not be read: {wrong}. Please reply again.")


def _with_metrics(turn: Turn, metrics: Mapping[str, float]) -> Turn:
    turn = copy.copy(turn)
    turn.metrics = {**metrics, **turn.metrics}
    return turn
