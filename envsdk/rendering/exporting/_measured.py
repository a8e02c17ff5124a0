"""Measure how a renderer writes a conversation under `keep`, where a message's text depends only on its neighbors.

Each slot of a rendered conversation (content, a name, a value) contains a unique word, so the text around the words is
the family's own. A slot that is written in an unknown way is refused. Everything that is measured here is proved
afterward; see `_proof.py`.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, NamedTuple

from ..._visible import brief
from ...errors import RenderError
from ...messages import Message, ToolCall, ToolSchema
from ..renderer import Renderer

SYSTEM, _QUERY, CONTENT, REASONING, _NEXT = (
    f"Wvq{name}qvW" for name in ("system", "query", "content", "thought", "next")
)
TOOLS, CALLS = "WvqtoolsqvW", "WvqcallsqvW"
"""The placeholder words for the list of tools and for the calls of a reply in measured text."""
_NAMES, _KEYS, _VALUES = (tuple(f"Wvq{kind}{i}qvW" for i in range(2)) for kind in ("name", "key", "value"))
_PROBE, _BLANK = "\n \n text \n \n", " \n"
"""Strings that show how whitespace is written, and whether a string of only whitespace is treated as empty."""
_ROLES = ("user", "assistant", "tool", "system")
"""The roles of the next message. An assistant's message begins in the same way with and without calls."""
_ENDS = ("end", "prompt")
"""The ends that may follow instead of a message: nothing, or the generation prompt."""
_REPLIES = frozenset({"assistant", "calls"})
"""The kinds of replies: text, and calls."""
_QUESTION = Message(role="user", content=_QUERY)
_PROBE_CALLS = tuple(
    ToolCall(name=name, arguments={key: value}, id=f"call0000{index}")
    for index, (name, key, value) in enumerate(zip(_NAMES, _KEYS, _VALUES, strict=True))
)
"""Two calls with one argument each."""
_PROBE_TOOLS: list[ToolSchema] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in _NAMES
]


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


