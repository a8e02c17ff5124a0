"""GLM-4.5 and GLM-4.6.

Source of the rules: the official `chat_template` of zai-org/GLM-4.5. No token ends a turn: a model
samples the token that opens the next message (`<|user|>`, `<|observation|>`), which thus belongs to the reply's end.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.family import FamilyRenderer
from envsdk.rendering.renderer import TokenIds

from ._chatml import ThinkingChatML
from ._grammars._grammar import CallFormat, Edge, Grammar, tagged, values_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CALLS = CallFormat(
    ("name", "key", "value"),
    "<tool_call>",
    {"name": "\n</tool_call>", "value": "</arg_value>\n</tool_call>"},
    (Edge("name", "key", "\n<arg_key>"), Edge("value", "key", "</arg_value>\n<arg_key>")),
    values=values_of("</arg_key>\n<arg_value>"),
)
_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_OPENERS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|observation|>"}


class GLM45(ThinkingChatML):
    """GLM-4.5's chat format.

    Its vocabulary is not available here; the tests compare the renderer with the template on a substitute. If a reply
    sampled the opener of another message than the one that comes next, it is cut there, a `template` break. Values in
    a call are text, which `parse` reads with the tools' schemas; see `ArgumentTypes`.

    Args:
        tokenizer: A tokenizer with GLM-4.5's control tokens.
        enable_thinking: False puts an empty think block into the generation prompt, and `/nothink` after each query.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "glm-4.5"
    stop_tokens: tuple[str, ...] = ("<|user|>", "<|observation|>", "<|endoftext|>")
    message_end: ClassVar[str] = ""
    after_turn: ClassVar[str] = ""
    opening: str = "<|assistant|>"
    blocks: Mapping[str, str] = {"<think>": "</think>", "<tool_call>": "\n</tool_call>"}
    structure: tuple[str, ...] = ("</think>", "</tool_call>", "<|system|>", "<|assistant|>", *_TAGS)
    grammar: ClassVar[Grammar] = tagged(_CALLS, ("\n<think>", "</think>"), "\n")
    prompt_opens_block: ClassVar[bool] = False
    trims: ClassVar[bool] = True
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
        """The scaffold after which a model samples a reply."""
        return self.opening + ("" if self.enable_thinking else "\n<think></think>")

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write the tokens that begin a sequence, the tools in a separate block, and the system message."""
        out.scaffold("[gMASK]<sop>")
        if tools:
            self.emit_tools(out, tools)
        if system is not None:
            self.emit_message(out, system, None, None)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a message, without its opener if a reply ended with it; consecutive tool messages share one opener."""
        if previous is None or not (previous.role == "assistant" or previous.role == message.role == "tool"):
            out.scaffold(_OPENERS[message.role])
        out.scaffold("\n<tool_response>\n" if message.role == "tool" else "\n")
        out.content(message.content)
        if message.role == "tool":
            out.scaffold("\n</tool_response>")
        elif message.role == "user" and not self.enable_thinking:
            is_given = self.unsafe_content and message.content.endswith("/nothink")
            out.scaffold("" if is_given else "/nothink")

    def _written_reply(self, message: Message) -> "NDArray[np.int32]":
        out = self._emission()
        self.emit_reply(out, message if self.enable_thinking else message.with_reasoning(None))
        out.scaffold(_OPENERS["tool" if message.tool_calls else "user"])  # the opener that probably comes next
        return out.tokens()[0]

    def end_of_turn(self, following: Message | None) -> str:
        """Return the opener of the next message."""
        return "" if following is None or following.role == "assistant" else _OPENERS[following.role]

    def closing(self, reply: TokenIds, following: Message | None = None) -> str:
        """Return the end of an open block and the opener of the next message, as far as the reply lacks them."""
        opener = self.end_of_turn(following)
        last = int(reply[-1]) if len(reply) else -1
        if last in self.stop_token_ids and (not opener or last == self.tokenizer.token_id(opener)):
            return ""
        return self._close_open_block(reply) + opener

    def is_closed(self, reply: TokenIds) -> bool:
        """Return whether the reply ended its turn itself."""
        return len(reply) > 0 and int(reply[-1]) in self.stop_token_ids

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """Return 1 if the reply sampled the opener of another message than the one that comes next, else 0."""
        is_ended = self.is_closed(reply)
        return int(is_ended and bool(self.closing(reply, messages[0] if messages else Message(role="assistant"))))

    seam = FamilyRenderer.seam

    def settles(self, message: Message) -> bool:
        """Return whether the message is the user's."""
        return message.role == "user"

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Show a think block in every reply; it is empty before the last query."""
        tail = [self.as_read(message) for message in messages[settled:]]
        query = max((index for index, message in enumerate(tail) if self.settles(message)), default=-1)
        for index, message in enumerate(tail):
            if message.role == "assistant":
                tail[index] = message.with_reasoning((message.reasoning or "") if index > query else "")
        return tail
