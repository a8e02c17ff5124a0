"""ChatML, in which every message is a block between `<|im_start|>` and `<|im_end|>`; with tools; and with thinking.

Source of the rules: OpenAI's ChatML of 2023, as Hugging Face templates write it. This module specifies blocks, tools
and their results for all families that build on them; and the think block before the answer, which the thinking Qwen
families share: how it is written, which part of it the generation prompt contains, and which past reasoning stays
visible.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from envsdk.errors import ConfigError, RenderError
from envsdk.messages import ImagePart, Message, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.family import FamilyRenderer
from envsdk.rendering.reading import ReplyReader
from envsdk.rendering.renderer import TokenIds
from envsdk.rendering.tokenizers import Tokenizer

from ._grammars._grammar import CallFormat, Grammar, tagged
from ._grammars._reading import GrammarReader, StreamedReader
from ._grammars._styles import TextPiece, json_text
from ._grammars._writing import write_after

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HERMES = CallFormat(
    ("object",),
    "<tool_call>\n",
    {"object": "\n</tool_call>"},
    layout=('{"name": "', "name", '", "arguments": ', "arguments", "}"),
)
"""Calls as NousResearch's Hermes writes them: JSON between tags."""
THINK = ("<think>\n", "\n</think>\n\n")
"""The scaffold before and after reasoning."""
_EMPTY_BLOCK = "<think>\n\n</think>\n\n"
_MARK = "\ue001"  # a private-use character in the place of an image or a text


class ChatML(FamilyRenderer):
    """Plain ChatML without tools and thinking: reasoning in messages is not shown, and tools are refused.

    Args:
        tokenizer: A tokenizer with `<|im_start|>` and `<|im_end|>`.
        unsafe_content: See `Renderer`.
        processor: See `Renderer`; only families with `writes_images` take one.
    """

    name: ClassVar[str] = "chatml"
    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant"})
    stop_tokens: tuple[str, ...] = ("<|im_end|>",)
    after_turn: ClassVar[str] = "\n"
    opening: str = "<|im_start|>assistant\n"
    blocks: Mapping[str, str] = {}
    structure: tuple[str, ...] = ("<|im_start|>",)
    message_end: ClassVar[str] = "<|im_end|>"
    """The scaffold that ends a message; in an assistant's message it is sampled."""
    image: ClassVar[str] = "<|vision_start|><|image_pad|><|vision_end|>"
    """The scaffold that the templates of Qwen's vision models write for an image."""
    grammar: ClassVar[Grammar] = tagged()
    """The grammar by which replies are written and read."""
    header: ClassVar[str] = "<|im_start|>{role}\n"
    """The scaffold that begins a message of each role; the assistant's is `opening`."""
    trims: ClassVar[bool] = False
    """True if content is shown without the whitespace around it."""
    strips_newlines: ClassVar[bool] = False
    """True if newlines around reasoning belong to its block."""

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False, processor: Any = None) -> None:
        super().__init__(tokenizer, unsafe_content=unsafe_content, processor=processor)
        grammar = replace(self.grammar, controls=(*self.blocks, *self.structure))
        self._reader = GrammarReader(grammar, strips_newlines=self.strips_newlines)
        tags = self.grammar.call_tags
        self._call_opener = tags[0] if tags else ""
        self._call_tag = re.compile(f"({'|'.join(map(re.escape, tags)) if tags else '(?!)'})")

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write a system message as a block; tools are refused."""
        if tools:
            raise RenderError(f"{self.name!r} has no place for tools: use another renderer, or no tools")
        if system is not None:
            self.emit_message(out, system, None, None)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a message as a block."""
        out.scaffold(self.header.format(role=message.role))
        self.emit_content(out, message)
        out.scaffold(self.message_end + self.after_turn)

    def emit_content(self, out: Emission, message: Message) -> None:
        """Write the content of a message: its texts, with the template's tokens for each image between them."""
        first, *others = self.texts(message)
        out.content(first)
        for text in others:
            out.scaffold(self.image)
            out.content(text)

    def texts(self, message: Message) -> list[str]:
        """Return the text before, between and after a message's images. The content is trimmed as a whole."""
        if message.parts is None:
            return [self.trimmed(message.content)]
        texts = [""]
        for part in message.parts or ():
            if isinstance(part, ImagePart):
                texts.append("")
            else:
                texts[-1] += part.text
        texts[0] = self.trimmed(f"{texts[0]}{_MARK}").removesuffix(_MARK)
        texts[-1] = self.trimmed(f"{_MARK}{texts[-1]}").removeprefix(_MARK)
        return texts

    def emit_reply(self, out: Emission, message: Message, prompted: str = "") -> None:
        """Write the reasoning, the text and the calls, as far as the family has them, and the end of the message.

        What is between the tags around a call is content.

        Args:
            out: Receives what is written.
            message: The message.
            prompted: The beginning of the reply that the generation prompt contains.
        """
        is_inside = False
        for piece in self.pieces(message, prompted):
            if not piece.is_scaffold:
                out.content(piece.text)
                continue
            for index, part in enumerate(self._call_tag.split(piece.text)):  # every second part is a tag
                is_content = is_inside and not any(name in part for name in self.structure)
                out.content(part) if is_content else out.scaffold(part)
                is_inside = part == self._call_opener if index % 2 else is_inside
        out.scaffold(self.message_end)

    def pieces(self, message: Message, prompted: str = "") -> list[TextPiece]:
        """Return what is written for a reply, without the part that the generation prompt contains."""
        return write_after(self._reader.grammar, self.as_written(message), prompted)

    def as_written(self, message: Message) -> Message:
        """Return a reply as the family writes it.

        Raises:
            RenderError: If it has calls and the family has none.
        """
        if message.tool_calls and not self.grammar.call:
            raise RenderError(f"{self.name!r} cannot express a tool call: use another renderer")
        content = self.trimmed(message.content)
        return message if content == message.content else message.model_copy(update={"content": content})

    def trimmed(self, text: str) -> str:
        """Return content as the template shows it."""
        return text.strip() if self.trims else text

    def _prefill(self, start: str | Message) -> "NDArray[np.int32]":
        if isinstance(start, Message) and start.reasoning is None and self.open_at_start:
            raise RenderError(
                f"a reply of {self.name!r} begins with reasoning, since its generation prompt opens a think block: "
                "give the prefill a reasoning, which may be empty"
            )
        return super()._prefill(start)

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """Parse the think block, the text and the calls, as far as the family has them; see `Renderer.parse`."""
        begun, sampled = self._split_reply(tokens, prompt_tail)
        return self._reader.read([*begun, *sampled.segments], sampled, tools)

    def reader(self, *, tools: Sequence[ToolSchema] = (), prompt_tail: TokenIds = ()) -> ReplyReader:
        """See `Renderer.reader`; a reply is read as it arrives."""
        return StreamedReader(self._reader.begin(tools), self.marks, self.after_opening(prompt_tail))


