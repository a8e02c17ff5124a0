"""A scorer that compares numbers, exactly or with a tolerance."""

import math
import numbers
import re
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from .._visible import brief
from ..errors import ConfigError, TaskError
from ._scorer import check_number, check_switches

MAX_DIGITS = 400
"""The maximum number of digits, and of the power of ten. A longer number does not count, because arithmetic on it is
slow."""

# All repeats are possessive, so any text is matched in linear time.
_DIGITS = r"[0-9]++"
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|" + _DIGITS
_NUMBER = r"[-+\u2212]?(?:(?:{whole})(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][-+]?[0-9]++|/[0-9]++)?"
# A number is not part of a word or of another number: 3.14.15, v2, 2^10, 3-5, 07/12/1990 and 1,23 contain none.
_ALONE = r"(?<![\w.,/^])(?<!\w[-\u2212])(?:{number})(?![\w^/]|[-.,\u2212][0-9])"
_NUMBERS = {grouped: _NUMBER.format(whole=_GROUPED if grouped else _DIGITS) for grouped in (False, True)}
_WHOLE = {grouped: re.compile(number) for grouped, number in _NUMBERS.items()}
_INSIDE = {grouped: re.compile(_ALONE.format(number=number)) for grouped, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class numeric:  # noqa: N801 - it is called like a function
    """Score 1 if the number in the reply equals the target, else 0.

    A number is an integer, a decimal (`0.5`, `.5`, `1e-3`) or a fraction (`3/4`), with an optional sign. `inf`, `1_000`
    and number words do not count. A number has at most 400 digits, and a power of ten of at most 400. Values are
    compared exactly, without rounding: `0.50` equals 1/2. A float target means the decimal that Python prints for it,
    so 0.1 is one tenth.

    Attributes:
        absolute: The maximum distance from the target.
        relative: The maximum distance as a fraction of the target. The larger of the two tolerances applies.
        find: `"whole"`: the reply is a number, apart from white space around it. `"last"`: use the last separate
            number in the reply, which is not part of a word, a date, a power or the like.
        grouped: Whether digits may be grouped with commas: `1,234,567`.

    Raises:
        ConfigError: If a tolerance is negative or not finite, or another option has an invalid value.
    """

    absolute: float = 0.0
    relative: float = 0.0
    find: Literal["whole", "last"] = "whole"
    grouped: bool = False

    def __post_init__(self) -> None:
        check_number("absolute", self.absolute, least=0)
        check_number("relative", self.relative, least=0)
        if self.find not in ("whole", "last"):
            raise ConfigError(f"find is {brief(self.find)}; expected 'whole' or 'last'")
        check_switches(self, "grouped")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply. The target is a number, or a string that contains one.

        Raises:
            TaskError: If the target is not a finite number.
        """
        expected = _target(target)
        if self.find == "whole":
            match = _WHOLE[self.grouped].fullmatch(reply.strip())
        else:
            last = deque(_INSIDE[self.grouped].finditer(reply), maxlen=1)
            match = last.pop() if last else None
        found = None if match is None else _value(match.group())
        if found is None:
            return 0.0
        tolerance = max(Fraction(self.absolute), Fraction(self.relative) * abs(expected))
        return float(abs(found - expected) <= tolerance)


def _value(text: str) -> Fraction | None:
    """Return the value of a string that matches `_NUMBER`; None if it is too long or divides by zero."""
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
    raise TaskError(
        f"the target of numeric is {brief(target)}; expected a finite number, or a string that contains one"
    )
