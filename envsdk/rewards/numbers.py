"""A scorer that compares numbers, exactly or with a tolerance."""

import math
import numbers
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from ..errors import ConfigError, TaskError
from .scorer import check_number, check_switches

MAX_DIGITS = 400
"""A number with more digits, or with a larger power of ten, is read as none: it would take long to compute with."""

# Every repeat is possessive, so that any text is read in one pass.
_DIGITS = r"[0-9]++"
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|" + _DIGITS
_NUMBER = r"[-+\u2212]?(?:(?:{whole})(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][-+]?[0-9]++|/[0-9]++)?"
# Not inside a word or another number: 3.14.15, v2, 2^10, 3-5, 07/12/1990 and 1,23 hold none.
_ALONE = r"(?<![\w.,/^])(?<!\w[-\u2212])(?:{number})(?![\w^/]|[-.,\u2212][0-9])"
_NUMBERS = {grouped: _NUMBER.format(whole=_GROUPED if grouped else _DIGITS) for grouped in (False, True)}
_WHOLE = {grouped: re.compile(number) for grouped, number in _NUMBERS.items()}
_INSIDE = {grouped: re.compile(_ALONE.format(number=number)) for grouped, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class numeric:  # noqa: N801 - it is called like a function
    """1 if the reply is the target as a number, else 0.

    A number is a whole number, a decimal (`0.5`, `.5`, `1e-3`) or a fraction (`3/4`), with a sign if need be. Nothing
    else is one: no `inf`, no `1_000`, no words. It has at most 400 digits, and a power of ten of at most 400. It is
    compared exactly, by its value and without rounding: `0.50` is 1/2. A float as target means the decimal that it is
    written as, so that 0.1 is one tenth.

    Attributes:
        absolute: How far from the target the number may be.
        relative: The same, as a share of the target. The larger of both counts.
        find: `"whole"`: the reply is a number, with white space around it at most. `"last"`: the last number in the
            reply is taken that stands by itself, and is no part of a word, a date, a power or the like.
        grouped: Whether digits may be grouped by commas: `1,234,567`.

    Raises:
        ConfigError: If a tolerance is negative or not finite, and for another value of an option.
    """

    absolute: float = 0.0
    relative: float = 0.0
    find: Literal["whole", "last"] = "whole"
    grouped: bool = False

    def __post_init__(self) -> None:
        check_number("absolute", self.absolute, least=0)
        check_number("relative", self.relative, least=0)
        if self.find not in ("whole", "last"):
            raise ConfigError(f"find is {self.find!r:.80}; expected 'whole' or 'last'")
        check_switches(self, "grouped")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply; the target is a number, or a text that is one.

        Raises:
            TaskError: If the target is no finite number.
        """
        wanted = _target(target)
        said = self._number_in(reply)
        if said is None:
            return 0.0
        tolerance = max(Fraction(self.absolute), Fraction(self.relative) * abs(wanted))
        return float(abs(said - wanted) <= tolerance)

    def _number_in(self, reply: str) -> Fraction | None:
        if self.find == "whole":
            text = reply.strip()
            return _value(text) if _WHOLE[self.grouped].fullmatch(text) else None
        last = ""
        for match in _INSIDE[self.grouped].finditer(reply):
            last = match.group()
        return _value(last) if last else None


def _value(text: str) -> Fraction | None:
    """The value of a text that has the form of a number; None if it is too long, or divides by zero."""
    text = text.replace(",", "").replace("\u2212", "-")
    digits, _, power = text.lower().partition("e")
    if sum(map(str.isdigit, digits)) > MAX_DIGITS or len(power) > 4 or abs(int(power or 0)) > MAX_DIGITS:
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def _target(target: object) -> Fraction:
    match target:
        case bool():
            pass
        case numbers.Integral():
            return Fraction(int(target))
        case Fraction():
            return target
        case Decimal() if target.is_finite() and abs(target.adjusted()) <= MAX_DIGITS:
            return Fraction(target)
        case numbers.Real() if math.isfinite(target):
            return Fraction(str(target))
        case str() if _WHOLE[True].fullmatch(target.strip()):
            value = _value(target.strip())
            if value is not None:
                return value
        case _:
            pass
    raise TaskError(f"the target of numeric is {target!r:.80}; expected a finite number, or one as a text")