class ToolChatML(ChatML):
    """ChatML with tools: their list in the system block, calls between tags, results in blocks of the user.

    Source of the rules: the templates of Qwen 2.5 and later, which follow NousResearch's Hermes. The class attributes
    of a family specify how its format differs.
    """

    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant", "tool"})
    stop_tokens: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")
    blocks: Mapping[str, str] = {"<tool_call>": "\n</tool_call>"}
    structure: tuple[str, ...] = ("</tool_call>",)
    grammar: ClassVar[Grammar] = tagged(HERMES)
    default_system: ClassVar[str | None] = None
    """The text of the system block without a system message; None if the block is then left out."""
    before_tools: ClassVar[str] = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    )
    """The text before the list of tools in the system block."""
    after_tools: ClassVar[str] = (
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
    """The text after the list of tools: how to write a call."""

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write one system block with the system message and the tools."""
        has_text = system is not None or self.default_system is not None
        if not has_text and not tools:
            return
        out.scaffold("<|im_start|>system\n")
        if system is not None:
            out.content(system.content)
        else:
            out.scaffold(self.default_system or "")
        if tools:
            out.scaffold("\n\n" if has_text else "")
            self.emit_tools(out, tools)
        out.scaffold("<|im_end|>\n")

    def emit_tools(self, out: Emission, tools: Sequence[ToolSchema]) -> None:
        """Write the list of tools with the instructions for calling them."""
        out.scaffold(self.before_tools)
        for tool in tools:
            out.scaffold("\n")
            out.content(json_text(tool, "tool"))
        out.scaffold(self.after_tools)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a message as a block; consecutive tool messages share one block of the user."""
        if message.role != "tool":
            super().emit_message(out, message, previous, following)
            return
        begins = previous is None or previous.role != "tool"
        ends = following is None or following.role != "tool"
        out.scaffold(("<|im_start|>user" if begins else "") + "\n<tool_response>\n")
        self.emit_content(out, message)
        out.scaffold("\n</tool_response>" + ("<|im_end|>\n" if ends else ""))

    def seam(self, message: Message, neighbor: Message | None) -> object:
        """Return whether a tool message shares its block with the neighbor."""
        return message.role == "tool" and neighbor is not None and neighbor.role == "tool"


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
