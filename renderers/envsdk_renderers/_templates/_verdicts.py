"""Judges what can be relied on where a next message follows a reply."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolCall, ToolSchema

from .._grammars._proof import ReadingVerdict
from ._base import Base, Judgement, Pair, Status
from ._chat_template import TemplateFailed
from ._history import HistoryRule
from ._mask import PROBE_NAME, STEM, shared_start
from ._sentinels import (
    FIRST_CALL,
    REASONING,
    REPLY,
    Following,
    Previous,
    earlier_reply,
    exchange,
    reply_of,
    results,
    slot,
    user,
)
from ._store import remember

_EARLIER_REASONING, _EARLIER_CONTENT = f"{STEM}thoughtzq", f"{STEM}spokenzq"


@dataclass(frozen=True)
class Verdict:
    """The proved facts about a message that follows a reply."""

    previous: Previous
    """The kind of the reply; before a tool's result, `reasoned` also calls. `tool` is a reply to a tool's result."""
    following: Following
    """The message or end that follows."""
    tools: bool
    """True if the model has tools."""
    status: Status
    """`exact`: prompt, reply and delta together are the template's own rendering. `keeps`: the delta is correct, but
    the template would rewrite what came before. `refused`: the delta is not known. `not possible`: the template cannot
    express it."""
    detail: str = ""
    """The text that would be rewritten, or why the delta is refused or not possible."""


def verdict_of(base: Base, previous: Previous, following: Following) -> Verdict:
    """Judge a pair of a previous reply and a next message on a fixed base."""
    reply, answers = exchange(previous, following)
    found = judge(base, reply, answers, is_after_tool=previous == "tool", pair=(previous, following))
    if found.status == "exact":  # unless it rewrites earlier text of users and tools in a longer conversation
        calls = "tool" in following
        if calls not in base.rewritten:
            base.rewritten[calls] = rewritten_past(base, calls=calls)
        if rewritten := base.rewritten[calls]:
            found = Judgement("keeps", f"the template rewrites: {rewritten}")
    return Verdict(previous, following, bool(base.tools), found.status, found.detail)


def judge(base: Base, reply: Message, answers: Sequence[Message], *, is_after_tool: bool, pair: Pair) -> Judgement:
    """Judge what follows a reply, which has to be the same after each of many pasts; judgements are cached."""
    key = repr((is_after_tool, reply, *answers))
    if key not in base.judgements:
        remember(base.judgements, key, _judge(base, reply, answers, is_after_tool, pair))
    return base.judgements[key]


def _judge(base: Base, reply: Message, answers: Sequence[Message], is_after_tool: bool, pair: Pair) -> Judgement:
    first, *others = _pasts(base, is_after_tool)
    reason = _impossible(base, first, reply, answers)
    if reason:
        return Judgement("not possible", reason, TemplateUnsupported(f"not possible: {reason}", pair=pair))
    try:
        expected, rewritten = _follow(base, first, reply, answers, pair)
        for past in others:
            try:
                base.text(past, generation_prompt=True)
            except TemplateFailed:
                continue
            rendered, detail = _follow(base, past, reply, answers, pair)
            if rendered != expected:
                why = "what follows depends on what came before"
                raise TemplateUnsupported(why, pair=pair, expected=expected, rendered=rendered)
            rewritten = rewritten or detail
    except RenderError as error:
        refusal = error if isinstance(error, TemplateUnsupported) else TemplateUnsupported(str(error), pair=pair)
        where = f"{pair[0]} -> {pair[1]}: "
        return Judgement("refused", str(refusal).removeprefix(where).removesuffix(refusal.advice).strip(), refusal)
    return Judgement("keeps", f"the template rewrites: {rewritten}") if rewritten else Judgement("exact")


def _follow(
    base: Base, past: Sequence[Message], reply: Message, answers: Sequence[Message], pair: Pair
) -> tuple[str, str]:
    """Return what follows a reply, and what of the prompt and the reply it rewrites, or an empty string."""
    text = base.text([*past, reply, *answers], generation_prompt=True)
    _, stop, rest = base.cut(text, reply, pair)
    prompt = base.text(past, generation_prompt=True)
    sampled, ends = text[len(prompt) :], base.call_stop if reply.tool_calls else base.text_stop
    rewritten = difference_of(prompt, text)
    if not rewritten and reply.reasoning and reply.reasoning not in sampled:
        rewritten = "the reasoning is dropped"
    if not rewritten and reply.tool_calls and reply.content and reply.content not in sampled:
        rewritten = "the text next to the calls is dropped"
    if not rewritten and ends and ends.written and stop not in ends.sampled:
        rewritten = f"{ends.sampled[0]!r} becomes {stop!r}"
    if not rewritten and ends and ends.is_unwritten:
        rewritten = f"{ends.sampled[0]!r} is dropped"
    return stop + rest, rewritten


def _impossible(base: Base, past: Sequence[Message], reply: Message, answers: Sequence[Message]) -> str:
    """Return why the template cannot express this at all, or an empty string."""
    if any(answer.role == "tool" for answer in answers) and not reply.tool_calls:
        return "a tool's result answers no call"
    try:
        text = base.text([*past, reply, *answers], generation_prompt=True)
        alone = base.text([*past, reply], generation_prompt=False) if reply.reasoning else ""
    except TemplateFailed as error:
        return str(error)
    if len(reply.tool_calls) > 1 and FIRST_CALL not in text:
        return "of several calls only one is rendered"
    if REPLY not in text:
        return "the reply is not rendered" + (": tool calls are not supported" if reply.tool_calls else "")
    if reply.reasoning and REASONING not in text + alone:
        return "reasoning is not rendered"
    after = text[text.rfind(REPLY) :]
    lost = next((a for i, a in enumerate(answers) if slot(i) not in after), None)
    return f"a {lost.role} message is not rendered there" if lost else ""


def _pasts(base: Base, is_after_tool: bool) -> Iterator[list[Message]]:
    """Yield conversations that may come before the reply; the first is the fixed base."""
    plain = reply_of(sentinel=earlier_reply(0))
    reasoned = plain.with_reasoning(_EARLIER_REASONING)
    rounds = [tool_round(0), tool_round(1, reasoning=_EARLIER_REASONING), tool_round(2, calls=2)]
    rounds.append(tool_round(3, call_content=_EARLIER_CONTENT))
    rounds.append([*rounds[1], *tool_round(4)[1:]])
    later = [tool_round(5), tool_round(6, reasoning=_EARLIER_REASONING)]
    if is_after_tool:
        yield from rounds
        yield from ([user(), plain, *round_] for round_ in rounds[:2])
        yield from ([*first, plain, *then] for first, then in zip(rounds, later, strict=False))
        return
    yield [user()]
    yield [user(f"{STEM}otherzq"), plain, user()]
    yield [user(), reasoned, user()]
    yield [user(), plain] * 5 + [user(f"  {STEM}spaces\n\n")]
    yield [user(), reasoned, user(), plain, user()]
    if base.tools and not _impossible(base, [user()], *exchange("call", "tool")):
        yield from ([*round_, plain, user()] for round_ in rounds)
        yield [*rounds[0], user()]


def sentinel_past(previous: Message | None) -> list[Message]:
    """Return the sentinel messages before a reply: with a tool's result if the reply answers one."""
    return tool_round(0) if previous is not None and previous.role == "tool" else [user()]


