"""Environments in which the model calls tools until it replies without a call, and how the calls of a reply are run.

Whatever goes wrong with a call, the model receives an answer. The wording of these answers is part of the prompts.
"""

import asyncio
import contextlib
import copy
import functools
import inspect
import json
import logging
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from pydantic import Field, ValidationError
from pydantic_core import to_json

from .._describing import message_of, what_is_invalid
from .._spans import recorded
from .._visible import brief, type_of
from ..episodes._functions import is_async
from ..episodes._handoff import Handoff, HandoffResult, is_handoff
from ..episodes._turn import Turn
from ..errors import ConfigError, EnvsdkError, ToolError
from ..images import Image
from ..limits import StopReason
from ..messages import ContentPart, ImagePart, Message, TextPart, ToolCall, ToolSchema, check_json
from ._concurrent import run_all
from ._context_tools import ContextTools, ContextToolsConfig
from ._env import Env, EnvConfig, Returned
from ._event_loops import MethodThread
from ._loop_tasks import is_being_cancelled
from ._mistakes import refuse_without_tools, where, wrong_turn
from ._tools import Tool, tool_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_REPORTED = 8
_MAX_ERROR_CHARS = 1000
_log = logging.getLogger(__name__)
_logged: set[tuple[str, str, str, str, int]] = set()
"""The crashes that were logged: environment, tool, exception, and place in the code."""


class ToolEnvConfig(ContextToolsConfig):
    """The options of every `ToolEnv`. A subclass declares its own options in a subclass of this, named `Config`.

    It also has `context_tools`, the names of tools with which the model itself decides what stays in its context
    (`fold`, `branch`, `note`, `recall`), and `max_notes_chars`, the most characters that its notes have together.

    Attributes:
        max_bad_replies: How many unusable replies in a row are answered with a correction; one more ends the episode.
        max_result_chars: The length in characters above which a result is cut, with a note to the model.
        tool_timeout_s: The time limit in seconds of a call of a tool without its own limit; see `Tool`.
        raise_tool_errors: Whether an exception of a tool, other than a `ToolError`, ends the episode instead of being
            reported to the model. Use it to debug tools.
        concurrent_tools: Whether the calls of one reply run concurrently, plain functions in threads. The results are
            in the order of the calls in any case.
    """

    max_bad_replies: int = Field(default=3, ge=0)
    max_result_chars: int = Field(default=20_000, ge=1)
    tool_timeout_s: float | None = Field(default=None, gt=0)
    raise_tool_errors: bool = False
    concurrent_tools: bool = False


class Answer(NamedTuple):
    """The answer to a tool call.

    Attributes:
        content: The content that the model receives: a string, or a list of content parts (`ContentPart`).
        is_error: Whether the call failed.
        was_run: Whether the tool was called at all.
        handoffs: The handoffs that the tool returned; their results become the answer.
        is_crash: Whether the tool itself failed, rather than the model's call.
    """

    content: Any
    is_error: bool = False
    was_run: bool = True
    handoffs: tuple[Handoff, ...] = ()
    is_crash: bool = False


