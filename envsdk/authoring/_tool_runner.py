"""Run the tool calls of a reply: validation, time limits, threads, concurrency, and reports of crashes.

Whatever goes wrong with a call, the model receives an answer. The texts of these answers are part of the prompts.
"""

import asyncio
import functools
import inspect
import json
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from pydantic import ValidationError
from pydantic_core import to_json

from ..episodes._concurrent import run_all
from ..episodes._event_loops import MethodThread
from ..episodes._handoff import Handoff, HandoffResult, is_handoff
from ..episodes._loop_tasks import is_being_cancelled
from ..errors import EnvsdkError, ToolError, message_of, what_is_invalid
from ..limits import StopReason
from ..messages import ContentPart, TextPart, ToolCall, check_json
from ._tool_images import is_binary, not_a_result, parts_of
from ._tools import Tool

_log = logging.getLogger(__name__)
_logged: set[tuple[str, str, str, str, int]] = set()
"""The crashes that were logged: environment, tool, exception, and place in the code."""


class Answer(NamedTuple):
    """The answer to a tool call.

    Attributes:
        content: What the model receives: a text, or a list of texts and images (`ContentPart`).
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


class ToolRunner:
    """Runs tool calls for a `ToolEnv`.

    Args:
        env: The environment. Its `config` sets time limits and sizes.
        tools: The tools that the model may call, by name.
    """

    def __init__(self, env: Any, tools: Mapping[str, Tool]) -> None:
        self._env = env
        self._tools = tools
        self._config = env.config

    async def run(self, calls: Sequence[ToolCall], allowed: int) -> list[Answer]:
        """Run the calls of a reply and return their answers, in the order of the calls.

        Args:
            calls: The calls.
            allowed: How many of them may be run; the others are refused.
        """
        running = (self._answer(call, index < allowed) for index, call in enumerate(calls))
        answers = await run_all(running) if self._config.concurrent_tools else [await a for a in running]
        return self._refuse_busy_agents(answers)

    def with_results(self, answer: Answer, results: Sequence[HandoffResult]) -> Answer:
        """Return the answer to a call that handed over, made from the results; other answers are unchanged."""
        if not results:
            return answer
        texts = [_text_of_result(result) for result in results]
        if len(texts) > 1:
            texts = [f"{one.context.rpartition('/')[2]}: {text}" for one, text in zip(results, texts, strict=True)]
        return Answer(self._cut("\n\n".join(texts)), is_error=any(result.error is not None for result in results))

    def _refuse_busy_agents(self, answers: list[Answer]) -> list[Answer]:
        """Refuse the second call of a reply for the same sub-agent, since an environment runs one episode at a time."""
        busy: set[int] = set()
        checked: list[Answer] = []
        for answer in answers:
            envs = {id(handoff.env) for handoff in answer.handoffs}
            is_busy = len(envs) < len(answer.handoffs) or bool(envs & busy)
            busy |= envs
            checked.append(
                self._failed("it is busy with another call of this reply; call it again") if is_busy else answer
            )
        return checked

    async def _answer(self, call: ToolCall, is_allowed: bool) -> Answer:
        tool = self._tools.get(call.name)
        if call.error is not None:
            return self._refused(call.error)
        if tool is None:
            return self._refused(f"the tool {call.name!r} has no function in this environment")
        if not is_allowed:
            return self._refused("it was not run: no more calls of tools are allowed")
        try:
            arguments = tool.read(_arguments(call))
        except ValueError as error:
            return self._refused(f"{tool.name}: wrong arguments: {_describe(error)}")
        except Exception as error:  # an author's own validator may raise anything
            refused = self._refused(f"{tool.name}: wrong arguments: {_describe(error)}")
            return self._crashed(tool, error, refused)
        return await self._run(tool, arguments)

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Answer:
        try:
            result = await self._call(tool, arguments)
            if is_handoff(result):
                return Answer("", handoffs=(result,) if isinstance(result, Handoff) else tuple(result))
            parts = parts_of(result)
            return Answer(self._cut(_as_text(result)) if parts is None else self._cut_parts(parts))
        except ToolError as error:
            return self._failed(message_of(error))
        except EnvsdkError:
            raise
        except (*self._env.reported_exceptions, SystemExit) as error:
            return self._crashed(tool, error, self._failed(f"{tool.name}: {type(error).__name__}: {message_of(error)}"))
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            return self._failed(f"{tool.name}: CancelledError")
        except Exception as error:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        limit_s = self._config.tool_timeout_s if tool.timeout_s is None else tool.timeout_s
        call = functools.partial(tool.function, **arguments)
        in_thread = not tool.is_async and (limit_s is not None or self._config.concurrent_tools)
        if limit_s is None:
            return await _result(call, in_thread)
        clock = asyncio.timeout(limit_s)
        try:
            async with clock:
                return await _result(call, in_thread)
        except TimeoutError:
            if not clock.expired():
                raise  # raised by the tool itself
            raise ToolError(f"{tool.name}: it did not finish within {limit_s:g} s") from None

    def _crashed(self, tool: Tool, error: BaseException, answer: Answer) -> Answer:
        """Count, log or raise an exception of a tool, unless its class is expected."""
        if any(isinstance(error, kind) for kind in self._env.reported_exceptions if kind is not Exception):
            return answer
        if self._config.raise_tool_errors:
            error.add_note(f"Raised by the tool {tool.name!r}.")
            raise error
        place = (type(self._env).__qualname__, tool.name, type(error).__qualname__, *_place(error))
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

    def _failed(self, reason: str) -> Answer:
        return Answer(self._cut(f"Error: {reason}"), is_error=True)

    def _refused(self, reason: str) -> Answer:
        return self._failed(reason)._replace(was_run=False)

    def _cut(self, text: str) -> str:
        limit = self._config.max_result_chars
        return text if len(text) <= limit else f"{text[:limit]}\n[cut: {limit:,} of {len(text):,} characters are shown]"

    def _cut_parts(self, parts: Sequence[ContentPart]) -> list[ContentPart]:
        """Cut the texts of an answer with images as one text would be; the images stay."""
        limit, shown, length = self._config.max_result_chars, list[ContentPart](), 0
        for part in parts:
            if isinstance(part, TextPart):
                left, length = max(0, limit - length), length + len(part.text)
                part = TextPart(text=part.text[:left])
            shown.append(part)
        if length > limit:
            shown.append(TextPart(text=f"\n[cut: {limit:,} of {length:,} characters are shown]"))
        return shown


def _place(error: BaseException) -> tuple[str, int]:
    """Return the file and the line where an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)


