"""Measures a chat template: what it writes after an assistant's turn, and whether that can be relied on.

All is a difference of text at a sentinel inside an assistant's message: what stands behind it, from the token on that
ends the turn, is what a next message adds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolSchema

from .template_probe import (
    FIRST_CALL,
    REASONING,
    REPLY,
    SAID,
    Following,
    Previous,
    Script,
    exchange,
    reply_of,
    results,
    said_before,
    slot,
    user,
)
from .template_stop import Stops
from .templates import PROBE_NAME, STEM, TemplateFailed, has_stem, shared_start

Status: TypeAlias = Literal["exact", "keeps", "refused", "not possible"]
Pair: TypeAlias = tuple[str, str]
"""What a reply is, and what comes next."""
_THOUGHT, _SPOKEN = f"{STEM}thoughtzq", f"{STEM}spokenzq"
_REMEMBERED = 512
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Verdict:
    """What can be relied on where a next message follows a reply."""

    previous: Previous
    """What the reply is; `reasoned` calls where a tool answers, `tool` is a reply to a tool's result."""
    following: Following
    """What comes next."""
    tools: bool
    """Whether the model has tools."""
    status: Status
    """`exact`: prompt, reply and delta together are the template's own rendering. `keeps`: the delta is right, while
    the template would rewrite what came before. `refused`: the delta is not known. `not possible`: the template cannot
    say it."""
    detail: str = ""
    """What would be rewritten, or why not."""


class Judgement(NamedTuple):
    """What can be relied on, and why not more."""

    status: Status
    detail: str = ""
    error: TemplateUnsupported | None = None
    """What a turn is refused with."""


class Tail(NamedTuple):
    """What stands behind the end of a turn."""

    stop: str
    """What ended it, as the template writes it."""
    text: str
    starts: tuple[int, ...]
    """Where the messages and the generation prompt begin in the text."""


