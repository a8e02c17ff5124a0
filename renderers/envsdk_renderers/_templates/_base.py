"""Measures what a chat template writes after an assistant's turn, on a fixed start of an episode.

Everything is a difference of renderings at a sentinel inside an assistant's message. The text after the sentinel, from
the token on that ends the turn, is what a next message adds.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolSchema

from ._bound_template import BoundTemplate
from ._chat_template import TemplateFailed
from ._mask import PROBE_NAME, STEM, TextMask, has_stem, shared_start
from ._sentinels import CALL_CONTENT, FIRST_CALL, REPLY, Following, Previous, exchange, reply_of, results, slot, user


class Stop(NamedTuple):
    """The end of a turn."""

    sampled: tuple[str, ...]
    """The tokens that a model may sample to end it."""
    written: str
    """The token that the template writes; empty if it is the next message's opener, which the model samples."""
    closing: str
    """The text between the last sampled word and that token."""
    is_confirmed: bool
    """True if the tokenizer or the generation configuration specifies that it ends a turn."""
    call_id: str = ""
    """The id of the sentinel's last call, which may be part of `closing`."""
    is_unwritten: bool = False
    """True if the template writes no token there (`User: ... Assistant: ...`): a rendering lacks what was sampled."""

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
        mask: TextMask,
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
        """The end of a turn with text; None if it is unknown."""
        return self._find_stop("text", ("user", "system"), None)

    @cached_property
    def of_call(self) -> Stop | None:
        """The end of a turn with calls; None if it is unknown."""
        stop = self._find_stop("call", ("tool", "user"), self.of_text)
        (sentinel,) = self._addressed([exchange("call", "user")[0]])
        return stop._replace(call_id=sentinel.tool_calls[-1].id or "") if stop else None

    def _find_stop(self, previous: Previous, followings: Sequence[Following], text_stop: Stop | None) -> Stop | None:
        """Find the token that ends a turn with the first rule that applies; the surest rules come first."""
        heads = [head for following in followings if (head := self._head(previous, following)) is not None]
        if not heads:
            return None
        shared = heads[0][: shared_start(heads)]
        known = next((item for item in self._mask.controls(shared) if item[0] in self._ends), None)
        if known:  # after which the heads differ
            return Stop((known[0],), known[0], shared[: known[1]], True)
        if openers := self._openers(heads, self._ends):
            return openers
        if text_stop and text_stop.written and text_stop.written in shared:
            return text_stop._replace(closing=shared[: shared.index(text_stop.written)])
        end = self._end(previous)
        if end is not None and (stop := self._common(heads, end) or self._replaced(heads, end)):
            return stop
        if not (text_stop and text_stop.written):  # an unknown opener, after what ends a conversation or the sentinel
            after_end = [head[shared_start([head, end or ""]) :] for head in heads]
            found = self._openers(after_end, None, heads[0][: shared_start([heads[0], end or ""])])
            if found := found or (self._openers(heads, None) if previous == "text" else None):
                return found
        is_text = previous != "call" or text_stop is None or text_stop.is_unwritten
        if self._ends and is_text and not any(map(self._mask.controls, heads)):
            return Stop(tuple(self._ends), "", "", True, is_unwritten=True)
        return None

    def _common(self, heads: Sequence[str], end: str) -> Stop | None:
        """Find the last control token after a turn that is there whatever follows, unless it ends each call."""
        common = end[: shared_start([*heads, end])]
        found = self._mask.controls(common)
        between = ""
        with suppress(TemplateFailed):
            text = self._text([user(), exchange("two calls", "user")[0]], generation_prompt=False)
            between = text[text.find(FIRST_CALL) : text.rfind(REPLY)] if FIRST_CALL in text else ""
        if not found or found[-1][0] in between:
            return None
        return Stop((found[-1][0],), found[-1][0], common[: found[-1][1]], False)

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


Pair: TypeAlias = tuple[str, str]
"""The kinds of a reply and of what comes next, as in `Verdict`."""
_REMEMBERED = 512
_Value = TypeVar("_Value")


class Tail(NamedTuple):
    """The text after the end of a turn."""

    stop: str
    """The end of the turn, as the template writes it."""
    text: str
    starts: tuple[int, ...]
    """The positions in the text where the messages and the generation prompt begin."""


