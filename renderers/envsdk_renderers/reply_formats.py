"""Formats of replies by name, and which of them a chat template writes.

A format reads a reply cut at the control tokens of its renderer. Others join the registry with `register_format`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from envsdk.errors import unknown_name
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.renderer import NOT_ENDED, Segment, SplitReply

from . import glm_calls, json_calls, xml_calls
from .argument_types import PYTHON_WORDS, ArgumentTypes
from .hermes import HermesReply, parse_call
from .templates import Mask

Reader: TypeAlias = Callable[[Iterable[Segment], SplitReply, Sequence[ToolSchema], Collection[str]], Message]
"""Reads the segments of what the prompt began and of what was sampled; the latter also specifies how the reply ended.
The tools' schemas give the types of values that a format writes as bare text. Last come the names of the vocabulary's
control tokens: text that spells one of them is text, and not the tag."""
CallReader: TypeAlias = Callable[[Sequence[ToolSchema]], Callable[[str], ToolCall]]
"""Makes for the tools of an episode what reads the text between the tags of a call."""
CallFinder: TypeAlias = Callable[[str, Mask], tuple[str, str, list[ToolCall]] | None]
"""Finds calls in a text in which a mask hides the mark of calls where it is only spelled: what stands before them,
behind them, and the calls; None if there are none."""
PLAIN = "plain"
NO_CALLS = frozenset({PLAIN, "verbatim"})
"""The formats that read no calls."""
_THINK = ("<think>", "</think>")
_TAGS = (*_THINK, "<tool_call>", "</tool_call>")
_CALLS_MARK = "[TOOL_CALLS]"


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


def _read(tags: Sequence[str], write_call: Callable[[ToolCall], str], reader: CallReader) -> Reader:
    def read(
        segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
    ) -> Message:
        reply = HermesReply(write_call, reader(tools), "\n")
        for control, text in _cut(segments, tags, controls):
            reply.read(control, text)
        return reply.message(is_ended=sampled.is_ended, overrun=sampled.overrun)

    return read


def _read_text(find_calls: CallFinder) -> Reader:
    """Reads a think block, and calls in the text behind it."""
    read_think = _read(_THINK, _json_call, _json_reader)

    def read(
        segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
    ) -> Message:
        mask = Mask([_CALLS_MARK] if _CALLS_MARK in controls else [])
        hidden = [Segment(control, mask.hide(text)) for control, text in segments]
        message = read_think(hidden, sampled, tools, controls)
        shown = {"content": mask.restore_compared(message.content), "reasoning": message.reasoning}
        if message.reasoning is not None:
            shown["reasoning"] = mask.restore_compared(message.reasoning)
        found = find_calls(message.content, mask)
        message = message.model_copy(update=shown)
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


def _llama_calls(text: str, mask: Mask) -> tuple[str, str, list[ToolCall]] | None:
    found = json_calls.read_llama(mask.restore_compared(text))
    return None if found is None else ("", *found)


def _mistral_calls(text: str, mask: Mask) -> tuple[str, str, list[ToolCall]] | None:
    before, mark, behind = text.partition(_CALLS_MARK)
    return (mask.restore_compared(before), *json_calls.read_mistral(mask.restore_compared(behind))) if mark else None


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


def _cut(segments: Iterable[Segment], tags: Sequence[str], controls: Collection[str]) -> Iterator[Segment]:
    """Cut at the tags: a tag that is a control token of the vocabulary only where it is that token, not its text."""
    spelled = re.compile("(" + ("|".join(re.escape(tag) for tag in tags if tag not in controls) or "(?!)") + ")")
    for segment in segments:
        is_tag = segment.control in tags
        first, *parts = spelled.split(segment.text if is_tag else segment.control + segment.text)
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


def _verbatim(
    segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
) -> Message:
    errors = () if sampled.is_ended else (NOT_ENDED,)
    text = "".join(segment.control + segment.text for segment in segments)
    return Message(role="assistant", content=text, errors=errors)


def _is_llama(rendered: str) -> bool:
    return bool(re.search(r'\{"name": "\w+", "parameters": ', rendered))


def _is_mistral(rendered: str) -> bool:
    return _CALLS_MARK in rendered


def _is_glm(rendered: str) -> bool:
    return bool(re.search(r"<tool_call>\w+\s*<arg_key>\w+</arg_key>\s*<arg_value>", rendered))


FORMATS: dict[str, ReplyFormat] = {
    "verbatim": ReplyFormat(_is_any, _verbatim),
    PLAIN: ReplyFormat(_is_any, _read(_THINK, _json_call, _json_reader), _THINK),
    "llama": ReplyFormat(_is_llama, _read_text(_llama_calls), (*_THINK, "<|python_tag|>")),
    "mistral": ReplyFormat(_is_mistral, _read_text(_mistral_calls), (*_THINK, _CALLS_MARK, "[ARGS]", "[CALL_ID]")),
    "glm": ReplyFormat(
        _is_glm, _read(_TAGS, partial(glm_calls.write_call, write_value=_bare_value), _glm_reader), _TAGS
    ),
    "xml": ReplyFormat(
        _is_xml, _read(_TAGS, partial(xml_calls.write_call, write_value=_bare_value), _xml_reader), _TAGS
    ),
    "hermes": ReplyFormat(_is_hermes, _read(_TAGS, _json_call, _json_reader), _TAGS),
}
"""The formats by name. Whatever is not known is `plain`: a think block, and everything else is content."""
