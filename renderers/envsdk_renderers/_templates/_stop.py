"""Finds how an assistant's turn ends: which token a model samples there, and which one the template writes."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from envsdk.messages import Message

from ._chat_template import TemplateFailed
from ._mask import Mask, shared_start
from ._sentinels import FIRST_CALL, REPLY, Following, Previous, exchange, slot, user


class Stop(NamedTuple):
    """How a turn ends."""

    sampled: tuple[str, ...]
    """The tokens that a model may sample to end it."""
    written: str
    """The token that the template writes; empty if it is the next message's opener, which the model samples."""
    closing: str
    """The text between the last sampled word and that token."""
    is_confirmed: bool
    """Whether the tokenizer or the generation configuration specifies that it ends a turn."""
    call_id: str = ""
    """The id of the sentinel's last call, which may be part of `closing`."""
    is_unwritten: bool = False
    """Whether the template writes no token there (`User: ... Assistant: ...`): a rendering lacks what was sampled."""

    def closing_of(self, reply: Message) -> str:
        """Return `closing` for a reply, whose calls have ids."""
        given = reply.tool_calls[-1].id if reply.tool_calls else None
        return self.closing.replace(self.call_id, given) if given and self.call_id else self.closing


class Stops:
    """The ends of turns, measured on sentinel messages.

    Args:
        text: Renders sentinel messages.
        addressed: Adds ids to their calls.
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
        """Return how a turn with calls, or with text, ends; None if that is unknown."""
        return self.of_call if has_calls else self.of_text

    @cached_property
    def of_text(self) -> Stop | None:
        """How a turn with text ends; None if that is unknown."""
        return self._find_stop("text", ("user", "system"), None)

    @cached_property
    def of_call(self) -> Stop | None:
        """How a turn with calls ends; None if that is unknown."""
        stop = self._find_stop("call", ("tool", "user"), self.of_text)
        (sentinel,) = self._addressed([exchange("call", "user")[0]])
        return stop._replace(call_id=sentinel.tool_calls[-1].id or "") if stop else None

    def _find_stop(self, previous: Previous, followings: Sequence[Following], text_stop: Stop | None) -> Stop | None:
        """Find the token that ends a turn with the first rule that applies; the surest rules come first."""
        heads = [head for following in followings if (head := self._head(previous, following)) is not None]
        if not heads:
            return None
        end = self._end(previous)
        rules = (
            lambda: self._known_token(heads),
            lambda: self._openers(heads, self._ends),
            lambda: self._same_as_text(heads, text_stop),
            lambda: None if end is None else self._common(heads, end) or self._replaced(heads, end),
            lambda: None if text_stop and text_stop.written else self._unknown_openers(heads, end or "", previous),
            lambda: self._unwritten(heads, text_stop if previous == "call" else None),
        )
        return next((stop for rule in rules if (stop := rule())), None)

    def _known_token(self, heads: Sequence[str]) -> Stop | None:
        """Find a token that is known to end a turn, after which the heads differ."""
        shared = heads[0][: shared_start(heads)]
        known = next((item for item in self._mask.controls(shared) if item[0] in self._ends), None)
        return known and Stop((known[0],), known[0], shared[: known[1]], True)

    def _same_as_text(self, heads: Sequence[str], text_stop: Stop | None) -> Stop | None:
        """Find the token that ends a turn with text."""
        shared = heads[0][: shared_start(heads)]
        if not (text_stop and text_stop.written and text_stop.written in shared):
            return None
        return text_stop._replace(closing=shared[: shared.index(text_stop.written)])

    def _unwritten(self, heads: Sequence[str], text_stop: Stop | None) -> Stop | None:
        """Return the known tokens if the template writes no control token between turns."""
        if not self._ends or (text_stop and not text_stop.is_unwritten) or any(map(self._mask.controls, heads)):
            return None
        return Stop(tuple(self._ends), "", "", True, is_unwritten=True)

    def _unknown_openers(self, heads: Sequence[str], end: str, previous: Previous) -> Stop | None:
        """Find the tokens that open a next message, right after what ends a conversation or the sentinel."""
        after_end = [head[shared_start([head, end]) :] for head in heads]
        found = self._openers(after_end, None, heads[0][: shared_start([heads[0], end])])
        return found or (self._openers(heads, None) if previous == "text" else None)

    def _common(self, heads: Sequence[str], end: str) -> Stop | None:
        """Find the last control token after a turn that is there whatever follows, unless it ends each call."""
        common = end[: shared_start([*heads, end])]
        found = self._mask.controls(common)
        if not found or found[-1][0] in self._between_calls:
            return None
        return Stop((found[-1][0],), found[-1][0], common[: found[-1][1]], False)

    @cached_property
    def _between_calls(self) -> str:
        """The text between two calls of one message."""
        try:
            text = self._text([user(), exchange("two calls", "user")[0]], generation_prompt=False)
        except TemplateFailed:
            return ""
        return text[text.find(FIRST_CALL) : text.rfind(REPLY)] if FIRST_CALL in text else ""

    def _head(self, previous: Previous, following: Following) -> str | None:
        """Return the text between the sentinel and the next message's content; None if there is none."""
        reply, answers = exchange(previous, following)
        try:
            text = self._text([user(), reply, *answers], generation_prompt=True)
        except TemplateFailed:
            return None
        tail = text[text.rfind(REPLY) + len(REPLY) :]
        return tail[: tail.index(slot(0))] if REPLY in text and slot(0) in tail else None

    def _end(self, previous: Previous) -> str | None:
        """Return the text after the sentinel at the end of a conversation; None if there is none."""
        try:
            text = self._text([user(), exchange(previous, "user")[0]], generation_prompt=False)
        except TemplateFailed:
            return None
        return text[text.rfind(REPLY) + len(REPLY) :] if REPLY in text else None

    def _openers(self, heads: Sequence[str], among: Sequence[str] | None, closing: str = "") -> Stop | None:
        """Find the tokens that open a next message, if they end a turn."""
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
        """Find a token that ends a conversation but is replaced by another one inside it (Harmony)."""
        at_end = next((item for item in self._mask.controls(end) if item[0] in self._ends), None)
        if at_end is None:
            return None
        closing = end[: at_end[1]]
        if not all(head.startswith(closing) for head in heads):
            return None
        inside = {controls[0][0] for head in heads if (controls := self._mask.controls(head[len(closing) :]))}
        return Stop((at_end[0],), inside.pop(), closing, True) if len(inside) == 1 else None