class Base:
    """The start of an episode, with its system text and tools, on which the text after a sentinel is measured.

    Args:
        template: The template.
        ends: The tokens that are known to end a turn.
        system: The episode's system message, if any.
        tools: The episode's tools.
    """

    def __init__(
        self, template: BoundTemplate, ends: Sequence[str], system: Message | None, tools: Sequence[ToolSchema]
    ) -> None:
        self.template = template
        self.tools = tools
        self.start = [system] if system else []
        self.stops = Stops(self.text, template.dialect.addressed, template.mask, ends)
        self._texts: dict[tuple[object, ...], str | TemplateFailed] = {}
        self.tails: dict[tuple[object, ...], Tail] = {}
        """The measured tails, by the shape of their turn."""

    def text(self, messages: Sequence[Message], *, generation_prompt: bool, is_rare: bool = False) -> str:
        """Render the start of the episode and then sentinel messages; the text is cached, unless it is rare.

        Raises:
            TemplateFailed: If the template refuses them.
        """
        if is_rare:
            return self.template.text([*self.start, *messages], self.tools, generation_prompt=generation_prompt)
        key = (generation_prompt, *map(message_key, messages))
        text = self._texts.get(key)
        if text is None:
            try:
                text = self.template.text([*self.start, *messages], self.tools, generation_prompt=generation_prompt)
            except TemplateFailed as error:
                text = error
            remember(self._texts, key, text)
        if isinstance(text, TemplateFailed):
            raise text
        return text

    @cached_property
    def generation_prompt(self) -> str:
        """The template's generation prompt after a user's message."""
        with_prompt = self.text([user()], generation_prompt=True)
        return with_prompt[self.template.mask.shared(with_prompt, self.text([user()], generation_prompt=False)) :]

    # What follows a turn.

    def tail(self, past: Sequence[Message], reply: Message, answers: Sequence[Message], pair: Pair = ("", "")) -> Tail:
        """Return what the template writes after the end of `reply`, which contains a sentinel.

        Raises:
            TemplateUnsupported: If the sentinel or the end of the turn is not found.
            TemplateFailed: If the template refuses the conversation.
        """
        text = self.template.safe_text([*self.start, *past, reply, *answers], self.tools, generation_prompt=True)
        after, stop, rest = self.cut(text, reply, pair)
        return Tail(stop, rest, self._starts([*past, reply], answers, after, len(after) - len(rest)))

    def _starts(self, before: Sequence[Message], answers: Sequence[Message], after: str, end: int) -> tuple[int, ...]:
        """Return where the answers and the generation prompt begin after the end of a turn.

        The text between two slots is measured once for each pair of roles, so that many answers cost no more than their
        text.
        """
        starts, seams = [end], dict[tuple[str, str], str]()
        for index, answer in enumerate(answers):
            following = answers[index + 1] if index + 1 < len(answers) else None
            at = after.find(answer.content, end) + len(answer.content) if has_stem(answer.content) else -1
            seam = seams.get((answer.role, following.role)) if following else None
            if at > end and seam is not None and after.startswith(seam, at):
                starts.append(at + len(seam))
                continue
            shared = 0  # how much of the text is also rendered if the conversation ends here
            with suppress(TemplateFailed):
                text = self.text([*before, *answers[: index + 1]], generation_prompt=False, is_rare=True)
                if REPLY in text:
                    shared = self.template.mask.shared(after, text[text.rfind(REPLY) + len(REPLY) :])
            starts.append(max(starts[-1], shared))
            if at > end and following:
                seams[answer.role, following.role] = after[at : starts[-1]]
        return tuple(start - end for start in starts)

    def cut(self, text: str, reply: Message, pair: Pair) -> tuple[str, str, str]:
        """Cut a rendering at the sentinel of its last reply.

        Returns:
            The text after the sentinel; the end of the turn; the text after that.

        Raises:
            TemplateUnsupported: If the sentinel or the end of the turn is not found.
        """
        at = text.rfind(REPLY)
        stop = self.stops.of(bool(reply.tool_calls))
        (addressed,) = self.template.dialect.addressed([reply])
        if at < 0:
            raise TemplateUnsupported("the reply is not rendered", pair=pair, expected=REPLY, rendered=text)
        after = text[at + len(REPLY) :]
        if reply.tool_calls and CALL_CONTENT in reply.content and CALL_CONTENT in after:
            why = "the reply's text is rendered after its calls"
            raise TemplateUnsupported(why, pair=pair, expected="text before the calls", rendered=after)
        if stop is None:
            raise TemplateUnsupported("no token ends the turn", pair=pair, expected="a control token", rendered=after)
        if stop.is_unwritten:
            return after, "", after
        controls, closing = self.template.mask.controls(after), stop.closing_of(addressed)
        if stop.written:
            found = next((item for item in controls if item[0] == stop.written), None)
        else:
            found = next((item for item in controls if item[1] == len(closing)), None)
        if found is None or after[: found[1]] != closing:
            expected = closing + (stop.written or "a token that opens a message")
            raise TemplateUnsupported(
                "the turn does not end as others do", pair=pair, expected=expected, rendered=after
            )
        return after, found[0], after[found[1] + len(found[0]) :]

    @cached_property
    def moves_text(self) -> bool:
        """True if the template writes the text of a reply after its calls, perhaps after their results (Gemma 4).

        A model samples text before its calls. The template's text after such a reply is not what follows it then: the
        sampled text is there again, and may end the turn.
        """
        reply = reply_of([PROBE_NAME], call_content=CALL_CONTENT)
        for answers in (results(reply, 1), [user(slot(0))]):
            try:
                text = self.text([user(), reply, *answers], generation_prompt=True)
            except TemplateFailed:
                continue
            if CALL_CONTENT in text.rpartition(REPLY)[2]:
                return True
        return False

    @cached_property
    def writes_ids(self) -> bool:
        """True if what follows a reply depends on the ids of its calls."""
        texts: list[str] = []
        for call_id in (f"{STEM}00001", f"{STEM}00002"):
            reply = reply_of([PROBE_NAME], ids=[call_id])
            try:
                text = self.text([user(), reply, *results(reply, 1)], generation_prompt=True)
            except TemplateFailed:
                return True
            texts.append(text.rpartition(REPLY)[2])
        return texts[0] != texts[1]


def message_key(message: Message) -> tuple[object, ...]:
    """Return the parts of a message that its rendering depends on, as a key of a cache."""
    calls = tuple((call.name, call.id, str(call.arguments)) for call in message.tool_calls)
    content = tuple(map(repr, message.parts or ())) if message.images else message.content
    return message.role, content, message.reasoning, message.tool_call_id, message.name, calls


def remember(
    memory: dict[tuple[object, ...], _Value], key: tuple[object, ...], value: _Value, *, at_most: int = _REMEMBERED
) -> None:
    """Add a value to a cache of bounded size; drop the oldest one if it is full."""
    if len(memory) >= at_most:
        memory.pop(next(iter(tuple(memory))), None)  # other threads may share the cache
    memory[key] = value
