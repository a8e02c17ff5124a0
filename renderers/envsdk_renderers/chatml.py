"""ChatML: every message is a block between `<|im_start|>` and `<|im_end|>`; and ChatML with tools.

Source of the rules: OpenAI's ChatML of 2023, as Hugging Face templates write it. How a block looks, and how tools and
their results are written in it, is said here once for all families that build on it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from envsdk.errors import RenderError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.renderer import Renderer, TokenIds

from .hermes import HermesReply, parse_call

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ChatML(Renderer):
    """Plain ChatML, without tools and thinking: reasoning in messages is not shown, a tool is refused.

    Args:
        tokenizer: A tokenizer with `<|im_start|>` and `<|im_end|>`.
        unsafe_content: See `Renderer`.
    """

    name: ClassVar[str] = "chatml"
    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant"})
    stop_tokens: ClassVar[tuple[str, ...]] = ("<|im_end|>",)
    after_turn: ClassVar[str] = "\n"
    opening: ClassVar[str] = "<|im_start|>assistant\n"
    blocks: ClassVar[Mapping[str, str]] = {}
    structure: ClassVar[tuple[str, ...]] = ("<|im_start|>",)
    message_end: ClassVar[str] = "<|im_end|>"
    """How a message ends; of the assistant's it is sampled."""
    thinks: ClassVar[bool] = False
    """Whether a reply may have a think block."""
    before_first_call: ClassVar[str] = "\n"
    """What stands between the text of a reply and its first call."""
    call_tags: ClassVar[tuple[str, ...]] = ()
    """The control tokens of `structure` that belong inside a call."""
    encodes_text_arguments: ClassVar[bool] = False
    """Whether arguments given as a text are written as a string of JSON; else they stand as they are."""

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """A system message is a block; there is no place for tools."""
        if tools:
            raise RenderError(f"{self.name!r} has no place for tools: take another renderer, or no tools")
        if system is not None:
            self.emit_block(out, system)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """A message is a block."""
        self.emit_block(out, message)

    def emit_block(self, out: Emission, message: Message) -> None:
        """Write a message as a block of its own."""
        out.scaffold(self.header(message.role))
        out.content(self.trimmed(message.content))
        out.scaffold(self.message_end + self.after_turn)

    def header(self, role: str) -> str:
        """How a block begins; the assistant's is `opening`."""
        return f"<|im_start|>{role}\n"

    def emit_reply(self, out: Emission, message: Message) -> None:
        """The text and the calls."""
        out.content(self.trimmed(message.content))
        self.emit_calls(out, message)
        out.scaffold(self.message_end)

    def emit_calls(self, out: Emission, message: Message) -> None:
        """Write the calls of a reply, of which there may be none."""
        if message.tool_calls:
            raise RenderError(f"{self.name!r} cannot express a tool call: take another renderer")

    def trimmed(self, text: str) -> str:
        """A text as the template shows it: as it is, unless the family trims it."""
        return text

    def settles(self, message: Message) -> bool:
        """Every message does: what is shown depends on no position."""
        return True

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Reasoning is not shown."""
        return [message.with_reasoning(None) for message in messages[settled:]]

    def prefill(self, start: str | Message) -> "NDArray[np.int32]":
        """See `Renderer.prefill`; without a think block, a reply cannot begin with reasoning.

        Raises:
            RenderError: If it does, or the generation prompt has opened a block that it would have to be in.
        """
        if isinstance(start, Message):
            if start.reasoning is not None and not self.thinks:
                raise RenderError(f"a reply cannot begin with reasoning: {self.name!r} has no think block")
            if start.reasoning is None and self._open_at_start:
                raise RenderError(
                    f"a reply of {self.name!r} begins with reasoning, for its generation prompt opens a think block: "
                    "give the prefill a reasoning, if only an empty one"
                )
        return super().prefill(start)

    def continuation(self, reply: TokenIds, addition: str | Message) -> "tuple[int, NDArray[np.int32]]":
        """See `Renderer.continuation`."""
        if isinstance(addition, Message) and addition.reasoning and not self.thinks:
            raise RenderError(f"the reply cannot go on with reasoning: {self.name!r} has no think block")
        return super().continuation(reply, addition)

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """Read the think block, the text and the calls, as far as the family has them; see `Renderer.parse`."""
        reply = HermesReply(self.call_text, self.call_reader(tools), self.before_first_call, self.call_tags)
        started = self.after_opening(prompt_tail)
        if len(started):
            for control, text in self.split(started).segments:
                reply.read(control, text)
        split = self.split(tokens)
        for control, text in split.segments:
            reply.read(control, text)
        return reply.message(is_ended=split.is_ended, overrun=split.overrun)

    def call_text(self, call: ToolCall) -> str:
        """What stands between the tags of a call, as the template writes it."""
        is_verbatim = isinstance(call.arguments, str) and not self.encodes_text_arguments
        arguments = call.arguments if is_verbatim else json_text(call.arguments, f"call of {call.name!r}")
        return f'\n{{"name": "{call.name}", "arguments": {arguments}}}\n'

    def call_reader(self, tools: Sequence[ToolSchema]) -> Callable[[str], ToolCall]:
        """Return what reads the text between the tags of a call; the tools may give the types of its values."""
        return parse_call


class ToolChatML(ChatML):
    """ChatML with tools: their list in the system block, calls between tags, results in blocks of the user.

    Source of the rules: the templates of Qwen 2.5 and later, which follow NousResearch's Hermes. A family says with the
    class attributes how its own differs.
    """

    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant", "tool"})
    stop_tokens: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>")
    blocks: ClassVar[Mapping[str, str]] = {"<tool_call>": "\n</tool_call>"}
    structure: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    default_system: ClassVar[str | None] = None
    """What the system block says where there is no system message; None for no such block."""
    before_tools: ClassVar[str] = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    )
    after_tools: ClassVar[str] = (
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """One system block holds the system message and the tools."""
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
        """Write the list of tools, with what the model is told about calling them."""
        out.scaffold(self.before_tools)
        for tool in tools:
            out.scaffold("\n")
            out.content(json_text(tool, "tool"))
        out.scaffold(self.after_tools)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """A message is a block; tool messages in a row share one, which is the user's."""
        if message.role != "tool":
            self.emit_block(out, message)
            return
        if previous is None or previous.role != "tool":
            out.scaffold("<|im_start|>user")
        out.scaffold("\n<tool_response>\n")
        out.content(self.trimmed(message.content))
        out.scaffold("\n</tool_response>")
        if following is None or following.role != "tool":
            out.scaffold("<|im_end|>\n")

    def seam(self, message: Message, neighbor: Message | None) -> object:
        """Only tool messages look beside them: whether the block goes on."""
        return message.role == "tool" and neighbor is not None and neighbor.role == "tool"

    def emit_calls(self, out: Emission, message: Message) -> None:
        """The first call stands behind the text, if there is one, each other one on a line of its own."""
        for index, call in enumerate(message.tool_calls):
            if index:
                out.scaffold("\n")
            elif self.trimmed(message.content):
                out.scaffold(self.before_first_call)
            out.scaffold("<tool_call>")
            out.content(self.call_text(call) if call.raw is None else call.raw)
            out.scaffold("</tool_call>")


def json_text(value: Any, what: str) -> str:
    """The value as transformers' `tojson` writes it.

    Raises:
        RenderError: If it is no JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is no text
        return text
    except (TypeError, ValueError) as error:
        raise RenderError(f"a {what} is no JSON: {error}") from error
