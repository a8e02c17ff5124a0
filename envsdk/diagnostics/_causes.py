"""The likely cause of a break, recognized from the texts around the first difference."""

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

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

_SAME = 12  # if this many characters after a difference are equal again, the texts continue alike

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


class Texts(NamedTuple):
    """Two texts and the index of the first character that differs."""

    first: str
    second: str
    at: int


def cause_of(texts: Texts) -> tuple[Cause, str]:
    """Return the first cause that fits, and a short description of what was found."""
    for cause, find in _CAUSES.items():
        detail = find(texts)
        if detail is not None:
            return cause, detail
    return "unknown", "no known cause"


# One function for each cause. It returns what it found, or None if the cause does not fit.


def _date_changed(texts: Texts) -> str | None:
    first, second = _around(_DATE, texts.first, texts.at), _around(_DATE, texts.second, texts.at)
    if first is None or second is None or first.start() != second.start():
        return None
    is_only_change = _continues_alike(texts.first[first.end() :], texts.second[second.end() :])
    return f"{first[0]} became {second[0]}" if is_only_change else None


def _thinking_stripped(texts: Texts) -> str | None:
    stripped = _missing_reasoning(texts.first, texts.second, texts.at)
    return None if stripped is None else f"reasoning removed: {_size(stripped)}"


def _thinking_added(texts: Texts) -> str | None:
    added = _missing_reasoning(texts.second, texts.first, texts.at)
    return None if added is None else f"reasoning added: {_size(added)}"


def _missing_reasoning(text: str, other: str, at: int) -> str | None:
    """Return the reasoning of `text` at the difference that `other` lacks, or None if there is none."""
    start = max(text.rfind(opening, 0, at + len(opening)) for opening in _OPENINGS)
    block = _THINKING.match(text, start) if start >= 0 else None
    if block is None or block.end() <= at:
        return None
    kept = _THINKING.match(other, block.start())
    if kept is not None and (_reasoning(kept).strip() or not _reasoning(block).strip()):
        return None  # different reasoning, or an empty block in a different form
    rest = other[block.start() if kept is None else kept.end() :]
    return _reasoning(block) if _continues_alike(text[block.end() :], rest) else None


def _reasoning(block: re.Match[str]) -> str:
    return next(text for text in block.groups() if text is not None)


def _size(reasoning: str) -> str:
    return f"{len(reasoning.strip()):,} characters" if reasoning.strip() else "an empty block"


def _json_redumped(texts: Texts) -> str | None:
    first, second, at = texts
    for start in _openings(first, at):
        old, new = _json_at(first, start), _json_at(second, start)
        if old is None or new is None or not (old.end > at and new.end > at):
            continue
        if _is_same_json(old.value, new.value):
            return f"the same JSON value in a different form: {first[start : old.end]!r:.80}"
        if any(isinstance(value, (dict, list)) for value in (old.value, new.value)):
            return None
    return None


_DECODER = json.JSONDecoder(parse_int=float)  # 1 and 1.0 are the same number; true is not a number


class _Json(NamedTuple):
    value: Any
    end: int


def _openings(text: str, at: int) -> list[int]:
    """Return where a JSON value that spans `at` may begin: at `at`, or at a bracket before it, innermost first."""
    starts = [start for start in range(at - 1, max(-1, at - 20_000), -1) if text[start] in "{["]
    return [at, *starts[:200]]


def _json_at(text: str, start: int) -> _Json | None:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return _Json(value, end)


def _is_same_json(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal. One of them may be a string that contains the other as JSON."""
    if isinstance(first, str) != isinstance(second, str):
        text, value = (first, second) if isinstance(first, str) else (second, first)
        inner = _json_at(text, 0)
        return inner is not None and _is_same_json(inner.value, value)
    if not isinstance(first, (dict, list)):
        return False
    try:
        return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    except RecursionError:
        return False


def _tools_changed(texts: Texts) -> str | None:
    found = [_around(_TOOLS, text, texts.at, before=_BEFORE_TOOLS) for text in (texts.first, texts.second)]
    old, new = (match[0] if match is not None and (match["end"] or match["close"]) else "" for match in found)
    if old == new:
        return None
    changes = [("removed", _tool_names(old) - _tool_names(new)), ("added", _tool_names(new) - _tool_names(old))]
    described = "; ".join(f"{change}: {', '.join(sorted(names))}" for change, names in changes if names)
    return described or "the same tools in a different order, or with different descriptions"


def _tool_names(tools: str) -> set[str]:
    return {match[1] or match[2] for match in _TOOL_NAME.finditer(tools)}


def _newline(texts: Texts) -> str | None:
    first, second, at = texts
    rests = [text[at:] for text in (first, second)]
    stripped = [rest.lstrip() for rest in rests]
    blank = [rest[: len(rest) - len(left)] for rest, left in zip(rests, stripped, strict=True)]
    if blank[0] == blank[1] or not _continues_alike(*stripped):
        return None
    return f"whitespace {blank[0]!r} became {blank[1]!r}"


def _continues_alike(first: str, second: str) -> bool:
    """Return whether the second text begins with the first few characters of the first, or with all of it."""
    return second.startswith(first[:_SAME])


def _around(pattern: re.Pattern[str], text: str, at: int, before: int = 0) -> "re.Match[str] | None":
    """Return the match that spans a position, or begins at most `before` characters after it."""
    return next((match for match in pattern.finditer(text) if match.start() - before <= at < match.end()), None)


_CAUSES: dict[Cause, Callable[[Texts], str | None]] = {
    "thinking_stripped": _thinking_stripped,
    "thinking_added": _thinking_added,
    "json_redumped": _json_redumped,
    "date_changed": _date_changed,
    "tools_changed": _tools_changed,
    "newline": _newline,
}
