"""Writes whole conversations as a chat template renders them, with the start of each message."""

from collections.abc import Collection, Sequence
from itertools import pairwise

from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission

from ._bound_template import BoundTemplate
from ._boundaries import Boundaries
from ._writer import Writer


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
        self, out: Emission, messages: Sequence[Message], tools: Sequence[ToolSchema], past: Sequence[Message] = ()
    ) -> str | None:
        """Write a conversation, in which control tokens are hidden, and return its generation prompt.

        Args:
            out: What is written to.
            messages: The conversation.
            tools: The tools that the model has.
            past: Sentinel messages in place of the conversation before `messages`, which then begin with a reply. None
                of them is written.

        Returns:
            The generation prompt; None, and nothing is written, if the text after the past cannot be written alone.

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
            return None
        text = text[start:]
        bounds = pairwise([*self._boundaries.starts(messages, tools, text), len(text)])
        for index, (message, (start, end)) in enumerate(zip(messages, bounds, strict=True)):
            out.begin(index, message.role, message.images)
            if message.role == "assistant":
                self._write_reply(out, text[start:end], index)
            else:
                self._writer.write_message(out, text[start:end], message.content.strip())
        return with_prompt[length:]

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
