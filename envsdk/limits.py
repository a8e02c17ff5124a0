"""How long an episode may go on, and why it ended."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .errors import ConfigError, what_is_invalid


def plain_integer(value: Any) -> Any:
    """Return a NumPy integer as an int, and any other value as it is."""
    return value.item() if isinstance(value, np.integer) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


Count: TypeAlias = Annotated[int, BeforeValidator(plain_integer)]
"""An int or a NumPy integer, read as an int."""


STEPS_WITHOUT_LIMIT = 1000
"""After this many steps an episode ends that nothing limits."""
MAX_EMPTY_ABORTS = 16
"""After this many interruptions in a row without a token an episode ends."""


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    """The environment said so: the task is over."""
    TRUNCATED = "truncated"
    """The environment cut the episode off."""
    MAX_STEPS = "max_steps"
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    MAX_SAMPLED_TOKENS = "max_sampled_tokens"
    MAX_TOOL_CALLS = "max_tool_calls"
    CUT = "cut"
    """The policy or its server cut a reply (`finish_reason == "length"`) before any limit of the episode or of the
    turn, and `end_on_cut` is set."""
    ABORTED = "aborted"
    """The policy was interrupted `MAX_EMPTY_ABORTS` times in a row without a token."""
    NO_END = "no_end"
    """It had `STEPS_WITHOUT_LIMIT` steps, and nothing limits it."""
    CONTEXT_FULL = "context_full"
    """The history policy has nothing left to drop."""
    ERROR = "error"
    """Something failed; what was sampled before is kept."""


class Limits(BaseModel):
    """Limits of an episode; None is no limit. One that is reached truncates, after the last reply was scored.

    Attributes:
        max_steps: Steps (replies) in the episode.
        max_context_tokens: Tokens in one context, prompt and reply together.
        max_sampled_tokens: Tokens that the policy samples in the episode.
        max_tool_calls: Calls of tools in the episode.
        end_on_cut: Whether a reply that was cut ends the episode: with `max_context_tokens` or `max_sampled_tokens` as
            its reason where that limit cut it, else with `cut`. A reply that `Turn(max_tokens=)` cut ends nothing.
        max_handoff_depth: How deep handoffs may nest. One that goes deeper is an error, and no end.

    What a sub-agent does counts for those that handed over to it, too, but for `max_context_tokens`. An episode with
    neither `max_steps` nor `max_sampled_tokens` ends after 1,000 steps, with a warning: a history policy may make room
    in a context again and again. With `max_sampled_tokens`, only replies without a token count here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_steps: Annotated[Count, Field(ge=1)] | None = None
    max_context_tokens: Annotated[Count, Field(ge=1)] | None = None
    max_sampled_tokens: Annotated[Count, Field(ge=1)] | None = None
    max_tool_calls: Annotated[Count, Field(ge=1)] | None = None
    end_on_cut: bool = True
    max_handoff_depth: Annotated[Count, Field(ge=0)] = 8

    @classmethod
    def of(cls, value: "Limits | Mapping[str, Any] | None", default: "Limits") -> "Limits":
        """Read limits as an author or a specification gives them.

        Args:
            value: A `Limits`, taken as it is; a mapping, which changes the fields that it names (None removes a limit);
                or None, for `default`.
            default: The limits that a mapping changes.

        Raises:
            ConfigError: If `value` is none of these, or a field is unknown or out of range.
        """
        if value is None:
            return default
        if isinstance(value, Limits):
            return value
        try:
            return cls.model_validate({**dict(default), **dict(value)})
        except ValidationError as error:
            raise ConfigError(f"limits {value!r} are not valid: {what_is_invalid(error)}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"limits are a Limits or a mapping, got {value!r}") from error
