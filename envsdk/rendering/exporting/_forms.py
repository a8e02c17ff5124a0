"""The forms in which families write messages: measured text with placeholder words for the parts that vary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...messages import Message, ToolCall

SYSTEM, QUERY, CONTENT, REASONING, NEXT = (
    f"Wvq{name}qvW" for name in ("system", "query", "content", "thought", "next")
)
TOOLS, CALLS = "WvqtoolsqvW", "WvqcallsqvW"
"""The placeholder words for the list of tools and for the calls of a reply in measured text."""
NAMES, KEYS, VALUES = (tuple(f"Wvq{kind}{i}qvW" for i in range(2)) for kind in ("name", "key", "value"))
PROBE, BLANK = "\n \n text \n \n", " \n"
"""Strings that show how whitespace is written, and whether a string of only whitespace is treated as empty."""
ROLES = ("user", "assistant", "tool", "system")
"""The roles of the next message. An assistant's message begins in the same way with and without calls."""
ENDS = ("end", "prompt")
"""The ends that may follow instead of a message: nothing, or the generation prompt."""
REPLIES = frozenset({"assistant", "calls"})
"""The kinds of replies: text, and calls."""


def query() -> Message:
    """Return the question before a reply."""
    return Message(role="user", content=QUERY)


def probe_call(index: int) -> ToolCall:
    """Return a call with one argument, 0 or 1."""
    return ToolCall(name=NAMES[index], arguments={KEYS[index]: VALUES[index]}, id=f"call0000{index}")


def past(kind: str, name: str) -> list[Message]:
    """Return a conversation that ends with a message of a kind, after which `name` can come."""
    count = 2 if (kind, name) == ("tool", "tool") else 1
    calls = Message(role="assistant", tool_calls=tuple(probe_call(0) for _ in range(count)))
    match kind:
        case "user":
            return [Message(role="user", content=CONTENT)]
        case "assistant":
            return [query(), Message(role="assistant", content=CONTENT)]
        case "calls":
            return [query(), calls]
        case "tool":
            return [query(), calls, Message(role="tool", content=CONTENT, tool_call_id="call00000", name=NAMES[0])]
        case _:
            return [query(), Message(role="assistant", content="a"), Message(role="system", content=CONTENT)]


def next_message(name: Any) -> Message:
    """Return a next message with a role."""
    is_tool = name == "tool"
    return Message(
        role=name,
        content=NEXT,
        tool_call_id="call00000" if is_tool else None,
        name=NAMES[0] if is_tool else None,
    )


class NotRegular(Exception):
    """A renderer writes something in a form that is not measured."""


class Slot(NamedTuple):
    """A way in which a family writes the text of a message."""

    jinja: str = ""
    """The Jinja code after the text."""
    strips: str = ""
    """The method of `str` that does the same; empty if the text is unchanged."""
    chars: str | None = None
    """The method's argument."""

    def of(self, text: str) -> str:
        """Return the text as it is written."""
        return str(getattr(text, self.strips)(self.chars)) if self.strips else text


_SLOTS = (
    Slot(),
    Slot(" | trim", "strip"),
    *(Slot(f".{name}('\\n')", name, "\n") for name in ("strip", "lstrip", "rstrip")),
)


@dataclass(frozen=True)
class Start:
    """The text before the first message that is not a system message."""

    without: str
    """Without a system message. It contains `TOOLS` where the list of tools is."""
    with_system: str
    """With a system message, whose text is `SYSTEM`."""
    slot: Slot
    needs_text: bool
    """True if an empty system message is written like a missing one."""


@dataclass(frozen=True)
class Body:
    """A reply of one shape, up to its end."""

    without: str
    """The reply without content; `REASONING` and `CALLS` are in place of its reasoning and calls."""
    with_text: str
    """The reply with the content `CONTENT`."""
    slot: Slot
    needs_text: bool
    """True if content of only spaces is written like empty content."""


@dataclass(frozen=True)
class Calls:
    """The format of the calls of a reply: names and arguments, with this text around them."""

    middle: str
    """The text between a name and its arguments."""
    separator: str | None
    """The text between two calls; None if a reply has at most one."""
    argument: tuple[str, str, str] | None = None
    """The text before a key, before its value, and after the value; None if the arguments are one JSON object."""
    is_python: bool = False
    """True if numbers, booleans and null are written as Python does, not as JSON."""
    text_arguments: str = "refused"
    """The form of arguments that are given as a string: `verbatim`, a `JSON` string, or refused."""


def shared_length(texts: Sequence[str]) -> int:
    """Return the length of the longest common prefix of strings."""
    different = (i for i, chars in enumerate(zip(*texts, strict=False)) if len(set(chars)) > 1)
    return next(different, min(map(len, texts)))


def between(text: str, first: str, second: str) -> str:
    """Return the text between two words.

    Raises:
        NotRegular: If the text does not contain them in this order.
    """
    _, found, rest = text.partition(first)
    found_text, also, _ = rest.partition(second)
    if not found or not also:
        raise NotRegular(f"calls are written in a form that is not measured: {text[-160:]!r}")
    return found_text


def slot_of(text: str, word: str, probed: Callable[[str], str | None]) -> Slot:
    """Return the slot of `word`, that is how text is written there; `probed` renders another string in its place."""
    written = probed(PROBE)
    for slot in _SLOTS:
        if written == text.replace(word, slot.of(PROBE)):
            return slot
    raise NotRegular(f"a text is written in a form that is not measured: {written!r:.120}")
