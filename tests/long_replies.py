"""Long replies that a parser may find hard to read: repetitions of tags, of parts of tags, and of their neighbors."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import real_models
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._harmony import Harmony
from envsdk_renderers._qwen3 import Qwen3
from envsdk_renderers._role_colon import RoleColon
from families import FAMILIES, vocabulary

from envsdk import Renderer
from envsdk.messages import ToolSchema

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLAIN = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
TOOL: ToolSchema = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def with_calls(before: str, call: str, between: str, after: str) -> str:
    """The template of a model that writes a text or calls, and reasoning."""
    return f"""{{%- for m in messages %}}{{{{- '<|im_start|>' + m.role + '\\n' }}}}
{{%- if m.reasoning_content is defined %}}{{{{- '<think>' + m.reasoning_content + '</think>' }}}}{{%- endif %}}
{{%- if m.tool_calls %}}{{{{- '{before}' }}}}{{%- for c in m.tool_calls %}}{{{{- {call} }}}}
{{{{- '{between}' if not loop.last else '' }}}}{{%- endfor %}}{{{{- '{after}' }}}}
{{%- else %}}{{{{- m.content }}}}{{%- endif %}}{{{{- '<|im_end|>\\n' }}}}{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}"""


MEASURED = {
    "a list": with_calls("[TOOL_CALLS][", "c.function | tojson", ", ", "]"),
    "names": with_calls("", "'[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson)", "", ""),
    "bare": with_calls(
        "", """'{"name": "' + c.function.name + '", "parameters": ' + (c.function.arguments | tojson) + '}'""", "; ", ""
    ),
}
"""Templates whose calls have no pair of tags each."""


def of_template(template: str, reply_format: str = "auto") -> FixedBase:
    return FixedBase(vocabulary("qwen3"), template=template, stop="<|im_end|>", reply_format=reply_format)


MAKERS: Mapping[str, Callable[[], Renderer]] = {
    "qwen3": lambda: Qwen3(vocabulary("qwen3")),
    "role_colon": lambda: RoleColon(vocabulary("qwen3")),
    "harmony": lambda: Harmony(real_models.gpt_oss_tokenizer()),
    **{name: family.renderer for name, family in FAMILIES.items() if "direct" not in name},
    "fixed_base, measured": lambda: FixedBase(real_models.qwen3_folder()),
    **{f"fixed_base, {name}": (lambda text=text: of_template(text)) for name, text in MEASURED.items()},
    **{f"fixed_base, {name}": (lambda name=name: of_template(PLAIN, name)) for name in ("plain", "verbatim")},
}
"""Every registered renderer, and each reply format of `fixed_base`."""

PIECES = {
    "think": ("<think>", "</think>"),
    "calls": ("<tool_call>", "</tool_call>"),
    "xml": ("<function=f>", "</function>", "<parameter=a>", "</parameter>", "<parameter="),
    "glm": ("f\n", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "json": (
        '{"name": "f", "parameters": {}}',
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name":',
        "[",
        "{",
        '"',
        ",",
        "1",
    ),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CALLS]f{}", ";", "<|python_tag|>"),
    "harmony": (
        *("<|start|>assistant", "<|start|>", "<|channel|>analysis", "<|channel|>", "<|message|>", "<|end|>", " to=f"),
        *("<|constrain|>json", "<|channel|>c{number}<|message|><|end|><|start|>assistant"),
    ),
    "numbered": (
        "<tool_call>{number}</tool_call>",
        "<arg_key>{number}</arg_key><arg_value>",
        "[TOOL_CALLS]f{number}{}",
    ),
    "text": ("x", "\n", " ", "<", "\\", "é", "\n\nUser:", "User:"),
}
STARTS = (
    "",
    "<tool_call>",
    "<think>",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][",
    "<tool_call>f<arg_key>",
    "<tool_call><function=f>",
)
ENDS = ("", "<|message|>x<|return|>")
"""What a long reply ends with; in Harmony, a header is read once its message begins."""


def units() -> Iterator[str]:
    """What is repeated: each piece, and each pair of two."""
    pieces = [piece for group in PIECES.values() for piece in group]
    yield from pieces
    yield from ("".join(pair) for pair in itertools.permutations(pieces, 2))


def long_reply(renderer: Renderer, start: str, unit: str, size: int, end: str = "") -> "NDArray[np.int32]":
    """A reply that begins with a text and goes on with repetitions of another, in all about `size` bytes long.

    Each repetition is another text where the unit has a place for its `{number}`.
    """
    count = max(1, size // len(unit.encode()))
    if "{number}" in unit:
        repeated = as_tokens(renderer, "".join(unit.replace("{number}", str(number)) for number in range(count)))
    else:
        repeated = np.tile(as_tokens(renderer, unit), count)
    return np.concatenate([as_tokens(renderer, start), repeated, as_tokens(renderer, end)])


def as_tokens(renderer: Any, text: str) -> "NDArray[np.int32]":
    out = renderer._emission()
    out.scaffold(text)
    return out.tokens()[0]
