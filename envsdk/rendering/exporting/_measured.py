"""Measure how a renderer writes a conversation under `keep`, where a message's text depends only on its neighbors.

Each slot of a rendered conversation (content, a name, a value) contains a unique word, so the text around the words is
the family's own. A slot that is written in an unknown way is refused. Everything that is measured here is proved
afterward; see `_proof.py`.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import product

from ...errors import RenderError
from ...messages import Message, ToolCall, ToolSchema
from ..renderer import Renderer
from ._forms import (
    BLANK,
    CALLS,
    CONTENT,
    ENDS,
    KEYS,
    NAMES,
    NEXT,
    QUERY,
    REASONING,
    REPLIES,
    ROLES,
    SYSTEM,
    TOOLS,
    VALUES,
    Body,
    Calls,
    NotRegular,
    Slot,
    Start,
    between,
    next_message,
    past,
    probe_call,
    query,
    shared_length,
    slot_of,
)


class Measured:
    """The format of a renderer.

    Args:
        renderer: The renderer.

    Raises:
        NotRegular: From any attribute, if the renderer writes something in a form that is not measured.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._first_roles: tuple[str, ...] = ("user", "assistant")
        self.tools: tuple[ToolSchema, ...] = tuple(
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in NAMES
        )

    def text(self, messages: Sequence[Message], *, tools: bool = False, prompt: bool = False) -> str | None:
        """Return the rendered text; None if the renderer refuses the messages."""
        given = self.tools if tools else ()
        try:
            rendered = self.renderer.render(messages, tools=given, generation_prompt=prompt, history="keep")
        except RenderError:
            return None
        return self.renderer.tokenizer.decode(rendered.tokens)

    def shared(self, texts: Sequence[str]) -> str:
        """Return the common prefix of strings, without cutting a control token or a slot's word."""
        length = shared_length(texts)
        for text in texts:
            around = (match for match in self._whole.finditer(text) if match.start() < length < match.end())
            length = next((match.start() for match in around), length)
        return texts[0][:length]

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        names = sorted(self.renderer.tokenizer.control_tokens, key=len, reverse=True)
        return re.compile("|".join([*map(re.escape, names), "Wvq[a-z0-9]+qvW"]))

    # Replies.

    @cached_property
    def _opening(self) -> str:
        """The text between a query and a reply of any shape."""
        found = [self._reply_text(*shape) for shape in product((False, True), repeat=3)]
        return self.shared([text for text in found if text is not None])

    @cached_property
    def _lead(self) -> str:
        """The text before the content of a reply without reasoning."""
        return self._required(self._reply_text(False, True, False)).removeprefix(self._opening).partition(CONTENT)[0]

    def _reply_text(self, reasoning: bool, content: bool | str, calls: bool | Sequence[ToolCall]) -> str | None:
        """Return the text after a query for a reply of this shape as the last message."""
        text = content if isinstance(content, str) else CONTENT * content
        made = calls if not isinstance(calls, bool) else (probe_call(0),) * calls
        reply = Message(
            role="assistant", content=text, reasoning=REASONING if reasoning else None, tool_calls=tuple(made)
        )
        written = self.text([query(), reply], tools=bool(made))
        return None if written is None else written.partition(QUERY)[2]

    @cached_property
    def writes_reasoning(self) -> bool:
        """True if the reasoning of a reply is written."""
        return REASONING in (self._reply_text(True, True, False) or "")

    @cached_property
    def calls(self) -> Calls | None:
        """The format of calls; None if they are refused."""
        one = self._reply_text(False, False, True)
        if one is None:
            return None
        two = self._reply_text(False, False, [probe_call(0), probe_call(1)])
        as_json = json.dumps({KEYS[0]: VALUES[0]})
        if as_json not in one:
            return self._calls_by_argument(one, two)
        middle = between(one, NAMES[0], as_json)
        given = self._reply_text(False, False, [ToolCall(name=NAMES[0], arguments='"x')])
        spelled = {middle + json.dumps('"x'): "JSON", f'{middle}"x': "verbatim"}
        how = next((how for form, how in spelled.items() if given and form in given), "refused")
        separator = None if two is None else between(two, as_json, NAMES[1])
        return Calls(middle, separator, text_arguments=how)

    def _calls_by_argument(self, one: str, two: str | None) -> Calls:
        none = self._required(self._reply_text(False, False, [ToolCall(name=NAMES[0])]))
        pair = ToolCall(name=NAMES[0], arguments=dict(zip(KEYS, VALUES, strict=True)))
        both = self._required(self._reply_text(False, False, [pair]))
        first, equals = between(one, NAMES[0], KEYS[0]), between(one, KEYS[0], VALUES[0])
        joint = between(both, VALUES[0], KEYS[1])
        before = first[len(first) - shared_length([first[::-1], joint[::-1]]) :]
        middle, after = first.removesuffix(before), joint.removesuffix(before)
        rest = none.partition(NAMES[0])[2].removeprefix(middle)
        if one.partition(VALUES[0])[2] != after + rest:
            raise NotRegular("the text after an argument differs after the last one")
        flag = self._required(self._reply_text(False, False, [ToolCall(name=NAMES[0], arguments={KEYS[0]: True})]))
        separator = None if two is None else between(two, VALUES[0], NAMES[1]).removeprefix(after)
        return Calls(middle, separator, (before, equals, after), is_python=f"{equals}True{after}" in flag)

    def body(self, reasoning: bool, calls: bool) -> Body | None:
        """Return the measured form of a reply of this shape; None if it is refused."""
        texts = [self._reply_text(reasoning, content, calls) for content in (False, True)]
        if None in texts:
            return None
        without, with_text = (self._without_next(self._required(text), calls) for text in texts)
        rest = self.following["calls" if calls else "assistant"].get("end", "")
        slot = slot_of(
            f"{self._opening}{with_text}{rest}", CONTENT, lambda text: self._reply_text(reasoning, text, calls)
        )
        blank = self._without_next(self._required(self._reply_text(reasoning, BLANK, calls)), calls)
        needs_text = blank == without and blank != with_text.replace(CONTENT, slot.of(BLANK))
        return Body(self._with_calls(without), self._with_calls(with_text), slot, needs_text)

    def _without_next(self, text: str, calls: bool) -> str:
        """Return the body of a reply that is the last message."""
        rest = self.following["calls" if calls else "assistant"].get("end", "")
        return text.removeprefix(self._opening).removesuffix(rest)

    def _with_calls(self, text: str) -> str:
        if NAMES[0] not in text or self.calls is None:
            return text
        end = json.dumps({KEYS[0]: VALUES[0]}) if self.calls.argument is None else VALUES[0] + self.calls.argument[2]
        start, _, rest = text.partition(NAMES[0])
        return f"{start}{CALLS}{rest.partition(end)[2]}"

    @cached_property
    def reasoning_slot(self) -> Slot:
        """The slot of the reasoning."""
        text = self._required(self._reply_text(True, True, False))

        def probed(probe: str) -> str | None:
            reply = Message(role="assistant", content=CONTENT, reasoning=probe)
            written = self.text([query(), reply])
            return None if written is None else written.partition(QUERY)[2]

        return slot_of(text, REASONING, probed)

    # What comes next.

    @cached_property
    def ends(self) -> dict[str, str]:
        """The end of a message of each kind that is the same for all next messages."""
        return {kind: self.shared([*tails.values()]) for kind, tails in self._tails.items()}

    @cached_property
    def following(self) -> dict[str, dict[str, str]]:
        """The text between a message of each kind and the next message or end, by kind and next role."""
        return {
            kind: {name: tail.removeprefix(self.ends[kind] if kind in REPLIES else "") for name, tail in tails.items()}
            for kind, tails in self._tails.items()
        }

    @cached_property
    def _tails(self) -> dict[str, dict[str, str]]:
        """The text after the last slot of a message of each kind, up to the first slot of the next message."""
        found: dict[str, dict[str, str]] = {}
        for kind in ("user", "assistant", "calls", "tool", "system"):
            tails = {name: self._tail(kind, name) for name in (*ROLES, *ENDS)}
            known = {name: tail for name, tail in tails.items() if tail is not None}
            if "end" in known:
                found[kind] = known
        return found

    def _tail(self, kind: str, name: str) -> str | None:
        before = past(kind, name)
        following = () if name in ENDS else (next_message(name),)
        written = self.text([*before, *following], tools=kind in ("calls", "tool"), prompt=name == "prompt")
        if written is None:
            return None
        last = VALUES[0] if kind == "calls" else CONTENT
        if last not in written or (following and NEXT not in written):
            return None
        tail = written.partition(last)[2]
        if not following:
            return tail
        tail = tail.partition(NEXT)[0]
        return tail.removesuffix(self._lead) if name == "assistant" else tail

    @cached_property
    def contents(self) -> dict[str, Slot]:
        """The slot of the text of a message, by its role, except the assistant's."""

        def written(kind: str, content: str) -> str | None:
            *before, last = past(kind, "end")
            return self.text([*before, last.model_copy(update={"content": content})], tools=kind == "tool")

        kinds = [kind for kind in self.following if kind not in REPLIES]
        return {
            kind: slot_of(self._required(written(kind, CONTENT)), CONTENT, partial(written, kind)) for kind in kinds
        }

    # The start.

    @cached_property
    def first(self) -> dict[str, str]:
        """The text between the start and the first message, by its role."""
        for self._first_roles in (("user", "assistant"), ("user",)):
            found: dict[str, set[str]] = {}
            for system, tools in product((False, True), repeat=2):
                for name, text in self._firsts(system=system, tools=tools).items():
                    found.setdefault(name, set()).add(text)
            if all(len(texts) == 1 for texts in found.values()):
                break
        return {name: next(iter(texts)) for name, texts in found.items() if len(texts) == 1}

    def _firsts(self, *, system: bool, tools: bool) -> dict[str, str]:
        head = self._head(system=system, tools=tools)
        texts = {name: self._first_text(name, system=system, tools=tools) for name in (*ROLES, "prompt")}
        return {
            name: text.removeprefix(head)
            for name, text in texts.items()
            if head is not None and text is not None and text.startswith(head)
        }

    @cached_property
    def ignores_tools(self) -> bool:
        """True if tools are neither written nor refused."""
        return self.text([query()], tools=True) == self.text([query()])

    def start(self, *, tools: bool) -> Start | None:
        """Return the text before the first message; None if tools are refused."""
        without, with_system = (self._head(system=system, tools=tools) for system in (False, True))
        if without is None:
            return None
        if with_system is None:
            raise NotRegular("a system message is refused")
        system = Message(role="system", content=SYSTEM)

        def probed(probe: str) -> str | None:
            return self.text([system.model_copy(update={"content": probe}), query()], tools=tools)

        slot = slot_of(self._required(self.text([system, query()], tools=tools)), SYSTEM, probed)
        empty = self._with_tools(self._required(probed("")))
        needs_text = not empty.startswith(with_system.replace(SYSTEM, ""))
        return Start(without, with_system, slot, needs_text)

    def _head(self, *, system: bool, tools: bool) -> str | None:
        texts = [self._first_text(name, system=system, tools=tools) for name in self._first_roles]
        return None if texts[0] is None else self.shared([text for text in texts if text is not None])

    def _first_text(self, name: str, *, system: bool, tools: bool) -> str | None:
        """Return the text before the content of the first message."""
        start = [Message(role="system", content=SYSTEM)] if system else []
        following = [] if name == "prompt" else [next_message(name)]
        if not start and (not following or name == "system"):
            return None
        written = self.text([*start, *following], tools=tools, prompt=name == "prompt")
        if written is None or (following and NEXT not in written):
            return None
        head = self._with_tools(written).partition(NEXT)[0]
        return head.removesuffix(self._lead) if name == "assistant" else head

    @cached_property
    def tool_separator(self) -> str:
        """The text between two tools in the list."""
        text = self._required(self.text([query()], tools=True))
        first, second = map(json.dumps, self.tools)
        if self.ignores_tools:
            return ""
        if first not in text or second not in text:
            raise NotRegular("tools are not written as JSON")
        return between(text, first, second)

    def _with_tools(self, text: str) -> str:
        first, second = map(json.dumps, self.tools)
        start, found, rest = text.partition(first)
        return f"{start}{TOOLS}{rest.partition(second)[2]}" if found else text

    def _required(self, text: str | None) -> str:
        if text is None:
            raise NotRegular("a plain conversation is refused")
        return text