@dataclass(eq=False, repr=False)
class ToolRunner:
    """Runs tool calls.

    Args:
        env: The environment that has the tools.
        tools: The tools that the model may call, by name.
        config: The time limit of calls, the length of results, and whether calls run concurrently.
        reported: The exceptions of tools that are reported to the model; see `ToolEnv.reported_exceptions`.
    """

    _env: Env
    _tools: Mapping[str, Tool]
    _config: ToolEnvConfig
    _reported: tuple[type[Exception], ...]

    async def run(self, calls: Sequence[ToolCall], allowed: int) -> list[Answer]:
        """Run the calls of a reply and return their answers, in the order of the calls.

        Args:
            calls: The calls.
            allowed: The number of calls that may be run; the others are refused.
        """
        answers: list[Answer] = []
        if self._config.concurrent_tools:
            answers = await run_all(self._answer(call, index < allowed) for index, call in enumerate(calls))
        else:
            for index, call in enumerate(calls):
                answers.append(await self._answer(call, index < allowed))
        busy: set[int] = set()  # an environment runs one episode at a time
        for index, answer in enumerate(answers):
            if answer.handoffs:
                envs = {id(handoff.env) for handoff in answer.handoffs}
                if len(envs) < len(answer.handoffs) or envs & busy:
                    answers[index] = self._error("it is busy with another call of this reply; call it again")
                busy |= envs
        return answers

    def with_results(self, answer: Answer, results: Sequence[HandoffResult]) -> Answer:
        """Return the answer to a call that handed over, made from the results; other answers are unchanged.

        A sub-agent's result is its last reply, with a note if it did not finish.
        """
        if not results:
            return answer
        texts: list[str] = []
        for result in results:
            text = result.content
            if result.error is not None:
                text = f"Error: {result.error}"
            elif result.stop_reason != StopReason.TERMINATED:
                text = f"{text}\n[It did not finish: {result.stop_reason}]".lstrip()
            texts.append(text if len(results) == 1 else f"{result.context.rpartition('/')[2]}: {text}")
        return Answer(self._cut("\n\n".join(texts)), is_error=any(result.error is not None for result in results))

    async def _answer(self, call: ToolCall, is_allowed: bool) -> Answer:
        tool = self._tools.get(call.name)
        if call.error is not None:
            return self._error(call.error, was_run=False)
        if tool is None:
            return self._error(f"the tool {call.name!r} has no function in this environment", was_run=False)
        if not is_allowed:
            return self._error("it was not run: no more calls of tools are allowed", was_run=False)
        try:
            arguments: Any = call.arguments
            if isinstance(arguments, str):  # JSON, as in the OpenAI form
                try:
                    arguments = json.loads(arguments)
                    check_json(arguments)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"they are not a JSON object: {error}") from None
            if not isinstance(arguments, dict):
                raise ValueError(f"they are not a JSON object, but {type_of(arguments)}")
            arguments = tool.read(cast("dict[str, Any]", arguments))
        except ValueError as error:
            reason = what_is_invalid(error) if isinstance(error, ValidationError) else message_of(error)
            return self._error(f"{tool.name}: wrong arguments: {reason}", was_run=False)
        except Exception as error:  # an author's own validator may raise anything
            reason = f"{tool.name}: wrong arguments: {type(error).__name__}: {message_of(error)}"
            return self._crashed(tool, error, self._error(reason, was_run=False))
        with recorded("tool", tool.name, call_id=call.id) as span:
            answer = await self._run(tool, arguments)
            if span is not None:
                span.error = "tool_error" if answer.is_error else None
                if span.has_content:
                    span.facts |= {"arguments": call.arguments, "result": answer.content}
            return answer

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Answer:
        try:
            result = await self._result(tool, arguments)
            if is_handoff(result):
                return Answer("", handoffs=(result,) if isinstance(result, Handoff) else tuple(result))
            return Answer(self._content(result))
        except ToolError as error:
            return self._error(message_of(error))
        except EnvsdkError:
            raise
        except (*self._reported, SystemExit) as error:
            return self._crashed(tool, error, self._error(f"{tool.name}: {type(error).__name__}: {message_of(error)}"))
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            return self._error(f"{tool.name}: CancelledError")
        except Exception as error:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise

    async def _result(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Call a tool within its time limit and return its result, awaited if it is async."""
        limit_s = self._config.tool_timeout_s if tool.timeout_s is None else tool.timeout_s
        clock = asyncio.timeout(limit_s) if limit_s is not None else contextlib.nullcontext()
        try:
            async with clock:
                if (limit_s is not None or self._config.concurrent_tools) and not tool.is_async:
                    thread = MethodThread()
                    try:  # an awaitable belongs to this event loop, and is not awaited there
                        (result,) = await thread.call(lambda: (tool.function(**arguments),))
                    finally:
                        thread.stop()
                else:
                    result = tool.function(**arguments)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not isinstance(clock, asyncio.Timeout) or not clock.expired():
                raise  # raised by the tool itself
            raise ToolError(f"{tool.name}: it did not finish within {limit_s:g} s") from None

    def _crashed(self, tool: Tool, error: BaseException, answer: Answer) -> Answer:
        """Count, log or raise an exception of a tool, unless its class is expected."""
        if any(isinstance(error, kind) for kind in self._reported if kind is not Exception):
            return answer
        if self._config.raise_tool_errors:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise error
        frames = traceback.extract_tb(error.__traceback__)
        file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        place = (type(self._env).__qualname__, tool.name, type(error).__qualname__, file, line)
        if place not in _logged:
            _logged.add(place)
            _log.error(
                "the tool %r of %s crashed; the model receives the error as the answer to its call, and this crash is "
                "logged once. Let the tool raise a ToolError if the model made the mistake",
                tool.name,
                self._env.name,
                exc_info=error,
            )
        return answer._replace(is_crash=True)

    def _error(self, reason: str, *, was_run: bool = True) -> Answer:
        return Answer(self._cut(f"Error: {reason}"), is_error=True, was_run=was_run)

    def _cut(self, text: str) -> str:
        limit = self._config.max_result_chars
        return text if len(text) <= limit else f"{text[:limit]}\n[cut: {limit:,} of {len(text):,} characters are shown]"

    def _content(self, result: Any) -> str | list[ContentPart]:
        """Return a tool's result as the model receives it.

        An `Image`, an `ImagePart`, an image of Pillow, or a list of these and strings becomes content parts; anything
        else becomes a string. Text is cut to the maximum length, and images stay.
        """
        if isinstance(result, str):
            result.encode()  # raises for an unpaired surrogate
            return self._cut(result)
        items: Sequence[Any] = cast("Sequence[Any]", result) if isinstance(result, (list, tuple)) else [result]
        if not any(map(_is_image, items)):
            _refuse_binary(result)
            return self._cut(to_json(result, fallback=_plain).decode())
        limit, length, parts = self._config.max_result_chars, 0, list[ContentPart]()
        for item in items:
            if isinstance(item, (str, TextPart)):
                text = item if isinstance(item, str) else item.text
                parts.append(TextPart(text=text[: max(0, limit - length)]))
                length += len(text)
            elif _is_image(item):
                parts.append(item if isinstance(item, ImagePart) else ImagePart(item))
            else:
                raise TypeError(
                    f"a tool returned a list with an image and {type_of(item)}; expected only texts and images"
                )
        if length > limit:
            parts.append(TextPart(text=f"\n[cut: {limit:,} of {length:,} characters are shown]"))
        return parts


class ToolEnv(Env):
    """An environment in which the model calls tools until it replies without a call. Write `start` and `finish`.

    Tools are the methods that `envsdk.tool` decorates, and the contents of `tools`. If a call fails (invalid JSON, an
    unknown tool, wrong arguments, an exception in the tool, a time limit), the model receives the error as the answer,
    so that it can correct the call.

    A tool raises a `ToolError` if the model made a mistake. Any other exception is a crash. The model receives its text
    as well, but it counts as a bug in the tool unless `reported_exceptions` contains its class. The first crash at each
    place in the code is logged with its traceback, all of them are counted, and `raise_tool_errors=True` raises them.

    Each step has the metrics `tool_calls`, `tool_errors` (calls that failed), `tool_crashes` and `bad_replies`.
    """

    Config: ClassVar[type[EnvConfig]] = ToolEnvConfig
    _envsdk_config: ClassVar[type[EnvConfig]] = ToolEnvConfig
    _envsdk_runs_tools: ClassVar[bool] = True
    _envsdk_functions: dict[str, Tool] | None = None  # the tools of the current episode by name
    _envsdk_context_tools: ContextTools | None = None  # None if the model has no context tools
    _envsdk_handed_over: tuple[Message, Sequence[ToolCall], list[Answer]] | None = None
    _envsdk_bad_replies = 0
    _envsdk_answered = 0  # how many calls of a reply that continues were answered
    tools: "Sequence[Tool | Callable[..., Any]]" = ()
    """Tools that are not methods; functions become tools. It may be set in `__init__`."""
    reported_exceptions: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """The exceptions of tools that are reported to the model. Any other exception ends the episode with an error, and
    so do envsdk's own errors except `ToolError`. A class that is named here, other than `Exception` itself, is expected
    and does not count as a crash."""

    def finish(self, reply: Message) -> Turn | Awaitable[Turn]:
        """Answer a reply without a call, usually with its score and the end of the episode. It may be `async def`."""
        raise NotImplementedError(f"{type(self).__name__} has no finish(): it answers a reply without a call")

    def after_tools(self, reply: Message, results: list[Message]) -> Turn | Awaitable[Turn]:
        """Answer a reply whose calls were run, with their results and optionally a reward or the end of the episode.

        It may be `async def`.

        Args:
            reply: The reply.
            results: A tool message for each of its calls, in order.
        """
        return Turn(results)

    def on_bad_reply(self, reply: Message, corrections: list[Message], in_a_row: int) -> Turn | Awaitable[Turn]:
        """Answer an unusable reply: none of its calls could be run, or it could not be read and has no content.

        It may be `async def`.

        Args:
            reply: The reply; `reply.errors` lists what could not be read.
            corrections: Messages that explain it to the model: one for each call, or a user message.
            in_a_row: The number of consecutive unusable replies, including this one.
        """
        return Turn(corrections, terminated=in_a_row > self.config.max_bad_replies)

    async def respond(self, reply: Message) -> Returned:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the calls of a reply, or call `finish`. If the reply was continued, only its new calls are run.

        If tools return handoffs, those run first, and their results answer the calls.
        """
        calls = reply.tool_calls[self._envsdk_answered :]
        answers: list[Answer] = []
        if self._envsdk_context_tools is not None:
            self._envsdk_context_tools.take(calls)
        if calls:
            runner = ToolRunner(self, self._envsdk_tools(), self.config, self.reported_exceptions)
            answers = await runner.run(calls, self._envsdk.running.tool_calls_left(len(calls)))
        handoffs: list[Handoff] = []
        for answer in answers:
            handoffs += answer.handoffs
        if handoffs:
            self._envsdk_handed_over = reply, calls, answers
            return handoffs
        return await self._envsdk_conclude(reply, calls, answers)

    async def resume(self, result: list[HandoffResult]) -> Returned:
        """Answer the calls that handed over with the handoffs' results, and continue as after any tool."""
        if self._envsdk_handed_over is None:
            turn, tools = await self._envsdk_call("after_handoff", result), self._envsdk_context_tools
            return tools.applied(turn) if tools is not None and isinstance(turn, Turn) else turn
        (reply, calls, answers), self._envsdk_handed_over = self._envsdk_handed_over, None
        left, runner = iter(result), ToolRunner(self, self._envsdk_tools(), self.config, self.reported_exceptions)
        answers = [runner.with_results(answer, [next(left) for _ in answer.handoffs]) for answer in answers]
        return await self._envsdk_conclude(reply, calls, answers)

    def after_handoff(self, result: Any) -> Turn | Awaitable[Turn]:
        """Return the turn after a handoff by `finish`, `after_tools` or `on_bad_reply`, such as to a judge.

        It may be `async def`.

        Args:
            result: The `HandoffResult`; for a list of handoffs, a list of results.
        """
        raise NotImplementedError(f"{type(self).__name__} has no after_handoff(): it returns the Turn after a Handoff")

    def default_tools(self) -> list[ToolSchema]:
        """Return the tools of a first turn that does not set any: the schemas of all tools."""
        return [tool.schema for tool in tools_of(self).values()]

    # After a reply.

    async def _envsdk_conclude(self, reply: Message, calls: Sequence[ToolCall], answers: Sequence[Answer]) -> Returned:
        """Call the author's method for a reply whose calls are all answered, and return its result."""
        messages: list[Message] = []
        failed = crashed = were_run = 0
        for call, answer in zip(calls, answers, strict=True):
            messages.append(Message(role="tool", content=answer.content, name=call.name or None, tool_call_id=call.id))
            failed, crashed = failed + answer.is_error, crashed + answer.is_crash
            were_run += answer.was_run
        tools = self._envsdk_context_tools
        messages = messages if tools is None else tools.answered(messages)
        is_unreadable = bool(reply.errors) and not reply.content.strip() and not self._envsdk_answered
        is_bad = not were_run if answers else is_unreadable
        self._envsdk_bad_replies = self._envsdk_bad_replies + 1 if is_bad else 0
        if is_bad:
            if not messages:
                wrong = [error[:_MAX_ERROR_CHARS] for error in reply.errors[:_MAX_REPORTED]]
                if len(reply.errors) > _MAX_REPORTED:
                    wrong.append(f"and {len(reply.errors) - _MAX_REPORTED} more")
                text = f"Your reply could not be read: {'; '.join(wrong)}. Please reply again."
                messages = [Message(role="user", content=text)]
            turn = await self._envsdk_call("on_bad_reply", reply, messages, self._envsdk_bad_replies)
        elif messages:
            turn = await self._envsdk_call("after_tools", reply, messages)
        elif tools is None or (turn := tools.without_call(reply)) is None:
            turn = await self._envsdk_call("finish", reply)
        if not isinstance(turn, Turn):
            return turn
        self._envsdk_answered = len(reply.tool_calls) if turn.continuation is not None else 0
        turn = copy.copy(turn)
        metrics = {
            "tool_calls": len(answers),
            "tool_errors": failed,
            "tool_crashes": crashed,
            "bad_replies": int(is_bad),
        }
        turn.metrics = {**metrics, **turn.metrics}
        return turn if tools is None else tools.applied(turn)

    async def _envsdk_call(self, method: str, *arguments: Any) -> Returned:
        """Call an author's method and return its result, awaited if it is async. A turn may replace the tools."""
        returned: object = getattr(self, method)(*arguments)
        returned = await returned if inspect.isawaitable(returned) else returned
        if isinstance(returned, Turn):
            if returned.tools is not None:
                if self._envsdk_context_tools is not None:
                    returned.tools = self._envsdk_context_tools.added_to(returned.tools, type(self).__name__)
                self._envsdk_functions = {**tools_of(self), **cast("Mapping[str, Tool]", returned.functions)}
                self._envsdk.waits = None
        elif not is_handoff(returned):
            raise wrong_turn(self, method, returned)
        return cast("Returned", returned)

    # Methods that the driver calls.

    def _envsdk_check(self) -> None:
        cls = type(self)
        _tool_methods(cls)
        if self.config.context_tools and not isinstance(inspect.getattr_static(cls, "tools"), property):
            tools_of(self)
        if cls.respond is not ToolEnv.respond and cls.finish is ToolEnv.finish:
            raise ConfigError(
                f"{where(cls, 'respond')} replaces the method that runs the tools, and there is no finish(); write "
                "finish(reply) for a reply without a call and after_tools(reply, results) for a reply with calls. A "
                "respond() that calls super().respond(reply) needs finish(), too"
            )

    def _envsdk_prepare(self) -> None:
        self._envsdk_functions = self._envsdk_handed_over = None
        self._envsdk_context_tools = ContextTools(self) if self.config.context_tools else None
        self._envsdk_bad_replies = self._envsdk_answered = 0

    def _envsdk_started(self, turn: Returned) -> None:
        """Add the tools of the first turn, and raise an error if the environment has no tool."""
        if self._envsdk_context_tools is not None and isinstance(turn, Turn) and turn.tools is not None:
            turn.tools = self._envsdk_context_tools.added_to(turn.tools, type(self).__name__)
        self._envsdk_functions = {**tools_of(self), **getattr(turn, "functions", {})}
        if not self._envsdk_functions and getattr(turn, "tools", ()) is None:  # a handoff has no tools
            refuse_without_tools(type(self))

    def _envsdk_waits(self) -> bool:
        names = ("start", "finish", "after_tools", "on_bad_reply", "after_handoff")
        if self.config.concurrent_tools or any(is_async(getattr(self, name)) for name in names):
            return True
        added = ContextTools(self).tools()  # which wait for nothing
        tools = [tool for name, tool in self._envsdk_tools().items() if name not in added]
        return (
            type(self).respond is not ToolEnv.respond
            or (self.config.tool_timeout_s is not None and bool(tools))
            or any(tool.is_async or tool.timeout_s is not None for tool in tools)
        )

    def _envsdk_tools(self) -> dict[str, Tool]:
        """Return the tools of the episode by name: the environment's own ones before `start` and after unpickling."""
        return tools_of(self) if self._envsdk_functions is None else self._envsdk_functions

    # Python's own protocols.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = super().__deepcopy__(memo)
        other._envsdk_functions = copy.deepcopy(self._envsdk_functions, memo)
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_envsdk_functions": None}  # tools that are methods are bound to this object


def tools_of(env: ToolEnv) -> dict[str, Tool]:
    """Return an environment's tools by name: its methods, the contents of `tools`, and its context tools.

    Raises:
        ConfigError: If `tools` contains something that is not a tool or a function, or two tools have the same name.
    """
    context_tools = env._envsdk_context_tools or ContextTools(env)  # pyright: ignore[reportPrivateUsage]
    cls = type(env).__name__
    tools: list[Tool] = []
    for name in _tool_methods(type(env)):
        tool = getattr(env, name)
        if not isinstance(tool, Tool):
            raise ConfigError(
                f"the tool {name!r} of {cls} is hidden by an attribute of that name; rename the attribute"
            )
        tools.append(tool)
    try:
        if isinstance(env.tools, str):
            raise TypeError("it is a string")
        tools += [tool if isinstance(tool, Tool) else tool_of(tool) for tool in env.tools]
    except TypeError as error:
        raise ConfigError(
            f"`tools` of {cls} is {brief(env.tools)}; expected a list of tools and functions ({error})"
        ) from error
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        name = Counter(tool.name for tool in tools).most_common(1)[0][0]
        raise ConfigError(f"{cls} has several tools named {name!r}; give each its own name, @tool(name=...)")
    context_tools.added_to([tool.schema for tool in tools], cls)  # raises if a name is taken
    return {**by_name, **context_tools.tools()}


@functools.cache
def _tool_methods(env: type) -> list[str]:
    """Return the names of the methods that are tools, in the order in which the classes define them.

    Raises:
        ConfigError: If a subclass replaces a tool by something else, or a tool hides a member of every environment.
    """
    defined = [(name, value) for cls in reversed(env.__mro__) for name, value in vars(cls).items()]
    unwrapped = ((name, getattr(value, "__func__", getattr(value, "fget", value))) for name, value in defined)
    names = dict.fromkeys(name for name, value in unwrapped if isinstance(value, Tool))
    methods: list[str] = []
    for name in names:
        value = inspect.getattr_static(env, name)
        if value is None:
            continue  # a subclass removes the tool
        if hasattr(ToolEnv, name):
            raise ConfigError(
                f"the tool {name!r} of {env.__name__} hides a member that every environment has; give the function "
                f"another name, and keep the tool's name: @tool(name={name!r})"
            )
        if not isinstance(value, Tool) and not isinstance(value, staticmethod):
            raise ConfigError(
                f"{env.__name__}.{name} replaces a tool but is not a tool itself: decorate the method directly with "
                f"@tool, or set {name} = None to remove the tool"
            )
        methods.append(name)
    return methods


def _is_image(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")  # there are images of Pillow only if something imported it
    return isinstance(value, (Image, ImagePart)) or (pillow is not None and isinstance(value, pillow.Image))


def _refuse_binary(value: Any) -> None:
    """Refuse bytes, or the pixels of an image (uint8, shape (height, width, 3 or 4)): they may be meant as an image."""
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (3, 4):
            return
        what = f"an array of uint8 with the shape {array.shape}"
    elif isinstance(value, (bytes, bytearray, memoryview)):
        what = type(cast("object", value)).__name__
    else:
        return
    raise TypeError(
        f"a tool returned {what}, which is not text: return an image as envsdk.ImagePart(data), and anything else as "
        "text or JSON (an array as array.tolist())"
    )


def _plain(value: Any) -> Any:
    _refuse_binary(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return cast("Any", value).tolist()
    raise TypeError(f"a tool returned {type_of(value)}, which cannot be written as JSON")
