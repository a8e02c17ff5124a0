"""Compares the deltas of an episode with one rendering of the whole conversation by its chat template.

No finite set of probes proves a template right for every text, so this is done once an episode. Only what was handed
out is compared: what the assistant said is its own, and a sentinel behind it says where it ends.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolSchema

from .template_base import Pair
from .template_probe import KEY, REPLY, Script, reply_of
from .template_stop import Stop
from .templates import PROBE_NAME, TemplateFailed


class Said(NamedTuple):
    """What was handed out behind a reply, as text."""

    reply: int
    """The index of the reply among the episode's messages; what follows it up to the next reply was said."""
    text: str
    """From behind the end of the reply to the end of the generation prompt."""
    generation_prompt: bool
    """Whether it ends with one."""


class Validation:
    """Compares deltas with renderings.

    Args:
        script: The template.
        written: What a rendered text is when it has been encoded and decoded again.
        stops: How turns end.
        asks: What the template writes to ask for a reply, and the part of it that opens every reply.
        tag: What opens reasoning; empty if there is none.
    """

    def __init__(
        self,
        script: Script,
        written: Callable[[str], str],
        stops: Sequence[Stop],
        asks: tuple[str, str],
        tag: str,
    ) -> None:
        self._script = script
        self._written = written
        self._stops = stops
        self._asks, self._opening = asks
        self._tag = tag

    def episode(self, messages: Sequence[Message], turns: Sequence[Said], tools: Sequence[ToolSchema]) -> None:
        """Compare all deltas of an episode with one rendering of the whole conversation.

        A delta before the last that is not in it may have been rewritten by what came later (a list of tools that
        moves), so it is compared with a rendering of the conversation as it was then.

        Args:
            messages: The episode's messages, with control tokens hidden.
            turns: What was handed out behind replies, in order.
            tools: The tools that the model has, with control tokens hidden.

        Raises:
            TemplateUnsupported: If a delta was not what the template writes.
        """
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        ends = dict(zip(replies, [*replies[1:], len(messages)], strict=True))
        pairs = {turn.reply: _pair(messages, turn.reply, ends[turn.reply]) for turn in turns}
        text = self._whole(messages, tools, pairs[turns[-1].reply])
        for turn in turns:
            end = ends[turn.reply]
            behind = self._behind(text, messages, turn.reply, end)
            if end < len(messages):
                if behind is None or not self._is_in(behind, turn):
                    self.episode(messages[:end], [turn], tools)
            elif behind is None or not self._is_all(behind, turn, messages, tools):
                raise TemplateUnsupported(
                    f"behind message {turn.reply} the template writes something else than was handed out",
                    pair=pairs[turn.reply],
                    expected=turn.text,
                    rendered=text if behind is None else behind,
                )

    def _whole(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], pair: Pair, *, generation_prompt: bool = True
    ) -> str:
        """The conversation with a sentinel at the end of each reply.

        Where the template cannot read what a model said (arguments that are no JSON), only sentinels stand for it.
        """
        marks = [f"{REPLY}{index}e" if m.role == "assistant" else "" for index, m in enumerate(messages)]
        asks = generation_prompt and messages[-1].role != "assistant"
        error: TemplateFailed | None = None
        for stand_in in (_marked, _sentinel):
            shown = [stand_in(m, mark) if mark else m for m, mark in zip(messages, marks, strict=True)]
            try:
                return self._script.text(shown, tools, generation_prompt=asks)
            except TemplateFailed as failed:
                error = failed
        raise TemplateUnsupported(str(error), pair=pair) from error

    def _behind(self, text: str, messages: Sequence[Message], reply: int, end: int) -> str | None:
        """What stands behind the end of a turn, up to the end of the next reply; None if it does not end as it does."""
        mark = f"{REPLY}{reply}e"
        _, found, behind = text.rpartition(mark)
        behind = behind.partition(f"{REPLY}{end}e")[0]
        if not found:
            return None
        stop = self._stops[-1] if messages[reply].tool_calls else self._stops[0]
        closing = stop.closing_of(messages[reply])
        control = next(iter(self._script.mask.controls(behind[len(closing) :])), None)
        if control is None or not behind.startswith(closing):
            return None
        if stop.written not in ("", control[0]) or control[1]:
            return None
        return self._written(behind[len(closing) + len(control[0]) :])

    def _is_in(self, behind: str, turn: Said) -> bool:
        """Whether a delta stands there, up to where it asks for a reply, which a later rendering may do otherwise."""
        return any(
            behind.startswith(turn.text.removesuffix(asks) + self._opening)
            for asks in (self._asks, self._opening)
            if turn.text.endswith(asks)
        )

    def _is_all(self, behind: str, turn: Said, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        """Whether a delta is all that stands there, but for what it asks with: nothing, or less before a prefill."""
        if behind == turn.text:
            return True
        silent = self._whole(messages, tools, ("", ""), generation_prompt=False)
        asked = self._whole(messages, tools, ("", ""))
        asks = self._written(asked[self._script.mask.shared(asked, silent) :])
        given = (asks.partition(self._tag)[0] if self._tag else asks) if turn.generation_prompt else ""
        return behind.endswith(asks) and turn.text == behind.removesuffix(asks) + given


def _pair(messages: Sequence[Message], reply: int, end: int) -> Pair:
    calls = len(messages[reply].tool_calls)
    previous = "two calls" if calls > 1 else "call" if calls else "reasoned" if messages[reply].reasoning else "text"
    return previous, " then ".join(message.role for message in messages[reply + 1 : end]) or "nothing"


def _marked(reply: Message, mark: str) -> Message:
    """The reply with a sentinel at the end of what was sampled: whatever argument of the last call is written last."""
    if not reply.tool_calls:
        return reply.model_copy(update={"content": reply.content + mark, "parts": None})
    *calls, last = reply.tool_calls
    names = last.arguments if isinstance(last.arguments, dict) and last.arguments else (KEY,)
    last = last.model_copy(update={"arguments": dict.fromkeys(names, mark)})
    return reply.model_copy(update={"tool_calls": (*calls, last)})


def _sentinel(reply: Message, mark: str) -> Message:
    """A reply of that shape that says nothing but the sentinel."""
    names = [call.name or PROBE_NAME for call in reply.tool_calls]
    return reply_of(names, text=mark, ids=[call.id for call in reply.tool_calls], reasoning=reply.reasoning)
