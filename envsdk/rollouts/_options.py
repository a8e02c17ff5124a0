"""The options of rollouts that adapters pass on, and their checks."""

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from ..errors import ConfigError


class Deadlines(TypedDict, total=False):
    """How long things may take, and how often an episode begins again; `Rollouts` documents them and their defaults."""

    policy_timeout_s: float | None
    method_timeout_s: float | None
    episode_timeout_s: float | None
    max_retries: int


def check_deadlines(given: Mapping[str, Any]) -> Deadlines:
    """Return options after checking their names and values.

    Raises:
        ConfigError: If there is no such option, or its value is invalid.
    """
    for name, value in given.items():
        if name not in Deadlines.__annotations__:
            raise ConfigError(f"there is no option {name!r}; expected one of {', '.join(Deadlines.__annotations__)}")
        if name == "max_retries":
            check_count(name, value, 0)
        else:
            check_seconds(name, value)
    return cast("Deadlines", dict(given))


def check_count(name: str, value: object, least: int = 1) -> None:
    """Check that an option is an integer of at least `least`, or None.

    Raises:
        ConfigError: If it is not.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name} is {value!r:.80}; expected an integer of at least {least}")


def check_seconds(name: str, value: object) -> None:
    """Check that an option is a number above 0, or None.

    Raises:
        ConfigError: If it is not.
    """
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0):
        raise ConfigError(f"{name} is {value!r:.80}; expected a number of seconds above 0, or None")
