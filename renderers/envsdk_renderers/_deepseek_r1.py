"""DeepSeek-R1 and the models distilled from it, without tools.

Source of the rules: the official `chat_template` of deepseek-ai/DeepSeek-R1-Distill-*. It never shows reasoning. It
closes a list of calls only from the second call on, and drops the calls of a message with text, so this renderer
refuses tools.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from envsdk.errors import RenderError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission

from ._chatml import THINK, AlwaysThinkingChatML, ChatML
from ._grammars._grammar import Grammar, tagged


class DeepSeekR1(AlwaysThinkingChatML):
    """DeepSeek-R1's chat format: a role is one token, and the generation prompt opens the think block.

    R1's vocabulary is not available here; the tests compare the renderer with the template on a substitute that has its
    control tokens. A prefill that is a message needs a reasoning, which may be empty.

    Args:
        tokenizer: A tokenizer with DeepSeek-R1's control tokens.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "deepseek-r1"
    roles: ClassVar[frozenset[str]] = ChatML.roles
    stop_tokens: tuple[str, ...] = ("<｜end▁of▁sentence｜>",)
    message_end: ClassVar[str] = "<｜end▁of▁sentence｜>"
    after_turn: ClassVar[str] = ""
    known_differences: ClassVar[Mapping[str, str]] = {
        "system after": "the template moves every system message to the beginning; the renderer refuses a later one"
    }
    opening: str = "<｜Assistant｜>"
    blocks: Mapping[str, str] = {"<think>": "\n</think>\n\n"}
    structure: tuple[str, ...] = ("</think>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
    grammar: ClassVar[Grammar] = tagged(think=THINK)

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write the token that begins a sequence, and the system message, which is written without a role."""
        if tools:
            raise RenderError(f"{self.name!r} has no place for tools: use another renderer, or no tools")
        out.scaffold("<｜begin▁of▁sentence｜>")
        out.content("" if system is None else system.content)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a user's message after its role; the template would move a later system message to the front."""
        if message.role == "system":
            raise RenderError(f"{self.name!r} allows a system message only at the beginning")
        out.scaffold("<｜User｜>")
        out.content(message.content)

    settles = ChatML.settles

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Return the messages without reasoning, the last one included; with `unsafe_content`, also in the content."""
        shown = list(messages[settled:])
        for index, message in enumerate(shown):
            if message.role == "assistant" and self.unsafe_content and "</think>" in message.content:
                shown[index] = message.model_copy(update={"content": message.content.split("</think>")[-1]})
        return ChatML.visible(self, shown)
