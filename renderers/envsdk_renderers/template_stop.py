"""Finds how an assistant's turn ends in a chat template: which token a model samples there, and what is written."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from envsdk.messages import Message

from .template_probe import FIRST_CALL, REPLY, Following, Previous, exchange, slot, user
from .templates import Mask, TemplateFailed, shared_start


class Stop(NamedTuple):
    """How a turn ends."""

    sampled: tuple[str, ...]
    """What a model may sample to end it."""
    written: str
    """What the template writes there; empty if that is the next message's opener, which the model samples."""
    closing: str
    """The text before it, behind the last sampled word."""
    is_confirmed: bool
    """Whether the tokenizer or the generation configuration says that it ends a turn."""
    call_id: str = ""
    """The id of the sentinel's last call, which may be in `closing`."""

    def closing_of(self, reply: Message) -> str:
        """The text between the last sampled word of a reply, whose calls have ids, and the end of its turn."""
        given = reply.tool_calls[-1].id if reply.tool_calls else None
        return self.closing.replace(self.call_id, given) if given and self.call_id else self.closing


class Stops:
    """How turns end: measured on sentinel messages.

    Args:
        text: Renders sentinel messages.
        addressed: Gives ids to their calls.
        mask: Finds the control tokens.
        ends: The tokens that are known to end a turn.
    """

    def __init__(
        self,
        text: Callable[..., str],
        addressed: Callable[[Sequence[Message]], list[Message]],
        mask: Mask,
        ends: Sequence[str],
    ) -> None:
        self._text = text
        self._addressed = addressed
        self._mask = mask
        self._ends = ends

    def of(self, has_calls: bool) -> Stop | None:
        """How a turn ends that calls tools, or says text; None if that cannot be told."""
        return self.of_call if has_calls else self.of_text

    @cached_property
    def of_text(self) -> Stop | None:
        """How a turn ends that says text; None if that cannot be told."""
        return self._find_stop("text", ("user", "system"), None)

    @cached_property
    def of_call(self) -> Stop | None:
        """How a turn ends that calls tools; None if that cannot be told."""
        stop = self._find_stop("call", ("tool", "user"), self.of_text)
        (sentinel,) = self._addressed([exchange("call", "user")[0]])
        return stop._replace(call_id=sentinel.tool_calls[-1].id or "") if stop else None

    def _find_stop(self, previous: Previous, followings: Sequence[Following], known: Stop | None) -> Stop | None:
        """The token that ends a turn, the surest rule first."""
        heads = [head for following in followings if (head := self._head(previous, following)) is not None]
        if not heads:
            return None
        shared, controls = heads[0][: shared_start(heads)], self._mask.controls
        for name, at in controls(shared):
            if name in self._ends:
                return Stop((name,), name, shared[:at], True)
        openers = self._openers(heads, self._ends)
        if openers:
            return openers
        if known and known.written and known.written in shared:
            return known._replace(closing=shared[: shared.index(known.written)])
        end = self._end(previous)
        if end is not None:
            measured = self._common(heads, end) or self._replaced(heads, end)
            if measured:
                return measured
        if known and known.written:
            return None  # what ends a text is no opener, so neither is what ends a call
        stripped = [_behind(head, end or "") for head in heads]
        return self._openers(stripped, None, heads[0][: shared_start([heads[0], end or ""])]) or (
            self._openers(heads, None) if previous == "text" else None
        )

    def _common(self, heads: Sequence[str], end: str) -> Stop | None:
        """The last control token that stands behind a turn whatever follows, and does not end each call."""
        common = end[: shared_start([*heads, end])]
        found = self._mask.controls(common)
        if not found or found[-1][0] in self._between_calls:
            return None
        return Stop((found[-1][0],), found[-1][0], common[: found[-1][1]], False)

    @cached_property
    def _between_calls(self) -> str:
        """What stands between two calls of one message."""
        try:
            text = self._text([user(), exchange("two calls", "user")[0]], generation_prompt=False)
        except TemplateFailed:
            return ""
        return text[text.find(FIRST_CALL) : text.rfind(REPLY)] if FIRST_CALL in text else ""

    def _head(self, previous: Previous, following: Following) -> str | None:
        """What stands between the sentinel and the next message's content."""
        reply, answers = exchange(previous, following)
        try:
            text = self._text([user(), reply, *answers], generation_prompt=True)
        except TemplateFailed:
            return None
        tail = text[text.rfind(REPLY) + len(REPLY) :]
        return tail[: tail.index(slot(0))] if REPLY in text and slot(0) in tail else None

    def _end(self, previous: Previous) -> str | None:
        """What stands behind the sentinel at the end of a conversation."""
        try:
            text = self._text([user(), exchange(previous, "user")[0]], generation_prompt=False)
        except TemplateFailed:
            return None
        return text[text.rfind(REPLY) + len(REPLY) :] if REPLY in text else None

    def _openers(self, heads: Sequence[str], among: Sequence[str] | None, closing: str = "") -> Stop | None:
        """The set of tokens that open a next message, if that is what ends a turn."""
        found: list[tuple[str, int]] = []
        for head in heads:
            names = [(n, at) for n, at in self._mask.controls(head) if among is None or n in among]
            if not names or (among is None and names[0][1] != 0):
                return None
            found.append(names[0])
        if len({head[:at] for head, (_, at) in zip(heads, found, strict=True)}) > 1:
            return None
        closing += heads[0][: found[0][1]]
        return Stop(tuple(dict.fromkeys(name for name, _ in found)), "", closing, among is not None)

    def _replaced(self, heads: Sequence[str], end: str) -> Stop | None:
        """A token that ends a conversation and is another inside one (Harmony)."""
        at_end = next((item for item in self._mask.controls(end) if item[0] in self._ends), None)
        if at_end is None:
            return None
        closing = end[: at_end[1]]
        if not all(head.startswith(closing) for head in heads):
            return None
        inside = {controls[0][0] for head in heads if (controls := self._mask.controls(head[len(closing) :]))}
        return Stop((at_end[0],), inside.pop(), closing, True) if len(inside) == 1 else None


def _behind(text: str, start: str) -> str:
    return text[shared_start([text, start]) :]
