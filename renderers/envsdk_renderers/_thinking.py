"""ChatML with tools and a think block before the answer, which the thinking Qwen families share.

It specifies how the block is written, which part of it the generation prompt contains, and which past reasoning stays
visible.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from envsdk.errors import ConfigError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.reading import ContentText, Reading, ReasoningText, ReplyEvent, Segment, SplitReply
from envsdk.rendering.renderer import TokenIds
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
    prompt_opens_block: ClassVar[bool]
    """True if the generation prompt opens the think block, so that the model does not sample `<think>`."""

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
        return "<think>", "</think>"

    def specification(self) -> dict[str, Any]:
        """See `Renderer.specification`."""
        return {**super().specification(), **({} if self.enable_thinking else {"enable_thinking": False})}

    def as_written(self, message: Message) -> Message:
        """See `ChatML.as_written`; newlines around the reasoning belong to the block."""
        message = super().as_written(message)
        return message if message.reasoning is None else _unpadded(message, self.trimmed(message.reasoning))

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
        self.emit_pieces(out, self.pieces(message.with_reasoning(message.reasoning or ""), THINK[0]))
        return out.tokens()[0]

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """See `ChatML.parse`; newlines around the reasoning belong to the block."""
        message = super().parse(tokens, prompt_tail=prompt_tail, tools=tools)
        return message if message.reasoning is None else _unpadded(message, message.reasoning)

    def reading(self, tools: Sequence[ToolSchema]) -> Reading:
        """See `ChatML.reading`."""
        return _UnpaddedReading(super().reading(tools))

    def settles(self, message: Message) -> bool:
        """Return whether the message is a user query; the text of a tool response does not count as one."""
        texts = self.texts(message)
        is_tool_response = texts[0].startswith("<tool_response>") and texts[-1].endswith("</tool_response>")
        return message.role == "user" and not is_tool_response

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Show reasoning only after the last user query, in the messages for which `has_block` returns True."""
        tail = [self.as_read(message) for message in messages[settled:]]
        query = next((index for index in range(len(tail) - 1, -1, -1) if self.settles(tail[index])), None)
        if query is None:
            query = -1 if settled else self.missing_query(len(tail))
        for index, message in enumerate(tail):
            if message.role == "assistant":
                is_shown = self.has_block(message, is_after_query=index > query, is_last=index == len(tail) - 1)
                tail[index] = message.with_reasoning((message.reasoning or "") if is_shown else None)
        return tail

    def has_block(self, message: Message, *, is_after_query: bool, is_last: bool) -> bool:
        """Return whether an assistant's message is shown with a think block; `is_after_query`: after the last query."""
        return is_after_query and (bool(message.reasoning) or is_last)

    def missing_query(self, length: int) -> int:
        """Return the index of the last query for a conversation of `length` messages without one: after all of them."""
        return length

    def as_read(self, message: Message) -> Message:
        """Return the message as the template reads it: with `unsafe_content`, a think block in the content counts."""
        content = message.content
        if not self.unsafe_content or message.role != "assistant" or message.reasoning is not None:
            return message
        if "</think>" not in content:
            return message
        reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
        content = content.split("</think>")[-1].lstrip("\n")
        return message.model_copy(update={"reasoning": reasoning, "content": content})


def _unpadded(message: Message, reasoning: str) -> Message:
    """Return a message with this reasoning, without the newlines around its think block."""
    content, reasoning = message.content.lstrip("\n"), reasoning.strip("\n")
    if content == message.content and reasoning == message.reasoning:
        return message
    return message.model_copy(update={"content": content, "reasoning": reasoning})


class _UnpaddedReading:
    """A reply that is being read, without the newlines around its think block.

    Args:
        reading: Reads the reply with them.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._held: str | None = None
        """Newlines after the reasoning so far; None before its first other character, and without reasoning."""
        self._is_in_content = False

    def feed(self, segments: Iterable[Segment]) -> None:
        """Read more of the reply."""
        self._reading.feed(segments)

    def end(self, segments: Iterable[Segment] = ()) -> None:
        """Read the last part of the reply."""
        self._reading.end(segments)

    def events(self) -> list[ReplyEvent]:
        """Return what was read since the last call."""
        return [event for found in self._reading.events() for event in self._unpadded(found)]

    def message(self, sampled: SplitReply) -> Message:
        """Return the message after everything was read."""
        message = self._reading.message(sampled)
        return message if message.reasoning is None else _unpadded(message, message.reasoning)

    def _unpadded(self, event: ReplyEvent) -> Iterator[ReplyEvent]:
        if isinstance(event, ReasoningText):
            text = event.text.lstrip("\n") if self._held is None else self._held + event.text
            stripped = text.rstrip("\n")
            if text:
                self._held = text[len(stripped) :]
            yield from [ReasoningText(stripped)] if stripped else []
        elif isinstance(event, ContentText):
            text = event.text if self._is_in_content or not self.has_reasoning else event.text.lstrip("\n")
            self._is_in_content = self._is_in_content or bool(text)
            yield from [ContentText(text)] if text else []
        else:
            yield event

    @property
    def has_reasoning(self) -> bool:
        """True if the reply has a think block, also an empty one."""
        return self._reading.has_reasoning


def check_flag(name: str, value: object) -> None:
    """Check an option that has to be True or False.

    Raises:
        ConfigError: If it is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected True or False")
