"""What an environment says next."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from .errors import TurnError, what_is_invalid
from .messages import Message, ToolSchema, to_messages


class Turn:
    """What an environment says next: messages, reward, and whether the episode is over.

    Args:
        messages: A text (a user message), a `Message`, or a list of messages; an OpenAI-style mapping is one, too.
        system: The system message that opens the conversation; only in the first turn.
        tools: JSON schemas of the tools that the model may call; only in the first turn.
        reward: What the reply earned: a number, or named rewards, which add up. None: it was not scored.
        metrics: Named numbers to report; they are no rewards.
        terminated: The task is over.
        truncated: The episode is cut off, though the task is not over.
        info: Entries for the `info` of the step; they may not take the names that envsdk uses.
        stop: Strings at which the policy should stop sampling.
        max_tokens: How many tokens the next reply may have.
        sampling: Sampling parameters for the next reply (temperature and so on), passed on to the policy.

    Raises:
        TurnError: For messages that cannot be read, and for a reward that is no finite number.
    """

    __slots__ = (
        "info",
        "max_tokens",
        "messages",
        "metrics",
        "reward",
        "rewards",
        "sampling",
        "stop",
        "system",
        "terminated",
        "tools",
        "truncated",
    )

    def __init__(
        self,
        messages: str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]] = (),
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        reward: float | Mapping[str, float] | None = 0.0,
        metrics: Mapping[str, float] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self.messages = to_messages(messages)
        except ValidationError as error:
            raise TurnError(f"a message of a Turn cannot be read: {what_is_invalid(error)}") from error
        except (TypeError, KeyError, ValueError) as error:
            raise TurnError(f"the messages of a Turn cannot be read: {error}") from error
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TurnError(f"max_tokens is {max_tokens!r}; expected None or an integer of at least 1")
        if system is not None and not isinstance(system, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TurnError(f"system is a {type(system).__name__}; expected a text")
        if terminated and truncated:
            raise TurnError("a Turn is terminated (the task is over) or truncated (it is cut off), not both")
        self.system = system
        self.tools = None if tools is None else _checked_tools(tools)
        self.rewards = {} if reward is None else _numbers("reward", reward)
        self.reward = sum(self.rewards.values()) if reward is not None else None
        self.metrics = _numbers("metrics", metrics) if metrics else {}
        self.terminated = bool(terminated)
        self.truncated = bool(truncated)
        self.max_tokens = max_tokens
        try:
            self.info = dict(info or {})
            self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
            self.sampling = dict(sampling or {})
        except (TypeError, ValueError) as error:
            raise TurnError(f"info and sampling are mappings, stop is a list of strings: {error}") from error

    def __repr__(self) -> str:
        end = " terminated" if self.terminated else " truncated" if self.truncated else ""
        return f"<Turn of {len(self.messages)} messages, reward {self.reward}{end}>"


def _numbers(field: str, value: float | Mapping[str, float]) -> dict[str, float]:
    """Named finite numbers; one number is named like the field."""
    if type(value) is float and math.isfinite(value):
        return {field: value}
    named: Mapping[str, Any] = value if isinstance(value, Mapping) else {field: value}
    try:
        numbers = {str(name): float(number) for name, number in named.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise TurnError(f"{field} {value!r:.80} is no number and no mapping of names to numbers: {error}") from error
    if not all(map(math.isfinite, (*numbers.values(), sum(numbers.values())))):
        raise TurnError(f"{field} {value!r:.80} is not finite")
    return numbers


def _checked_tools(tools: Sequence[ToolSchema]) -> list[ToolSchema]:
    for tool in tools:
        function: Any = tool.get("function", tool) if isinstance(tool, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if not isinstance(function, Mapping) or not isinstance(cast("Any", function).get("name"), str):
            raise TurnError(
                f"a tool is a JSON schema in the OpenAI form, {{'type': 'function', 'function': {{'name': ...}}}}, got "
                f"{tool!r:.80}"
            )
    return list(tools)
