"""What a set of trajectories costs, counted in tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from ..errors import ConfigError
from ..trajectories.steps import Step
from ..trajectories.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class BreakCost:
    """What the breaks of one reason cost."""

    breaks: int = 0
    dropped: int = 0
    """Tokens that the policy had seen or sampled and that are gone."""
    kept: int = 0
    """Tokens that stood in the KV cache already, ..."""
    handed_out: int = 0
    """... and those that were handed out at these breaks: what was written again, and what was new."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of a set of trajectories. What is trained counts the episodes and sub-agents that did not fail."""

    episodes: int
    failed: int
    contexts: int
    steps: int
    sampled: int
    """Tokens that the policy sampled."""
    handed_out: int
    """Tokens that it was given: what a sampler with a KV cache has to read."""
    kept: int
    """Tokens of prompts that stood in the KV cache already: its own, or that of the context it starts from."""
    samples: int
    trained: int
    """Tokens with mask True."""
    as_samples: int
    """Tokens that a trainer computes over when each sample is a sequence of its own."""
    as_tree: int
    """The same when the samples of an episode are one prefix tree."""
    breaks: dict[str, BreakCost]
    """By reason."""

    @property
    def prompts(self) -> int:
        """Tokens of all prompts: what a sampler without a KV cache has to read."""
        return self.kept + self.handed_out

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {**asdict(self), "prompts": self.prompts}

    def __str__(self) -> str:
        failed = f" ({self.failed} failed)" if self.failed else ""
        counts = f"{self.contexts:,} contexts, {self.steps:,} steps, {self.samples:,} samples"
        lines = [
            f"{self.episodes:,} episodes{failed}, {counts}",
            f"sampled {self.sampled:,} tokens, handed out {self.handed_out:,}",
            f"prompts {self.prompts:,} tokens, {_share(self.kept, self.prompts)} of them kept by the KV cache",
            f"trained {self.trained:,} tokens: {self.as_samples:,} as samples, {self.as_tree:,} as trees",
        ]
        for reason, part in sorted(self.breaks.items()):
            lines.append(
                f"{part.breaks:,} {reason}: {part.dropped:,} tokens dropped, {part.kept:,} kept, {part.handed_out:,} "
                "handed out there"
            )
        return "\n".join(lines)


def cost(trajectories: Trajectory | Iterable[Trajectory]) -> Cost:
    """Count the tokens of trajectories.

    Args:
        trajectories: One, or several; failed ones count as far as they went, and nothing of them is trained. Of a fork
            only what came after it was forked counts.

    Raises:
        ConfigError: If they are something else.
        UndeclaredBreak: If a step drops tokens and no break says so.
    """
    episodes = _listed(trajectories)
    steps = [step for trajectory in episodes for step in _own_steps(trajectory)]
    samples = [sample for trajectory in episodes for sample in trajectory.samples()]
    return Cost(
        episodes=len(episodes),
        failed=sum(trajectory.status == "error" for trajectory in episodes),
        contexts=sum(len(trajectory.contexts) for trajectory in episodes),
        steps=len(steps),
        sampled=sum(step.stop - step.action_start for step in steps),
        handed_out=sum(step.action_start - step.start for step in steps),
        kept=sum(step.keep for step in steps),
        samples=len(samples),
        trained=sum(int(np.count_nonzero(sample.mask)) for sample in samples),
        as_samples=sum(len(sample) for sample in samples),
        as_tree=sum(trajectory.tree_size() for trajectory in episodes),
        breaks=_by_reason(episodes),
    )


def _listed(trajectories: Any) -> list[Trajectory]:
    is_several = isinstance(trajectories, Iterable)  # pyright: ignore[reportUnknownVariableType]
    listed: list[Any] = list(cast("Any", trajectories)) if is_several else [trajectories]
    for index, trajectory in enumerate(listed):
        if not isinstance(trajectory, Trajectory):
            raise ConfigError(f"trajectory {index} is a {type(trajectory).__name__}; expected a Trajectory")
    return listed


def _own_steps(trajectory: Trajectory) -> list[Step]:
    """Its steps, without those before it was forked off another episode."""
    return [step for step in trajectory.steps if not trajectory.is_copied(step)]


def _by_reason(trajectories: Sequence[Trajectory]) -> dict[str, BreakCost]:
    costs: dict[str, BreakCost] = {}
    for trajectory in trajectories:
        for step in _own_steps(trajectory):
            if step.break_ is not None:
                met = BreakCost(1, step.break_.dropped, step.keep, step.action_start - step.start)
                _add(costs, step.break_.reason, met)
        if trajectory.final_break is not None:  # what was handed out there, nobody has read
            _add(costs, trajectory.final_break.reason, BreakCost(1, trajectory.final_break.dropped))
    return costs


def _add(costs: dict[str, BreakCost], reason: str, met: BreakCost) -> None:
    known = costs.get(reason, BreakCost())
    costs[reason] = replace(
        known,
        breaks=known.breaks + met.breaks,
        dropped=known.dropped + met.dropped,
        kept=known.kept + met.kept,
        handed_out=known.handed_out + met.handed_out,
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"
