"""Writes whole conversations as a chat template renders them, with the start of each message."""

import re
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from envsdk.messages import Message, Role, TextPart, ToolSchema
from envsdk.rendering.emission import Emission

from ._bound_template import BoundTemplate
from ._chat_template import TemplateFailed
from ._mask import PROBE_NAME, STEM
from ._sentinels import PROBE_TOOL, REPLY, reply_of, results, slot, user
from ._writer import TemplateEmission, Writer


class Boundary(NamedTuple):
    """The text that a template writes between the contents of two consecutive messages."""

    closing: str = ""
    """The end of the first message, after its text."""
    opener: str = ""
    """The beginning of the second one, up to its text or a name."""
    end: str = ""
    """The part of `closing` from its last control token on."""


class Boundaries:
    """The boundaries of messages, measured on sentinel messages.

    Args:
        template: The template.
        openings: The scaffolds that may open a reply, the longest first.
        placeholder: What the template writes for an image; None if no message has one.
    """

    def __init__(self, template: BoundTemplate, openings: Sequence[str], placeholder: str | None = None) -> None:
        self._template = template
        self._placeholder = placeholder
        self._openings = [opening for opening in openings if opening]
        self._measured: dict[tuple[Role, bool, Role], Boundary] = {}

    def starts(self, messages: Sequence[Message], tools: Sequence[ToolSchema], text: str) -> list[int]:
        """Return where each message begins in the text of a conversation, in order.

        Args:
            messages: The conversation, at least one message.
            tools: The tools that the model has.
            text: The rendered conversation.
        """
        starts, opener = [0], ""
        gaps = self._between_images(messages, text)
        for index, (before, after) in enumerate(pairwise(messages)):
            boundary, (least, most) = self._between(before, after), gaps[index]
            if before.role == "system" and not index:  # the tools may be next to its text
                try:
                    start = self._template.mask.shared(text, self._template.text([before], tools))
                except TemplateFailed:
                    start = 0
            elif before.role == "assistant":
                opening = next((o for o in self._openings if text.startswith(o, starts[-1])), "")
                end = self._end(text, before.content, starts[-1] + len(opening))
                start = _found(text, boundary, min(max(end, least), most), most)
            else:
                opened = opener or self._between(reply_of(), before).opener  # of the first message of a conversation
                start = self._after_text(before, after, boundary, opened, (starts[-1], least), text)
            starts.append(self._template.mask.outside(text, min(max(start, starts[-1], least), most)))
            opener = boundary.opener
        return starts

    def _between_images(self, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
        """Return the range in which each message but the first begins: after the last image before it, if any."""
        counts = [len(message.images) if message.parts is not None else 0 for message in messages]
        name = self._placeholder if any(counts) else None
        found = [match.start() for match in re.finditer(re.escape(name), text)] if name is not None else []
        if name is None or len(found) != sum(counts):
            return [(0, len(text))] * (len(messages) - 1)
        ends, starts = [0, *(at + len(name) for at in found)], [*found, len(text)]
        return [(ends[before], starts[before]) for before in accumulate(counts[:-1])]

    def _after_text(
        self, before: Message, after: Message, boundary: Boundary, opener: str, bounds: tuple[int, int], text: str
    ) -> int:
        """Return where the message after one that is not a reply begins, which does so after `bounds`."""
        opener = opener.rstrip() or opener if before.images else opener  # see _found
        opened = text.find(opener, bounds[0])
        end = opened + len(opener) if opened >= 0 else bounds[0]
        parts = (before.parts or ()) if before.images else ()
        texts = [part.text for part in parts if isinstance(part, TextPart)] if before.images else [before.content]
        for content in texts:  # between its images
            end = self._end(text, content, end)
        end = max(end, bounds[1])
        if text.startswith(boundary.closing, end):
            return end + len(boundary.closing)
        openings = self._openings if after.role == "assistant" else [boundary.opener]
        return next((at for opening in openings if opening and (at := text.find(opening, end)) >= 0), end)

    def _end(self, text: str, content: str, start: int) -> int:
        """Return where a message's content ends, as it is or stripped; `start` if it is not found."""
        for form in (content, content.strip()):
            at = self._template.mask.find(text, form, start) if form else -1
            if at >= 0:
                return at + len(form)
        return start

    def _between(self, before: Message, after: Message) -> Boundary:
        key = (before.role, bool(before.tool_calls), after.role)
        boundary = self._measured.get(key)
        if boundary is None:
            try:
                boundary = self._measure(*key)
            except TemplateFailed:
                boundary = Boundary()
            self._measured[key] = boundary
        return boundary

    def _measure(self, role: Role, has_calls: bool, following: Role) -> Boundary:
        """Measure a boundary on a conversation in which the first of the two messages is not the first message."""
        is_tool = role == "tool" or following == "tool"
        calls = 1 + (role == following == "tool") if is_tool or has_calls else 0
        past = [user(), reply_of([PROBE_NAME] * calls)]
        if role != "assistant":
            past.append(results(past[-1], 1)[0] if role == "tool" else Message(role=role, content=slot(0)))
        answer = Message(role=following, content=slot(1), name=PROBE_NAME if is_tool else None)
        tools = [PROBE_TOOL] if calls else []
        mark = REPLY if role == "assistant" else slot(0)
        after = self._template.text([*past, answer], tools).rpartition(mark)[2].partition(slot(1))[0]
        alone = self._template.text(past, tools).rpartition(mark)[2]
        length = self._template.mask.shared(after, alone)
        closing = after[:length]
        last = max((at for _, at in self._template.mask.controls(closing)), default=length)
        opener = after[length:]
        name = opener.lower().find(STEM.lower())  # of the function that the probe calls
        return Boundary(closing, opener if name < 0 else opener[:name], closing[last:])


def _found(text: str, boundary: Boundary, start: int, most: int) -> int:
    """Return where the message after a reply begins, at `most` at the latest; `start` if that is not found.

    Next to an image, a template may write no space after the opener (Idefics 3).
    """
    for opener in (boundary.opener, boundary.opener.rstrip()):
        at = text.find(boundary.end + opener, start) if opener else -1
        if 0 <= at <= most - len(boundary.end):
            return at + len(boundary.end)
    return start


class ConversationWriter:
    """Writes rendered conversations.

    Args:
        template: The template.
        writer: Writes rendered text.
        openings: The scaffolds that may open a reply, the longest first.
        ends: The tokens that may end a reply in the past.
        placeholder: What the template writes for an image; None for a renderer that refuses images.
    """

    def __init__(
        self,
        template: BoundTemplate,
        writer: Writer,
        openings: Sequence[str],
        ends: Collection[str],
        placeholder: str | None = None,
    ) -> None:
        self._template = template
        self._mask = template.mask
        self._writer = writer
        self._openings = openings
        self._boundaries = Boundaries(template, openings, placeholder)
        self._ends = ends

    def write(
        self,
        out: TemplateEmission,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        past: Sequence[Message] = (),
    ) -> bool:
        """Write a conversation, in which control tokens are hidden, and give the emission its generation prompt.

        Args:
            out: What is written to.
            messages: The conversation.
            tools: The tools that the model has.
            past: Sentinel messages in place of the conversation before `messages`, which then begin with a reply. None
                of them is written.

        Returns:
            False, and nothing is written, if the text after the past cannot be written alone.

        Raises:
            TemplateUnsupported: If content and the template's own text together make a control token.
            TemplateFailed: If the template refuses the conversation.
        """
        text = self._template.safe_text([*past, *messages], tools)
        with_prompt = self._template.safe_text([*past, *messages], tools, generation_prompt=True)
        length = self._mask.shared(text, with_prompt)
        text = text if messages[-1].role == "assistant" else text[:length]
        start = self._end_of(past, tools, text) if past else 0
        if start is None:
            return False
        text = text[start:]
        bounds = pairwise([*self._boundaries.starts(messages, tools, text), len(text)])
        for index, (message, (start, end)) in enumerate(zip(messages, bounds, strict=True)):
            out.begin(index, message.role, message.images)
            if message.role == "assistant":
                self._write_reply(out, text[start:end], index)
            else:
                self._writer.write_message(out, text[start:end], message.content.strip())
        out.generation_prompt = with_prompt[length:]
        return True

    def _end_of(self, past: Sequence[Message], tools: Sequence[ToolSchema], text: str) -> int | None:
        """Return where the reply after the past begins, between a control token and other text; None if nowhere."""
        before, prompt = (self._template.text(past, tools, generation_prompt=asks) for asks in (False, True))
        end = self._mask.shared(before, prompt)
        controls = self._mask.controls(prompt)
        is_seam = any(end in (at, at + len(name)) for name, at in controls)
        return end if is_seam and text.startswith(prompt[:end]) else None

    def _write_reply(self, out: Emission, text: str, index: int) -> None:
        """Write a rendered reply; the text between its opening and its end is sampled."""
        start = next((len(opening) for opening in self._openings if opening and text.startswith(opening)), 0)
        ends = [at + len(name) for name, at in self._mask.controls(text) if name in self._ends]
        end = max(start, ends[-1]) if ends else len(text)
        self._writer.write(out, text[:start])
        out.attribute(index, "assistant", is_sampled=True)
        self._writer.write(out, text[start:end], is_scaffold=False)
        out.attribute(index, "assistant")
        self._writer.write(out, text[end:])
