"""Qwen3 (0.6B to 235B) with the chat template of April 2025, and its variants of July 2025.

Source of the rules: the official `chat_template` of Qwen/Qwen3-8B (the same for 0.6B, 14B and 32B), of
Qwen/Qwen3-4B-Instruct-2507 and of Qwen/Qwen3-4B-Thinking-2507 (the same for the larger ones of July 2025).
"""

from typing import ClassVar

from ._chatml import AlwaysThinkingChatML, ThinkingChatML, ToolChatML


class Qwen3Instruct2507(ToolChatML):
    """Qwen3 without thinking, as of July 2025: reasoning in messages is not shown."""

    name: ClassVar[str] = "qwen3-instruct-2507"


class Qwen3(ThinkingChatML):
    """Qwen3's chat format: ChatML with a think block, and JSON tool calls between tags.

    Args:
        tokenizer: A tokenizer with Qwen3's control tokens.
        enable_thinking: False puts an empty think block into the generation prompt, so that the model does not think.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "qwen3"
    prompt_opens_block: ClassVar[bool] = False


class Qwen3Thinking2507(AlwaysThinkingChatML):
    """Qwen3 that always thinks, as of July 2025: the generation prompt opens the think block.

    The past is shown as in Qwen3. A prefill that is a message needs a reasoning, which may be empty.

    Args:
        tokenizer: A tokenizer with Qwen3's control tokens.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "qwen3-thinking-2507"