class Measured:
    """The format of a renderer.

    Args:
        renderer: The renderer.

    Raises:
        NotRegular: From any member, if the renderer writes something in a form that is not measured.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        names = sorted(renderer.tokenizer.control_tokens, key=len, reverse=True)
        self._whole = re.compile("|".join([*map(re.escape, names), "Wvq[a-z0-9]+qvW"]))
        plain = _required(self._reply_text(None, CONTENT))
        shapes = product((None, REASONING), ("", CONTENT), ((), _PROBE_CALLS[:1]))
        texts = [text for shape in shapes if (text := self._reply_text(*shape)) is not None]
        self._opening = self._shared(texts)
        """The text between a query and a reply of any shape."""
        self._lead = plain.removeprefix(self._opening).partition(CONTENT)[0]
        """The text before the content of a reply without reasoning."""
        self.writes_reasoning = REASONING in (self._reply_text(REASONING, CONTENT) or "")
        self.ignores_tools = self._text([_QUESTION], tools=True) == self._text([_QUESTION])
        """True if tools are neither written nor refused."""
        self._measure_start()

    def _text(self, messages: Sequence[Message], *, tools: bool = False, prompt: bool = False) -> str | None:
        """Return the rendered text; None if the renderer refuses the messages."""
        given = _PROBE_TOOLS if tools else ()
        try:
            rendered = self._renderer.render(messages, tools=given, generation_prompt=prompt, history="keep")
        except RenderError:
            return None
        return self._renderer.tokenizer.decode(rendered.tokens)

    def _shared(self, texts: Sequence[str]) -> str:
        """Return the common prefix of strings, without cutting a control token or a slot's word."""
        length = shared_length(texts)
        for text in texts:
            around = (match for match in self._whole.finditer(text) if match.start() < length < match.end())
            length = next((match.start() for match in around), length)
        return texts[0][:length]

    # Replies.

    def _reply_text(self, reasoning: str | None, content: str, calls: Sequence[ToolCall] = ()) -> str | None:
        """Return the text after a query for a reply as the last message."""
        reply = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))
        written = self._text([_QUESTION, reply], tools=bool(calls))
        return None if written is None else written.partition(_QUERY)[2]

    @cached_property
    def calls(self) -> Calls | None:
        """The format of calls; None if they are refused."""
        one = self._reply_text(None, "", _PROBE_CALLS[:1])
        if one is None:
            return None
        two = self._reply_text(None, "", _PROBE_CALLS)
        as_json = json.dumps(_PROBE_CALLS[0].arguments)
        if as_json not in one:
            arguments: list[dict[str, Any]] = [{}, dict(zip(_KEYS, _VALUES, strict=True)), {_KEYS[0]: True}]
            none, both, flag = (
                _required(self._reply_text(None, "", [ToolCall(name=_NAMES[0], arguments=given)]))
                for given in arguments
            )
            first, equals = _between(one, _NAMES[0], _KEYS[0]), _between(one, _KEYS[0], _VALUES[0])
            joint = _between(both, _VALUES[0], _KEYS[1])
            before = first[len(first) - shared_length([first[::-1], joint[::-1]]) :]
            middle, after = first.removesuffix(before), joint.removesuffix(before)
            rest = none.partition(_NAMES[0])[2].removeprefix(middle)
            if one.partition(_VALUES[0])[2] != after + rest:
                raise NotRegular("the text after an argument differs after the last one")
            separator = None if two is None else _between(two, _VALUES[0], _NAMES[1]).removeprefix(after)
            return Calls(middle, separator, (before, equals, after), is_python=f"{equals}True{after}" in flag)
        middle = _between(one, _NAMES[0], as_json)
        given = self._reply_text(None, "", [ToolCall(name=_NAMES[0], arguments='"x')])
        spelled = {middle + json.dumps('"x'): "JSON", f'{middle}"x': "verbatim"}
        how = next((how for form, how in spelled.items() if given and form in given), "refused")
        separator = None if two is None else _between(two, as_json, _NAMES[1])
        return Calls(middle, separator, text_arguments=how)

    def body(self, has_reasoning: bool, has_calls: bool) -> Body | None:
        """Return the measured form of a reply of this shape; None if it is refused."""
        reasoning, calls = REASONING if has_reasoning else None, _PROBE_CALLS[: int(has_calls)]
        texts = [self._reply_text(reasoning, content, calls) for content in ("", CONTENT, _BLANK)]
        if None in texts[:2]:
            return None
        rest = self.following["calls" if has_calls else "assistant"].get("end", "")
        without, with_text, blank = (_required(text).removeprefix(self._opening).removesuffix(rest) for text in texts)
        slot = _slot_of(CONTENT, lambda text: self._reply_text(reasoning, text, calls))
        needs_text = blank == without and blank != with_text.replace(CONTENT, slot.of(_BLANK))
        if has_calls and self.calls is not None:
            argument = self.calls.argument
            end = json.dumps(_PROBE_CALLS[0].arguments) if argument is None else _VALUES[0] + argument[2]
            without, with_text = (
                f"{text.partition(_NAMES[0])[0]}{CALLS}{text.partition(_NAMES[0])[2].partition(end)[2]}"
                for text in (without, with_text)
            )
        return Body(without, with_text, slot, needs_text)

    @cached_property
    def reasoning_slot(self) -> Slot:
        """The slot of the reasoning."""
        return _slot_of(REASONING, lambda text: self._reply_text(text, CONTENT))

    # What comes next.

    @cached_property
    def following(self) -> dict[str, dict[str, str]]:
        """The text between a message of each kind and the next message or end, by kind and next role.

        After a reply, it is without what is the same for all next messages.
        """
        found: dict[str, dict[str, str]] = {}
        for kind in ("user", "assistant", "calls", "tool", "system"):
            last = _VALUES[0] if kind == "calls" else CONTENT
            tails: dict[str, str] = {}
            for name in (*_ROLES, *_ENDS):
                messages, next_one = _past(kind, name), _following(name)
                is_prompt = name == "prompt"
                text = self._text([*messages, *next_one], tools=kind in ("calls", "tool"), prompt=is_prompt)
                if text is not None and last in text and (not next_one or _NEXT in text):
                    tail = text.partition(last)[2]
                    tails[name] = self._before_next(tail, name) if next_one else tail
            if "end" in tails:
                end = self._shared([*tails.values()]) if kind in _REPLIES else ""
                found[kind] = {name: tail.removeprefix(end) for name, tail in tails.items()}
        return found

    def _before_next(self, text: str, name: str) -> str:
        """Return the text before the next message, without what is before the content of a reply."""
        text = text.partition(_NEXT)[0]
        return text.removesuffix(self._lead) if name == "assistant" else text

    @cached_property
    def contents(self) -> dict[str, Slot]:
        """The slot of the text of a message, by its role, except the assistant's."""

        def written(kind: str, content: str) -> str | None:
            *before, last = _past(kind, "end")
            return self._text([*before, last.model_copy(update={"content": content})], tools=kind == "tool")

        return {kind: _slot_of(CONTENT, partial(written, kind)) for kind in self.following if kind not in _REPLIES}

    # The start.

    def _measure_start(self) -> None:
        """Measure the start, with and without a system message and tools, and the text between it and a message.

        The start is what the texts before a user's and an assistant's message have in common, or if that varies, the
        text before a user's message.
        """
        texts: dict[tuple[bool, bool], dict[str, str]] = {}  # before the first message, or before a reply, by its role
        for system, tools in product((False, True), repeat=2):
            opening = [Message(role="system", content=SYSTEM)] if system else []
            before = texts[system, tools] = dict[str, str]()
            for name in (*_ROLES, "prompt") if system else [role for role in _ROLES if role != "system"]:
                following = _following(name)
                rendered = self._text([*opening, *following], tools=tools, prompt=name == "prompt")
                if rendered is not None and (not following or _NEXT in rendered):
                    before[name] = self._before_next(_with_tools(rendered), name)
        for roles in (("user", "assistant"), ("user",)):
            found: dict[str, set[str]] = {}
            self._starts: dict[tuple[bool, bool], str] = {}
            for shape, own in texts.items():
                if "user" in own:
                    start = self._starts[shape] = self._shared([own[role] for role in roles if role in own])
                    for name, text in own.items():
                        if text.startswith(start):
                            found.setdefault(name, set()).add(text.removeprefix(start))
            if all(len(written) == 1 for written in found.values()):
                break
        self.first = {name: next(iter(written)) for name, written in found.items() if len(written) == 1}
        """The text between the start and the first message, by its role."""

    def start(self, *, tools: bool) -> Start | None:
        """Return the text before the first message; None if tools are refused."""
        without, with_system = (self._starts.get((system, tools)) for system in (False, True))
        if without is None:
            return None
        if with_system is None:
            raise NotRegular("a system message is refused")

        def written(text: str) -> str | None:
            return self._text([Message(role="system", content=text), _QUESTION], tools=tools)

        empty = _with_tools(_required(written("")))
        needs_text = not empty.startswith(with_system.replace(SYSTEM, ""))
        return Start(without, with_system, _slot_of(SYSTEM, written), needs_text)

    @cached_property
    def tool_separator(self) -> str:
        """The text between two tools in the list."""
        text = _required(self._text([_QUESTION], tools=True))
        first, second = map(json.dumps, _PROBE_TOOLS)
        if self.ignores_tools:
            return ""
        if first not in text or second not in text:
            raise NotRegular("tools are not written as JSON")
        return _between(text, first, second)


