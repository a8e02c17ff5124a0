"""Reply grammars made by hand, one of each kind of calls, and pieces of replies that they may find hard to read."""

from dataclasses import replace
from typing import Any

from envsdk_renderers._grammars._grammar import CallFormat, Edge, Field, Grammar, Values, tagged, values_of
from envsdk_renderers._grammars._styles import JSON, PYTHON, VERBATIM, Style
from hypothesis import strategies as st

from envsdk.rendering.reading import SplitReply

ENDED = SplitReply([], True, "")
THINK = (Edge("start", "reasoning", "<think>\n"), Edge("reasoning", "text", "\n</think>\n\n"))
TEXT = (Edge("start", "text", ""), Edge("text", "end", ""))


def around(first: Field, last: Field, opener: str, closer: str, between: str = "\n") -> tuple[Edge, ...]:
    """The edges of calls that each have an opener and a closer."""
    return (
        Edge("start", first, opener),
        Edge("text", first, "\n" + opener),
        Edge("reasoning", first, "\n</think>\n\n" + opener),
        Edge(last, first, closer + between + opener),
        Edge(last, "end", closer),
    )


OBJECT = Grammar(
    (*TEXT, *THINK, *around("object", "object", "<tool_call>\n", "\n</tool_call>")),
    call=("object",),
    controls=("<think>", "</think>", "<tool_call>", "</tool_call>"),
    layout=('{"name": "', "name", '", "arguments": ', "arguments", "}"),
    name_path=("name",),
    arguments_path=("arguments",),
)
CLOSED = replace(OBJECT, edges=(Edge("start", "text", "<think></think>"), *OBJECT.edges[1:]))
"""A text without reasoning closes a block at once."""
BARE = Grammar(
    (*TEXT, Edge("start", "object", ""), Edge("object", "end", "")),
    call=("object",),
    layout=('{"name": "', "name", '", "parameters": ', "arguments", "}"),
    name_path=("name",),
    arguments_path=("parameters",),
)
PARTS = Grammar(
    (
        *(*TEXT, *THINK, *around("name", "arguments", "[CALL]", "", "")),
        *(Edge("name", "id", "[ID]"), Edge("id", "arguments", "[ARGS]")),
    ),
    call=("name", "id", "arguments"),
    controls=("[CALL]", "[ID]", "[ARGS]"),
)
XML = Grammar(
    (
        *(*TEXT, *THINK, *around("name", "value", "<call>\n<f=", "\n</p>\n</f>\n</call>")),
        *(Edge("name", "key", ">\n<p="), Edge("value", "key", "\n</p>\n<p=")),
        *(Edge("name", "end", ">\n</f>\n</call>"), Edge("name", "name", ">\n</f>\n</call>\n<call>\n<f=")),
    ),
    call=("name", "key", "value"),
    values=(
        Values(("string",), ">\n", VERBATIM),
        *(Values((kind,), ">\n", JSON) for kind in ("number", "boolean", "null", "array", "object")),
    ),
)
SECTION = Grammar(
    (
        *(*TEXT, Edge("start", "name", "<|calls|><|call|>"), Edge("text", "name", "<|calls|><|call|>")),
        *(Edge("name", "arguments", "[ARGS]"), Edge("arguments", "name", "<|end_call|><|call|>")),
        Edge("arguments", "end", "<|end_call|><|end_calls|>"),
    ),
    call=("name", "arguments"),
    controls=("<|calls|>", "<|call|>", "[ARGS]", "<|end_call|>", "<|end_calls|>"),
)
"""All calls of a reply are in a section of their own."""
TAGS = Grammar(
    (
        *(*TEXT, Edge("start", "name", "<calls>\n<call f="), Edge("text", "name", "<calls>\n<call f=")),
        *(Edge("name", "key", ">\n<p="), Edge("key", "value", ">\n"), Edge("value", "key", "\n</p>\n<p=")),
        *(Edge("name", "name", ">\n</call>\n<call f="), Edge("value", "name", "\n</p>\n</call>\n<call f=")),
        *(Edge("name", "end", ">\n</call>\n</calls>"), Edge("value", "end", "\n</p>\n</call>\n</calls>")),
    ),
    call=("name", "key", "value"),
    controls=("<calls>", "</calls>"),
    values=XML.values,
)
"""The same, with calls between tags that are text, which a value may contain."""
CALLED = Grammar(
    (*TEXT, *around("python", "python", "<|calls|>[", "]<|end_calls|>"), Edge("python", "python", ", ")),
    call=("python",),
    controls=("<|calls|>", "<|end_calls|>"),
    values=tuple(Values((kind,), "", PYTHON) for kind in ("string", "number", "boolean", "null", "array", "object")),
)
QUOTED = Style(quotes=("<|q|>", "<|q|>"), key_quotes=("", ""), escapes="none", comma=",", colon=":", order="folded")
NOTATION = Grammar(
    (*TEXT, *around("name", "arguments", "<|call>call:", "<call|>", ""), Edge("name", "arguments", "")),
    call=("name", "arguments"),
    controls=("<|call>", "<call|>", "<|q|>"),
    style=QUOTED,
)
GLM = tagged(
    CallFormat(
        ("name", "key", "value"),
        "<tool_call>",
        {"name": "\n</tool_call>", "value": "</arg_value>\n</tool_call>"},
        (Edge("name", "key", "\n<arg_key>"), Edge("value", "key", "</arg_value>\n<arg_key>")),
        values=values_of("</arg_key>\n<arg_value>"),
    ),
    ("\n<think>", "</think>"),
    "\n",
)
GRAMMARS = {
    "object": OBJECT,
    "closed": CLOSED,
    "bare": BARE,
    "parts": PARTS,
    "xml": XML,
    "section": SECTION,
    "tags": TAGS,
    "python": CALLED,
    "notation": NOTATION,
    "glm": GLM,
}
VALUES: dict[str, Any] = {"s": 'a "b" <c>\n', "n": -1.5, "b": True, "u": None, "l": ["x", 1], "o": {"k": {"a": []}}}
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "properties": {
                    key: {"type": kind}
                    for key, kind in zip(
                        VALUES, ("string", "number", "boolean", "null", "array", "object"), strict=True
                    )
                }
            },
        },
    }
    for name in ("f", "g")
)

PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "[CALL]",
            "[ID]",
            "[ARGS]",
            "<|calls|>[",
            "]<|end_calls|>",
        ),
        *("<call>\n<f=", ">\n<p=", ">\n", "\n</p>\n</f>\n</call>", "\n</p>\n<p=", "<|call>call:", "<call|>", "<|q|>"),
        *('{"name": "f", "arguments": {', "}}", "{", "}", '"', "'", "(", ")", "[", "]", ",", ":", "f", "f(", "=", "1"),
        *(" ", "\n", "\\", "é", "text"),
    ]
)
