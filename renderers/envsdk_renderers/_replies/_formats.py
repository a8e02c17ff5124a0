"""The formats of replies by name, for users who choose one instead of the grammar that is measured.

A format reads a reply that is cut at the control tokens of its renderer.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from envsdk.messages import Message, ToolSchema
from envsdk.rendering.reading import Segment, SplitReply
from envsdk.rendering.renderer import NOT_ENDED

Reader: TypeAlias = Callable[[Iterable[Segment], SplitReply, Sequence[ToolSchema], Collection[str]], Message]
"""Reads a reply from four arguments: the segments of its beginning in the prompt and of what was sampled; what was
sampled, with how it ended; the tools' schemas, for the types of values that a format writes as bare text; and the names
of the vocabulary's control tokens. Text that spells such a name is text, not the tag."""
PLAIN = "plain"
"""The measured grammar without calls: reasoning is read, and everything else is content."""


class ReplyFormat(NamedTuple):
    """A format of replies."""

    read: Reader
    controls: tuple[str, ...] = ()
    """The control tokens that it distinguishes from text, if the vocabulary has them."""


def _verbatim(
    segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
) -> Message:
    errors = () if sampled.is_ended else (NOT_ENDED,)
    text = "".join(segment.control + segment.text for segment in segments)
    return Message(role="assistant", content=text, errors=errors)


FORMATS: dict[str, ReplyFormat] = {"verbatim": ReplyFormat(_verbatim)}
"""The formats by name."""
