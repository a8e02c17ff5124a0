"""The explanation of a break: where two prompts first differ, the text around it, and the likely cause."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from .._visible import brief, type_of
from ..errors import ConfigError
from ..rendering.tokenizers import Tokenizer
from ._inputs import token_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

Cause: TypeAlias = Literal[
    "none",
    "thinking_stripped",
    "thinking_added",
    "newline",
    "json_redumped",
    "retokenized",
    "tools_changed",
    "date_changed",
    "unknown",
]

_SAME = 12  # if this many characters after a difference are equal again, the prompts continue alike

# Blocks of reasoning, with their tags, for each model family.
_THINKING = re.compile(
    r"<think>(?P<tags>.*?)(?:</think>\s*|\Z)"
    r"|<\|channel\|>analysis<\|message\|>(?P<harmony>.*?)(?:<\|end\|>(?:<\|start\|>assistant)?|\Z)"
    r"|\[THINK\](?P<mistral>.*?)(?:\[/THINK\]\s*|\Z)",
    re.DOTALL,
)
_OPENINGS = ("<think>", "<|channel|>analysis<|message|>", "[THINK]")
# Lists of tools, with the text that introduces them, for each model family.
_TOOLS = re.compile(
    r"(?:# Tools\b|<tools>|namespace \w+ \{).*?(?P<end></tools>|\} // namespace \w+|\Z)"
    r"|\[AVAILABLE_TOOLS\].*?(?P<close>\[/AVAILABLE_TOOLS\]|\Z)",
    re.DOTALL,
)
_TOOL_NAME = re.compile(r'"name": ?"([^"]+)"|^type (\w+) = ', re.MULTILINE)
_BEFORE_TOOLS = 300  # a family may introduce the tools, or open a message for them, at most this many characters before
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T ]\d{{1,2}}:\d{{2}}(?::\d{{2}})?)?|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{4}}"
    rf"|\d{{1,2}}\.? {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}},? \d{{4}}|\d{{1,2}}:\d{{2}}(?::\d{{2}})?"
)
Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"
"""A prompt as text, or as token ids of shape (n,)."""

_AROUND = 60  # characters that are shown on each side of the difference


class PromptTexts(NamedTuple):
    """Two prompts as text, and the index of the first character that differs."""

    first: str
    second: str
    at: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The first difference between two prompts, in tokens if token ids were compared, and otherwise in characters.

    Attributes:
        cause: The likely cause: `thinking_stripped`, `thinking_added`, `newline`, `json_redumped`, `retokenized`,
            `tools_changed`, `date_changed`, or `unknown`; `none` if the second prompt begins with the first.
        detail: A short description of what was found.
        position: The index of the first token (character) that differs; `length` if there is none.
        length: The number of tokens (characters) of the first prompt.
        before: The last characters before the difference, which are the same in both prompts.
        first: The first characters of the first prompt from the difference on.
        second: The first characters of the second prompt from the difference on.
        lost: The number of tokens (characters) of the first prompt from the difference on, `length - position`.
    """

    cause: Cause
    detail: str
    position: int
    length: int
    before: str
    first: str
    second: str

    @property
    def lost(self) -> int:
        """The number of tokens (characters) of the first prompt from the difference on."""
        return self.length - self.position

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `lost` as plain values for JSON."""
        return {**asdict(self), "lost": self.lost}

    def __str__(self) -> str:
        if self.cause == "none":
            return f"no break: {self.detail}"
        return (
            f"{self.cause} at {self.position} of {self.length}: {self.detail}\n"
            f"  both:   ...{self.before!r}\n  first:  {self.first!r}\n  second: {self.second!r}"
        )


def explain_break(first: Prompt, second: Prompt, tokenizer: Tokenizer | None = None) -> Explanation:
    """Explain where and why the second prompt does not begin with the first.

    The cause is a guess from the text around the first difference. A later difference may have another cause.

    Args:
        first: The earlier prompt, with the reply that was sampled after it.
        second: The next prompt.
        tokenizer: The tokenizer that decodes token ids. Text prompts need no tokenizer.

    Raises:
        ConfigError: If one prompt is text and the other is not, or token ids are given without a tokenizer.
        InvalidSample: If a prompt is neither text nor token ids.
    """
    if isinstance(first, str) and isinstance(second, str):
        position = _shared(first, second)
        return _explained(PromptTexts(first, second, position), position, len(first))
    if isinstance(first, str) or isinstance(second, str) or tokenizer is None:
        raise ConfigError(
            f"the prompts are {type_of(first)} and {type_of(second)}, with "
            f"{'no' if tokenizer is None else 'a'} tokenizer; expected two strings, or two arrays of token ids and the "
            "tokenizer"
        )
    ids, others = token_ids("the first prompt", first), token_ids("the second prompt", second)
    position = _shared(ids, others)
    old, new = (tokenizer.token_bytes(array.astype(np.int32)) for array in (ids, others))
    before = len(b"".join(old[:position]).decode(errors="replace"))
    left, right = (b"".join(pieces).decode(errors="replace") for pieces in (old, new))
    texts = PromptTexts(left, right, _shared(left, right))
    is_cut = texts.at == len(left) and position < len(ids)  # a token of the second reaches past the end of the first
    # Both have the same text up to the first index at which a token ends in both.
    ends, other_ends = (list(accumulate(map(len, pieces[position:]))) for pieces in (old, new))
    end = min(set(ends).intersection(other_ends), default=0)
    rest, other_rest = (b"".join(pieces[position:])[:end] for pieces in (old, new))
    if is_cut or (position < min(len(ids), len(others)) and end > 0 and rest == other_rest):
        left, right = (
            " ".join(repr(piece.decode(errors="replace")) for piece in pieces[position : position + 4])
            for pieces in (old, new)
        )
        detail = f"the same text as different tokens: {left} and {right}"
        return _explanation("retokenized", detail, texts._replace(at=before), position, len(ids))
    return _explained(texts, position, len(ids))


def _shared(first: Any, second: Any) -> int:
    """Return the length of the common prefix of two strings or two arrays."""
    length = min(len(first), len(second))
    if isinstance(first, str):
        pairs = enumerate(zip(first, second, strict=False))
        return next((at for at, (one, other) in pairs if one != other), length)
    differs = first[:length] != second[:length]
    return int(np.argmax(differs)) if differs.any() else length


def _explained(texts: PromptTexts, position: int, length: int) -> Explanation:
    """Explain a difference by the first cause that fits."""
    if position == length:
        is_same = len(texts.second) == len(texts.first)
        detail = "the prompts are the same" if is_same else "the second prompt begins with the first"
        return _explanation("none", detail, texts, position, length)
    for cause, find in _CAUSES.items():
        found = find(texts)
        if found is not None:
            return _explanation(cause, found, texts, position, length)
    return _explanation("unknown", "no known cause", texts, position, length)


def _explanation(cause: Cause, detail: str, texts: PromptTexts, position: int, length: int) -> Explanation:
    first, second, at = texts
    before = first[max(0, at - _AROUND) : at]
    return Explanation(cause, detail, position, length, before, first[at : at + _AROUND], second[at : at + _AROUND])


# One function for each cause. It returns what it found, or None if the cause does not fit.


def _date_changed(texts: PromptTexts) -> str | None:
    first, second = _around(_DATE, texts.first, texts.at), _around(_DATE, texts.second, texts.at)
    if first is None or second is None or first.start() != second.start():
        return None
    is_only_change = _continues_alike(texts.first[first.end() :], texts.second[second.end() :])
    return f"{first[0]} became {second[0]}" if is_only_change else None


def _thinking_changed(texts: PromptTexts, *, is_added: bool = False) -> str | None:
    text, other = (texts.second, texts.first) if is_added else (texts.first, texts.second)
    start = max(text.rfind(opening, 0, texts.at + len(opening)) for opening in _OPENINGS)
    block = _THINKING.match(text, start) if start >= 0 else None
    if block is None or block.end() <= texts.at:
        return None
    kept = _THINKING.match(other, block.start())
    reasoning, other_reasoning = (
        "" if match is None else next(text for text in match.groups() if text is not None) for match in (block, kept)
    )
    if kept is not None and (other_reasoning.strip() or not reasoning.strip()):
        return None  # different reasoning, or an empty block in a different form
    rest = other[block.start() if kept is None else kept.end() :]
    if not _continues_alike(text[block.end() :], rest):
        return None
    size = f"{len(reasoning.strip()):,} characters" if reasoning.strip() else "an empty block"
    return f"reasoning {'added' if is_added else 'removed'}: {size}"


def _json_redumped(texts: PromptTexts) -> str | None:
    first, second, at = texts
    # A value that spans the difference may begin there, or at a bracket before it, innermost first.
    brackets = [start for start in range(at - 1, max(-1, at - 20_000), -1) if first[start] in "{["]
    for start in (at, *brackets[:200]):
        old, new = _json_at(first, start), _json_at(second, start)
        if old is None or new is None or not (old[1] > at and new[1] > at):
            continue
        if _is_same_json(old[0], new[0]):
            return f"the same JSON value in a different form: {brief(first[start : old[1]])}"
        if any(isinstance(value, (dict, list)) for value in (old[0], new[0])):
            return None
    return None


_DECODER = json.JSONDecoder(parse_int=float)  # 1 and 1.0 are the same number; true is not a number


def _json_at(text: str, start: int) -> tuple[Any, int] | None:
    """Return the JSON value that begins at a position, and its end; None if there is none."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _is_same_json(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal. One of them may be a string that contains the other as JSON."""
    if isinstance(first, str) != isinstance(second, str):
        text, value = (first, second) if isinstance(first, str) else (second, first)
        inner = _json_at(text, 0)
        return inner is not None and _is_same_json(inner[0], value)
    if not isinstance(first, (dict, list)):
        return False
    try:
        return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    except RecursionError:
        return False


