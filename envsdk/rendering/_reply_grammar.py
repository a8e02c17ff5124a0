"""The grammar of a constrained reply, in the Lark dialect of llguidance, for any renderer.

The renderer writes example replies whose parts are known words. What it writes around these words is what a constrained
reply has to contain there, so a family needs no description of its grammar: control tokens are `<[id]>`, the family's
own text is a string, reasoning is text without the family's markup, and content and arguments follow JSON schemas.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._packages import load
from ..errors import RenderError, TurnError
from ..messages import Message, ToolCall, ToolSchema
from .renderer import Renderer, TokenIds

_REASONING, _CONTENT, _NAME, _KEY, _VALUE = (
    f"envsdk0{part}" for part in ("reasoning", "content", "name", "key", "value")
)
_PART = re.compile(f"({_REASONING}|{_CONTENT}|{_NAME})")
_CALL = re.compile(rf'{_NAME}((?:(?!{_NAME}|{_KEY}).)*)\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}', re.DOTALL)
_WHITESPACE = {"whitespace_pattern": r"( |\n[ \t]{0,40})?"}
"""A space, or a new line with its indentation: a model cannot write whitespace without end."""


def reply_grammar(
    renderer: Renderer,
    begun: "TokenIds | None" = None,
    *,
    schema: Mapping[str, Any] | None = None,
    tools: Sequence[ToolSchema] = (),
    choice: str = "auto",
    is_parallel: bool = True,
) -> str:
    """Return the grammar of a reply, from the end of the prompt to the stop token.

    Args:
        renderer: The renderer that reads the reply.
        begun: The tokens of the reply that the prompt contains already, shape (n,): the end of the generation prompt,
            and reasoning of a prefill or of a reply that continues. None for the generation prompt alone.
        schema: The JSON schema of the content; None for any text.
        tools: The tools that may be called.
        choice: Whether the reply has calls, instead of content: `auto` (the model chooses), `none`, `required`, or the
            name of the tool.
        is_parallel: Whether the reply may have several calls.

    Raises:
        RenderError: If the family writes calls in a form that a schema does not describe, or the reply has begun with
            more than reasoning.
        TurnError: If a schema is not JSON or cannot be enforced, or no tool has the name.
        MissingPackage: If llguidance is not installed.
    """
    functions: list[Any] = [tool.get("function", tool) for tool in tools]
    described = [(function["name"], function.get("parameters") or {"type": "object"}) for function in functions]
    if choice not in ("auto", "none"):
        described = [(name, parameters) for name, parameters in described if choice in ("required", name)]
        if not described:
            names = [function["name"] for function in functions]
            raise TurnError(f"tool_choice is {choice!r:.80}; expected 'auto', 'none', 'required', or one of {names}")
    try:
        schemas = json.dumps([schema, described if choice != "none" else []], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TurnError(f"a schema is not JSON: {error}") from error
    if begun is None:
        begun = renderer.after_opening(renderer._prompt_tail)  # pyright: ignore[reportPrivateUsage]
    text = renderer.tokenizer.decode(np.asarray(begun))
    return _grammar_of(renderer, text, schemas, choice in ("auto", "none"), is_parallel)


@lru_cache(maxsize=256)
def _grammar_of(renderer: Renderer, begun: str, schemas: str, has_content: bool, is_parallel: bool) -> str:
    schema, tools = json.loads(schemas)
    shapes = [(_CONTENT, 0)] if has_content else []
    if tools:
        shapes += [("", 1), *([(_CONTENT, 1)] if has_content and schema is None else [])]
    thoughts = [_REASONING, None] if renderer.writes_reasoning else [None]
    wholes = [_written(renderer, thought, *shape) for thought in thoughts for shape in shapes]
    rests = [rest for whole in wholes if (rest := _after(renderer, whole, begun)) is not None]
    if not rests:
        raise RenderError(
            f"a constrained reply of {renderer.name!r} cannot begin with {begun[-80:]!r}: the schema or the tool "
            "choice holds for the whole reply, so a prefill or a continued reply may only have reasoning"
        )
    rules, excluded = _calls(renderer, tools, is_parallel) if tools else ([], "")
    names = dict.fromkeys([*renderer.blocks, *renderer.structure, *renderer.stop_tokens, excluded])
    names.update((_closer(renderer, rest.partition(_REASONING)[2]), None) for rest in rests if _REASONING in rest)
    texts: dict[str, str] = {}
    replies = (" ".join(_symbols(renderer, rest, "" if schema is None else "content", texts)) for rest in rests)
    markup = "|".join(re.escape(name).replace("/", r"\/") for name in names if name)
    rules = [
        "start: " + "\n    | ".join(dict.fromkeys(replies)),
        *([] if schema is None else [f"content: {_json(schema)}"]),
        *rules,
        *(f"{name}: TEXT {after}" for after, name in texts.items()),
        rf"TEXT: /(?s:.*)/ & ~/(?s:.*)({markup})(?s:.*)/",
    ]
    grammar = "\n".join(rules) + "\n"
    llguidance = load("llguidance", "a schema or a tool choice needs", "pip install 'envsdk[grammar]'")
    if error := llguidance.LLMatcher.validate_grammar(llguidance.grammar_from("grammar", grammar)):
        reason = re.sub(r"^at \d+\(\d+\): ", "", error.splitlines()[0])
        raise TurnError(f"the schema, or the schema of a tool, cannot be enforced: {reason}")
    return grammar


def _written(renderer: Renderer, reasoning: str | None, content: str, calls: int) -> str:
    """Return an example reply after the assistant's opening, with the names of its control tokens."""
    call = ToolCall(name=_NAME, arguments={_KEY: _VALUE})
    message = Message(role="assistant", reasoning=reasoning, content=content, tool_calls=(call,) * calls)
    out = renderer._emission()  # pyright: ignore[reportPrivateUsage]
    renderer.emit_reply(out, message)
    return out.text()


