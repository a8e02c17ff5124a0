"""How long an episode may go on, and why it ended."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import ConfigError, what_is_invalid

UNLIMITED = 2**31 - 1
"""What `info["max_tokens"]` says where nothing limits a reply; `min()` with a sampler's own limit does the rest."""


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
    """A reply was cut (`finish_reason == "length"`) and `end_on_cut` is set."""
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
        end_on_cut: Whether a reply that was cut ends the episode.
        max_handoff_depth: How deep handoffs may nest. One that goes deeper is an error, and no end.

    What a sub-agent does counts for those that handed over to it, too, but for `max_context_tokens`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_steps: int | None = Field(default=None, ge=1)
    max_context_tokens: int | None = Field(default=None, ge=1)
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = Field(default=None, ge=1)
    end_on_cut: bool = True
    max_handoff_depth: int = Field(default=8, ge=0)

    @classmethod
    def of(cls, value: "Limits | Mapping[str, Any] | None", default: "Limits") -> "Limits":
        """Read what an author or a specification gave as limits; None gives `default`."""
        if value is None:
            return default
        if isinstance(value, Limits):
            return value
        try:
            return cls.model_validate(dict(value))
        except ValidationError as error:
            raise ConfigError(f"limits {value!r} are not valid: {what_is_invalid(error)}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"limits are a Limits or a mapping, got {value!r}") from error
