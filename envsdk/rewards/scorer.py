"""What a scorer is, and the checks that all of them share."""

import math
import re
from collections.abc import Awaitable
from typing import Any, Protocol, cast

from ..errors import ConfigError, TaskError


class Scorer(Protocol):
    """Scores a reply."""

    def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply.

        Args:
            reply: Its text, mostly `reply.content`.
            target: What it is compared with.

        Returns:
            From 0 to 1. None: it was not scored.
        """
        ...


class AsyncScorer(Protocol):
    """Scores a reply after it has waited for something, such as a judge."""

    def __call__(self, reply: str, target: Any = None, /) -> Awaitable[float | None]:
        """As `Scorer`."""
        ...


def check_scorer(name: str, scorer: object) -> None:
    """Refuse what cannot be called, such as a class in place of an object of it.

    Raises:
        ConfigError: It says what was given.
    """
    if not callable(scorer) or isinstance(scorer, type):
        raise ConfigError(f"{name} is {scorer!r:.80}; expected a scorer: a function of a reply and a target")


def check_number(name: str, value: object, least: float = -math.inf) -> None:
    """Refuse what is no finite number, or too small.

    Raises:
        ConfigError: It names the option.
    """
    number = float(cast("Any", value)) if isinstance(value, (int, float)) and type(value) is not bool else math.nan
    if not math.isfinite(number) or number < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise ConfigError(f"{name} is {value!r:.80}; expected a finite number{bound}")


def check_count(name: str, value: object) -> None:
    """Refuse what is no integer of at least 1.

    Raises:
        ConfigError: It names the option.
    """
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is {value!r:.80}; expected an integer of at least 1")


def check_switches(owner: object, *names: str) -> None:
    """Refuse attributes that are neither True nor False.

    Raises:
        ConfigError: It names the first.
    """
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r:.80}; expected True or False")


def compiled(pattern: object) -> re.Pattern[str]:
    """A regular expression, ready for use.

    Raises:
        ConfigError: If it is none.
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"pattern is {pattern!r:.80}; expected a regular expression as a text")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"the pattern {pattern!r:.200} is no regular expression: {error}") from error


def check_score(name: str, score: object) -> float | None:
    """What a scorer returned, as a float.

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
        raise ConfigError(f"the scorer {name} returned {score!r:.80}; a score is from 0 to 1, or None for not scored")
    return number


def text_of(target: object, scorer: str) -> str:
    """The target as a text.

    Raises:
        TaskError: If it is none.
    """
    if not isinstance(target, str):
        raise TaskError(f"the target of {scorer} is {target!r:.80}; expected a text")
    return target
