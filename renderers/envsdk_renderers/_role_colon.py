"""Base models: a conversation as plain text, `User: ...` and `Assistant: ...` with an empty line between them.

No model was trained on this format, so its only control token is the one that ends a text. Content cannot forge that
token, but it can contain `User:`, and so forge a turn.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from envsdk.errors import RenderError, TokenizerError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering._whole import WholeRenderer
from envsdk.rendering.emission import Emission
from envsdk.rendering.family import FamilyRenderer
from envsdk.rendering.renderer import Rendered, TokenIds, errors_at_end
from envsdk.rendering.tokenizers import Tokenizer

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<｜end▁of▁sentence｜>", "<eos>", "<|im_end|>")
_NEXT = "\n\nUser:"


class CutEmission(Emission):
    """An emission that encodes each message apart from the others, and a reply apart from its generation prompt."""

    __slots__ = ()

    def attribute(self, message: int, role: str, *, is_sampled: bool = False) -> None:
        """See `Emission.attribute`."""
        self.cut()
        super().attribute(message, role, is_sampled=is_sampled)


class RoleColon(WholeRenderer, FamilyRenderer):  # how a message begins depends on how the reply before it ended
    """A renderer for base models.

    A reply ends with the token that ends a text, or where the model begins to write the next `User:` itself
    (`stop_strings`), which then stays.

    Args:
        tokenizer: A tokenizer with a token that ends a text.
        stop: That token; by default the one in the tokenizer's files, or the first of the usual ones that it has.
        unsafe_content: See `Renderer`.

    Raises:
        TokenizerError: If there is no such token.
    """

    name: ClassVar[str] = "role_colon"
    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant"})
    after_turn: ClassVar[str] = ""
    opening: str = "\n\nAssistant:"
    blocks: Mapping[str, str] = {}
    structure: tuple[str, ...] = ()
    stop_strings: ClassVar[tuple[str, ...]] = (_NEXT,)

    def __init__(self, tokenizer: Tokenizer, *, stop: str | None = None, unsafe_content: bool = False) -> None:
        known = tokenizer.chat_template.end_tokens if tokenizer.chat_template else ()
        names = [stop] if stop is not None else [name for name in (*known, *_ENDS) if name in tokenizer.control_tokens]
        if not names:
            raise TokenizerError(
                f"the tokenizer {tokenizer.name!r} has no known token that ends a text: give its name as stop="
            )
        self.stop_tokens = (names[0],)
        self.stop = stop
        super().__init__(tokenizer, unsafe_content=unsafe_content)

    def check_tools(self, tools: Sequence[ToolSchema]) -> None:
        """Refuse tools: a base model knows no format of calls."""
        if tools:
            raise RenderError(f"{self.name!r} has no place for tools: describe them in the system message instead")

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write a system message like any other."""
        self.check_tools(tools)
        if system is not None:
            self.emit_message(out, system, None, None)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write the role, a colon and the content."""
        out.scaffold("" if previous is None else "\n\n")
        out.scaffold(f"{message.role.capitalize()}:")
        out.scaffold(" ")
        out.content(message.content)

    def emit_reply(self, out: Emission, message: Message) -> None:
        """Write the content; reasoning is not shown."""
        if message.tool_calls:
            raise RenderError(f"{self.name!r} cannot express a tool call")
        out.scaffold(" ")
        out.content(message.content)
        out.scaffold(self.stop_tokens[0])

    def _emission(self) -> Emission:
        return CutEmission(self.encoder)  # no template joins the messages, and apart they stay what was sampled

    def extension(
        self,
        reply: TokenIds,
        messages: Sequence[Message],
        *,
        history: Sequence[Message] = (),
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = True,
        prefill: str | Message | None = None,
        drops_end: bool = False,
    ) -> Rendered:
        """See `Renderer.extension`; after a reply that wrote the next `User:` itself, only the user's text follows."""
        if not (messages and messages[0].role == "user" and self._begins_next(reply)):
            return super().extension(
                reply, messages, history=history, generation_prompt=generation_prompt, prefill=prefill
            )
        out = self._emission()
        out.begin(1, "user")
        out.scaffold(" ")
        out.content(messages[0].content)
        self.emit_conversation(out, [Message(role="assistant"), *messages], first=2)
        return self._prompted(out, len(messages) + 1, prefill) if generation_prompt else Rendered(out)

    def is_closed(self, reply: TokenIds) -> bool:
        """Return whether the reply ended its turn itself."""
        return super().is_closed(reply) or self._begins_next(reply)

    def _begins_next(self, reply: TokenIds) -> bool:
        end = np.asarray(reply, dtype=np.int32)[-len(_NEXT) :]
        return self.tokenizer.decode(end).endswith(_NEXT)

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """Parse the text up to the end, or up to the next `User:`."""
        started = self.marks.split(self.after_opening(prompt_tail)).segments[0].text
        split = self.marks.split(tokens)
        content, stop, _ = (started + split.segments[0].text).partition(_NEXT)
        errors = errors_at_end(is_ended=split.is_ended or bool(stop), overrun=split.overrun)
        return Message(role="assistant", content=content.removeprefix(" "), errors=tuple(errors))
