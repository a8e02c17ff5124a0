"""Qwen3 (0.6B to 235B), as in the chat template of April 2025 and later.

Source of the rules: the official `chat_template` of Qwen/Qwen3-8B (the same for 0.6B, 14B and 32B).
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from envsdk.emission import Emission
from envsdk.errors import ConfigError, RenderError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.renderer import Renderer, TokenIds
from envsdk.tokenizers import Tokenizer

from .hermes import HermesReply

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_EMPTY_BLOCK = "<think>\n\n</think>\n\n"


class Qwen3(Renderer):
    """Qwen3's chat format: ChatML with a think block, and JSON tool calls between tags.

    Args:
        tokenizer: A tokenizer with Qwen3's control tokens.
        enable_thinking: False puts an empty think block into the generation prompt, so that the model answers at once.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "qwen3"
    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant", "tool"})
    stop_tokens: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>")
    after_turn: ClassVar[str] = "\n"
    opening: ClassVar[str] = "<|im_start|>assistant\n"
    blocks: ClassVar[Mapping[str, str]] = {"<think>": "\n</think>\n\n", "<tool_call>": "\n</tool_call>"}
    structure: ClassVar[tuple[str, ...]] = ("</think>", "</tool_call>")

    def __init__(self, tokenizer: Tokenizer, *, enable_thinking: bool = True, unsafe_content: bool = False) -> None:
        super().__init__(tokenizer, unsafe_content=unsafe_content)
        if not isinstance(enable_thinking, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"enable_thinking is {enable_thinking!r}; expected True or False")
        self.enable_thinking = enable_thinking

    @property
    def generation_prompt(self) -> str:
        """The scaffold that asks for a reply."""
        return self.opening if self.enable_thinking else self.opening + _EMPTY_BLOCK

    def specification(self) -> dict[str, Any]:
        """See `Renderer.specification`."""
        return {**super().specification(), **({} if self.enable_thinking else {"enable_thinking": False})}

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """One system block holds the system message and the tools."""
        if system is None and not tools:
            return
        out.scaffold("<|im_start|>system\n")
        if system is not None:
            out.content(system.content)
        if tools:
            if system is not None:
                out.scaffold("\n\n")
            out.scaffold(_TOOLS_BEFORE)
            for tool in tools:
                out.scaffold("\n")
                out.content(_json(tool, "tool"))
            out.scaffold(_TOOLS_AFTER)
        out.scaffold("<|im_end|>\n")

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """A message is a block; tool messages in a row share one, which is the user's."""
        if message.role != "tool":
            out.scaffold(f"<|im_start|>{message.role}\n")
            out.content(message.content)
            out.scaffold("<|im_end|>\n")
            return
        if previous is None or previous.role != "tool":
            out.scaffold("<|im_start|>user")
        out.scaffold("\n<tool_response>\n")
        out.content(message.content)
        out.scaffold("\n</tool_response>")
        if following is None or following.role != "tool":
            out.scaffold("<|im_end|>\n")

    def seam(self, message: Message, neighbour: Message | None) -> bool:
        """Only tool messages look beside them: whether the block goes on."""
        return message.role == "tool" and neighbour is not None and neighbour.role == "tool"

    def emit_reply(self, out: Emission, message: Message) -> None:
        """The think block, the text, the calls. Newlines around the reasoning belong to the block."""
        content = message.content
        if message.reasoning is not None:
            out.scaffold("<think>\n")
            out.content(message.reasoning.strip("\n"))
            out.scaffold("\n</think>\n\n")
            content = content.lstrip("\n")
        out.content(content)
        for index, call in enumerate(message.tool_calls):
            if index or message.content:
                out.scaffold("\n")
            out.scaffold("<tool_call>")
            out.content(call_text(call) if call.raw is None else call.raw)
            out.scaffold("</tool_call>")
        out.scaffold("<|im_end|>")

    def reply(self, message: Message) -> "NDArray[np.int32]":
        """See `Renderer.reply`; an empty think block may stand in the prompt already."""
        if not self.enable_thinking:
            message = message.model_copy(update={"reasoning": None})
        return super().reply(message)

    def settles(self, message: Message) -> bool:
        """A user's message does, unless it is a tool's result in disguise, which the template does not count."""
        content = message.content
        is_tool_response = content.startswith("<tool_response>") and content.endswith("</tool_response>")
        return message.role == "user" and not is_tool_response

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Reasoning is shown behind the last user query; there, the last message always has a think block."""
        tail = list(messages[settled:])
        if self.unsafe_content:
            tail = [_with_reasoning_of_content(message) for message in tail]
        queries = [index for index, message in enumerate(tail) if self.settles(message)]
        query = queries[-1] if queries else -1 if settled else len(tail)
        for index, message in enumerate(tail):
            if message.role != "assistant":
                continue
            is_shown = index > query and (message.reasoning or index == len(tail) - 1)
            reasoning = (message.reasoning or "") if is_shown else None
            if reasoning != message.reasoning:
                tail[index] = message.model_copy(update={"reasoning": reasoning})
        return tail

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = ()) -> Message:
        """Read the think block, the text and the calls; see `Renderer.parse`."""
        reply = HermesReply(call_text)
        started = self.behind_opening(prompt_tail)
        if len(started):
            for control, text in self.split(started).segments:
                reply.read(control, text)
        split = self.split(tokens)
        for control, text in split.segments:
            reply.read(control, text)
        return reply.message(is_ended=split.is_ended, overrun=split.overrun)


def call_text(call: ToolCall) -> str:
    """What stands between the tags of a call, as the template writes it."""
    arguments = call.arguments if isinstance(call.arguments, str) else _json(call.arguments, f"call of {call.name!r}")
    return f'\n{{"name": "{call.name}", "arguments": {arguments}}}\n'


def _json(value: Mapping[str, Any], what: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is no text
        return text
    except (TypeError, ValueError) as error:
        raise RenderError(f"a {what} is no JSON: {error}") from error


def _with_reasoning_of_content(message: Message) -> Message:
    """What the template does with a think block that stands in the content."""
    content = message.content
    if message.role != "assistant" or message.reasoning is not None or "</think>" not in content:
        return message
    reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    return message.model_copy(update={"reasoning": reasoning, "content": content.split("</think>")[-1].lstrip("\n")})
