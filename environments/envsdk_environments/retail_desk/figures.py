"""Facts in a text: found strictly, in the form that the policy prescribes."""

import re
from typing import get_args

from .policy import MAX_FIGURES
from .records import Status

MAX_CHARS = 4_000
"""Nobody reads on after so many characters."""
_FIGURE = re.compile(
    r"(?<![0-9-])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9-])"
    r"|(?<![0-9A-Z-])[A-Z]{1,2}-[0-9]{3,8}(?![0-9])"
    r"|(?<![0-9])(?<![0-9][.,])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,9})\.[0-9]{2}(?![0-9])(?!\.[0-9])"
)
_STATUSES = get_args(Status)
_STATUS = re.compile(rf"\b({'|'.join(_STATUSES)})\b")


def is_fact(value: str) -> bool:
    """Whether it has a form in which it can be found: an amount, a day, a number such as N-12345, or a status."""
    return value in _STATUSES or figures(value) == {value}


def figures(text: str) -> set[str]:
    """The amounts, days and numbers in a text; amounts without separators of thousands."""
    return {figure.replace(",", "") for figure in _FIGURE.findall(text[:MAX_CHARS].upper())}


def is_crowded(text: str) -> bool:
    """Whether a message has more figures than anybody can take in."""
    return len(figures(text)) > MAX_FIGURES


def tells(text: str, value: str) -> bool:
    """Whether a text says a fact. It says a status if it names no other one."""
    if value in _STATUSES:
        return set(_STATUS.findall(text[:MAX_CHARS].casefold())) == {value}
    return value in figures(text)