def _text_of_result(result: HandoffResult) -> str:
    """Return the sub-agent's last reply for the model, with a note if the sub-agent did not finish."""
    if result.error is not None:
        return f"Error: {result.error}"
    if result.stop_reason == StopReason.TERMINATED:
        return result.content
    return f"{result.content}\n[It did not finish: {result.stop_reason}]".lstrip()


async def _result(call: Callable[[], Any], in_thread: bool) -> Any:
    result = await _in_thread(call) if in_thread else call()
    return await result if inspect.isawaitable(result) else result


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Run a function in a new daemon thread, which does not keep the process from ending, and return its result."""
    thread = MethodThread()
    try:
        (result,) = await thread.call(lambda: (function(),))  # an awaitable belongs to the caller's event loop
        return result
    finally:
        thread.stop()


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments by name. A text is read as JSON, as in the OpenAI form."""
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


def _describe(error: Exception) -> str:
    match error:
        case ValidationError():
            return what_is_invalid(error)
        case ValueError():
            return message_of(error)
        case _:
            return f"{type(error).__name__}: {message_of(error)}"


def _as_text(result: Any) -> str:
    """Return a tool's result as the text that the model receives."""
    if isinstance(result, str):
        text = result
    elif is_binary(result):
        raise not_a_result(result)
    else:
        text = to_json(result, fallback=_plain).decode()
    text.encode()  # raises for half of a surrogate pair
    return text


def _plain(value: Any) -> Any:
    if is_binary(value):
        raise not_a_result(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return cast("Any", value).tolist()
    raise TypeError(f"a tool returned a {type(value).__name__}, which cannot be written as JSON")
