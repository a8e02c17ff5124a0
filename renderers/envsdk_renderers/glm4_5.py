"""GLM-4.5 and GLM-4.6.

Source of the rules: the official `chat_template` of zai-org/GLM-4.5. A turn has no end of its own: a model samples the
token that opens the next message (`<|user|>`, `<|observation|>`), which therefore belongs to the end of the reply.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.renderer import TokenIds

from .argument_types import ArgumentTypes
from .chatml import json_text
from .glm_calls import read_call, read_texts, write_call
from .spelled import restore
from .thinking import ThinkingChatML
from .xml_calls import no_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OPENERS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|observation|>"}
_CALL_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


class GLM45(ThinkingChatML):
    """GLM-4.5's chat format. Its vocabulary is not at hand: it is held to the template on a stand-in.

    A reply that sampled another opener than that of the message that comes next is cut there, a `template` break.
    Values in a call are text, which `parse` reads by the tools' schemas; see `ArgumentTypes`.

    Args:
        tokenizer: A tokenizer with GLM-4.5's control tokens.
        enable_thinking: False puts an empty think block in the generation prompt, and `/nothink` behind each query.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "glm-4.5"
    stop_tokens: ClassVar[tuple[str, ...]] = ("<|user|>", "<|observation|>", "<|endoftext|>")
    message_end: ClassVar[str] = ""
    after_turn: ClassVar[str] = ""
    opening: ClassVar[str] = "<|assistant|>"
    blocks: ClassVar[Mapping[str, str]] = {"<think>": "</think>", "<tool_call>": "\n</tool_call>"}
    structure: ClassVar[tuple[str, ...]] = ("</think>", "</tool_call>", "<|system|>", "<|assistant|>", *_CALL_TAGS)
    call_tags: ClassVar[tuple[str, ...]] = _CALL_TAGS
    prompt_opens_block: ClassVar[bool] = False
    before_tools: ClassVar[str] = (
        "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    )
    after_tools: ClassVar[str] = (
        "\n</tools>\n\nFor each function call, output the function name and arguments within the following XML format:"
        "\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
        "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
    )

    @property
    def generation_prompt(self) -> str:
        """The scaffold that asks for a reply."""
        return self.opening + ("" if self.enable_thinking else "\n<think></think>")

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """The tokens that begin a text, the tools in a block of their own, the system message."""
        out.scaffold("[gMASK]<sop>")
        if tools:
            self.emit_tools(out, tools)
        if system is not None:
            self.emit_message(out, system, None, None)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """A message, without its opener if a reply ended with that; tool messages in a row share one."""
        if previous is None or not (previous.role == "assistant" or previous.role == message.role == "tool"):
            out.scaffold(_OPENERS[message.role])
        out.scaffold("\n<tool_response>\n" if message.role == "tool" else "\n")
        out.content(message.content)
        if message.role == "tool":
            out.scaffold("\n</tool_response>")
        elif message.role == "user" and not self.enable_thinking:
            is_said = self.unsafe_content and message.content.endswith("/nothink")
            out.scaffold("" if is_said else "/nothink")

    def emit_reply(self, out: Emission, message: Message) -> None:
        """The think block, the text, the calls, each on a line of its own."""
        if message.reasoning is not None:
            out.scaffold("\n<think>")
            out.content(self.trimmed(message.reasoning))
            out.scaffold("</think>")
        content = self.trimmed(message.content)
        if content:
            out.scaffold("\n")
            out.content(content)
        for call in message.tool_calls:
            out.scaffold("\n<tool_call>")
            self._emit_call(out, call)
            out.scaffold("</tool_call>")

    def _emit_call(self, out: Emission, call: ToolCall) -> None:
        if call.raw is not None:
            self._emit_sampled_call(out, call, call.raw)
            return
        if isinstance(call.arguments, str):
            raise no_names(call)
        out.content(call.name)
        for key, value in call.arguments.items():
            out.scaffold("\n<arg_key>")
            out.content(key)
            out.scaffold("</arg_key>\n<arg_value>")
            out.content(self.value_text(value))
            out.scaffold("</arg_value>")
        out.scaffold("\n")

    def _emit_sampled_call(self, out: Emission, call: ToolCall, raw: str) -> None:
        """Write a call as it was sampled: its tags as such if they are those of this call, and all else as text."""
        name, values = read_texts(raw) or ("", [])
        is_it = name == call.name and [key for key, _ in values] == list(call.arguments)
        position = 0
        for key, value in values if is_it else ():
            for tag, text in zip(self.call_tags, (key, "", value, ""), strict=True):
                start = raw.index(tag, position)
                out.content(raw[position:start])
                out.scaffold(tag)
                position = start + len(tag) + len(text)
                out.content(text)
        out.content(raw[position:])

    def reply(self, message: Message) -> "NDArray[np.int32]":
        """See `Renderer.reply`; it ends with the opener of what probably comes next."""
        out = self.emission()
        self.emit_reply(out, message if self.enable_thinking else message.with_reasoning(None))
        out.scaffold(_OPENERS["tool" if message.tool_calls else "user"])
        return out.tokens()[0]

    def end_of_turn(self, following: Message | None) -> str:
        """The opener of the next message."""
        return "" if following is None or following.role == "assistant" else _OPENERS[following.role]

    def closing(self, reply: TokenIds, following: Message | None = None) -> str:
        """An open block's end and the opener of the next message, as far as the reply lacks them."""
        opener = self.end_of_turn(following)
        last = int(reply[-1]) if len(reply) else -1
        if last in self.stop_token_ids and (not opener or last == self.tokenizer.token_id(opener)):
            return ""
        return self._close_open_block(reply) + opener

    def is_closed(self, reply: TokenIds) -> bool:
        """Whether the reply ended its turn itself."""
        return len(reply) > 0 and int(reply[-1]) in self.stop_token_ids

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """A sampled opener of another message than the one that comes next."""
        is_ended = self.is_closed(reply)
        return int(is_ended and bool(self.closing(reply, messages[0] if messages else Message(role="assistant"))))

    def seam(self, message: Message, neighbor: Message | None) -> object:
        """A message depends on its neighbors' roles."""
        return None if neighbor is None else neighbor.role

    def settles(self, message: Message) -> bool:
        """A user's message does."""
        return message.role == "user"

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Every reply has a think block; behind the last query it holds the reasoning, before it is empty."""
        tail = [self.as_read(message) for message in messages[settled:]]
        query = max((index for index, message in enumerate(tail) if self.settles(message)), default=-1)
        for index, message in enumerate(tail):
            if message.role == "assistant":
                tail[index] = message.with_reasoning((message.reasoning or "") if index > query else "")
        return tail

    def call_text(self, call: ToolCall) -> str:
        """See `glm_calls.write_call`."""
        return write_call(call, self.value_text)

    def call_reader(self, tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
        """See `glm_calls.read_call`."""
        return partial(read_call, types=ArgumentTypes(tools), restore=restore)

    def value_text(self, value: Any) -> str:
        """A value of an argument: a text as it is, everything else as JSON."""
        return value if isinstance(value, str) else json_text(value, "value")

    def trimmed(self, text: str) -> str:
        """A reply's texts stand without whitespace around them."""
        return text.strip()

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """See `Renderer.parse`; a text without a think block begins on a line of its own."""
        message = super().parse(tokens, prompt_tail=prompt_tail, tools=tools)
        is_bare = message.reasoning is None and message.content.startswith("\n")
        return message.model_copy(update={"content": message.content[1:]}) if is_bare else message
