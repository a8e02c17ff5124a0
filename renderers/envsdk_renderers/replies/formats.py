"""The formats of replies by name, for users who choose one instead of the grammar that is measured.

A format reads a reply that is cut at the control tokens of its renderer. `register_format` adds a format.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from envsdk.errors import unknown_name
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.renderer import NOT_ENDED, Segment, SplitReply

from . import glm_calls, json_calls, xml_calls
from .argument_types import PYTHON_WORDS, ArgumentTypes
from .hermes import HermesReply
from .json_calls import MISTRAL_MARK
from .spelled import hide, restore

Reader: TypeAlias = Callable[[Iterable[Segment], SplitReply, Sequence[ToolSchema], Collection[str]], Message]
"""Reads a reply from four arguments: the segments of its beginning in the prompt and of what was sampled; what was
sampled, with how it ended; the tools' schemas, for the types of values that a format writes as bare text; and the names
of the vocabulary's control tokens. Text that spells such a name is text, not the tag."""
CallReader: TypeAlias = Callable[[Sequence[ToolSchema]], Callable[[str], ToolCall]]
"""Makes a function that reads the text between the tags of a call, for the tools of an episode."""
CallFinder: TypeAlias = Callable[[str, Callable[[str], str]], tuple[str, str, list[ToolCall]] | None]
"""Finds calls in a text. Its second argument restores a mark of calls that was hidden because the text only spelled it.
Returns the text before the calls, the text after them, and the calls; None if there are none."""
PLAIN = "plain"
_THINK = ("<think>", "</think>")
_TAGS = (*_THINK, "<tool_call>", "</tool_call>")


class ReplyFormat(NamedTuple):
    """A format of replies."""

    read: Reader
    controls: tuple[str, ...] = ()
    """The control tokens that it distinguishes from text, if the vocabulary has them."""
    fits: Callable[[str], bool] | None = None
    """Returns whether a rendered reply with a call has this format; None if it is only chosen by its name."""


def register_format(name: str, reply_format: ReplyFormat) -> None:
    """Register a format; `choose_format` tries the last registered one first."""
    FORMATS[name] = reply_format


def get_format(name: str) -> ReplyFormat:
    """Return a format by its name.

    Raises:
        UnknownName: If there is no format of that name.
    """
    if name not in FORMATS:
        raise unknown_name("reply format", name, FORMATS)
    return FORMATS[name]


def choose_format(rendered: str) -> str | None:
    """Return the name of the registered format of a rendered reply with a call; None if none fits."""
    fitting = (name for name, found in reversed(FORMATS.items()) if found.fits is not None and found.fits(rendered))
    return next(fitting, None)


# Readers.


def _between_tags(tags: Sequence[str], write_call: Callable[[ToolCall], str], reader: CallReader) -> Reader:
    """Make a reader of a think block, and of calls between tags."""

    def read(
        segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
    ) -> Message:
        reply = HermesReply(write_call, reader(tools), "\n")
        reply.read(_cut(segments, tags, controls))
        return reply.message(sampled)

    return read


def _cut(segments: Iterable[Segment], tags: Sequence[str], controls: Collection[str]) -> Iterator[Segment]:
    """Cut at the tags. A tag that is a control token of the vocabulary counts only as that token, not as its text."""
    spelled = re.compile("(" + ("|".join(re.escape(tag) for tag in tags if tag not in controls) or "(?!)") + ")")
    for segment in segments:
        is_tag = segment.control in tags
        first, *parts = spelled.split(segment.text if is_tag else segment.control + segment.text)
        yield Segment(segment.control if is_tag else "", first)
        for index in range(0, len(parts), 2):
            yield Segment(parts[index], parts[index + 1])


def _in_text(find_calls: CallFinder) -> Reader:
    """Make a reader of a think block, and of calls in the text after it."""
    read_think = _between_tags(_THINK, json_calls.write_object, _json_reader)

    def read(
        segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
    ) -> Message:
        is_token = MISTRAL_MARK in controls
        shown = partial(restore, spelling=MISTRAL_MARK) if is_token else str
        hidden = [Segment(s.control, hide(s.text, MISTRAL_MARK) if is_token else s.text) for s in segments]
        message = read_think(hidden, sampled, tools, controls)
        found = find_calls(message.content, shown)
        if message.reasoning is not None:
            message = message.with_reasoning(shown(message.reasoning))
        if found is None:
            return message.model_copy(update={"content": shown(message.content)})
        return _with_calls(message, *found)

    return read


def _with_calls(message: Message, before: str, after: str, calls: Sequence[ToolCall]) -> Message:
    errors = [call.error for call in calls if call.error]
    if after.strip():
        errors.append("there is text after a tool call")
        before += "\n" * bool(before) + after
    update = {"content": before, "tool_calls": tuple(calls), "errors": (*message.errors, *errors)}
    return message.model_copy(update=update)


def _verbatim(
    segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
) -> Message:
    errors = () if sampled.is_ended else (NOT_ENDED,)
    text = "".join(segment.control + segment.text for segment in segments)
    return Message(role="assistant", content=text, errors=errors)


# Calls.


def _llama_calls(text: str, restore: Callable[[str], str]) -> tuple[str, str, list[ToolCall]] | None:
    found = json_calls.read_llama(restore(text))
    return None if found is None else ("", *found)


def _mistral_calls(text: str, restore: Callable[[str], str]) -> tuple[str, str, list[ToolCall]] | None:
    before, mark, after = text.partition(MISTRAL_MARK)
    return (restore(before), *json_calls.read_mistral(restore(after))) if mark else None


def _json_reader(tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
    return json_calls.read_object


def _glm_reader(tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
    return partial(glm_calls.read_call, types=ArgumentTypes(tools))


def _xml_reader(tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
    # Qwen3-Coder's and Nemotron's templates write Python's True, those of Qwen3.6 and later JSON's.
    return partial(xml_calls.read_call, types=ArgumentTypes(tools, PYTHON_WORDS))


FORMATS: dict[str, ReplyFormat] = {
    "verbatim": ReplyFormat(_verbatim),
    PLAIN: ReplyFormat(_between_tags(_THINK, json_calls.write_object, _json_reader), _THINK),
    "llama": ReplyFormat(_in_text(_llama_calls), (*_THINK, "<|python_tag|>")),
    "mistral": ReplyFormat(_in_text(_mistral_calls), (*_THINK, MISTRAL_MARK, "[ARGS]", "[CALL_ID]")),
    "glm": ReplyFormat(_between_tags(_TAGS, glm_calls.write_call, _glm_reader), _TAGS),
    "xml": ReplyFormat(_between_tags(_TAGS, xml_calls.write_call, _xml_reader), _TAGS),
    "hermes": ReplyFormat(_between_tags(_TAGS, json_calls.write_object, _json_reader), _TAGS),
}
"""The formats by name. A reply of an unknown format is `plain`: a think block, and everything else is content."""
