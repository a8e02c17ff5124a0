"""The filter language of lists of episodes: `reward<0.5 break:summary -status:error text:"refund policy" word`.

    filter     = term*                        all terms hold
    term       = ["-"] (comparison | match | word)      "-" negates
    comparison = field ("<" | "<=" | ">" | ">=" | "=" | "!=") number
    match      = field ":" value ("," value)*            any of the values
    word       = text that occurs in the id, the task, the group, the environment, or what failed
    value      = characters except space and comma, or "quoted text"

The field `text` is matched with the contents of an episode: `Source.search` reads them, but only of the episodes for
which all other terms hold. Upper and lower case are the same. The page of the viewer has the same language in
TypeScript; the cases of `tests/viewer/filter_cases.json` hold for both.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..errors import ConfigError, InvalidFilter
from ._contents import Contents
from ._rows import EpisodeRow

_Number: TypeAlias = Callable[[EpisodeRow], float | int | None]
_Texts: TypeAlias = Callable[[EpisodeRow], Iterable[str]]

NUMBERS: Mapping[str, _Number] = {
    "line": lambda row: row.line,
    "reward": lambda row: row.reward if row.is_scored else None,
    "seed": lambda row: row.seed,
    "steps": lambda row: row.steps,
    "breaks": lambda row: sum(row.breaks.values()),
    "contexts": lambda row: row.contexts,
    "tokens": lambda row: row.tokens,
    "observed": lambda row: row.observed_tokens,
    "sampled": lambda row: row.sampled_tokens,
    "images": lambda row: row.images,
    "errors": lambda row: row.reply_errors,
    "duration": lambda row: row.duration_s,
    "version": lambda row: row.policy_versions[-1] if row.policy_versions else None,
}
"""The fields that are compared with numbers. `reward.NAME`, `metric.NAME` and `break.REASON` are, too."""
NAMES: Mapping[str, _Texts] = {
    "status": lambda row: [row.status],
    "stop": lambda row: [row.stop_reason],
    "break": lambda row: row.breaks,
    "role": lambda row: row.roles,
    "by": lambda row: [row.error_kind or ""],
}
"""The fields that match whole names."""
TEXTS: Mapping[str, _Texts] = {
    "id": lambda row: [row.id],
    "task": lambda row: [row.task],
    "group": lambda row: [row.group_id or ""],
    "env": lambda row: [row.env],
    "error": lambda row: [row.error or "", row.damage],
}
"""The fields that match a substring."""
CONTENTS = "text"
"""The field that matches a substring of the contents."""
_GROUPS: Mapping[str, Callable[[EpisodeRow], Mapping[str, float | int]]] = {
    "reward": lambda row: row.rewards,
    "metric": lambda row: row.metrics,
    "break": lambda row: row.breaks,
}
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12),
    "!=": lambda a, b: not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12),
}
_TERM = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_COMPARISON = re.compile(r"([A-Za-z_]+(?:\.[^\s<>=!:]+)?)(<=|>=|!=|<|>|=)(.*)", re.DOTALL)
_MATCH = re.compile(r"([A-Za-z_]+):(.*)", re.DOTALL)
_VALUE = re.compile(r'"([^"]*)"|([^,"]+)')
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class TextTerm(NamedTuple):
    """A term about the contents of an episode."""

    values: tuple[str, ...]
    """The strings, as `str.casefold` returns them: one of them has to occur."""
    is_negated: bool
    """Whether the term is negated: none of the strings may occur."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of rows; make one with `parse_filter`.

    Attributes:
        text: The string that the filter was parsed from.
        terms: Functions that return whether a term holds for a row.
        texts: The terms about the contents of an episode, which a row does not have.
    """

    text: str
    terms: tuple[Callable[[EpisodeRow], bool], ...]
    texts: tuple[TextTerm, ...] = ()

    @property
    def searched(self) -> tuple[str, ...]:
        """The strings to find in the contents, as `str.casefold` returns them."""
        return tuple(dict.fromkeys(value for term in self.texts if not term.is_negated for value in term.values))

    def matches(self, row: EpisodeRow, contents: Contents | None = None) -> bool:
        """Return whether all terms hold for an episode.

        Args:
            row: Its row.
            contents: The contents of its line; required if the filter has `texts`.

        Raises:
            ConfigError: If `contents` is required and not given.
        """
        if not all(term(row) for term in self.terms):
            return False
        if self.texts and contents is None:
            raise ConfigError(
                f"the filter {self.text!r} has a term about contents, which a row does not have; use Source.search"
            )
        return contents is None or all(any(map(contents.has, term.values)) != term.is_negated for term in self.texts)


def parse_filter(text: str) -> Filter:
    """Read a filter.

    Raises:
        InvalidFilter: If a field is unknown, a number or a value is missing, or a quote is not closed; the message
            names the position and the valid fields.
    """
    terms = [_term(found[0], found.start()) for found in _TERM.finditer(text)]
    texts = tuple(term for term in terms if isinstance(term, TextTerm))
    return Filter(text, tuple(term for term in terms if not isinstance(term, TextTerm)), texts)


def _term(text: str, position: int) -> Callable[[EpisodeRow], bool] | TextTerm:
    holds: Callable[[EpisodeRow], bool]
    is_negated = text.startswith("-") and len(text) > 1
    body = text[1:] if is_negated else text
    try:
        if text.count('"') % 2:
            raise ValueError(f"{text} has a quote that is not closed")
        if (comparison := _COMPARISON.fullmatch(body)) is not None:
            holds = _comparison(comparison[1], comparison[2], comparison[3])
        elif (match := _MATCH.fullmatch(body)) is not None:
            field = match[1].lower()
            values = [(quoted or plain).casefold() for quoted, plain in _VALUE.findall(match[2])]
            if field == CONTENTS and values and all(values):
                return TextTerm(tuple(values), is_negated)
            texts = NAMES.get(field) or TEXTS.get(field)
            if texts is None and field != CONTENTS:
                expected = f"expected {', '.join([*NAMES, *TEXTS])} or {CONTENTS}"
                is_number = f"{field!r} is a number, such as {field}>=1; {expected}"
                raise ValueError(is_number if field in NUMBERS else _unknown(field, expected))
            if texts is None or not values:
                raise ValueError(f"{field}: needs a value, such as {field}:word")
            holds = (
                (lambda row: any(text.casefold() in values for text in texts(row)))
                if field in NAMES
                else _contains([texts], values)
            )
        else:
            holds = _contains([*TEXTS.values()], [body.replace('"', "").casefold()])
    except ValueError as error:
        raise InvalidFilter(str(error), position, len(text)) from None
    return (lambda row: not holds(row)) if is_negated else holds


def _unknown(field: str, expected: str) -> str:
    """Return an error's message, which suggests the field that is meant, or else lists those that there are."""
    near = difflib.get_close_matches(field.lower(), [*NUMBERS, *NAMES, *TEXTS, CONTENTS], n=1)
    return f"{field!r} is unknown; {f'did you mean {near[0]}?' if near else expected}"


