"""QwQ-32B.

Source of the rules: the official `chat_template` of Qwen/QwQ-32B. It reads reasoning in the content only, as `<think>`
and `</think>` around it, and drops it from every message but the last.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from envsdk.errors import RenderError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission

from ._chatml import AlwaysThinkingChatML, ThinkingChatML
from ._grammars._grammar import Grammar


class QwQ(AlwaysThinkingChatML):
    """QwQ's chat format: ChatML with tools, in which the generation prompt opens the think block.

    QwQ's vocabulary is not available here; the tests compare the renderer with the template on that of Qwen3, which has
    its control tokens. A prefill that is a message needs a reasoning, which may be empty.

    Args:
        tokenizer: A tokenizer with QwQ's control tokens.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "qwq"
    default_system: ClassVar[str | None] = ""
    grammar: ClassVar[Grammar] = replace(ThinkingChatML.grammar, quotes_text=True)

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write the system block, which is empty before tools without a system message, and absent without both."""
        if system is not None or tools:
            super().emit_start(out, system, tools)

    def settles(self, message: Message) -> bool:
        """Return whether the message is not the assistant's: a reply before it is no longer the last message."""
        return message.role != "assistant"

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Show a reply that is not the last message without reasoning, and without newlines at its start."""
        tail = list(messages[settled:])
        for index, message in enumerate(tail[:-1]):
            if message.role == "assistant":
                content = (message.content.split("</think>")[-1] if self.unsafe_content else message.content).lstrip(
                    "\n"
                )
                if message.tool_calls and message.content and not content:
                    raise RenderError(
                        f"{self.name!r} cannot express a call after a text of only newlines: its template writes one "
                        "too many"
                    )
                shown = message.with_reasoning(None)
                is_same = content == shown.content
                tail[index] = shown if is_same else shown.model_copy(update={"content": content})
        return tail
