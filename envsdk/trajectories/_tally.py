"""The facts of episodes that run statistics, scores, reports, costs and the viewer count."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from ._trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Tally:
    """The facts of an episode, or of several: the sum of two tallies is that of both sets of episodes.

    Attributes:
        episodes: The number of episodes.
        statuses: The number of episodes by status.
        stop_reasons: The number of episodes by stop reason.
        failures: The number of failed episodes by `Trajectory.error_kind`; `unknown` if it was not recorded.
        errors: The number of failed episodes by the type of the error.
        scored: The number of episodes that were scored.
        not_scored: The number of episodes that were not, by `Trajectory.not_scored_because`.
        reward: The sum of the rewards of the episodes that were scored.
        rewards: The sum of each named reward of the episodes that were scored.
        metrics: The sum of each metric over all steps; environments with tools have `tool_calls` and `tool_errors`.
        contexts: The number of contexts.
        failed_contexts: The number of contexts of sub-agents that failed.
        steps: The number of steps.
        sampled_tokens: The tokens that policies sampled.
        observed_tokens: The tokens of all observations, which a sampler with a KV cache has to process.
        kept_tokens: The tokens of prompts that a KV cache holds already, of the same context or of its base.
        images: The images of all observations, each as often as it was observed.
        image_tokens: The tokens of these images, which are part of the observed ones.
        breaks: The number of breaks by reason.
        reply_errors: The number of errors in the replies.
        policy_versions: The versions of the weights that sampled the replies.
    """

    episodes: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    stop_reasons: dict[str, int] = field(default_factory=dict[str, int])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    errors: dict[str, int] = field(default_factory=dict[str, int])
    scored: int = 0
    not_scored: dict[str, int] = field(default_factory=dict[str, int])
    reward: float = 0.0
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    contexts: int = 0
    failed_contexts: int = 0
    steps: int = 0
    sampled_tokens: int = 0
    observed_tokens: int = 0
    kept_tokens: int = 0
    images: int = 0
    image_tokens: int = 0
    breaks: dict[str, int] = field(default_factory=dict[str, int])
    reply_errors: int = 0
    policy_versions: frozenset[int] = frozenset()

    @classmethod
    def of(cls, trajectory: Trajectory, *, copied: bool = True) -> "Tally":
        """Count the facts of one episode.

        Args:
            trajectory: The episode.
            copied: Whether the steps that a fork has copied from its original count.
        """
        steps = [step for step in trajectory.steps if copied or not trajectory.is_copied(step)]
        breaks = [step.break_ for step in steps] + [trajectory.final_break]
        images = [
            placed.stop - placed.start
            for step in steps
            for placed in trajectory.contexts[step.context].media
            if step.start <= placed.start < step.action_start
        ]
        versions = {part.policy_version for step in steps for part in step.parts}
        replies = {(step.context, step.reply) for step in steps if step.reply is not None}
        is_failed, why = trajectory.status == "error", trajectory.not_scored_because
        return cls(
            episodes=1,
            statuses={trajectory.status: 1},
            stop_reasons={trajectory.stop_reason: 1},
            failures={trajectory.error_kind or "unknown": 1} if is_failed else {},
            errors={(trajectory.error or "").partition(":")[0]: 1} if is_failed else {},
            scored=int(not why),
            not_scored={why: 1} if why else {},
            reward=0.0 if why else trajectory.reward,
            rewards={} if why else sum_by_name(step.rewards for step in steps),
            metrics=sum_by_name(step.metrics for step in steps),
            contexts=len(trajectory.contexts),
            failed_contexts=sum(log.error is not None for log in trajectory.contexts.values()),
            steps=len(steps),
            sampled_tokens=sum(step.stop - step.action_start for step in steps),
            observed_tokens=sum(step.action_start - step.start for step in steps),
            kept_tokens=sum(step.keep for step in steps),
            images=len(images),
            image_tokens=sum(images),
            breaks=dict(Counter(break_.reason for break_ in breaks if break_ is not None)),
            reply_errors=sum(len(trajectory.contexts[name].messages[index].errors) for name, index in replies),
            policy_versions=frozenset(version for version in versions if version is not None),
        )

    @property
    def failed(self) -> int:
        """The number of episodes that failed."""
        return self.statuses.get("error", 0)

    @property
    def mean_reward(self) -> float | None:
        """The mean reward of the episodes that were scored; None if none was."""
        return self.reward / self.scored if self.scored else None

    def __add__(self, other: "Tally") -> "Tally":
        sums: dict[str, Any] = {}
        for each in fields(self):
            one, two = getattr(self, each.name), getattr(other, each.name)
            if isinstance(one, dict):
                sums[each.name] = sum_by_name((one, two))  # pyright: ignore[reportUnknownArgumentType]
            else:
                sums[each.name] = one | two if isinstance(one, frozenset) else one + two
        return Tally(**sums)


def sum_by_name(numbers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of named numbers, by name."""
    sums: dict[str, Any] = {}
    for named in numbers:
        for name, number in named.items():
            sums[name] = sums.get(name, 0) + number
    return sums


def tally(trajectories: Iterable[Trajectory]) -> Tally:
    """Return the tally of several episodes."""
    return sum(map(Tally.of, trajectories), Tally())
