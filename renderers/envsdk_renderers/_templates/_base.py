"""Measures what a chat template writes after an assistant's turn, on a fixed start of an episode.

Everything is a difference of renderings at a sentinel inside an assistant's message. The text after the sentinel, from
the token on that ends the turn, is what a next message adds.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

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


Pair: TypeAlias = tuple[str, str]
"""The kinds of a reply and of what comes next, as in `Verdict`."""


class Tail(NamedTuple):
    """The text after the end of a turn."""

    stop: str
    """The end of the turn, as the template writes it."""
    text: str
    starts: tuple[int, ...]
    """The positions in the text where the messages and the generation prompt begin."""


Status: TypeAlias = Literal["exact", "keeps", "refused", "not possible"]


class Judgement(NamedTuple):
    """The proved facts about one turn."""

    status: Status
    detail: str = ""
    error: TemplateUnsupported | None = None
    """The error with which a turn is refused."""


@dataclass(eq=False, repr=False)
class Base:
    """The start of an episode, with its system text and tools, on which the text after a sentinel is measured.

    Args:
        template: The template.
        ends: The tokens that are known to end a turn.
        start: The episode's system message, if any.
        tools: The episode's tools.
    """

    template: BoundTemplate
    ends: Sequence[str]
    start: Sequence[Message]
    tools: Sequence[ToolSchema]
    tails: dict[tuple[object, ...], Tail] = field(default_factory=dict[tuple[object, ...], Tail])
    """The measured tails, by the shape of their turn."""
    judgements: dict[str, Judgement] = field(default_factory=dict[str, Judgement])
    rewritten: dict[bool, str] = field(default_factory=dict[bool, str])
    """An example of how the template rewrites earlier text, by whether tools are called."""

    def text(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """Render the start of the episode and then sentinel messages.

        Raises:
            TemplateFailed: If the template refuses them.
        """
        return self.template.text([*self.start, *messages], self.tools, generation_prompt=generation_prompt)

    @cached_property
    def generation_prompt(self) -> str:
        """The template's generation prompt after a user's message."""
        with_prompt = self.text([user()], generation_prompt=True)
        return with_prompt[self.template.mask.shared(with_prompt, self.text([user()], generation_prompt=False)) :]

    @cached_property
    def text_stop(self) -> Stop | None:
        """The end of a turn with text; None if it is unknown."""
        return _find_stop(self, "text", ("user", "system"), None)

    @cached_property
    def call_stop(self) -> Stop | None:
        """The end of a turn with calls; None if it is unknown."""
        stop = _find_stop(self, "call", ("tool", "user"), self.text_stop)
        (sentinel,) = self.template.dialect.addressed([exchange("call", "user")[0]])
        return stop._replace(call_id=sentinel.tool_calls[-1].id or "") if stop else None

    # What follows a turn.

    def tail(self, past: Sequence[Message], reply: Message, answers: Sequence[Message], pair: Pair = ("", "")) -> Tail:
        """Return what the template writes after the end of `reply`, which contains a sentinel.

        The text between the slots of two answers is measured once for each pair of roles, so that many answers cost no
        more than their text.

        Raises:
            TemplateUnsupported: If the sentinel or the end of the turn is not found.
            TemplateFailed: If the template refuses the conversation.
        """
        text = self.template.safe_text([*self.start, *past, reply, *answers], self.tools, generation_prompt=True)
        after, stop, rest = self.cut(text, reply, pair)
        end = len(after) - len(rest)
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
                text = self.text([*past, reply, *answers[: index + 1]], generation_prompt=False)
                if REPLY in text:
                    shared = self.template.mask.shared(after, text[text.rfind(REPLY) + len(REPLY) :])
            starts.append(max(starts[-1], shared))
            if at > end and following:
                seams[answer.role, following.role] = after[at : starts[-1]]
        return Tail(stop, rest, tuple(start - end for start in starts))

    def cut(self, text: str, reply: Message, pair: Pair) -> tuple[str, str, str]:
        """Cut a rendering at the sentinel of its last reply.

        Returns:
            The text after the sentinel; the end of the turn; the text after that.

        Raises:
            TemplateUnsupported: If the sentinel or the end of the turn is not found.
        """
        stop = self.call_stop if reply.tool_calls else self.text_stop
        (addressed,) = self.template.dialect.addressed([reply])
        _, found, after = text.rpartition(REPLY)
        if not found:
            raise TemplateUnsupported("the reply is not rendered", pair=pair, expected=REPLY, rendered=text)
        if reply.tool_calls and CALL_CONTENT in reply.content and CALL_CONTENT in after:
            why = "the reply's text is rendered after its calls"
            raise TemplateUnsupported(why, pair=pair, expected="text before the calls", rendered=after)
        if stop is None:
            raise TemplateUnsupported("no token ends the turn", pair=pair, expected="a control token", rendered=after)
        if stop.is_unwritten:
            return after, "", after
        closing = stop.closing_of(addressed)
        for name, at in self.template.mask.controls(after):
            if name == stop.written if stop.written else at == len(closing):
                if after[:at] == closing:
                    return after, name, after[at + len(name) :]
                break
        expected = closing + (stop.written or "a token that opens a message")
        raise TemplateUnsupported("the turn does not end as others do", pair=pair, expected=expected, rendered=after)

    @cached_property
    def moves_text(self) -> bool:
        """True if the template writes the text of a reply after its calls, perhaps after their results (Gemma 4).

        A model samples text before its calls. The template's text after such a reply is not what follows it then: the
        sampled text is there again, and may end the turn.
        """
        reply = reply_of([PROBE_NAME], call_content=CALL_CONTENT)
        for answers in (results(reply, 1), [user(slot(0))]):
            with suppress(TemplateFailed):
                text = self.text([user(), reply, *answers], generation_prompt=True)
                if CALL_CONTENT in text.rpartition(REPLY)[2]:
                    return True
        return False

    def without_moved_text(self, reply: Message) -> Message:
        """Return a reply without the text that was sampled before its calls, if the template moves it."""
        is_moved = bool(reply.tool_calls and reply.content) and self.moves_text
        return reply.model_copy(update={"content": ""}) if is_moved else reply

    @cached_property
    def writes_ids(self) -> bool:
        """True if what follows a reply depends on the ids of its calls."""
        replies = [reply_of([PROBE_NAME], ids=[f"{STEM}0000{number}"]) for number in (1, 2)]
        try:
            texts = [self.text([user(), reply, *results(reply, 1)], generation_prompt=True) for reply in replies]
        except TemplateFailed:
            return True
        return texts[0].rpartition(REPLY)[2] != texts[1].rpartition(REPLY)[2]


def _find_stop(base: Base, previous: Previous, followings: Sequence[Following], text_stop: Stop | None) -> Stop | None:
    """Find the token that ends a turn with the first rule that applies; the surest rules come first.

    Args:
        base: The fixed base.
        previous: The kind of the turn.
        followings: The kinds of messages that may follow it.
        text_stop: How a turn with text ends, if that is known.
    """
    mask, ends = base.template.mask, base.ends
    heads, end = _texts_after(base, previous, followings)
    if not heads:
        return None
    shared = heads[0][: shared_start(heads)]
    known = next((item for item in mask.controls(shared) if item[0] in ends), None)
    if known:  # after which the heads differ
        return Stop((known[0],), known[0], shared[: known[1]], True)
    if openers := _openers(mask, heads, ends):
        return openers
    if text_stop and text_stop.written and text_stop.written in shared:
        return text_stop._replace(closing=shared[: shared.index(text_stop.written)])
    if last := _last_control(base, heads, end):
        return last
    if not (text_stop and text_stop.written):  # an unknown opener, after what ends a conversation or the sentinel
        after_end = [head[shared_start([head, end]) :] for head in heads]
        found = _openers(mask, after_end, None, heads[0][: shared_start([heads[0], end])])
        if found := found or (_openers(mask, heads, None) if previous == "text" else None):
            return found
    is_text = previous != "call" or text_stop is None or text_stop.is_unwritten
    if ends and is_text and not any(map(mask.controls, heads)):
        return Stop(tuple(ends), "", "", True, is_unwritten=True)
    return None


def _texts_after(base: Base, previous: Previous, followings: Sequence[Following]) -> tuple[list[str], str]:
    """Return what is between a sentinel and the content of each next message, and what follows it at the end."""
    heads, end = list[str](), ""
    for following in followings:
        reply, answers = exchange(previous, following)
        with suppress(TemplateFailed):
            _, found, tail = base.text([user(), reply, *answers], generation_prompt=True).rpartition(REPLY)
            if found and slot(0) in tail:
                heads.append(tail[: tail.index(slot(0))])
    with suppress(TemplateFailed):
        _, found, tail = base.text([user(), exchange(previous, "user")[0]], generation_prompt=False).rpartition(REPLY)
        end = tail if found else ""
    return heads, end


def _openers(mask: TextMask, heads: Sequence[str], among: Sequence[str] | None, closing: str = "") -> Stop | None:
    """Find the tokens that open a next message, if they end a turn."""
    found: list[tuple[str, int]] = []
    for head in heads:
        names = [(name, at) for name, at in mask.controls(head) if among is None or name in among]
        if not names or (among is None and names[0][1] != 0):
            return None
        found.append(names[0])
    if len({head[:at] for head, (_, at) in zip(heads, found, strict=True)}) > 1:
        return None
    closing += heads[0][: found[0][1]]
    return Stop(tuple(dict.fromkeys(name for name, _ in found)), "", closing, among is not None)


def _last_control(base: Base, heads: Sequence[str], end: str) -> Stop | None:
    """Find the last control token after a turn that is there whatever follows, unless it ends each call.

    If there is none, find a token that ends a conversation but is replaced by another one inside it (Harmony).
    """
    mask, between = base.template.mask, ""
    common = end[: shared_start([*heads, end])]
    with suppress(TemplateFailed):
        text = base.text([user(), exchange("two calls", "user")[0]], generation_prompt=False)
        between = text[text.find(FIRST_CALL) : text.rfind(REPLY)] if FIRST_CALL in text else ""
    name, at = next(reversed(mask.controls(common)), ("", 0))
    if name and name not in between:
        return Stop((name,), name, common[:at], False)
    name, at = next((item for item in mask.controls(end) if item[0] in base.ends), ("", 0))
    closing = end[:at]
    if not name or not all(head.startswith(closing) for head in heads):
        return None
    inside = {controls[0][0] for head in heads if (controls := mask.controls(head[len(closing) :]))}
    return Stop((name,), inside.pop(), closing, True) if len(inside) == 1 else None
