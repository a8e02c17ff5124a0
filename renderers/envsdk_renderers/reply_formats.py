"""Formats of replies by name, and which of them a chat template writes.

A format reads a reply cut at the control tokens of its renderer. Others join the registry with `register_format`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from envsdk.errors import unknown_name
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.renderer import NOT_ENDED, Segment, SplitReply

from . import glm_calls, json_calls, xml_calls
from .argument_types import PYTHON_WORDS, ArgumentTypes
from .hermes import HermesReply, parse_call

Reader: TypeAlias = Callable[[Iterable[Segment], SplitReply, Sequence[ToolSchema]], Message]
"""Reads the segments of what the prompt began and of what was sampled; the latter also specifies how the reply ended.
The tools' schemas give the types of values that a format writes as bare text."""
CallReader: TypeAlias = Callable[[Sequence[ToolSchema]], Callable[[str], ToolCall]]
"""Makes for the tools of an episode what reads the text between the tags of a call."""
CallFinder: TypeAlias = Callable[[str], tuple[str, str, list[ToolCall]] | None]
"""Finds calls in a text: what stands before them, behind them, and the calls; None if there are none."""
PLAIN = "plain"
NO_CALLS = frozenset({PLAIN, "verbatim"})
"""The formats that read no calls."""
_TAGS = re.compile(r"(</?think>|</?tool_call>)")
_THINK = re.compile(r"(</?think>)")


class ReplyFormat(NamedTuple):
    """A format of replies."""

    fits: Callable[[str], bool]
    """Whether it is that of a rendered reply with reasoning, text and a call."""
    read: Reader
    controls: tuple[str, ...] = ()
    """The control tokens that it tells apart from text, where the vocabulary has them."""


def register_format(name: str, reply_format: ReplyFormat) -> None:
    """Register a format; `choose_format` asks the last one first."""
    FORMATS[name] = reply_format


def get_format(name: str) -> ReplyFormat:
    """Find a format by its name; raises `UnknownName`."""
    if name not in FORMATS:
        raise unknown_name("reply format", name, FORMATS)
    return FORMATS[name]


def choose_format(rendered: str) -> str:
    """The name of the format that a rendered reply with a call has."""
    return next(name for name, reply_format in reversed(FORMATS.items()) if reply_format.fits(rendered))


def _read(tags: re.Pattern[str], write_call: Callable[[ToolCall], str], reader: CallReader) -> Reader:
    def read(segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema]) -> Message:
        reply = HermesReply(write_call, reader(tools), "\n")
        for control, text in _cut(segments, tags):
            reply.read(control, text)
        return reply.message(is_ended=sampled.is_ended, overrun=sampled.overrun)

    return read


def _read_text(find_calls: CallFinder) -> Reader:
    """Reads a think block, and calls in the text behind it."""
    read_think = _read(_THINK, _json_call, _json_reader)

    def read(segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema]) -> Message:
        message = read_think(segments, sampled, tools)
        found = find_calls(message.content)
        if found is None:
            return message
        before, after, calls = found
        errors = [call.error for call in calls if call.error]
        if after.strip():
            errors.append("there is text after a tool call")
            before += "\n" * bool(before) + after
        update = {"content": before, "tool_calls": tuple(calls), "errors": (*message.errors, *errors)}
        return message.model_copy(update=update)

    return read


def _llama_calls(text: str) -> tuple[str, str, list[ToolCall]] | None:
    found = json_calls.read_llama(text)
    return None if found is None else ("", *found)


def _mistral_calls(text: str) -> tuple[str, str, list[ToolCall]] | None:
    before, mark, behind = text.partition("[TOOL_CALLS]")
    return (before, *json_calls.read_mistral(behind)) if mark else None


def _json_call(call: ToolCall) -> str:
    is_text = isinstance(call.arguments, str)
    arguments = call.arguments if is_text else json.dumps(call.arguments, ensure_ascii=False)
    return f'\n{{"name": "{call.name}", "arguments": {arguments}}}\n'


def _bare_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json_reader(tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
    return parse_call


def _glm_reader(tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
    return partial(glm_calls.read_call, types=ArgumentTypes(tools))


def _xml_reader(tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
    # Qwen3-Coder's and Nemotron's templates write Python's True, those of Qwen3.6 and later JSON's.
    return partial(xml_calls.read_call, types=ArgumentTypes(tools, PYTHON_WORDS))


def _cut(segments: Iterable[Segment], tags: re.Pattern[str]) -> Iterator[Segment]:
    """Cut at the tags, whether or not they are control tokens of the vocabulary."""
    for segment in segments:
        is_tag = bool(tags.fullmatch(segment.control))
        first, *parts = tags.split(segment.text if is_tag or not segment.control else segment.control + segment.text)
        yield Segment(segment.control if is_tag else "", first)
        for index in range(0, len(parts), 2):
            yield Segment(parts[index], parts[index + 1])


def _is_hermes(rendered: str) -> bool:
    return bool(re.search(r'<tool_call>\s*\{"name": .*"arguments": .*\}\s*</tool_call>', rendered, re.DOTALL))


def _is_any(rendered: str) -> bool:
    return True


def _is_xml(rendered: str) -> bool:
    pattern = r"<tool_call>\s*<function=\w+>\s*<parameter=\w+>.*</function>\s*</tool_call>"
    return bool(re.search(pattern, rendered, re.DOTALL))


def _verbatim(segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema]) -> Message:
    errors = () if sampled.is_ended else (NOT_ENDED,)
    text = "".join(segment.control + segment.text for segment in segments)
    return Message(role="assistant", content=text, errors=errors)


def _is_llama(rendered: str) -> bool:
    return bool(re.search(r'\{"name": "\w+", "parameters": ', rendered))


def _is_mistral(rendered: str) -> bool:
    return "[TOOL_CALLS]" in rendered


def _is_glm(rendered: str) -> bool:
    return bool(re.search(r"<tool_call>\w+\s*<arg_key>\w+</arg_key>\s*<arg_value>", rendered))


_IN_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
FORMATS: dict[str, ReplyFormat] = {
    "verbatim": ReplyFormat(_is_any, _verbatim),
    PLAIN: ReplyFormat(_is_any, _read(_THINK, _json_call, _json_reader), ("<think>", "</think>")),
    "llama": ReplyFormat(_is_llama, _read_text(_llama_calls), ("<think>", "</think>", "<|python_tag|>")),
    "mistral": ReplyFormat(_is_mistral, _read_text(_mistral_calls), ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "glm": ReplyFormat(
        _is_glm, _read(_TAGS, partial(glm_calls.write_call, write_value=_bare_value), _glm_reader), _IN_TAGS
    ),
    "xml": ReplyFormat(
        _is_xml, _read(_TAGS, partial(xml_calls.write_call, write_value=_bare_value), _xml_reader), _IN_TAGS
    ),
    "hermes": ReplyFormat(_is_hermes, _read(_TAGS, _json_call, _json_reader), _IN_TAGS),
}
"""The formats by name. Whatever is not known is `plain`: a think block, and everything else is content."""
