"""What an environment says next."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
        if max_tokens is not None and max_tokens < 1:
            raise TurnError(f"max_tokens is {max_tokens}; a reply has at least 1 token")
        self.system = system
        self.tools = tools
        self.rewards = _named(reward)
        self.reward = sum(self.rewards.values()) if reward is not None else None
        self.metrics = dict(metrics or {})
        self.terminated = bool(terminated)
        self.truncated = bool(truncated)
        self.info = dict(info or {})
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        self.max_tokens = max_tokens
        self.sampling = dict(sampling or {})

    def __repr__(self) -> str:
        end = " terminated" if self.terminated else " truncated" if self.truncated else ""
        return f"<Turn of {len(self.messages)} messages, reward {self.reward}{end}>"


def _named(reward: float | Mapping[str, float] | None) -> dict[str, float]:
    if reward is None:
        return {}
    named: Mapping[str, Any] = reward if isinstance(reward, Mapping) else {"reward": reward}
    try:
        rewards = {name: float(value) for name, value in named.items()}
    except (TypeError, ValueError) as error:
        raise TurnError(f"reward {reward!r} is no number and no mapping of names to numbers: {error}") from error
    if not all(map(math.isfinite, rewards.values())):
        raise TurnError(f"reward {reward!r} is not finite")
    return rewards