class Base:
    """The start of an episode with its own system text, tools and arguments, and what follows a sentinel in it.

    Args:
        script: The template.
        ends: The tokens that are known to end a turn.
        system: The episode's system message, if any.
        tools: The episode's tools.
    """

    def __init__(
        self, script: Script, ends: Sequence[str], system: Message | None, tools: Sequence[ToolSchema]
    ) -> None:
        self.script = script
        self.tools = tools
        self.start = [system] if system else []
        self.stops = Stops(self.text, script.dialect.addressed, script.mask, ends)
        self._texts: dict[tuple[object, ...], str | TemplateFailed] = {}
        self.tails: dict[tuple[object, ...], Tail] = {}
        """What was measured, by what it was measured for."""
        self._judgements: dict[tuple[object, ...], Judgement] = {}

    def text(self, messages: Sequence[Message], *, generation_prompt: bool, is_rare: bool = False) -> str:
        """Render the base's start and then sentinel messages; what they gave is remembered, unless it is rare.

        Raises:
            TemplateFailed: If the template refuses.
        """
        if is_rare:
            return self.script.text([*self.start, *messages], self.tools, generation_prompt=generation_prompt)
        key = (generation_prompt, *map(_key, messages))
        text = self._texts.get(key)
        if text is None:
            try:
                text = self.script.text([*self.start, *messages], self.tools, generation_prompt=generation_prompt)
            except TemplateFailed as error:
                text = error
            remember(self._texts, key, text)
        if isinstance(text, TemplateFailed):
            raise text
        return text

    @cached_property
    def generation_prompt(self) -> str:
        """What the template writes to ask for a reply."""
        asked = self.text([user()], generation_prompt=True)
        return asked[self.script.mask.shared(asked, self.text([user()], generation_prompt=False)) :]

    # What follows a turn.

    def tail(self, past: Sequence[Message], reply: Message, answers: Sequence[Message], pair: Pair = ("", "")) -> Tail:
        """What the template writes behind the end of `reply`, which holds a sentinel.

        Raises:
            TemplateUnsupported: If the sentinel or the end of the turn is not found.
            TemplateFailed: If the template refuses.
        """
        text = self.script.proved([*self.start, *past, reply, *answers], self.tools, generation_prompt=True)
        behind, stop, rest = self.cut(text, reply, pair)
        return Tail(stop, rest, self._starts([*past, reply], answers, behind, len(behind) - len(rest)))

    def _starts(self, before: Sequence[Message], answers: Sequence[Message], behind: str, end: int) -> tuple[int, ...]:
        """Where the answers and the generation prompt begin behind the end of a turn.

        Between two slots it is found once for each pair of roles, so that many answers cost no more than their text.
        """
        starts, seams = [end], dict[tuple[str, str], str]()
        for index, answer in enumerate(answers):
            following = answers[index + 1] if index + 1 < len(answers) else None
            at = behind.find(answer.content, end) + len(answer.content) if has_stem(answer.content) else -1
            seam = seams.get((answer.role, following.role)) if following else None
            if at > end and seam is not None and behind.startswith(seam, at):
                starts.append(at + len(seam))
                continue
            starts.append(max(starts[-1], self._shared_length([*before, *answers[: index + 1]], behind)))
            if at > end and following:
                seams[answer.role, following.role] = behind[at : starts[-1]]
        return tuple(start - end for start in starts)

    def cut(self, text: str, reply: Message, pair: Pair) -> tuple[str, str, str]:
        """Cut a rendering at the sentinel of its last reply.

        Returns:
            What stands behind the sentinel; what ended the turn; what stands behind that.

        Raises:
            TemplateUnsupported: If the sentinel or the end of the turn is not found.
        """
        at = text.rfind(REPLY)
        stop = self.stops.of(bool(reply.tool_calls))
        (addressed,) = self.script.dialect.addressed([reply])
        if at < 0:
            raise TemplateUnsupported("the reply is not rendered", pair=pair, expected=REPLY, rendered=text)
        behind = text[at + len(REPLY) :]
        if reply.tool_calls and SAID in reply.content and SAID in behind:
            why = "the reply's text is rendered behind its calls"
            raise TemplateUnsupported(why, pair=pair, expected="text before the calls", rendered=behind)
        if stop is None:
            raise TemplateUnsupported("no token ends the turn", pair=pair, expected="a control token", rendered=behind)
        controls, closing = self.script.mask.controls(behind), stop.closing_of(addressed)
        if stop.written:
            found = next((item for item in controls if item[0] == stop.written), None)
        else:
            found = next((item for item in controls if item[1] == len(closing)), None)
        if found is None or behind[: found[1]] != closing:
            expected = closing + (stop.written or "a token that opens a message")
            raise TemplateUnsupported(
                "the turn does not end as others do", pair=pair, expected=expected, rendered=behind
            )
        return behind, found[0], behind[found[1] + len(found[0]) :]

    def _shared_length(self, messages: Sequence[Message], behind: str) -> int:
        """How much of what stands behind the sentinel is there without what follows these messages."""
        try:
            text = self.text(messages, generation_prompt=False, is_rare=True)
        except TemplateFailed:
            return 0
        at = text.rfind(REPLY)
        return self.script.mask.shared(behind, text[at + len(REPLY) :]) if at >= 0 else 0

    # Verdicts.

    def verdict(self, previous: Previous, following: Following) -> Verdict:
        """Judge a pair of a previous reply and a next message."""
        reply, answers = exchange(previous, following)
        found = self.judge(reply, answers, is_after_tool=previous == "tool", pair=(previous, following))
        return Verdict(previous, following, bool(self.tools), found.status, found.detail)

    def judge(self, reply: Message, answers: Sequence[Message], *, is_after_tool: bool, pair: Pair) -> Judgement:
        """Judge what follows a reply, which must be the same after each of many pasts; it is remembered."""
        key = (is_after_tool, _key(reply), *map(_key, answers))
        judgement = self._judgements.get(key)
        if judgement is None:
            judgement = self._judge(reply, answers, is_after_tool, pair)
            remember(self._judgements, key, judgement)
        return judgement

    def _judge(self, reply: Message, answers: Sequence[Message], is_after_tool: bool, pair: Pair) -> Judgement:
        first, *others = self._pasts(is_after_tool)
        reason = self._impossible(first, reply, answers)
        if reason:
            return Judgement("not possible", reason, TemplateUnsupported(f"not possible: {reason}", pair=pair))
        try:
            expected, changed = self._follow(first, reply, answers, pair)
            for past in others:
                if self._cannot(past):
                    continue
                rendered, detail = self._follow(past, reply, answers, pair)
                if rendered != expected:
                    why = "what follows depends on what came before"
                    raise TemplateUnsupported(why, pair=pair, expected=expected, rendered=rendered)
                changed = changed or detail
        except RenderError as error:
            refusal = error if isinstance(error, TemplateUnsupported) else TemplateUnsupported(str(error), pair=pair)
            where = f"{pair[0]} -> {pair[1]}: "
            return Judgement("refused", str(refusal).removeprefix(where).removesuffix(refusal.advice).strip(), refusal)
        return Judgement("keeps", f"the template rewrites: {changed}") if changed else Judgement("exact")

    def _follow(
        self, past: Sequence[Message], reply: Message, answers: Sequence[Message], pair: Pair
    ) -> tuple[str, str]:
        """What follows a reply, and what of the past it rewrites."""
        text = self.text([*past, reply, *answers], generation_prompt=True, is_rare=True)
        _, stop, rest = self.cut(text, reply, pair)
        return stop + rest, self._rewritten(text, past, reply, stop)

    def _rewritten(self, text: str, past: Sequence[Message], reply: Message, stop: str) -> str:
        """What of the prompt and the reply is not as it was."""
        prompt = self.text(past, generation_prompt=True)
        if not text.startswith(prompt):
            same = shared_start([prompt, text])
            return f"{prompt[max(same - 20, 0) : same + 40]!r} becomes {text[max(same - 20, 0) : same + 40]!r}"
        if reply.reasoning and reply.reasoning not in text[len(prompt) :]:
            return "the reasoning is dropped"
        if reply.tool_calls and reply.content and reply.content not in text[len(prompt) :]:
            return "the text beside the calls is dropped"
        ends = self.stops.of(bool(reply.tool_calls))
        if ends and ends.written and stop not in ends.sampled:
            return f"{ends.sampled[0]!r} becomes {stop!r}"
        return ""

    @cached_property
    def writes_ids(self) -> bool:
        """Whether what follows a reply depends on the ids of its calls."""
        texts: list[str] = []
        for call_id in (f"{STEM}00001", f"{STEM}00002"):
            reply = reply_of([PROBE_NAME], ids=[call_id])
            try:
                text = self.text([user(), reply, *results(reply, 1)], generation_prompt=True)
            except TemplateFailed:
                return True
            texts.append(text.rpartition(REPLY)[2])
        return texts[0] != texts[1]

    @cached_property
    def _has_tool_rounds(self) -> bool:
        """Whether the template can say that a tool was called and answered."""
        return not self._impossible([user()], *exchange("call", "tool"))

    def _cannot(self, past: Sequence[Message]) -> bool:
        try:
            self.text(past, generation_prompt=True)
        except TemplateFailed:
            return True
        return False

    def _impossible(self, past: Sequence[Message], reply: Message, answers: Sequence[Message]) -> str:
        """Why the template cannot say this at all, or an empty string."""
        if any(answer.role == "tool" for answer in answers) and not reply.tool_calls:
            return "a tool's result answers no call"
        try:
            text = self.text([*past, reply, *answers], generation_prompt=True)
            alone = self.text([*past, reply], generation_prompt=False) if reply.reasoning else ""
        except TemplateFailed as error:
            return str(error)
        if len(reply.tool_calls) > 1 and FIRST_CALL not in text:
            return "of several calls only one is rendered"
        if REPLY not in text:
            return "the reply is not rendered" + (": there are no calls of tools" if reply.tool_calls else "")
        if reply.reasoning and REASONING not in text + alone:
            return "there is no reasoning"
        behind = text[text.rfind(REPLY) :]
        lost = next((a for i, a in enumerate(answers) if slot(i) not in behind), None)
        return f"a {lost.role} message is not rendered there" if lost else ""

    def _pasts(self, is_after_tool: bool) -> Iterator[list[Message]]:
        """What may have come before the reply; the first is the fixed base."""
        said, mused = reply_of(text=said_before(0)), reply_of(text=said_before(0), reasoning=_THOUGHT)
        rounds = [_round(0), _round(1, reasoning=_THOUGHT), _round(2, calls=2), _round(3, said=_SPOKEN)]
        rounds.append([*rounds[1], *_round(4)[1:]])
        again = [_round(5), _round(6, reasoning=_THOUGHT)]
        if is_after_tool:
            yield from rounds
            yield from ([user(), said, *round_] for round_ in rounds[:2])
            yield from ([*first, said, *then] for first, then in zip(rounds, again, strict=False))
            return
        yield [user()]
        yield [user(f"{STEM}otherzq"), said, user()]
        yield [user(), mused, user()]
        yield [user(), said] * 5 + [user(f"  {STEM}spaces\n\n")]
        yield [user(), mused, user(), said, user()]
        if self.tools and self._has_tool_rounds:
            yield from ([*round_, said, user()] for round_ in rounds)
            yield [*rounds[0], user()]


def tail_base(previous: Message | None) -> list[Message]:
    """The sentinel exchange in front of a reply: with a tool's result if the reply answers one."""
    if previous is None or previous.role != "tool":
        return [user()]
    return _round(0)


def _round(number: int, *, calls: int = 1, reasoning: str | None = None, said: str = "") -> list[Message]:
    """A question, calls, and what the tools answered; calls of another number have other ids."""
    reply = reply_of([PROBE_NAME] * calls, text=said_before(number), reasoning=reasoning, said=said)
    return [user(), reply, *results(reply, calls, 7)]


def _key(message: Message) -> tuple[object, ...]:
    calls = tuple((call.name, call.id, str(call.arguments)) for call in message.tool_calls)
    return message.role, message.content, message.reasoning, message.tool_call_id, message.name, calls


def remember(memory: "dict[tuple[object, ...], _Value]", key: tuple[object, ...], value: "_Value") -> None:
    """Remember it, and forget the oldest of many."""
    if len(memory) >= _REMEMBERED:
        del memory[next(iter(memory))]
    memory[key] = value
