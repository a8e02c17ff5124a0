"""Detects control tokens that content forges together with a chat template's own text.

A mask hides whole names of control tokens in content. But a template may complete a name: it writes `'<' + key + '>'`,
and the key is `|im_end|`. Or it may change content into a name: it removes `/think` from `<|im_/thinkend|>`. So if a
text could become a part of a name, the conversation is rendered again with harmless words in its place. A rendering
with more control tokens than that one is refused.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from envsdk.errors import TemplateUnsupported
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
    """Finds texts that could become a part of a control token's name, and puts harmless words in their place.

    Args:
        mask: The mask, with the names of the control tokens.
        literals: The strings in the template's code. It may search texts for them, so they are not replaced.
    """

    def __init__(self, mask: TextMask, literals: Sequence[str] = ()) -> None:
        self._mask = mask
        self._literals = literals
        self._longest = max(map(len, mask.names), default=0)
        self._joined = "\0".join(["", *mask.names, ""])

    def could_be_part(self, text: str) -> bool:
        """Return whether a text without any name could form one together with the text next to it."""
        ends, starts = self._ends, self._starts
        return any(
            text[-size:] in starts or text[:size] in ends for size in range(1, min(self._longest, len(text) + 1))
        ) or (len(text) < self._longest and text in self._joined and bool(text.strip()))

    def is_harmless(self, text: str) -> bool:
        """Return whether a text cannot become a part of a name, even if the template drops some of it."""
        return self._signs.isdisjoint(text) and not self.could_be_part(text)

    @cached_property
    def _signs(self) -> frozenset[str]:
        """The characters that distinguish names from words."""
        signs = (char for name in self._mask.names for char in name if not (char.isalnum() or char in "_ "))
        return frozenset({*signs, *(char for name in self._mask.names for char in (name[0], name[-1]))})

    def harmless(self, text: str, word: Callable[[str], str]) -> str:
        """Replace everything with words, except the strings that the template may search for."""
        first, *others = self._kept.split(text)
        parts = [word(first) if first.strip() or not others else first]
        for kept, part in zip(others[::2], others[1::2], strict=True):
            parts += [kept, word(part) if part.strip() else part]
        return "".join(parts)

    @cached_property
    def _kept(self) -> re.Pattern[str]:
        kept = sorted(text for text in self._literals if not self.could_be_part(text))
        return re.compile(f"({pattern_of_names(kept)})")

    @cached_property
    def _starts(self) -> frozenset[str]:
        return frozenset(name[:size] for name in self._mask.names for size in range(1, len(name)))

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(name[size:] for name in self._mask.names for size in range(1, len(name)))

    def twin(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[list[Message], list[ToolSchema]] | None:
        """Return the conversation with harmless words for such texts; None if there is no such text."""
        words = _Words(self)
        shown = [map_texts(message, words.of) for message in messages]
        schemas: list[Any] = [words.of_schema(tool, "") for tool in tools]
        return (shown, schemas) if words.given else None

    def refuse_forged(self, text: str, harmless: str) -> None:
        """Refuse a rendering with more control tokens than that of the harmless conversation.

        Raises:
            TemplateUnsupported: If the rendering has more.
        """
        found, expected = (Counter(name for name, _ in self._mask.controls(given)) for given in (text, harmless))
        forged = found - expected
        if forged:
            raise TemplateUnsupported(
                "a text of the conversation or of a tool's schema, together with the template's own text, makes the "
                f"control token {next(iter(forged))!r}",
                rendered=text,
            )


class _Words:
    """The harmless words of one conversation; equal texts get the same word."""

    def __init__(self, check: ForgeryCheck) -> None:
        self._check = check
        self.given: dict[str, str] = {}

    def of(self, text: str) -> str:
        return text if self._check.is_harmless(text) else self._check.harmless(text, self._word)

    def _word(self, text: str) -> str:
        return self.given.setdefault(text, f"{STEM}h{len(self.given):03d}q")  # nine characters, as ids may have to be

    def of_schema(self, value: Any, key: str) -> Any:
        """Replace texts in the part of a schema under `key`, except JSON Schema's keywords, which templates read."""
        if isinstance(value, str):
            return value if key == "type" and value in _TYPES else self.of(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            is_named = key in _NAMED
            return {
                (k if not is_named and k in _KEYWORDS else self.of(k)): self.of_schema(item, "" if is_named else k)
                for k, item in items
            }
        if isinstance(value, list):
            return [self.of_schema(item, key) for item in cast("list[Any]", value)]
        return value
