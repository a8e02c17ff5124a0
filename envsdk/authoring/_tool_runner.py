"""Run the tool calls of a reply: validation, time limits, threads, concurrency, and reports of crashes.

Whatever goes wrong with a call, the model receives an answer. The wording of these answers is part of the prompts.
"""

import asyncio
import contextlib
import inspect
import json
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from pydantic import ValidationError
from pydantic_core import to_json

from ..episodes._handoff import Handoff, HandoffResult, is_handoff
from ..errors import EnvsdkError, ToolError, message_of, what_is_invalid
from ..images import Image
from ..limits import StopReason
from ..messages import ContentPart, ImagePart, TextPart, ToolCall, check_json
from ._concurrent import run_all
from ._event_loops import MethodThread
from ._loop_tasks import is_being_cancelled
from ._tools import Tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
_logged: set[tuple[str, str, str, str, int]] = set()
"""The crashes that were logged: environment, tool, exception, and place in the code."""


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
                raise ValueError(f"they are not a JSON object, but a {type(arguments).__name__}")
            arguments = tool.read(cast("dict[str, Any]", arguments))
        except ValueError as error:
            reason = what_is_invalid(error) if isinstance(error, ValidationError) else message_of(error)
            return self._error(f"{tool.name}: wrong arguments: {reason}", was_run=False)
        except Exception as error:  # an author's own validator may raise anything
            reason = f"{tool.name}: wrong arguments: {type(error).__name__}: {message_of(error)}"
            return self._crashed(tool, error, self._error(reason, was_run=False))
        return await self._run(tool, arguments)

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
        except (*self._env.reported_exceptions, SystemExit) as error:
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
        if any(isinstance(error, kind) for kind in self._env.reported_exceptions if kind is not Exception):
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
            if _is_binary(result):
                raise _not_a_result(cast("object", result))
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
                    f"a tool returned a list with an image and a {type(item).__name__}; expected only texts and images"
                )
        if length > limit:
            parts.append(TextPart(text=f"\n[cut: {limit:,} of {length:,} characters are shown]"))
        return parts


def _is_image(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")  # there are images of Pillow only if something imported it
    return isinstance(value, (Image, ImagePart)) or (pillow is not None and isinstance(value, pillow.Image))


def _is_binary(value: Any) -> bool:
    """Return whether a value is bytes, or the pixels of an image: uint8, shape (height, width, 3 or 4)."""
    if not isinstance(value, np.ndarray):
        return isinstance(value, (bytes, bytearray, memoryview))
    array = cast("NDArray[Any]", value)
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (3, 4)


def _not_a_result(value: object) -> TypeError:
    """Return the error for bytes, or the pixels of an image, that a tool returned: they may be meant as an image."""
    is_array = isinstance(value, np.ndarray)
    what = f"an array of uint8 with the shape {cast('Any', value).shape}" if is_array else type(value).__name__
    return TypeError(
        f"a tool returned {what}, which is not text: return an image as envsdk.ImagePart(data), and anything else as "
        "text or JSON (an array as array.tolist())"
    )


def _plain(value: Any) -> Any:
    if _is_binary(value):
        raise _not_a_result(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return cast("Any", value).tolist()
    raise TypeError(f"a tool returned a {type(value).__name__}, which cannot be written as JSON")
