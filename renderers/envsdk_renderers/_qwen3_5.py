"""Qwen3.5, Qwen3.6 and Qwen3.8, with images.

Source of the rules: the official `chat_template` of Qwen/Qwen3.5-4B, and of Qwen3.6 and Qwen3.8. Their vocabulary is
not available here; the tests compare the renderers with the templates on that of Qwen3, which has all control tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from envsdk.errors import ConfigError, RenderError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.tokenizers import Tokenizer

from ._chatml import THINK, ThinkingChatML, check_flag
from ._grammars._grammar import CallFormat, Edge, Grammar, tagged, values_of
from ._grammars._styles import PYTHON

_CALLS = CallFormat(
    ("name", "key", "value"),
    "<tool_call>\n<function=",
    {"name": ">\n</function>\n</tool_call>", "value": "\n</parameter>\n</function>\n</tool_call>"},
    (Edge("name", "key", ">\n<parameter="), Edge("value", "key", "\n</parameter>\n<parameter=")),
    after_text="\n\n",
)
_INSTRUCTIONS = {
    "xhigh": (
        "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
        "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer."
    ),
    "medium": "",
    "low": (
        "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion "
        "without unnecessary elaboration."
    ),
}


class Qwen35(ThinkingChatML):
    """Qwen3.5's chat format: ChatML with a think block, and tool calls as XML; texts are trimmed.

    Values in a call are text, which `parse` reads with the tools' schemas; see `ArgumentTypes`.

    Args:
        tokenizer: A tokenizer with Qwen3's control tokens.
        enable_thinking: False puts an empty think block into the generation prompt, so that the model does not think;
            True opens a block there. The templates of small models default to False.
        unsafe_content: See `Renderer`.
        processor: The processor of images; see `Renderer`.
    """

    name: ClassVar[str] = "qwen3.5"
    prompt_opens_block: ClassVar[bool] = True
    writes_images: ClassVar[bool] = True
    grammar: ClassVar[Grammar] = tagged(replace(_CALLS, values=values_of(">\n", PYTHON)), THINK)
    before_tools: ClassVar[str] = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
    after_tools: ClassVar[str] = (
        "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
        "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
        "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified "
        "format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
        "- Required parameters MUST be specified\n- You may provide optional reasoning for your function call in "
        "natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer "
        "the question like normal with your current knowledge and do not tell the user about function calls\n"
        "</IMPORTANT>"
    )

    trims: ClassVar[bool] = True
    writes_empty_blocks: ClassVar[bool] = True
    needs_query: ClassVar[bool] = True
    instructions: str = ""
    """The beginning of the system block."""
    shows_empty_system: ClassVar[bool] = True
    """True if a system message without text is written as a system block without text."""

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write one system block with the instructions, the tools and the system message, in this order."""
        content = "" if system is None else self.trimmed(system.content)
        if not (content or tools or self.instructions or (system is not None and self.shows_empty_system)):
            return
        out.scaffold("<|im_start|>system\n")
        out.scaffold(self.instructions)
        if tools:
            out.scaffold("\n\n" if self.instructions else "")
            self.emit_tools(out, tools)
        if content:
            out.scaffold("\n\n" if tools or self.instructions else "")
            out.content(content)
        out.scaffold("<|im_end|>\n")

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a message as Qwen3 does; refuse a later system message, and a tool message at the beginning."""
        if message.role == "system":
            raise RenderError(f"{self.name!r} allows a system message only at the beginning")
        if message.role == "tool" and previous is None:
            raise RenderError(f"{self.name!r} does not allow a tool message at the beginning")
        super().emit_message(out, message, previous, following)


class Qwen36(Qwen35):
    """Qwen3.6's chat format: Qwen3.5's with numbers, booleans and null as JSON.

    Args:
        tokenizer: A tokenizer with Qwen3's control tokens.
        enable_thinking: See `Qwen35`.
        preserve_thinking: Whether the reasoning of all replies stays visible; by default only after the last query.
        unsafe_content: See `Renderer`.
        processor: See `Qwen35`.
    """

    name: ClassVar[str] = "qwen3.6"
    grammar: ClassVar[Grammar] = tagged(replace(_CALLS, values=values_of(">\n")), THINK)

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        enable_thinking: bool = True,
        preserve_thinking: bool = False,
        unsafe_content: bool = False,
        processor: Any = None,
    ) -> None:
        super().__init__(tokenizer, enable_thinking=enable_thinking, unsafe_content=unsafe_content, processor=processor)
        check_flag("preserve_thinking", preserve_thinking)
        self.preserve_thinking = preserve_thinking


class Qwen38(Qwen36):
    """Qwen3.8's chat format: Qwen3.6's with all reasoning kept and a reasoning effort in the system block.

    Args:
        tokenizer: A tokenizer with Qwen3's control tokens.
        enable_thinking: See `Qwen35`.
        preserve_thinking: Whether the reasoning of all replies stays visible, which is the default.
        reasoning_effort: `xhigh`, `medium` or `low`; it has no effect without thinking.
        unsafe_content: See `Renderer`.
        processor: See `Qwen35`.
    """

    name: ClassVar[str] = "qwen3.8"
    reads_tags_in_content: ClassVar[bool] = False
    shows_empty_system: ClassVar[bool] = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        enable_thinking: bool = True,
        preserve_thinking: bool = True,
        reasoning_effort: Literal["xhigh", "medium", "low"] = "xhigh",
        unsafe_content: bool = False,
        processor: Any = None,
    ) -> None:
        super().__init__(
            tokenizer,
            enable_thinking=enable_thinking,
            preserve_thinking=preserve_thinking,
            unsafe_content=unsafe_content,
            processor=processor,
        )
        if reasoning_effort not in _INSTRUCTIONS:
            raise ConfigError(f"reasoning_effort is {reasoning_effort!r}; expected one of {', '.join(_INSTRUCTIONS)}")
        self.reasoning_effort = reasoning_effort
        self.instructions = _INSTRUCTIONS[reasoning_effort] if enable_thinking else ""

    def as_written(self, message: Message) -> Message:
        """See `Qwen36`; an empty text as arguments means no arguments."""
        message = super().as_written(message)
        if all(call.arguments != "" for call in message.tool_calls):
            return message
        calls = [c.model_copy(update={"arguments": {}}) if c.arguments == "" else c for c in message.tool_calls]
        return message.model_copy(update={"tool_calls": tuple(calls)})