def _tools_changed(texts: PromptTexts) -> str | None:
    found = [_around(_TOOLS, text, texts.at, before=_BEFORE_TOOLS) for text in (texts.first, texts.second)]
    old, new = (match[0] if match is not None and (match["end"] or match["close"]) else "" for match in found)
    if old == new:
        return None
    before, after = ({match[1] or match[2] for match in _TOOL_NAME.finditer(tools)} for tools in (old, new))
    changes = [("removed", before - after), ("added", after - before)]
    described = "; ".join(f"{change}: {', '.join(sorted(names))}" for change, names in changes if names)
    return described or "the same tools in a different order, or with different descriptions"


def _newline(texts: PromptTexts) -> str | None:
    first, second, at = texts
    rests = [text[at:] for text in (first, second)]
    stripped = [rest.lstrip() for rest in rests]
    blank = [rest[: len(rest) - len(left)] for rest, left in zip(rests, stripped, strict=True)]
    if blank[0] == blank[1] or not _continues_alike(*stripped):
        return None
    return f"whitespace {blank[0]!r} became {blank[1]!r}"


def _continues_alike(first: str, second: str) -> bool:
    """Return whether the second string begins with the first few characters of the first, or with all of it."""
    return second.startswith(first[:_SAME])


def _around(pattern: re.Pattern[str], text: str, at: int, before: int = 0) -> "re.Match[str] | None":
    """Return the match that spans a position, or begins at most `before` characters after it."""
    return next((match for match in pattern.finditer(text) if match.start() - before <= at < match.end()), None)


_CAUSES: dict[Cause, Callable[[PromptTexts], str | None]] = {
    "thinking_stripped": _thinking_changed,
    "thinking_added": partial(_thinking_changed, is_added=True),
    "json_redumped": _json_redumped,
    "date_changed": _date_changed,
    "tools_changed": _tools_changed,
    "newline": _newline,
}
