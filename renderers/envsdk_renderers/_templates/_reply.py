"""Measures how a chat template writes an assistant's reply: its opening, reasoning, text, calls and end."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message

from ._base import Base, Stop
from ._chat_template import TemplateFailed
from ._mask import PROBE_NAME, STEM, has_stem, shared_start
from ._sentinels import CALL_CONTENT, FIRST_CALL, QUESTION, REASONING, REPLY, reply_of, results, slot, user

_TAG = re.compile(r"<\|?/?([\w:.-]+)\|?>|\[/?([\w:.-]+)\]")
_OPEN_TAG = re.compile(r"\s*(<\|?[\w:.-]+\|?>|\[[\w:.-]+\])\s*")


class Thinking(NamedTuple):
    """The tags with which a template writes reasoning."""

    opener: str
    """The text before it."""
    closer: str
    """The text between it and the reply's text."""


class ReplyProbe:
    """The form of replies, measured on sentinel messages.

    Args:
        plain: The fixed base without tools.
        with_tools: The fixed base with a tool.
        text_stop: How a turn with text ends.
    """

    def __init__(self, plain: Base, with_tools: Base, text_stop: Stop) -> None:
        self._plain = plain
        self._with_tools = with_tools
        self._mask = plain.template.mask
        self.text_stop = text_stop
        self.call_stop = with_tools.call_stop

    @cached_property
    def rendered(self) -> str:
        """A rendered reply that calls a tool, with the text before it; empty if the template has no calls."""
        try:
            text = self._with_tools.text([user(), reply_of([PROBE_NAME])], generation_prompt=False)
        except TemplateFailed:
            return ""
        return text.rpartition(QUESTION)[2] if REPLY in text else ""

    @cached_property
    def opening(self) -> str:
        """The scaffold that opens every reply; never sampled."""
        opening = self._before_block(self._plain)
        head = self._head(self._plain).removesuffix(self._plain.generation_prompt)
        try:
            text = self._rendered(self._plain, reply_of(), self._plain.template.text).rpartition(QUESTION)[2]
        except TemplateFailed:
            return opening
        shared = self._mask.shared(head + opening, text)
        rest = opening[shared - len(head) :] if shared >= len(head) else ""
        is_block = any(at == 0 for _, at in self._mask.controls(rest))  # which this reply does not have
        return opening.removesuffix(rest) if is_block else opening

    def _before_block(self, base: Base) -> str:
        prompt = base.generation_prompt
        return prompt.split(self.thinking.opener.strip())[0] if self.thinking else prompt

    @cached_property
    def blocks(self) -> Mapping[str, str]:
        """The control tokens that open a block inside a reply, with what closes it; reasoning comes first."""
        found: dict[str, str] = {}
        if self.thinking is not None:
            tag, closing_tag = self.thinking.opener.strip(), self.thinking.closer.strip()
            name = next((name for name, at in self._mask.controls(tag) if at == 0), "")
            is_own = bool(name) and (name not in self.text_opener or closing_tag in self.text_opener)
            if is_own and name not in closing_tag:
                found[name] = self.thinking.closer
        else:
            with suppress(TemplateFailed):  # a template that shows reasoning only next to calls (Gemma 4)
                reply = reply_of([PROBE_NAME], reasoning=REASONING)
                text = self._with_tools.text([user(), reply], generation_prompt=False)
                before, is_shown, after = text.rpartition(QUESTION)[2].partition(REASONING)
                tag = _partner(after, before) if is_shown else ""
                if tag in dict(self._mask.controls(before)):
                    closing = _closing(tag)
                    found[tag] = after[: after.index(closing) + len(closing)]
        found |= self._call_tags[0]
        return {name: end for name, end in found.items() if not has_stem(name + end)}

    # Reasoning.

    @cached_property
    def reasoned(self) -> tuple[str, str] | None:
        """The text around the reasoning of a reply: from the question on, and up to the reply's text."""
        try:
            text = self._plain.text([user(), reply_of(reasoning=REASONING)], generation_prompt=False)
        except TemplateFailed:
            return None
        before, found, after = text.rpartition(QUESTION)[2].partition(REASONING)
        return (before, after.partition(REPLY)[0]) if found and REPLY in after else None

    @cached_property
    def thinking(self) -> Thinking | None:
        """The tags around reasoning; None if neither replies nor the generation prompt have a block for it."""
        if self.reasoned is None:
            return self._prompted_thinking()
        before, closer = self.reasoned
        head, prompt = self._head(self._plain), self._plain.generation_prompt
        tag = _partner(closer, before)
        opener = before[before.rindex(tag) :] if tag else before[self._mask.shared(before, head) :]
        if not opener.strip():
            opener = head[len(before) :] if head.startswith(before) and before.strip() else ""
            if self._mask.controls(opener) or opener not in prompt:
                opener = ""  # else only the generation prompt opens reasoning (Apriel 1.6)
            opener = opener or self._also_prompted(before, closer)
        return Thinking(opener, closer) if opener.strip() and closer.strip() else None

    def _also_prompted(self, before: str, closer: str) -> str:
        """Return what opens reasoning if the generation prompt does, too; empty if that is not known.

        It is what a reply without reasoning lacks (Cohere 2 MoE), or it has the same name as what closes reasoning
        (Kimi K3: `<|open|>think<|sep|>`).
        """
        prompt = self._plain.generation_prompt
        if not prompt or not before.endswith(prompt):
            return ""
        with suppress(TemplateFailed):
            text = self._rendered(self._plain, reply_of(), self._plain.template.text).rpartition(QUESTION)[2]
            opener = before[self._mask.shared(before, text) :]
            if opener and any(at == 0 for _, at in self._mask.controls(opener)):
                return opener
        names = [part.strip() for part, is_control in self._mask.parts(closer) if not is_control]
        at = prompt.rfind(names[0]) if names and names[0].isidentifier() else -1
        starts = [start for name, start in self._mask.controls(prompt) if start + len(name) == at]
        return prompt[starts[0] :] if starts else ""

    def _prompted_thinking(self) -> Thinking | None:
        """Return the block that the generation prompt opens, or opens and closes, and that no reply shows.

        DeepSeek R1 has such a block.
        """
        try:
            text = self._rendered(self._plain, reply_of())
        except TemplateFailed:
            return None
        head, shown = self._head(self._plain), text.rpartition(QUESTION)[2]
        prompt = head[self._mask.shared(head, shown) :]
        if not prompt:  # it opens a block last that the reply without reasoning begins to close (Kimi K2.5)
            tags = [match for match in _TAG.finditer(head) if not head[match.end() :].strip()]
            opener = head[tags[0].start() :] if tags else ""
            closer = shown[len(head) :].partition(REPLY)[0]
            is_closed = bool(opener) and closer.lstrip().startswith(_closing(opener.strip()))
            return Thinking(opener, closer) if is_closed else None
        opened = _OPEN_TAG.match(prompt)
        if opened is None:
            return None
        closer = _closing(opened[1])
        opener, is_closed, after = prompt.partition(closer)
        if is_closed:
            return Thinking(opener, closer + after)
        is_known = bool(self._mask.controls(closer)) or closer in self._plain.template.chat_template.text
        end = "\n" if prompt.endswith("\n") else ""
        return Thinking(prompt, f"{end}{closer}{end * 2}") if is_known and prompt == opened[0] else None

    def tags_in_content(self) -> tuple[str, str] | None:
        """Return the tags between which the template reads reasoning in the content, as if it were in its field.

        A past reply and a last one are then written alike, apart from whitespace. The tags of a last one may also stay
        as they are (QwQ, which reads reasoning in the content only).
        """
        measured = [(self.thinking.opener.strip(), self.thinking.closer.strip())] if self.thinking else []
        for opening, closing in (*measured, ("<think>", "</think>")):
            if closing not in self._plain.template.chat_template.text:
                continue
            tagged = Message(role="assistant", content=f"{opening}{REASONING}{closing}{REPLY}")
            replies = (tagged, reply_of(reasoning=REASONING), reply_of())
            with suppress(TemplateFailed):
                past, last = (
                    ["".join(self._plain.text([user(), m, *end], generation_prompt=False).split()) for m in replies]
                    for end in ([user(slot(2))], [])
                )
                if past[0] == past[1] and last[0] in (last[1], last[2].replace(REPLY, tagged.content)):
                    return opening, closing
        return None

    # Calls.

    @cached_property
    def _call_tags(self) -> tuple[Mapping[str, str], str]:
        """The tokens that open a call, each with the scaffold that closes it; and `call_closing`."""
        if self.call_stop is None:
            return {}, ""
        text, _, after = self.rendered.rpartition(REPLY)
        before = self._mask.controls(text.partition(PROBE_NAME)[0])
        scaffold = after[: len(self.call_stop.closing)]
        closers = self._mask.controls(scaffold)
        names = [name for name, _ in closers]
        if before and before[-1][0] in names and not has_stem(scaffold):
            return {}, scaffold
        prompt = [name for name, _ in self._mask.controls(self._plain.generation_prompt)]
        if not before or not closers or before[-1][0] in prompt:
            return {}, ""
        found = {before[-1][0]: scaffold[len(scaffold[: closers[0][1]].rstrip()) :]}
        for opener, _ in before[:-1]:  # what is around all calls
            closer = opener.replace("begin", "end") if "begin" in opener else _closing(opener)
            if closer in names and opener not in prompt:
                found[opener] = scaffold[closers[names.index(closer)][1] :]
        return found, ""

    @property
    def call_closing(self) -> str:
        """The scaffold that closes a call whose tags all contain one control token (DeepSeek V4); else empty."""
        return self._call_tags[1]

    # A reply.

    def stop_of(self, reply: Message) -> Stop:
        """Return how a turn with this reply ends."""
        return (self.call_stop if reply.tool_calls else None) or self.text_stop

    @cached_property
    def text_opener(self) -> str:
        """The scaffold before the text of a reply without reasoning (Harmony: the name of its channel)."""
        try:
            text, _ = self.body(reply_of())
        except (TemplateUnsupported, TemplateFailed):
            return ""
        return text.partition(REPLY)[0]

    def body(self, reply: Message, opening: str | None = None) -> tuple[str, Stop]:
        """Return the text of a reply after the generation prompt, and how it ends.

        Args:
            reply: The reply.
            opening: The scaffold before the reply, if that is not the generation prompt.

        Raises:
            TemplateUnsupported: If the template does not write its calls, or opens it differently from the generation
                prompt.
            TemplateFailed: If the template refuses it.
        """
        base = self._with_tools if reply.tool_calls else self._plain
        count = len(reply.tool_calls)
        if count:  # a template may drop some of several calls, or those next to text
            call_content, reasoning = CALL_CONTENT if reply.content else "", REASONING if reply.reasoning else None
            sentinel = reply_of([PROBE_NAME] * count, call_content=call_content, reasoning=reasoning)
            text = self._rendered(base, sentinel)
            if REPLY not in text or text.count(FIRST_CALL) < count - 1:
                where = " next to text" if reply.content else ""
                raise TemplateUnsupported(f"not all of {count} calls{where} are rendered", rendered=text)
        return self._cut(reply, opening, (slot(0), slot(1)), self._rendered(base, reply))

    def probe(self, reply: Message, words: Sequence[str]) -> str:
        """Return the text of a reply after its opening, which is only measured.

        Args:
            reply: The reply; not all of its fields may be rendered.
            words: The words of the reply after the last of which it ends.

        Raises:
            TemplateUnsupported: If the template opens it differently from the generation prompt.
            TemplateFailed: If the template refuses it.
        """
        base = self._with_tools if reply.tool_calls else self._plain
        errors: list[RenderError] = []
        for following in _followings(reply):
            try:
                text = base.template.text([*base.start, user(), reply, *following], base.tools)
                return self._cut(reply, self.opening, words, text)[0]
            except (TemplateUnsupported, TemplateFailed) as failed:
                errors.append(failed)
        raise errors[0]

    def _cut(self, reply: Message, opening: str | None, words: Sequence[str], text: str) -> tuple[str, Stop]:
        """Cut a reply out of a rendering, from its opening to its end."""
        base = self._with_tools if reply.tool_calls else self._plain
        stop = self.stop_of(reply)
        text = text.rpartition(QUESTION)[2]
        head = self._head(base)
        begins = self.opening if base.generation_prompt.startswith(self.opening) else self._before_block(base)
        opened = head.removesuffix(base.generation_prompt) + begins
        if not text.startswith(opened.rstrip()):
            start = self._aligned(text, head, begins)
            if start is None:
                why = "a reply opens differently from the generation prompt"
                raise TemplateUnsupported(why, expected=opened, rendered=text)
        else:
            if opening is not None:
                head = head.removesuffix(base.generation_prompt) + opening
            start = len(head) if text.startswith(head) else self._mask.shared(head, text)
        names = {stop.written, *stop.sampled}
        named = (self._mask.find(text, call.name, start) for call in reply.tool_calls)
        last = max([start, *map(text.rfind, words), *named])  # reasoning may end as a turn does (Harmony)
        end = next((at for name, at in self._mask.controls(text) if at >= last and name in names), len(text))
        if slot(2) in text[start:end]:
            raise TemplateUnsupported("no token ends the reply", rendered=text)
        return text[start:end].rstrip() if stop.is_unwritten else text[start:end], stop

    def _aligned(self, text: str, head: str, opening: str) -> int | None:
        """Return where a reply begins that opens as the prompt does except for what only the prompt has.

        That is other whitespace, a message before the opening (Command R+), or something after it: a block of control
        tokens (Command R7B), or any text if the reply's own text is right there.
        """
        names = self._mask.controls(opening)
        for first in [0, *(at for name, at in names if name == names[0][0])]:
            core = opening[first:].strip()
            at = text.find(core) if core else -1
            if at >= 0 and "".join(head.split()).startswith("".join(text[:at].split())):
                end, tail = at + len(core), opening[opening.rindex(core) + len(core) :]
                return end + shared_start([text[end:], tail])
        shared = self._mask.shared(head, text)
        only_prompted, own = head[shared:], text[shared:]
        is_block = not any(part.strip() for part, is_control in self._mask.parts(only_prompted) if not is_control)
        is_begun = own.startswith(STEM) or any(at == 0 for _, at in self._mask.controls(own))
        return shared if is_begun and (is_block or self._mask.controls(text[:shared])) else None

    def _head(self, base: Base) -> str:
        """Return the text between a question and the reply, with the generation prompt."""
        return base.text([user()], generation_prompt=True).rpartition(QUESTION)[2]

    def _rendered(self, base: Base, reply: Message, render: Callable[..., str] | None = None) -> str:
        """Render a conversation in which the reply answers the question.

        Raises:
            TemplateFailed: If the template refuses it, whatever follows the reply.
        """
        render = render or base.template.safe_text
        error = TemplateFailed("nothing may follow the reply")
        for following in _followings(reply):
            try:
                return render([*base.start, user(), reply, *following], base.tools)
            except TemplateFailed as failed:
                error = failed
        raise error


def _followings(reply: Message) -> Iterator[Sequence[Message]]:
    """Yield the messages that may follow a reply, the best ones first.

    Templates may put an empty block into the last reply, so a reply without reasoning should not be the last one.
    """
    question = user(slot(2))
    if reply.reasoning is not None:
        yield []
    yield [question]
    if reply.tool_calls:  # some templates require that calls are answered
        answers = [answer.model_copy(update={"content": slot(2)}) for answer in results(reply, len(reply.tool_calls))]
        yield answers
        yield [*answers, user(slot(2))]
    if reply.reasoning is None:
        yield []


def _closing(tag: str) -> str:
    """Return the tag that closes what `tag` opens."""
    if tag.startswith("<|") and not tag.endswith("|>"):
        return f"<{tag[2:-1]}|>"
    return f"{tag[0]}/{tag[1:]}"


def _partner(closer: str, before: str) -> str:
    """Return the last tag before reasoning that the closer closes, or an empty string."""
    tags = [match[0] for match in _TAG.finditer(before)]
    return next((tag for tag in reversed(tags) if _closing(tag) in closer), "")
