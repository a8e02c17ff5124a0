"""Whether content and a chat template's own text together make a control token.

A mask hides whole names of control tokens in content. What is left is content that a template completes: it writes
`'<' + key + '>'`, and the key is `|im_end|`. Or content that a template changes: it removes `/think` from
`<|im_/thinkend|>`. So where a text could give a part of a name, the conversation is rendered once more with harmless
words in its place, and whatever has more control tokens than that is refused.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolCall, ToolSchema

from .templates import STEM, Mask

_NAMED = frozenset({"properties", "patternProperties", "dependentRequired", "dependentSchemas", "$defs", "definitions"})
"""The keywords of JSON Schema under which keys are anybody's."""
_TYPES = frozenset({"function", "object", "array", "string", "number", "integer", "boolean", "null"})
_KEYWORDS = frozenset(
    {
        *("type", "function", "name", "description", "parameters", "strict", "return", "required", "items", "enum"),
        *("const", "default", "examples", "title", "format", "anyOf", "oneOf", "allOf", "not", "additionalProperties"),
        *("$ref", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "pattern", "nullable"),
        *_NAMED,
    }
)


class Harmless:
    """Finds texts that could be a part of a control token's name, and puts harmless words in their place.

    Args:
        mask: It knows the names.
        literals: The strings in the template's code. It may look for them in a text, so they stay in it.
    """

    def __init__(self, mask: Mask, literals: Sequence[str] = ()) -> None:
        self._mask = mask
        self._literals = literals
        self._longest = max(map(len, mask.names), default=0)
        self._joined = "\0".join(["", *mask.names, ""])

    def could_be_part(self, text: str) -> bool:
        """Whether a text in which no name is, with what stands next to it, could give one."""
        ends, starts = self._ends, self._starts
        return any(
            text[-size:] in starts or text[:size] in ends for size in range(1, min(self._longest, len(text) + 1))
        ) or (len(text) < self._longest and text in self._joined and bool(text.strip()))

    def is_harmless(self, text: str) -> bool:
        """Whether a text can give no part of a name, even if the template leaves some of it out."""
        return self._signs.isdisjoint(text) and not self.could_be_part(text)

    @cached_property
    def _signs(self) -> frozenset[str]:
        """The characters that tell names from words."""
        signs = (char for name in self._mask.names for char in name if not (char.isalnum() or char in "_ "))
        return frozenset({*signs, *(char for name in self._mask.names for char in (name[0], name[-1]))})

    def harmless(self, text: str, word: Callable[[str], str]) -> str:
        """The text with words in place of all that the template does not look for."""
        first, *others = self._looked_for.split(text)
        parts = [word(first) if first.strip() or not others else first]
        for kept, part in zip(others[::2], others[1::2], strict=True):
            parts += [kept, word(part) if part.strip() else part]
        return "".join(parts)

    @cached_property
    def _looked_for(self) -> re.Pattern[str]:
        kept = sorted({text for text in self._literals if not self.could_be_part(text)}, key=len, reverse=True)
        return re.compile("(" + ("|".join(map(re.escape, kept)) or "(?!)") + ")")

    @cached_property
    def _starts(self) -> frozenset[str]:
        return frozenset(name[:size] for name in self._mask.names for size in range(1, len(name)))

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(name[size:] for name in self._mask.names for size in range(1, len(name)))

    def twin(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[list[Message], list[ToolSchema]] | None:
        """The conversation with harmless words for such texts; None if there is no such text."""
        words = _Words(self)
        shown = [words.of_message(message) for message in messages]
        schemas: list[Any] = [words.of_schema(tool, "") for tool in tools]
        return (shown, schemas) if words.given else None

    def refuse_forged(self, text: str, harmless: str) -> None:
        """Refuse a rendering that has more control tokens than that of the harmless conversation.

        Raises:
            TemplateUnsupported: If it has.
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
    """The harmless word for each text, the same for the same text."""

    def __init__(self, harmless: Harmless) -> None:
        self._harmless = harmless
        self.given: dict[str, str] = {}

    def of(self, text: str) -> str:
        return text if self._harmless.is_harmless(text) else self._harmless.harmless(text, self._word)

    def _word(self, text: str) -> str:
        return self.given.setdefault(text, f"{STEM}h{len(self.given):03d}q")  # nine characters, as ids may have to be

    def of_message(self, message: Message) -> Message:
        texts = {name: getattr(message, name) for name in ("content", "reasoning", "name", "tool_call_id")}
        changed: dict[str, Any] = {
            name: word for name, text in texts.items() if text and (word := self.of(text)) != text
        }
        calls = tuple(map(self._of_call, message.tool_calls))
        if calls != message.tool_calls:
            changed["tool_calls"] = calls
        return message.model_copy(update=changed) if changed else message

    def _of_call(self, call: ToolCall) -> ToolCall:
        texts = {"name": self.of(call.name), "id": call.id and self.of(call.id)}
        return call.model_copy(update={**texts, "arguments": self._of_value(call.arguments)})

    def _of_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.of(value)
        if isinstance(value, Mapping):
            return {self.of(key): self._of_value(item) for key, item in cast("Mapping[str, Any]", value).items()}
        return [self._of_value(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value

    def of_schema(self, value: Any, key: str) -> Any:
        """A part of a schema under `key`; what JSON Schema says itself stays, for templates look at it."""
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
