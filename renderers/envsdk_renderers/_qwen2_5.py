"""Qwen2.5 instruct (0.5B to 72B).

Source of the rules: the official `chat_template` of Qwen/Qwen2.5-7B-Instruct (the same for all sizes).
"""

from dataclasses import replace
from typing import ClassVar

from ._chatml import ToolChatML
from ._grammars._grammar import Grammar


class Qwen25(ToolChatML):
    """Qwen2.5's chat format: ChatML with tools and a default system message; reasoning in messages is not shown."""

    name: ClassVar[str] = "qwen2.5"
    default_system: ClassVar[str | None] = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    grammar: ClassVar[Grammar] = replace(ToolChatML.grammar, quotes_text=True)
