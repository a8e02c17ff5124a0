"""Measures what a chat template writes after an assistant's turn, on a fixed start of an episode.

Everything is a difference of texts at a sentinel inside an assistant's message. The text after the sentinel, from the
token on that ends the turn, is what a next message adds.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolSchema

from ._bound_template import BoundTemplate
from ._chat_template import TemplateFailed
from ._mask import PROBE_NAME, STEM, has_stem
from ._sentinels import CALL_CONTENT, REPLY, reply_of, results, slot, user
from ._stop import Stops

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
            starts.append(max(starts[-1], self._shared_length([*before, *answers[: index + 1]], after)))
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

    def _shared_length(self, messages: Sequence[Message], after: str) -> int:
        """Return how much of the text after the sentinel is also rendered if the conversation ends here."""
        try:
            text = self.text(messages, generation_prompt=False, is_rare=True)
        except TemplateFailed:
            return 0
        at = text.rfind(REPLY)
        return self.template.mask.shared(after, text[at + len(REPLY) :]) if at >= 0 else 0

    @cached_property
    def moves_text(self) -> bool:
        """Whether the template writes the text of a reply after its calls, perhaps after their results (Gemma 4).

        A model samples a text before its calls. The template's text after such a reply is not what follows it then: the
        text is there again, and may end the turn.
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
