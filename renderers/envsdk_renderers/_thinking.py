"""ChatML with tools and a think block before the answer, which the thinking Qwen families share.

It specifies how the block is written, which part of it the generation prompt contains, and which past reasoning stays
visible.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from envsdk.errors import ConfigError, RenderError
from envsdk.messages import Message
from envsdk.rendering.tokenizers import Tokenizer

from ._chatml import HERMES, ToolChatML
from ._grammars._grammar import Grammar, tagged
from ._grammars._styles import TextPiece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THINK = ("<think>\n", "\n</think>\n\n")
"""The scaffold before and after reasoning."""
_MARK = "\ue001"  # a private-use character that marks where a text would be
_EMPTY_BLOCK = "<think>\n\n</think>\n\n"


class ThinkingChatML(ToolChatML):
    """ChatML with tools and thinking.

    Args:
        tokenizer: A tokenizer with the family's control tokens.
        enable_thinking: False puts an empty think block into the generation prompt, so that the model does not think.
        unsafe_content: See `Renderer`.
        processor: See `ChatML`.
    """

    blocks: Mapping[str, str] = {"<think>": "\n</think>\n\n", "<tool_call>": "\n</tool_call>"}
    structure: tuple[str, ...] = ("</think>", "</tool_call>")
    grammar: ClassVar[Grammar] = tagged(HERMES, THINK)
    strips_newlines: ClassVar[bool] = True
    prompt_opens_block: ClassVar[bool]
    """True if the generation prompt opens the think block, so that the model does not sample `<think>`."""
    reads_tags_in_content: ClassVar[bool] = True
    """True if a think block in the content is reasoning."""
    writes_empty_blocks: ClassVar[bool] = False
    """True if every reply after the last query has a block, and not only the last message, and those with reasoning."""
    needs_query: ClassVar[bool] = False
    """True if a conversation without a user's query cannot be written; otherwise its reasoning is not shown."""
    preserve_thinking: bool = False
    """True if the reasoning of all replies is shown."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        enable_thinking: bool = True,
        unsafe_content: bool = False,
        processor: Any = None,
    ) -> None:
        super().__init__(tokenizer, unsafe_content=unsafe_content, processor=processor)
        check_flag("enable_thinking", enable_thinking)
        self.enable_thinking = enable_thinking

    @property
    def generation_prompt(self) -> str:
        """The scaffold after which a model samples a reply."""
        if not self.enable_thinking:
            return self.opening + _EMPTY_BLOCK
        return self.opening + ("<think>\n" if self.prompt_opens_block else "")

    @property
    def reasoning_in_content(self) -> tuple[str, str] | None:
        """See `Renderer.reasoning_in_content`."""
        return ("<think>", "</think>") if self.reads_tags_in_content else None

    def as_written(self, message: Message) -> Message:
        """See `ChatML.as_written`; newlines around the reasoning belong to the block."""
        message = super().as_written(message)
        if message.reasoning is None:
            return message
        content, reasoning = message.content.lstrip("\n"), self.trimmed(message.reasoning).strip("\n")
        if content == message.content and reasoning == message.reasoning:
            return message
        return message.model_copy(update={"content": content, "reasoning": reasoning})

    def pieces(self, message: Message, prompted: str = "") -> list[TextPiece]:
        """See `ChatML.pieces`; the templates drop a text of newlines after the block, but not what follows a text."""
        content = self.trimmed(message.content)
        if message.reasoning is None or not message.tool_calls or not content or content.strip("\n"):
            return super().pieces(message, prompted)
        found = super().pieces(message.model_copy(update={"content": _MARK}), prompted)
        found.remove(TextPiece(_MARK, False))
        return found

    def _written_reply(self, message: Message) -> "NDArray[np.int32]":
        if not self.enable_thinking:  # the prompt contains an empty block
            return super()._written_reply(message.with_reasoning(None))
        if not self.prompt_opens_block:
            return super()._written_reply(message)
        out = self._emission()
        self.emit_reply(out, message.with_reasoning(message.reasoning or ""), THINK[0])
        return out.tokens()[0]

    def settles(self, message: Message) -> bool:
        """Return whether the message is a user query; the text of a tool response does not count as one."""
        texts = self.texts(message)
        is_tool_response = texts[0].startswith("<tool_response>") and texts[-1].endswith("</tool_response>")
        return message.role == "user" and not is_tool_response

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Show reasoning only after the last user query, unless `preserve_thinking` is set."""
        tail = [self.as_read(message) for message in messages[settled:]]
        query = next((index for index in range(len(tail) - 1, -1, -1) if self.settles(tail[index])), None)
        if query is None and self.needs_query and not settled:
            raise RenderError(f"{self.name!r} cannot express a conversation without a user's query")
        if query is None:
            query = -1 if settled else len(tail)
        for index, message in enumerate(tail):
            if message.role == "assistant":
                has_block = self.writes_empty_blocks or bool(message.reasoning) or index == len(tail) - 1
                is_shown = self.preserve_thinking or (has_block and index > query)
                tail[index] = message.with_reasoning((message.reasoning or "") if is_shown else None)
        return tail

    def as_read(self, message: Message) -> Message:
        """Return the message as the template reads it: with `unsafe_content`, a think block in the content counts."""
        content = message.content
        if not self.unsafe_content or message.role != "assistant" or message.reasoning is not None:
            return message
        if not self.reads_tags_in_content or "</think>" not in content:
            return message
        reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
        content = content.split("</think>")[-1].lstrip("\n")
        return message.model_copy(update={"reasoning": reasoning, "content": content})


class AlwaysThinkingChatML(ThinkingChatML):
    """ChatML with tools of a model that always thinks: the generation prompt opens the think block.

    A prefill that is a message needs a reasoning, which may be empty.

    Args:
        tokenizer: A tokenizer with the family's control tokens.
        unsafe_content: See `Renderer`.
    """

    prompt_opens_block: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False) -> None:
        super().__init__(tokenizer, unsafe_content=unsafe_content)


def check_flag(name: str, value: object) -> None:
    """Check an option that has to be True or False.

    Raises:
        ConfigError: If it is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected True or False")
