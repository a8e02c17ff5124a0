"""Measures how a chat template writes an assistant's reply: how it opens, its blocks, its text and its end."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message

from .template_base import Base
from .template_probe import FIRST_CALL, PROBE_NAME, REASONING, REPLY, reply_of, slot, user
from .template_stop import Stop
from .templates import TemplateFailed

THINK = "<think>"


class ReplyProbe:
    """What replies look like.

    Args:
        plain: The fixed base without tools.
        with_tools: The one with a tool.
        text_stop: How a turn ends that says text.
    """

    def __init__(self, plain: Base, with_tools: Base, text_stop: Stop) -> None:
        self._plain = plain
        self._with_tools = with_tools
        self._mask = plain.script.mask
        self.text_stop = text_stop
        self.call_stop = with_tools.stops.of_call

    @cached_property
    def rendered(self) -> str:
        """A reply that calls a tool, with what stands before it; empty if the template has no calls."""
        question = user()
        try:
            text = self._with_tools.text([question, reply_of([PROBE_NAME])], generation_prompt=False)
        except TemplateFailed:
            return ""
        return text.rpartition(question.content)[2] if REPLY in text else ""

    @cached_property
    def opening(self) -> str:
        """How every reply opens; never sampled."""
        asks = self._plain.generation_prompt
        return asks.split(THINK)[0] if self._think_end is not None else asks

    @cached_property
    def blocks(self) -> Mapping[str, str]:
        """The control tokens that open a block inside a reply, with what closes it; reasoning comes first."""
        think = {THINK: self._think_end} if self._think_end is not None else {}
        return {name: end for name, end in {**think, **self._call_block()}.items() if self._mask.controls(name)}

    @cached_property
    def _think_end(self) -> str | None:
        """What closes a think block, if the template has one."""
        try:
            reasoned = self._plain.text([user(), reply_of(reasoning=REASONING)], generation_prompt=False)
        except TemplateFailed:
            return None
        before, found, after = reasoned.partition(REASONING)
        return after.partition(REPLY)[0] if found and REPLY in after and THINK in before else None

    def _call_block(self) -> dict[str, str]:
        """The token that opens a call, with what closes it."""
        if self.call_stop is None:
            return {}
        text, _, behind = self.rendered.rpartition(REPLY)
        before = self._mask.controls(text.partition(PROBE_NAME)[0])
        scaffold = behind[: len(self.call_stop.closing)]
        closers = self._mask.controls(scaffold)
        asked = [name for name, _ in self._mask.controls(self._plain.generation_prompt)]
        if not before or not closers or before[-1][0] in asked:
            return {}
        return {before[-1][0]: scaffold[len(scaffold[: closers[0][1]].rstrip()) :]}

    def body(self, reply: Message, opening: str | None = None) -> tuple[str, Stop]:
        """The text of a reply behind the generation prompt, and how it ends.

        Args:
            reply: The reply.
            opening: What stands before it, if that is not the generation prompt.

        Raises:
            TemplateUnsupported: If the template does not write its calls.
            TemplateFailed: If the template refuses it.
        """
        if reply.tool_calls:
            self._check_calls(len(reply.tool_calls))
        base = self._with_tools if reply.tool_calls else self._plain
        stop = (self.call_stop if reply.tool_calls else None) or self.text_stop
        asked = base.text([user()], generation_prompt=True)
        if opening is not None:
            asked = asked.removesuffix(base.generation_prompt) + opening
        # Templates may put an empty block into the last reply: without reasoning, it is not the last one.
        after: Sequence[Message] = [] if reply.reasoning is not None else [user(slot(2))]
        text = base.text([user(), reply, *after], generation_prompt=False)
        start = len(asked) if text.startswith(asked) else self._mask.shared(asked, text)
        names = {stop.written, *stop.sampled}
        controls = self._mask.controls(text)
        end = next((at for name, at in controls if at >= start and name in names), len(text))
        return text[start:end], stop

    def _check_calls(self, count: int) -> None:
        """Refuse calls that the template drops."""
        text = self._with_tools.text([user(), reply_of([PROBE_NAME] * count)], generation_prompt=False)
        if REPLY not in text or text.count(FIRST_CALL) < count - 1:
            raise TemplateUnsupported(f"of {count} calls not all are rendered", rendered=text)
