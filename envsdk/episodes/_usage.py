"""How much of its limits an agent has used."""

from collections.abc import Iterator

from ..limits import STEPS_WITHOUT_LIMIT, Limits, StopReason


class Usage:
    """The counts of an agent and of its sub-agents, against its limits and those of the agents above it.

    Args:
        limits: The agent's own limits.
        parent: The usage of the agent that handed over to it.
        counts_steps_above: Whether its steps count as steps of the agents above it.
    """

    def __init__(self, limits: Limits, parent: "Usage | None", *, counts_steps_above: bool) -> None:
        self.limits = limits
        self.steps = 0
        self.sampled = 0
        self.tool_calls = 0
        self._parent = parent
        self._counts_steps_above = counts_steps_above
        self._empty_handoffs = 0  # how many handoffs in a row came without a reply in between
        self._steps_at_handoff = 0

    def _lineage(self) -> "Iterator[Usage]":
        usage: Usage | None = self
        while usage is not None:
            yield usage
            usage = usage._parent

    def count(self, *, steps: int = 0, sampled: int = 0, tool_calls: int = 0) -> None:
        """Count steps, sampled tokens and tool calls, here and above."""
        usage: Usage | None = self
        while usage is not None:
            usage.steps += steps
            usage.sampled += sampled
            usage.tool_calls += tool_calls
            if not usage._counts_steps_above:
                steps = 0
            usage = usage._parent

    def reached(self) -> StopReason | None:
        """Return the limit that is reached, here or above; `no_end` after the steps that are allowed without any."""
        usage: Usage | None = self
        while usage is not None:
            reason = usage._own_limit()
            if reason is not None:
                return reason
            usage = usage._parent
        return StopReason.NO_END if self.steps >= STEPS_WITHOUT_LIMIT and self._has_no_end() else None

    def _own_limit(self) -> StopReason | None:
        limits = self.limits
        if limits.max_steps is not None and self.steps >= limits.max_steps:
            return StopReason.MAX_STEPS
        if limits.max_sampled_tokens is not None and self.sampled >= limits.max_sampled_tokens:
            return StopReason.MAX_SAMPLED_TOKENS
        if limits.max_tool_calls is not None and self.tool_calls >= limits.max_tool_calls:
            return StopReason.MAX_TOOL_CALLS
        return None

    def _has_no_end(self) -> bool:
        if any(u.limits.max_steps is not None for u in self._lineage()):
            return False
        # Each token brings max_sampled_tokens closer, so that steps with tokens come to an end by themselves.
        return self.sampled_left() is None or self.steps - self.sampled >= STEPS_WITHOUT_LIMIT

    def sampled_left(self) -> int | None:
        """Return how many tokens may still be sampled; None without a limit."""
        least: int | None = None
        usage: Usage | None = self
        while usage is not None:
            limit = usage.limits.max_sampled_tokens
            if limit:
                left = max(0, limit - usage.sampled)
                least = left if least is None else min(least, left)
            usage = usage._parent
        return least

    def tool_calls_left(self, count: int) -> int:
        """Return how many of the last reply's `count` calls may be run."""
        limited = [usage for usage in self._lineage() if usage.limits.max_tool_calls is not None]
        left = [(usage.limits.max_tool_calls or 0) - (usage.tool_calls - count) for usage in limited]
        return max(0, min([count, *left]))

    def hands_over_in_a_circle(self) -> bool:
        """Count a handoff; return whether too many in a row came without a reply in between."""
        self._empty_handoffs = self._empty_handoffs + 1 if self.steps == self._steps_at_handoff else 0
        self._steps_at_handoff = self.steps
        return self._empty_handoffs > STEPS_WITHOUT_LIMIT
