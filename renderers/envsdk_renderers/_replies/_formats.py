"""The formats of replies by name, for users who choose one instead of the grammar that is measured.

A format reads a reply that is cut at the control tokens of its renderer. `register_format` adds a format.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from envsdk.errors import UnknownName
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
    fits: Callable[[str], bool] | None = None
    """Returns whether a rendered reply with a call has this format; None if it is only chosen by its name."""


def register_format(name: str, reply_format: ReplyFormat) -> None:
    """Register a format; `choose_format` tries the last registered one first."""
    FORMATS[name] = reply_format


def get_format(name: str) -> ReplyFormat:
    """Return a format by its name; `plain` and `auto` are not among them, since they are measured.

    Raises:
        UnknownName: If no format has that name.
    """
    if name not in FORMATS:
        raise UnknownName.of("reply format", name, ["auto", PLAIN, *FORMATS])
    return FORMATS[name]


def choose_format(rendered: str) -> str | None:
    """Return the name of the registered format of a rendered reply with a call; None if none fits."""
    fitting = (name for name, found in reversed(FORMATS.items()) if found.fits is not None and found.fits(rendered))
    return next(fitting, None)


def _verbatim(
    segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema], controls: Collection[str]
) -> Message:
    errors = () if sampled.is_ended else (NOT_ENDED,)
    text = "".join(segment.control + segment.text for segment in segments)
    return Message(role="assistant", content=text, errors=errors)


FORMATS: dict[str, ReplyFormat] = {"verbatim": ReplyFormat(_verbatim)}
"""The formats by name."""
