"""Llama 3 instruct, without tools.

Source of the rules: the official `chat_template` of meta-llama/Meta-Llama-3-8B-Instruct. Every message is trimmed and
follows a header with its role.
"""

from collections.abc import Sequence
from typing import ClassVar

from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission

from ._chatml import ChatML


class Llama3(ChatML):
    """Llama 3's chat format: plain, without tools, which are refused, and without thinking, which is not shown.

    Llama's vocabulary is not available here; the tests compare the renderer with the template on a substitute that has
    its control tokens.

    Args:
        tokenizer: A tokenizer with Llama 3's control tokens.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "llama-3"
    stop_tokens: tuple[str, ...] = ("<|eot_id|>", "<|end_of_text|>")
    message_end: ClassVar[str] = "<|eot_id|>"
    after_turn: ClassVar[str] = ""
    opening: str = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    header: ClassVar[str] = "<|start_header_id|>{role}<|end_header_id|>\n\n"
    trims: ClassVar[bool] = True
    structure: tuple[str, ...] = ("<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>")

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write the token that begins a sequence, and the system message."""
        out.scaffold("<|begin_of_text|>")
        super().emit_start(out, system, tools)
