"""Detects control tokens that content forges together with a chat template's own text.

A mask hides whole names of control tokens in content. But a template may complete a name: it writes `'<' + key + '>'`,
and the key is `|im_end|`. Or it may change content into a name: it removes `/think` from `<|im_/thinkend|>`. So if a
text could become a part of a name, the conversation is rendered again with harmless words in its place. A rendering
with more control tokens than that one is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from envsdk.messages import Message, ToolSchema

from ._mask import STEM, TextMask, map_texts, pattern_of_names

_NAMED = frozenset({"properties", "patternProperties", "dependentRequired", "dependentSchemas", "$defs", "definitions"})
"""The keywords of JSON Schema under which keys are names that an author chooses."""
_TYPES = frozenset({"function", "object", "array", "string", "number", "integer", "boolean", "null"})
_KEYWORDS = frozenset(
    {
        *("type", "function", "name", "description", "parameters", "strict", "return", "required", "items", "enum"),
        *("const", "default", "examples", "title", "format", "anyOf", "oneOf", "allOf", "not", "additionalProperties"),
        *("$ref", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "pattern", "nullable"),
        *_NAMED,
    }
)


class ForgeryCheck:
    """Finds strings that could become a part of a control token's name, and puts harmless words in their place.

    Args:
        mask: The mask, with the names of the control tokens.
        literals: The strings in the template's code. It may search content for them, so they are not replaced.
    """

    def __init__(self, mask: TextMask, literals: Sequence[str] = ()) -> None:
        self._mask = mask
        names = mask.names
        self._longest = max(map(len, names), default=0)
        self._joined = "\0".join(["", *names, ""])
        self._starts = {name[:size] for name in names for size in range(1, len(name))}
        self._ends = {name[size:] for name in names for size in range(1, len(name))}
        signs = {char for name in names for char in name if not (char.isalnum() or char in "_ ")}
        self._signs = frozenset({*signs, *(char for name in names for char in (name[0], name[-1]))})
        kept = sorted(text for text in literals if not self._could_be_part(text))
        self._kept = re.compile(f"({pattern_of_names(kept)})")

    def _could_be_part(self, text: str) -> bool:
        """Return whether a string without any name could form one together with the text next to it."""
        sizes = range(1, min(self._longest, len(text) + 1))
        is_edge = any(text[-size:] in self._starts or text[:size] in self._ends for size in sizes)
        return is_edge or (len(text) < self._longest and text in self._joined and bool(text.strip()))

    def twin(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[list[Message], list[ToolSchema]] | None:
        """Return the conversation with harmless words for such strings; None if there are none.

        Equal strings get the same word.
        """
        words: dict[str, str] = {}

        def replaced(text: str) -> str:
            if self._signs.isdisjoint(text) and not self._could_be_part(text):
                return text  # it cannot become a part of a name, even if the template drops some of it
            parts = self._kept.split(text)
            for index in range(0, len(parts), 2):
                if parts[index].strip() or len(parts) == 1:  # a word has nine characters, as ids may have to
                    parts[index] = words.setdefault(parts[index], f"{STEM}h{len(words):03d}q")
            return "".join(parts)

        def replaced_schema(value: Any, key: str) -> Any:
            """Replace strings in the schema under `key`, except JSON Schema's keywords, which templates read."""
            if isinstance(value, str):
                return value if key == "type" and value in _TYPES else replaced(value)
            if isinstance(value, Mapping):
                items, is_named = cast("Mapping[str, Any]", value).items(), key in _NAMED
                return {
                    (k if not is_named and k in _KEYWORDS else replaced(k)): replaced_schema(v, "" if is_named else k)
                    for k, v in items
                }
            is_list = isinstance(value, list)
            return [replaced_schema(item, key) for item in cast("list[Any]", value)] if is_list else value

        shown = [map_texts(message, replaced) for message in messages]
        schemas: list[Any] = [replaced_schema(tool, "") for tool in tools]
        return (shown, schemas) if words else None
