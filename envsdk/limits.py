"""Limits of an episode, and the reasons why episodes end."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ._arguments import explain_arguments
from ._describing import what_is_invalid
from ._visible import brief
from .errors import ConfigError

__all__ = ["Limits", "StopReason"]


def plain_integer(value: Any) -> Any:
    """Return a NumPy integer as an int, and any other value unchanged."""
    return value.item() if isinstance(value, np.integer) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


Count: TypeAlias = Annotated[int, BeforeValidator(plain_integer)]
"""An int or a NumPy integer, read as an int."""


STEPS_WITHOUT_LIMIT = 1000
"""An episode without a limit ends after this many steps."""
MAX_EMPTY_ABORTS = 16
"""An episode ends after this many interruptions in a row that sampled no token."""
MAX_ABORTS = 1000
"""An episode ends after this many interruptions of one reply."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest finite number of float32, the type in which rewards and temperatures reach a trainer."""


class StopReason(StrEnum):
    """The reason why an episode ended.

    Attributes:
        TERMINATED: The environment ended the episode: the task is over.
        TRUNCATED: The environment cut the episode off.
        MAX_STEPS: The limit of that name was reached; likewise `MAX_CONTEXT_TOKENS`, `MAX_SAMPLED_TOKENS` and
            `MAX_TOOL_CALLS`.
        CUT: The policy or its server cut a reply (`finish_reason == "length"`) before any limit of the episode or of
            the turn was reached, and `Limits.end_on_cut` is set.
        ABORTED: The policy was interrupted `MAX_EMPTY_ABORTS` times in a row without sampling a token, or `MAX_ABORTS`
            times in one reply.
        NO_END: The episode had `STEPS_WITHOUT_LIMIT` steps and no limit.
        CONTEXT_FULL: The context was too long, and the history policy had nothing left to drop.
        IDLE: The program of a gateway's session sent no request for too long.
        SHUTDOWN: The gateway was shut down.
        ERROR: Something failed. What was sampled before is kept.
    """

    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    MAX_STEPS = "max_steps"
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    MAX_SAMPLED_TOKENS = "max_sampled_tokens"
    MAX_TOOL_CALLS = "max_tool_calls"
    CUT = "cut"
    ABORTED = "aborted"
    NO_END = "no_end"
    CONTEXT_FULL = "context_full"
    IDLE = "idle"
    SHUTDOWN = "shutdown"
    ERROR = "error"


class Limits(BaseModel):
    """Limits of an episode; None means no limit. An episode that reaches a limit is truncated after its last reply.

    Attributes:
        max_steps: The most steps (replies) in the episode.
        max_context_tokens: The most tokens in a context, prompt and reply together.
        max_sampled_tokens: The most tokens that the policy samples in the episode.
        max_tool_calls: The most tool calls that are run in the episode.
        end_on_cut: Whether a reply that was cut ends the episode. The stop reason is the limit that cut the reply
            (`max_context_tokens` or `max_sampled_tokens`), else `cut`. A reply that `Turn(max_tokens=)` cut does not
            end the episode.
        max_handoff_depth: How deeply handoffs may be nested. A deeper handoff raises a `HandoffError`; it does not end
            the episode with a stop reason. A branch of the context tools counts, too; the model gets an error.

    The steps, sampled tokens and tool calls of a sub-agent also count for the agents that handed over to it. An episode
    with neither `max_steps` nor `max_sampled_tokens` ends after 1,000 steps, with a warning, because a history policy
    may make room in a context again and again. With `max_sampled_tokens` alone, only replies without a token count
    toward these 1,000 steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    max_steps: Annotated[Count, Field(ge=1)] | None = None
    max_context_tokens: Annotated[Count, Field(ge=1)] | None = None
    max_sampled_tokens: Annotated[Count, Field(ge=1)] | None = None
    max_tool_calls: Annotated[Count, Field(ge=1)] | None = None
    end_on_cut: bool = True
    max_handoff_depth: Annotated[Count, Field(ge=0)] = 8

    @classmethod
    def of(cls, value: "Limits | Mapping[str, Any] | None", default: "Limits") -> "Limits":
        """Return limits, given in one of the forms that `Env(limits=)` accepts.

        Args:
            value: A `Limits`; a mapping, which changes the fields of `default` that it names (None removes a limit); or
                None for `default`.
            default: The limits that a mapping changes.

        Raises:
            ConfigError: If `value` has another type, or a field is unknown or out of range.
        """
        if value is None:
            return default
        if isinstance(value, Limits):
            return value
        try:
            return cls.model_validate({**dict(default), **dict(value)})
        except ValidationError as error:
            raise ConfigError(
                f"limits is {brief(value)}, which is not valid: {what_is_invalid(error, cls.model_fields)}. Its "
                f"fields: {', '.join(cls.model_fields)}"
            ) from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"limits is {brief(value)}; expected a Limits or a mapping of its fields") from error


explain_arguments(globals())
