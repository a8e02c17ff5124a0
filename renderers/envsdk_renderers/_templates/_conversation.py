"""Writes whole conversations as a chat template renders them, with the start of each message."""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
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


class ConversationWriter:
    """Writes rendered conversations. The boundaries of messages are measured on sentinel messages.

    Args:
        template: The template.
        writer: Writes rendered text.
        openings: The scaffolds that may open a reply, the longest first.
        ends: The tokens that may end a reply in the past.
    """

    def __init__(
        self,
        template: BoundTemplate,
        writer: Writer,
        openings: Sequence[str],
        ends: Collection[str],
    ) -> None:
        self._template, self._mask = template, template.mask
        self._writer = writer
        self._openings = [opening for opening in openings if opening]
        self._ends = ends
        self._measured: dict[tuple[Role, bool, Role], Boundary] = {}

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
        if past:  # the reply after it begins between a control token and other text
            before, prompt = (self._template.text(past, tools, generation_prompt=asks) for asks in (False, True))
            end = self._mask.shared(before, prompt)
            is_seam = any(end in (at, at + len(name)) for name, at in self._mask.controls(prompt))
            if not (is_seam and text.startswith(prompt[:end])):
                return False
            text = text[end:]
        bounds = pairwise([*self._starts(messages, tools, text, out.placeholder), len(text)])
        for index, (message, (start, end)) in enumerate(zip(messages, bounds, strict=True)):
            out.begin(index, message.role, message.images)
            if message.role == "assistant":
                self._write_reply(out, text[start:end], index)
            else:
                self._writer.write_message(out, text[start:end], message.content.strip())
        out.generation_prompt = with_prompt[length:]
        return True

    def _write_reply(self, out: Emission, text: str, index: int) -> None:
        """Write a rendered reply; the text between its opening and its end is sampled."""
        start = next((len(opening) for opening in self._openings if text.startswith(opening)), 0)
        ends = [at + len(name) for name, at in self._mask.controls(text) if name in self._ends]
        end = max(start, ends[-1]) if ends else len(text)
        self._writer.write(out, text[:start])
        out.attribute(index, "assistant", is_sampled=True)
        self._writer.write(out, text[start:end], is_scaffold=False)
        out.attribute(index, "assistant")
        self._writer.write(out, text[end:])

    def _starts(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], text: str, placeholder: str | None
    ) -> list[int]:
        """Return where each message begins in the text of a conversation, in order."""
        starts, opener = [0], ""
        gaps = _between_images(messages, text, placeholder)
        for (before, after), (least, most) in zip(pairwise(messages), gaps, strict=True):
            boundary = self._between(before, after)
            if before.role == "system" and len(starts) == 1:  # the tools may be next to its text
                start = 0
                with suppress(TemplateFailed):
                    start = self._mask.shared(text, self._template.text([before], tools))
            elif before.role == "assistant":
                opening = next((o for o in self._openings if text.startswith(o, starts[-1])), "")
                end = self._end(text, before.content, starts[-1] + len(opening))
                start = end = min(max(end, least), most)
                # Next to an image, a template may write no space after the opener (Idefics 3).
                for begun in filter(None, (boundary.opener, boundary.opener.rstrip())):
                    at = text.find(boundary.end + begun, end)
                    if 0 <= at <= most - len(boundary.end):
                        start = at + len(boundary.end)
                        break
            else:
                opened = opener or self._between(reply_of(), before).opener  # of the first message of a conversation
                start = self._after_text(before, after, boundary, opened, (starts[-1], least), text)
            starts.append(self._mask.outside(text, min(max(start, starts[-1], least), most)))
            opener = boundary.opener
        return starts

    def _after_text(
        self, before: Message, after: Message, boundary: Boundary, opener: str, bounds: tuple[int, int], text: str
    ) -> int:
        """Return where the message after one that is not a reply begins, which does so after `bounds`."""
        opener = opener.rstrip() or opener if before.images else opener  # as next to an image in `_starts`
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
            at = self._mask.find(text, form, start) if form else -1
            if at >= 0:
                return at + len(form)
        return start

    def _between(self, before: Message, after: Message) -> Boundary:
        """Measure a boundary on a conversation in which the first of the two messages is not the first message."""
        key = role, has_calls, following = before.role, bool(before.tool_calls), after.role
        if key in self._measured:
            return self._measured[key]
        is_tool = role == "tool" or following == "tool"
        calls = 1 + (role == following == "tool") if is_tool or has_calls else 0
        past = [user(), reply_of([PROBE_NAME] * calls)]
        if role != "assistant":
            past.append(results(past[-1], 1)[0] if role == "tool" else Message(role=role, content=slot(0)))
        answer = Message(role=following, content=slot(1), name=PROBE_NAME if is_tool else None)
        tools, mark = [PROBE_TOOL] if calls else [], REPLY if role == "assistant" else slot(0)
        boundary = Boundary()
        with suppress(TemplateFailed):
            text = self._template.text([*past, answer], tools).rpartition(mark)[2].partition(slot(1))[0]
            length = self._mask.shared(text, self._template.text(past, tools).rpartition(mark)[2])
            closing, opener = text[:length], text[length:]
            last = max((at for _, at in self._mask.controls(closing)), default=length)
            name = opener.lower().find(STEM.lower())  # of the function that the probe calls
            boundary = Boundary(closing, opener if name < 0 else opener[:name], closing[last:])
        self._measured[key] = boundary
        return boundary


def _between_images(messages: Sequence[Message], text: str, placeholder: str | None) -> list[tuple[int, int]]:
    """Return the range in which each message but the first begins: after the last image before it, if any."""
    counts = [len(message.images) if message.parts is not None else 0 for message in messages]
    name = placeholder if any(counts) else None
    found = [match.start() for match in re.finditer(re.escape(name), text)] if name is not None else []
    if name is None or len(found) != sum(counts):
        return [(0, len(text))] * (len(messages) - 1)
    ends, starts = [0, *(at + len(name) for at in found)], [*found, len(text)]
    return [(ends[before], starts[before]) for before in accumulate(counts[:-1])]