def _after(renderer: Renderer, whole: str, begun: str) -> str | None:
    """Return the rest of an example reply after its beginning; None if it does not begin like that."""
    before, *parts = _PART.split(whole)
    if before.startswith(begun):
        return whole[len(begun) :]
    if parts[0] != _REASONING or not begun.startswith(before):
        return None
    inside, after = begun[len(before) :], whole[len(before + _REASONING) :]
    closer = _closer(renderer, after)
    if closer not in inside:
        return whole[len(before) :]
    ends = (end for end in range(len(after), 0, -1) if closer in after[:end] and inside.endswith(after[:end]))
    end = next(ends, None)
    return None if end is None else after[end:]


def _closer(renderer: Renderer, after: str) -> str:
    """Return what ends a text that is followed by `after`: the first control token, or else the first word."""
    text = _PART.split(after)[0]
    controls = (piece.text for piece in renderer.encoder.cut(text) if piece.control >= 0)
    return next(controls, (text.split() or [""])[0])


def _calls(renderer: Renderer, tools: Sequence[tuple[str, Any]], is_parallel: bool) -> tuple[list[str], str]:
    """Return the rules of a reply's calls, from the first name on, and what begins a call."""
    one = _written(renderer, None, "", 1)
    found = _CALL.search(one)
    if found is None or any(word in one[: found.start()] + one[found.end() :] for word in (_NAME, _KEY, _VALUE)):
        raise RenderError(
            f"the calls of {renderer.name!r} cannot be constrained: they are not a name and a JSON object. Use "
            "tool_choice='auto' and no schema, or a schema without tools"
        )
    calls = "call"
    if is_parallel:
        two = _written(renderer, None, "", 2)
        first, second = [*_CALL.finditer(two), None][:2]
        if first and second and (second[1], two[second.end() :]) == (found[1], one[found.end() :]):
            calls += f" ({' '.join(_literals(renderer, two[first.end() : second.start()]))} call)*"
    rules = [f"calls: {calls}", "call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, (name, parameters) in enumerate(tools):
        rules.append(f"call_{index}: {' '.join(_literals(renderer, name + found[1]))} {_json(parameters)}")
    return rules, _closer(renderer, one[: found.start()])


def _symbols(renderer: Renderer, rest: str, content: str, texts: dict[str, str]) -> Iterator[str]:
    """Yield the symbols of an example reply.

    Args:
        renderer: The renderer.
        rest: The example reply.
        content: The symbol of the content; empty for any text.
        texts: Receives the terminals for a text and the family's own text after it, by the latter. They are one
            terminal, because a terminal matches as much as it can.
    """
    is_text = False
    for part in _PART.split(_CALL.sub(_NAME, rest)):
        if part in (_REASONING, _CONTENT) and not (part == _CONTENT and content):
            is_text = True
        elif part in (_NAME, _CONTENT):
            yield "calls" if part == _NAME else content
        else:
            symbols = _literals(renderer, part)
            if is_text and symbols and symbols[0].startswith('"'):
                symbols[0] = texts.setdefault(symbols[0], f"TEXT_{len(texts)}")
            elif is_text:
                yield "TEXT"
            yield from symbols
            is_text = False


def _literals(renderer: Renderer, text: str) -> list[str]:
    """Return the symbols of the family's own text: strings, and the ids of control tokens."""
    pieces = renderer.encoder.cut(text)
    return [f"<[{piece.control}]>" if piece.control >= 0 else json.dumps(piece.text) for piece in pieces]


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _WHITESPACE})}"