def tool_round(number: int, *, calls: int = 1, reasoning: str | None = None, call_content: str = "") -> list[Message]:
    """Return a question, calls, and the tools' results; rounds with different numbers have different ids of calls."""
    names, sentinel = [PROBE_NAME] * calls, earlier_reply(number)
    reply = reply_of(names, sentinel=sentinel, reasoning=reasoning, call_content=call_content)
    return [user(), reply, *results(reply, calls, 7)]


EXAMPLE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string", "description": "What."}}},
    },
}


_TEXTS = (
    "One?",
    "Two?",
    "  Three? \n",
    "a</think>four?",
    "Five? " * 80,
    "Six?\n\n\n\nSeven?\r\n",
    "Seven?",
    "Eight?",
    "Nine?",
)
"""The contents of users and tools in one conversation; a template may change each of them once it is in the past."""
_REPLIES = re.compile(f"({earlier_reply(0).replace('0', '[0-9]')})")


def rewritten_past(base: Base, *, calls: bool) -> str:
    """Return the smallest example of earlier text that is not a reply and that a template rewrites; empty if none.

    Each prompt of a conversation is compared with the next one, so a template that rewrites only after many rounds is
    found, too.

    Args:
        base: A start of an episode, whose tool is `EXAMPLE_TOOL` if it has any.
        calls: Whether tools are called; if not, only users ask.
    """

    def by_reply(text: str) -> dict[str, str]:
        """Return the text after each earlier reply and before the next one, and before the first, by its word."""
        first, *others = _REPLIES.split(text)
        return {"": first, **dict(zip(others[::2], others[1::2], strict=True))}

    mask, questions, results = base.template.mask, list[list[Message]](), list[list[Message]]()
    compared = "b".join(["a", *filter(str.isascii, base.template.chat_template.literals), "c"])
    for number, text in enumerate(map(mask.hide, (*_TEXTS[:-1], compared, _TEXTS[-1]))):
        word, call_id = earlier_reply(number), f"call0000{number}"
        call = ToolCall(name="look_up", arguments={"what": word}, id=call_id)
        result = Message(role="tool", content=text, tool_call_id=call_id, name="look_up")
        questions.append([reply_of(sentinel=word), user(text)])
        results.append([Message(role="assistant", tool_calls=(call,)), result])
    mixed = [*chain.from_iterable(zip(results[::2], questions[1::2], strict=False))]
    found: list[tuple[int, str]] = []
    for turns in (results, mixed) if calls else (questions[1:],):
        messages, known = [user(_TEXTS[0])], dict[str, str]()
        for number, turn in enumerate(turns, start=1):
            try:
                prompt, begun = (base.text(messages, generation_prompt=asks) for asks in (False, True))
                after = base.text([*messages, *turn], generation_prompt=True)
            except TemplateFailed:
                break
            *_, last = by_reply(prompt[: mask.shared(prompt, begun)]).items()
            known |= dict([last])
            later = by_reply(after)
            changes = (difference_of(text, later[reply]) for reply, text in known.items() if reply in later)
            change = mask.restore(next(filter(None, changes), ""), is_compared=True)
            if change:
                times = f", {number} times" if number > 1 else ""
                kinds = ["a call" if m.tool_calls else "a reply" if m.role == "assistant" else m.role for m in turn]
                found.append((number, f"{change} after {', '.join(kinds)}{times}"))
                break
            messages += turn
    return min(found, default=(0, ""))[1]


