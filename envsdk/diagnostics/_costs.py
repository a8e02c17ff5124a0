"""The cost of a set of trajectories, in tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from ..errors import ConfigError
from ..trajectories._media import observed_images
from ..trajectories._steps import Step
from ..trajectories._trajectory import Trajectory
from ._cache_hits import CacheHits, cache_hits


@dataclass(frozen=True, slots=True)
class BreakCost:
    """The cost of the breaks with one reason, in tokens.

    Attributes:
        breaks: The number of breaks.
        dropped: The tokens of the contexts that were dropped.
        kept: The tokens of the prompts after the breaks that a KV cache holds already.
        observed: The tokens that were observed at the breaks: rewritten ones and new ones.
    """

    breaks: int = 0
    dropped: int = 0
    kept: int = 0
    observed: int = 0

    def __add__(self, other: "BreakCost") -> "BreakCost":
        return BreakCost(
            breaks=self.breaks + other.breaks,
            dropped=self.dropped + other.dropped,
            kept=self.kept + other.kept,
            observed=self.observed + other.observed,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a set of trajectories, in tokens. The sum of two costs is that of both sets.

    `samples`, `trained`, `as_samples` and `as_tree` leave out failed episodes and failed sub-agents.

    Attributes:
        episodes: The number of episodes.
        failed: The number of episodes that failed.
        contexts: The number of contexts.
        steps: The number of steps.
        sampled: The tokens that the policy sampled.
        observed: The tokens of all observations, which a sampler with a KV cache has to process.
        kept: The tokens of prompts that a KV cache holds already, of the same context or of its base.
        samples: The number of samples.
        trained: The tokens with mask True.
        as_samples: The tokens that a trainer processes if each sample is a separate sequence.
        as_tree: The tokens that a trainer processes if the samples of each episode are one prefix tree.
        breaks: The cost of the breaks, by their reason.
        cache: The cache hits that servers reported; None if they reported nothing.
        images: The images of all observations, each as often as it was observed.
        image_tokens: Their tokens, which are part of `observed`.
        prompts: The tokens of all prompts, `kept + observed`, which a sampler without a KV cache has to process.
    """

    episodes: int
    failed: int
    contexts: int
    steps: int
    sampled: int
    observed: int
    kept: int
    samples: int
    trained: int
    as_samples: int
    as_tree: int
    breaks: dict[str, BreakCost]
    cache: CacheHits | None = None
    images: int = 0
    image_tokens: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        reasons = dict.fromkeys([*self.breaks, *other.breaks])
        breaks = {
            reason: self.breaks.get(reason, BreakCost()) + other.breaks.get(reason, BreakCost()) for reason in reasons
        }
        caches = [cache for cache in (self.cache, other.cache) if cache is not None]
        return Cost(
            **counts, breaks=breaks, cache=caches[0] + caches[1] if len(caches) == 2 else next(iter(caches), None)
        )

    @property
    def prompts(self) -> int:
        """The tokens of all prompts, which a sampler without a KV cache has to process."""
        return self.kept + self.observed

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `prompts` as plain values for JSON."""
        cache = None if self.cache is None else self.cache.to_dict()
        return {**asdict(self), "cache": cache, "prompts": self.prompts}

    def __str__(self) -> str:
        failed = f" ({self.failed} failed)" if self.failed else ""
        counts = f"{self.contexts:,} contexts, {self.steps:,} steps, {self.samples:,} samples"
        lines = [
            f"{self.episodes:,} episodes{failed}, {counts}",
            f"sampled {self.sampled:,} tokens, observed {self.observed:,}",
            f"prompts {self.prompts:,} tokens, {_share(self.kept, self.prompts)} of them kept by the KV cache",
            f"trained {self.trained:,} tokens: {self.as_samples:,} as samples, {self.as_tree:,} as trees",
        ]
        if self.image_tokens:
            lines[1] += f", {self.image_tokens:,} of them of {self.images:,} image{'s' * (self.images > 1)}"
        if self.cache is not None:
            lines.insert(3, str(self.cache))
        for reason, part in sorted(self.breaks.items()):
            lines.append(
                f"{part.breaks:,} {reason}: {part.dropped:,} tokens dropped, {part.kept:,} kept, {part.observed:,} "
                "observed there"
            )
        return "\n".join(lines)


_COUNTS = tuple(field.name for field in fields(Cost) if field.type is int)


def cost(trajectories: Trajectory | Iterable[Trajectory]) -> Cost:
    """Count the tokens of trajectories.

    Args:
        trajectories: One trajectory, or several. A failed one counts up to its failure, and none of its tokens are
            trained. A fork counts from the fork on.

    Raises:
        ConfigError: If an item is not a Trajectory.
        UndeclaredBreak: If a step drops tokens without a declared break.
    """
    episodes = _as_list(trajectories)
    steps = [step for trajectory in episodes for step in _own_steps(trajectory)]
    samples = [size for trajectory in episodes for size in trajectory.sample_sizes()]  # checks the records
    images = [
        placed for trajectory in episodes for placed in observed_images(_own_steps(trajectory), trajectory.contexts)
    ]
    return Cost(
        episodes=len(episodes),
        failed=sum(trajectory.status == "error" for trajectory in episodes),
        contexts=sum(len(trajectory.contexts) for trajectory in episodes),
        steps=len(steps),
        sampled=sum(step.stop - step.action_start for step in steps),
        observed=sum(step.action_start - step.start for step in steps),
        kept=sum(step.keep for step in steps),
        samples=len(samples),
        trained=sum(size.trained for size in samples),
        as_samples=sum(size.tokens for size in samples),
        as_tree=sum(trajectory.tree_size() for trajectory in episodes),
        breaks=_by_reason(episodes),
        cache=cache_hits(steps),
        images=len(images),
        image_tokens=sum(placed.stop - placed.start for placed in images),
    )


def _as_list(trajectories: Any) -> list[Trajectory]:
    is_several = isinstance(trajectories, Iterable)  # pyright: ignore[reportUnknownVariableType]
    items: list[Any] = list(cast("Any", trajectories)) if is_several else [trajectories]
    for index, trajectory in enumerate(items):
        if not isinstance(trajectory, Trajectory):
            raise ConfigError(f"trajectory {index} is a {type(trajectory).__name__}; expected a Trajectory")
    return items


def _own_steps(trajectory: Trajectory) -> list[Step]:
    """Return the steps of a trajectory without those that a fork copied from another episode."""
    return [step for step in trajectory.steps if not trajectory.is_copied(step)]


def _by_reason(trajectories: Sequence[Trajectory]) -> dict[str, BreakCost]:
    costs: dict[str, BreakCost] = {}
    for trajectory in trajectories:
        for step in _own_steps(trajectory):
            if step.break_ is not None:
                added = BreakCost(1, step.break_.dropped, step.keep, step.action_start - step.start)
                _add(costs, step.break_.reason, added)
        if trajectory.final_break is not None:  # the policy never read the observation after it
            _add(costs, trajectory.final_break.reason, BreakCost(1, trajectory.final_break.dropped))
    return costs


def _add(costs: dict[str, BreakCost], reason: str, added: BreakCost) -> None:
    costs[reason] = costs.get(reason, BreakCost()) + added


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"