def _contains(fields: Iterable[_Texts], values: Sequence[str]) -> Callable[[EpisodeRow], bool]:
    """Return a function that returns whether a row has one of the values in one of its fields."""
    return lambda row: any(value in text.casefold() for texts in fields for text in texts(row) for value in values)


def _comparison(field: str, operator: str, given: str) -> Callable[[EpisodeRow], bool]:
    """Return a function that compares a number of a row with `given`.

    Raises:
        ValueError: If the field does not hold numbers, or `given` is not a number.
    """
    key, holds = field.lower(), _OPERATORS[operator]
    group, dot, name = field.partition(".")
    number, values = NUMBERS.get(key), _GROUPS.get(group.lower()) if dot else None
    if number is None and values is None:
        expected = f"expected {', '.join(NUMBERS)}, reward.NAME, metric.NAME or break.REASON"
        is_text = f"{field!r} is matched with a string, such as {field}:...; {expected}"
        raise ValueError(is_text if key in {*NAMES, *TEXTS, CONTENTS} else _unknown(field, expected))
    if _NUMBER.fullmatch(given) is None:
        raise ValueError(f"{field}{operator} needs a number such as 0.5, not {given!r}")
    wanted = float(given)

    def compare(row: EpisodeRow) -> bool:
        if row.is_damaged and key != "line":
            return False
        missing = 0 if group.lower() == "break" else None
        value = number(row) if number is not None else values(row).get(name, missing) if values is not None else None
        return value is not None and holds(value, wanted)

    return compare