def shared_length(texts: Sequence[str]) -> int:
    """Return the length of the longest common prefix of strings."""
    different = (i for i, chars in enumerate(zip(*texts, strict=False)) if len(set(chars)) > 1)
    return next(different, min(map(len, texts)))


def _between(text: str, first: str, second: str) -> str:
    """Return the text between two words.

    Raises:
        NotRegular: If the text does not contain them in this order.
    """
    _, found, rest = text.partition(first)
    found_text, also, _ = rest.partition(second)
    if not found or not also:
        raise NotRegular(f"calls are written in a form that is not measured: {text[-160:]!r}")
    return found_text


def _slot_of(word: str, written: Callable[[str], str | None]) -> Slot:
    """Return the slot of a word, that is how text is written there; `written` renders another string in its place."""
    text, probed = _required(written(word)), written(_PROBE)
    for slot in _SLOTS:
        if probed == text.replace(word, slot.of(_PROBE)):
            return slot
    raise NotRegular(f"a text is written in a form that is not measured: {brief(probed, 120)}")


def _required(text: str | None) -> str:
    if text is None:
        raise NotRegular("a plain conversation is refused")
    return text


def _past(kind: str, name: str) -> list[Message]:
    """Return a conversation that ends with a message of a kind, after which `name` can come."""
    count = 2 if (kind, name) == ("tool", "tool") else 1
    calls = Message(role="assistant", tool_calls=_PROBE_CALLS[:1] * count)
    match kind:
        case "user":
            return [Message(role="user", content=CONTENT)]
        case "assistant":
            return [_QUESTION, Message(role="assistant", content=CONTENT)]
        case "calls":
            return [_QUESTION, calls]
        case "tool":
            return [
                _QUESTION,
                calls,
                Message(role="tool", content=CONTENT, tool_call_id=_PROBE_CALLS[0].id, name=_NAMES[0]),
            ]
        case _:
            return [_QUESTION, Message(role="assistant", content="a"), Message(role="system", content=CONTENT)]


def _following(name: Any) -> list[Message]:
    """Return the next message, if `name` is a role and not an end."""
    if name in _ENDS:
        return []
    fields: dict[str, Any] = {"tool_call_id": _PROBE_CALLS[0].id, "name": _NAMES[0]} if name == "tool" else {}
    return [Message(role=name, content=_NEXT, **fields)]


def _with_tools(text: str) -> str:
    """Return text with one word in place of the list of tools."""
    first, second = map(json.dumps, _PROBE_TOOLS)
    start, found, rest = text.partition(first)
    return f"{start}{TOOLS}{rest.partition(second)[2]}" if found else text
