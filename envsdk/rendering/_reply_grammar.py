"""The grammar of a constrained reply, in the Lark dialect of llguidance, for any renderer.

The renderer writes example replies whose parts are known words. What it writes around these words is what a constrained
reply has to contain there, so a family needs no description of its grammar: control tokens are `<[id]>`, the family's
own text is a string, reasoning is text without the family's markup, and content and arguments follow JSON schemas.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple, cast

import numpy as np

from .._packages import load
from .._visible import brief
from ..errors import RenderError, TurnError
from ..messages import Message, ToolCall, ToolSchema
from .renderer import Renderer, TokenIds

_REASONING, _CONTENT, _NAME, _KEY, _VALUE, _KEY_2, _VALUE_2 = (
    f"envsdk0{part}" for part in ("reasoning", "content", "name", "key", "value", "2key", "2value")
)
_ANNOTATIONS = {"type", "title", "description", "default", "examples"}
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
            raise TurnError(f"tool_choice is {brief(choice)}; expected 'auto', 'none', 'required', or one of {names}")
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
    call = {_KEY: _VALUE}
    wholes = [_written(renderer, thought, text, *[call] * calls) for thought in thoughts for text, calls in shapes]
    rests = [rest for whole in wholes if (rest := _after(renderer, whole, begun)) is not None]
    if not rests:
        raise RenderError(
            f"a constrained reply of {renderer.name!r} cannot begin with {begun[-80:]!r}: the schema or the tool "
            "choice holds for the whole reply, so a prefill or a continued reply may only have reasoning"
        )
    texts: dict[str, str] = {}
    rules, example, markup = _calls(renderer, tools, is_parallel, texts) if tools else ([], _NAME, [])
    names = dict.fromkeys([*renderer.blocks, *renderer.structure, *renderer.stop_tokens, *markup])
    names.update((_closer(renderer, rest.partition(_REASONING)[2]), None) for rest in rests if _REASONING in rest)
    shown = (rest.replace(example, _NAME) for rest in rests)
    replies = (" ".join(_symbols(renderer, rest, "" if schema is None else "content", texts)) for rest in shown)
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


def _written(renderer: Renderer, reasoning: str | None, content: str, *calls: dict[str, Any]) -> str:
    """Return an example reply after the assistant's opening, with the names of its control tokens."""
    made = tuple(ToolCall(name=_NAME, arguments=arguments) for arguments in calls)
    message = Message(role="assistant", reasoning=reasoning, content=content, tool_calls=made)
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


def _calls(
    renderer: Renderer, tools: Sequence[tuple[str, Any]], is_parallel: bool, texts: dict[str, str]
) -> tuple[list[str], str, list[str]]:
    """Return the rules of a reply's calls.

    Returns:
        The rules, the text of the example call from its name on, and the markup that no text may contain.
    """
    one = _written(renderer, None, "", {_KEY: _VALUE})
    found = _CALL.search(one)
    if found is not None:
        example, markup = found[0], [_closer(renderer, one[: found.start()])]
        rules: list[str] = []
        for index, (name, parameters) in enumerate(tools):
            rules.append(f"call_{index}: {_text(renderer, name + found[1])} {_json(parameters)}")
    else:
        form = _ByName.measured(renderer, one)
        example, markup = form.example, [_closer(renderer, form.closing), _closer(renderer, one[: one.find(_NAME)])]
        rules = [rule for index, tool in enumerate(tools) for rule in form.rules(index, *tool, texts)]
    calls, parts = "call", list[str]()
    with suppress(RenderError):  # a reply of the family may have one call only
        parts = _written(renderer, None, "", *[{_KEY: _VALUE}] * 2).split(example)
    if is_parallel and len(parts) == 3 and [parts[0], parts[2]] == one.split(example):
        calls += f" ({_text(renderer, parts[1])} call)*"
    return [f"calls: {calls}", "call: " + " | ".join(f"call_{i}" for i in range(len(tools))), *rules], example, markup


