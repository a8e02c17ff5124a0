"""Compares the deltas of an episode with one rendering of the whole conversation by its chat template.

No finite set of probes proves that the deltas are right for every text, so this is done once for each episode. Only the
emitted deltas are compared: the replies were sampled, and a sentinel after each of them marks its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission, Encoder

from ._base import Pair, Stop
from ._bound_template import BoundTemplate
from ._chat_template import TemplateFailed
from ._sentinels import KEY, REPLY, reply_of
from ._verdicts import difference_of
from ._writer import Writer


class DeltaText(NamedTuple):
    """The text of an `EmittedDelta`."""

    reply: int
    """The index of the reply among the messages. The delta holds the messages between it and the next reply."""
    text: str
    """The text from the end of the reply to the end of the generation prompt."""
    generation_prompt: bool
    """True if the delta ends with a generation prompt."""


@dataclass(frozen=True)
class Validation:
    """Compares deltas with renderings.

    Attributes:
        template: The template.
        encoder: Encodes text. It writes one token for an image, as the template does.
        stop_of: Returns how the turn of a reply ends.
        generation_prompt: The generation prompt.
        opening: The part of it that opens every reply.
        tag: The tag that opens reasoning; empty if there is none.
    """

    template: BoundTemplate
    encoder: Encoder
    stop_of: Callable[[Message], Stop]
    generation_prompt: str
    opening: str
    tag: str

    def episode(self, messages: Sequence[Message], deltas: Sequence[DeltaText], tools: Sequence[ToolSchema]) -> str:
        """Compare all deltas of an episode, and what was before them, with one rendering of the whole conversation.

        If a delta before the last one is not in that rendering, later messages may have rewritten it (a list of tools
        that moves), so it is compared with a rendering of the conversation as it was then.

        Args:
            messages: The episode's messages, with control tokens hidden.
            deltas: The deltas after replies, in order.
            tools: The tools that the model has, with control tokens hidden.

        Returns:
            How the whole rendering rewrites earlier text of users, tools or the system; empty if it does not.

        Raises:
            TemplateUnsupported: If a delta is not what the template writes.
        """
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        ends = dict(zip(replies, [*replies[1:], len(messages)], strict=True))
        pairs = {delta.reply: _pair(messages, delta.reply, ends[delta.reply]) for delta in deltas}
        text = self._whole(messages, tools, pairs[deltas[-1].reply])
        rewritten = self._rewritten_before(text, messages, deltas[0].reply, tools)
        for delta in deltas:
            end = ends[delta.reply]
            after = self._after(text, messages, delta.reply, end)
            if end < len(messages):
                begins = [  # later messages may change its generation prompt
                    delta.text.removesuffix(prompt) + self.opening
                    for prompt in (self.generation_prompt, self.opening)
                    if delta.text.endswith(prompt)
                ]
                if after is None or not after.startswith(tuple(begins)):
                    self.episode(messages[:end], [delta], tools)
                    rewritten = rewritten or self._rewritten(after, delta)
            elif after is None or not self._is_all(after, delta, messages, tools):
                apart = _with_ids_apart(messages, delta.reply)
                if apart != [*messages]:
                    return self.episode(apart, [delta], tools) or rewritten
                raise TemplateUnsupported(
                    f"after message {delta.reply} the template writes something other than the emitted delta",
                    pair=pairs[delta.reply],
                    expected=delta.text,
                    rendered=text if after is None else after,
                )
        return rewritten

    def _rewritten_before(self, text: str, messages: Sequence[Message], reply: int, tools: Sequence[ToolSchema]) -> str:
        """Return how a rendering rewrites what came right before a reply: the first prompt, or an earlier delta."""
        past, restore = messages[:reply], partial(self.template.mask.restore, is_compared=True)
        before = max((index for index, message in enumerate(past) if message.role == "assistant"), default=-1)
        try:
            if before < 0:
                prompt, begun = (self.template.text(past, tools, generation_prompt=asks) for asks in (False, True))
                return difference_of(restore(prompt[: self.template.mask.shared(prompt, begun)]), restore(text))
            then = self._after(self._whole(past, tools, ("", "")), past, before, reply)
        except RenderError:
            return ""
        return self._rewritten(self._after(text, messages, before, reply), DeltaText(before, then or "", True))

    def _rewritten(self, after: str | None, delta: DeltaText) -> str:
        """Return how the text after a reply differs from what was emitted there, apart from its generation prompt."""
        prompts = (self.generation_prompt, self.opening, "")
        prompt = next(prompt for prompt in prompts if delta.text.endswith(prompt))
        return difference_of(delta.text.removesuffix(prompt), after) if after is not None else ""

    def _whole(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], pair: Pair, *, generation_prompt: bool = True
    ) -> str:
        """Render the conversation with a sentinel at the end of each reply.

        If the template cannot read a reply (arguments that are not JSON), sentinels replace all of its texts.
        """
        marks = [f"{REPLY}{index}e" if m.role == "assistant" else "" for index, m in enumerate(messages)]
        generation_prompt = generation_prompt and messages[-1].role != "assistant"
        error: TemplateFailed | None = None
        for is_whole in (True, False):
            shown = [_marked(m, mark, is_whole) if mark else m for m, mark in zip(messages, marks, strict=True)]
            try:
                return self.template.text(shown, tools, generation_prompt=generation_prompt)
            except TemplateFailed as failed:
                error = failed
        raise TemplateUnsupported(str(error), pair=pair) from error

    def _after(self, text: str, messages: Sequence[Message], reply: int, end: int) -> str | None:
        """Return the text from the end of a turn to the end of the next reply; None if the turn ends differently."""
        mark = f"{REPLY}{reply}e"
        _, found, after = text.rpartition(mark)
        after = after.partition(f"{REPLY}{end}e")[0]
        if not found:
            return None
        stop = self.stop_of(messages[reply])
        if stop.is_unwritten:
            return self._reencode(after)
        closing = stop.closing_of(messages[reply])
        control = next(iter(self.template.mask.controls(after[len(closing) :])), None)
        if control is None or not after.startswith(closing):
            return None
        if stop.written not in ("", control[0]) or control[1]:
            return None
        return self._reencode(after[len(closing) + len(control[0]) :])

    def _reencode(self, text: str) -> str:
        """Return a rendered text as it is after encoding and decoding."""
        out, tokenizer = Emission(self.encoder), self.encoder.tokenizer
        Writer(self.template.mask, is_emitted=False).write(out, text, is_scaffold=False)
        # SentencePiece's vocabularies encode another text (Gemma).
        return out.text() if tokenizer.normalize("a b") == "a b" else tokenizer.decode(out.tokens()[0])

    def _is_all(self, after: str, delta: DeltaText, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        """Return whether the text is the delta, whose generation prompt may be absent, or shorter before a prefill."""
        if after == delta.text:
            return True
        without = self._whole(messages, tools, ("", ""), generation_prompt=False)
        whole = self._whole(messages, tools, ("", ""))
        prompt = self._reencode(whole[self.template.mask.shared(whole, without) :])
        given = (prompt.partition(self.tag)[0] if self.tag else prompt) if delta.generation_prompt else ""
        return after.endswith(prompt) and delta.text == after.removesuffix(prompt) + given


def _pair(messages: Sequence[Message], reply: int, end: int) -> Pair:
    calls = len(messages[reply].tool_calls)
    previous = "two calls" if calls > 1 else "call" if calls else "reasoned" if messages[reply].reasoning else "text"
    return previous, " then ".join(message.role for message in messages[reply + 1 : end]) or "nothing"


def _with_ids_apart(messages: Sequence[Message], reply: int) -> list[Message]:
    """Return the messages with other ids before a reply whose calls repeat them: templates find names by ids."""
    ids = {call.id: (call.id or "")[::-1] for call in messages[reply].tool_calls}

    def apart(message: Message) -> Message:
        calls = tuple(call.model_copy(update={"id": ids.get(call.id, call.id)}) for call in message.tool_calls)
        own = message.tool_call_id
        return message.model_copy(update={"tool_calls": calls, "tool_call_id": ids.get(own, own) if own else own})

    return [*map(apart, messages[:reply]), *messages[reply:]]


def _marked(reply: Message, mark: str, is_whole: bool) -> Message:
    """Return a reply with a sentinel at its end: in each argument of the last call, whichever is written last.

    If it is not whole, the sentinel is its only content.
    """
    if not is_whole:
        names, ids = [call.name for call in reply.tool_calls], [call.id for call in reply.tool_calls]
        return reply_of(names, sentinel=mark, ids=ids, reasoning=reply.reasoning)
    if not reply.tool_calls:
        return reply.model_copy(update={"content": reply.content + mark, "parts": None})
    *calls, last = reply.tool_calls
    names = last.arguments if isinstance(last.arguments, dict) and last.arguments else (KEY,)
    last = last.model_copy(update={"arguments": dict.fromkeys(names, mark)})
    return reply.model_copy(update={"tool_calls": (*calls, last)})
