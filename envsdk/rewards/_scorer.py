"""The protocol of a scorer, and the checks that all scorers share."""

import math
import re
from collections.abc import Awaitable
from typing import Any, Protocol, cast

from .._visible import brief
from ..errors import ConfigError, TaskError


class Scorer(Protocol):
    """A function that scores a reply."""

    def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply.

        Args:
            reply: The text of the reply, usually `reply.content`.
            target: The reference to compare it with. Its type depends on the scorer.

        Returns:
            A score from 0 to 1, or None if the reply is not scored.
        """
        ...


class AsyncScorer(Protocol):
    """An async function that scores a reply, such as a judge."""

    def __call__(self, reply: str, target: Any = None, /) -> Awaitable[float | None]:
        """Score a reply; see `Scorer`."""
        ...


def check_scorer(name: str, scorer: object) -> None:
    """Check that an option is a scorer: a callable, but not a class.

    Raises:
        ConfigError: If it is not.
    """
    if not callable(scorer) or isinstance(scorer, type):
        raise ConfigError(f"{name} is {brief(scorer)}; expected a scorer: a function of a reply and a target")


def check_number(name: str, value: object, least: float = -math.inf) -> None:
    """Check that an option is a finite number that is at least `least`.

    Raises:
        ConfigError: If it is not.
    """
    number = float(cast("Any", value)) if isinstance(value, (int, float)) and type(value) is not bool else math.nan
    if not math.isfinite(number) or number < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise ConfigError(f"{name} is {brief(value)}; expected a finite number{bound}")


def check_count(name: str, value: object) -> None:
    """Check that an option is an integer of at least 1.

    Raises:
        ConfigError: If it is not.
    """
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is {brief(value)}; expected an integer of at least 1")


def check_switches(owner: object, *names: str) -> None:
    """Check that the attributes with these names are True or False.

    Raises:
        ConfigError: If one is not.
    """
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {brief(value)}; expected True or False")


def compiled(pattern: object) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        ConfigError: If the pattern is not a regular expression.
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"pattern is {brief(pattern)}; expected a string with a regular expression")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"the pattern {brief(pattern, 200)} is not a regular expression: {error}") from error


def check_score(name: str, score: object) -> float | None:
    """Convert the result of a scorer to a float, or None.

    Args:
        name: Which scorer it is, such as `"of style"`.
        score: The result.

    Raises:
        ConfigError: If it is neither None nor a number from 0 to 1.
    """
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, (str, bytes)) else float(cast("Any", score))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ConfigError(f"the scorer {name} returned {brief(score)}; expected 0 to 1, or None for not scored")
    return number


def text_of(target: object, scorer: str) -> str:
    """Return the target of a scorer that takes a string.

    Raises:
        TaskError: If the target is not a string.
    """
    if not isinstance(target, str):
        raise TaskError(f"the target of {scorer} is {brief(target)}; expected a string")
    return target