class _ByName(NamedTuple):
    """How a family writes the arguments of a call: each by its name. All are parts of an example call.

    `name`, `begin`, and for each argument its key, `between`, its value and `closing`, with `again` before all but the
    first one, then `end`; or `name` and `without`.
    """

    renderer: Renderer
    example: str
    name: str
    begin: str
    between: str
    closing: str
    again: str
    end: str
    without: str

    @classmethod
    def measured(cls, renderer: Renderer, one: str) -> "_ByName":
        """Measure it, from a reply with one argument, with two, and without any.

        Raises:
            RenderError: If the family writes calls differently.
        """
        two, none = _written(renderer, None, "", {_KEY: _VALUE, _KEY_2: _VALUE_2}), _written(renderer, None, "", {})
        first = re.fullmatch(f"(.*?){_NAME}(.*?){_KEY}(.*?){_VALUE}(.*)", one, re.DOTALL)
        both = re.fullmatch(f"(.*?){_NAME}(.*?){_KEY}(.*?){_VALUE}(.*?){_KEY_2}(.*?){_VALUE_2}(.*)", two, re.DOTALL)
        before, _, last = none.partition(_NAME)
        if first and both and both.group(1, 2, 3, 5, 6) == (before, *first.group(2, 3, 3, 4)):
            begin, after, again, without = (_atoms(renderer, text) for text in (first[2], first[4], both[4], last))
            closing, name = _common(after, again), _common(begin, without)
            end = _common(after[closing:][::-1], without[name:][::-1])
            closer, rest = "".join(after[:closing]), "".join(after[closing : len(after) - end])
            if closer and len(again) > closing:
                return cls(
                    renderer=renderer,
                    example=f"{_NAME}{first[2]}{_KEY}{first[3]}{_VALUE}{closer}{rest}",
                    name="".join(begin[:name]),
                    begin="".join(begin[name:]),
                    between=first[3],
                    closing=closer,
                    again="".join(again[closing:]),
                    end=rest,
                    without="".join(without[name : len(without) - end]),
                )
        raise RenderError(
            f"the calls of {renderer.name!r} cannot be constrained: it writes neither a name and a JSON object, nor "
            "each argument by its name. Use tool_choice='auto' and no schema, or a schema without tools"
        )

    def rules(self, index: int, name: str, parameters: Mapping[str, Any], texts: dict[str, str]) -> Iterator[str]:
        """Yield the rules of the calls of a tool: its parameters in their order, the optional ones or not."""
        properties: Any = parameters.get("properties", {})
        required: Any = parameters.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise TurnError(f"the parameters of the tool {brief(name)} are not the JSON schema of an object")
        items = list(cast("dict[str, Any]", properties).items())
        definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        yield f"call_{index}: {_text(self.renderer, name + self.name)} first_{index}_0"
        for at, (key, schema) in enumerate(items):
            value = self._value(key, schema, definitions, texts)
            for state, before in (("first", self.begin), ("next", self.again)):
                skip = "" if key in required else f" | {state}_{index}_{at + 1}"
                begun = _text(self.renderer, before + key + self.between)
                yield f"{state}_{index}_{at}: {begun} {value} next_{index}_{at + 1}{skip}"
        yield f"first_{index}_{len(items)}: {_text(self.renderer, self.without)}"
        yield f"next_{index}_{len(items)}: {_text(self.renderer, self.end)}"

    def _value(self, key: str, given: Any, definitions: Mapping[str, Any], texts: dict[str, str]) -> str:
        """Return the symbols of a value and what closes it."""
        first, *others = _literals(self.renderer, self.closing)
        schema: dict[str, Any] = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        kind = schema.get("type")
        known = {"boolean": [True, False], "null": [None]}.get(str(kind))
        known = schema.get("enum", [schema["const"]] if "const" in schema else known)
        if isinstance(known, list):
            written = (_written(self.renderer, None, "", {_KEY: value}) for value in cast("list[Any]", known))
            values = (text.partition(_KEY + self.between)[2].rpartition(self.closing + self.end)[0] for text in written)
            return f"({' | '.join(_text(self.renderer, value) for value in values)}) {first} {' '.join(others)}"
        if kind == "string" and not schema.keys() - _ANNOTATIONS:
            text = texts.setdefault(first, f"TEXT_{len(texts)}") if first.startswith('"') else f"TEXT {first}"
            return f"{text} {' '.join(others)}"
        if kind in ("integer", "number", "array", "object"):
            return f"{_json({**schema, **definitions})} {first} {' '.join(others)}"
        raise RenderError(
            f"the parameter {brief(key)} cannot be constrained in a call of {self.renderer.name!r}, which writes "
            "strings without quotes: give it one type, and a string no other keyword than enum"
        )


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _atoms(renderer: Renderer, text: str) -> list[str]:
    """Return the characters and the control tokens of a text."""
    return [
        atom for piece in renderer.encoder.cut(text) for atom in ([piece.text] if piece.control >= 0 else piece.text)
    ]


def _symbols(renderer: Renderer, rest: str, content: str, texts: dict[str, str]) -> Iterator[str]:
    """Yield the symbols of an example reply.

    Args:
        renderer: The renderer.
        rest: The example reply, with the name of a call instead of the call.
        content: The symbol of the content; empty for any text.
        texts: Receives the terminals for a text and the family's own text after it, by the latter. They are one
            terminal, because a terminal matches as much as it can.
    """
    is_text = False
    for part in _PART.split(rest):
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


def _text(renderer: Renderer, text: str) -> str:
    return " ".join(_literals(renderer, text)) or '""'


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _WHITESPACE})}"