def difference_of(before: str, after: str) -> str:
    """Return the first difference of a string from the beginning of a later one; empty if it begins with it."""
    same = shared_start([before, after])
    shown = slice(max(same - 20, 0), same + 40)
    return f"{before[shown]!r} becomes {after[shown]!r}" if same < len(before) else ""


@dataclass(frozen=True)
class TemplateReport:
    """The facts that can be relied on with one chat template; printed, it has a line for each part.

    Attributes:
        turns: The verdict for each pair of a previous reply and a next message.
        reading: The verdict about replies that the measured grammar reads; None if a format of another name reads them.
        history_rule: The rule for past reasoning, so that `strip` costs O(new tokens); None if no rule was proved.
        history_problem: The reason why no rule is known, so that `strip` costs O(context); empty if one is.
        unconfirmed_stops: The stop tokens that were measured and are in no file of the tokenizer.
        rewriting: How the template rewrites earlier text of users or the system, by an example; empty if it does not.
    """

    turns: tuple[Verdict, ...]
    reading: ReadingVerdict | None
    history_rule: HistoryRule | None
    history_problem: str
    unconfirmed_stops: tuple[str, ...]
    rewriting: str = ""

    def __str__(self) -> str:
        lines = [
            f"{turn.previous} -> {turn.following}: {turn.status}" + (f" ({turn.detail})" if turn.detail else "")
            for turn in self.turns
        ]
        lines.append(f"reading: {self.reading or 'by a format that was not measured'}")
        rule = self.history_rule
        lines.append(
            f"past reasoning: {f'not known: {self.history_problem}' if rule is None else f'the template {rule}'}"
        )
        if self.rewriting:
            lines.append(f"earlier text: {self.rewriting}")
        if self.unconfirmed_stops:
            lines.append(f"stop tokens to check: {', '.join(self.unconfirmed_stops)}")
        return "\n".join(lines)
