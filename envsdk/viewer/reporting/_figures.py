"""The figures of runs, and of comparisons: frozen data that becomes JSON, independent of files and pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...diagnostics._costs import Cost
from ...diagnostics._history_gap import HistoryGap

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_BINS = 20


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of the values of a quantity.

    Attributes:
        count: How many values there are, at least one.
        mean: Their mean.
        minimum: The smallest.
        quartiles: The 25th, 50th and 75th percentile.
        maximum: The largest.
        edges: The edges of a histogram, one more than `counts`: the same for all runs of a report. Equal values give
            one bin of width 1.
        counts: The number of values in each bin. The last bin includes its upper edge.
    """

    count: int
    mean: float
    minimum: float
    quartiles: tuple[float, float, float]
    maximum: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[float], edges: Sequence[float]) -> "Distribution | None":
        """Return the distribution of values; None if there are none.

        Args:
            values: The values.
            edges: The edges of the histogram, which include all values.
        """
        if not values:
            return None
        found = np.asarray(values, dtype=np.float64)
        counts, _ = np.histogram(found, bins=np.asarray(edges, dtype=np.float64))
        low, median, high = np.quantile(found, [0.25, 0.5, 0.75]).tolist()
        return cls(
            count=len(found),
            mean=math.fsum(values) / len(found),
            minimum=float(found.min()),
            quartiles=(low, median, high),
            maximum=float(found.max()),
            edges=tuple(edges),
            counts=tuple(counts.tolist()),
        )


def histogram_edges(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the edges of a histogram: one bin for each whole number if there are few, else at most 20 bins."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.array([low - 0.5, low + 0.5])
    if high - low < _MAX_BINS and np.array_equal(values, values.round()):
        return np.arange(low - 0.5, high + 1.0)
    return np.linspace(low, high, _MAX_BINS + 1)


@dataclass(frozen=True, slots=True)
class MeanReward:
    """The mean reward of a run with its interval.

    Attributes:
        mean: The mean over tasks of the mean reward of their scored episodes.
        low: The lower end of the 95 % interval, from a bootstrap over tasks; None for fewer than two tasks.
        high: The upper end.
        tasks: How many tasks have a scored episode.
        episodes: How many episodes were scored.
    """

    mean: float
    low: float | None
    high: float | None
    tasks: int
    episodes: int


@dataclass(frozen=True, slots=True)
class Breaks:
    """The breaks of a run with one reason.

    Attributes:
        breaks: How many there are.
        episodes: How many episodes have one.
        dropped: The tokens that they dropped.
        kept: The tokens of the prompts after them that a KV cache holds already.
        observed: The tokens that were observed at them: rewritten ones and new ones.
    """

    breaks: int
    episodes: int
    dropped: int
    kept: int
    observed: int


@dataclass(frozen=True, slots=True)
class EpisodeLink:
    """One episode, with the command and the address that show it.

    Attributes:
        line: The number of its line, from 1.
        id: Its id.
        reward: Its reward; None if it failed or was not scored.
        steps: The number of its steps.
        stop_reason: Why it ended.
        task: Its task as a short string.
        command: The command that prints it.
        url: Its address in the page of `envsdk view`.
    """

    line: int
    id: str
    reward: float | None
    steps: int
    stop_reason: str
    task: str
    command: str
    url: str


@dataclass(frozen=True, slots=True)
class FailureClass:
    """The failures of one class.

    Attributes:
        kind: What caused the error: `environment`, `policy`, `infrastructure`; `unknown` if that was not recorded.
        error: The type of the error.
        count: How many episodes failed with it.
        message: The message of the first one.
        example: The first one.
    """

    kind: str
    error: str
    count: int
    message: str
    example: EpisodeLink


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be read.

    Attributes:
        file: The name of the file.
        line: The number of the line, from 1.
        why: A description of the damage.
    """

    file: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Estimates of KL(sampler || reference) in nats per token, over the samples that have both log-probabilities.

    Source: J. Schulman, "Approximating KL divergence", 2020. See `envsdk.diagnostics.Estimate`.

    Attributes:
        samples: How many samples have both.
        tokens: How many trained tokens these have.
        k1: `mean(-d)` for `d = lp_reference - lp_sampler`.
        k2: `mean(d**2) / 2`.
        k3: `mean(exp(d) - 1 - d)`.
        outliers: How many tokens are at least twice as likely for one of the two.
    """

    samples: int
    tokens: int
    k1: float
    k2: float
    k3: float
    outliers: int


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of one run. Its strings are as recorded: escape them before you print them.

    Attributes:
        name: A short name, unique in the report.
        path: The path of the run.
        envs: How many episodes there are of each environment.
        policy: The policy's name; empty if there is no `run.json`, and so for the next three.
        model: The model's name.
        renderer: The renderer's name.
        created: When the run began: ISO 8601, in UTC.
        is_complete: Whether the run is complete; None if that is unknown.
        planned: The planned number of episodes; 0 if that is unknown.
        policy_versions: The versions of the weights that sampled it, in order.
        episodes: How many episodes could be read, failed ones included.
        failed: How many of them failed.
        not_scored: How many did not fail and were not scored. They are left out of the rewards.
        not_scored_because: How many episodes have each reason of `Trajectory.not_scored_because`, failed ones included.
        statuses: How many episodes have each status.
        stop_reasons: How many ended for each reason, the most frequent first.
        mean_reward: The mean reward of scored episodes with its interval; None if none was scored.
        reward: The rewards of the scored episodes.
        rewards: The sum of each named reward in an episode, over the scored episodes that have it.
        metrics: The sum of each metric over all episodes.
        steps: The steps of the episodes that did not fail, and so for the next three.
        observed_tokens: Their observed tokens.
        sampled_tokens: Their sampled tokens.
        duration_s: How long they took, in seconds, if the run recorded it.
        reply_errors: How many errors their replies have (`Message.errors`).
        breaks: The breaks by reason.
        costs: The cost of the episodes by history policy.
        failures: The failures by class, the most frequent first.
        divergence: The divergence of the sampler from the trainer or the reference; None if it cannot be computed.
        no_divergence_because: Why `divergence` is None; empty otherwise.
        best: The scored episodes with the highest rewards.
        worst: Those with the lowest rewards, if they are lower than the highest one and not in `best`.
        damaged: The lines that could not be read.
        unread_bytes: The number of bytes after the last whole line: a line that is being written, or was cut off.
        changes: What had changed when this segment of the run began (`allow_changed`); empty for the first segment.
        history_gap: What forgetting cost in nats; None if no model was given.
    """

    name: str
    path: str
    envs: Mapping[str, int]
    policy: str
    model: str
    renderer: str
    created: str
    is_complete: bool | None
    planned: int
    policy_versions: tuple[int, ...]
    episodes: int
    failed: int
    not_scored: int
    not_scored_because: Mapping[str, int]
    statuses: Mapping[str, int]
    stop_reasons: Mapping[str, int]
    mean_reward: MeanReward | None
    reward: Distribution | None
    rewards: Mapping[str, Distribution]
    metrics: Mapping[str, float]
    steps: Distribution | None
    observed_tokens: Distribution | None
    sampled_tokens: Distribution | None
    duration_s: Distribution | None
    reply_errors: int
    breaks: Mapping[str, Breaks]
    costs: Mapping[str, Cost]
    failures: tuple[FailureClass, ...]
    divergence: Divergence | None
    no_divergence_because: str
    best: tuple[EpisodeLink, ...]
    worst: tuple[EpisodeLink, ...]
    damaged: tuple[Damage, ...]
    unread_bytes: int
    changes: str = ""
    history_gap: HistoryGap | None = None


@dataclass(frozen=True, slots=True)
class QuantityDifference:
    """The difference of one quantity between two runs: the second minus the first.

    Attributes:
        quantity: The quantity: `reward`, `reward.NAME`, `failed` (the share of episodes), `steps`,
            `observed_tokens` or `sampled_tokens`.
        method: `paired`: over the tasks that both runs have. `unpaired`: over all tasks of each run.
        first: The mean of the first run over these tasks, each the mean of its episodes.
        second: That of the second run.
        difference: `second - first`.
        low: The lower end of the 95 % interval, from a bootstrap over tasks; None for fewer than two tasks.
        high: The upper end.
        p_value: The two-sided probability of such a difference by chance, from the same bootstrap.
        tasks: How many tasks of the first and of the second run are compared.
        episodes: How many episodes of each run these tasks have.
    """

    quantity: str
    method: str
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    tasks: tuple[int, int]
    episodes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The differences between one run and another.

    Attributes:
        first: The name of the run that it is compared with.
        second: The name of the run that is compared.
        differences: The differences, one for each quantity.
        notes: Caveats, as sentences.
    """

    first: str
    second: str
    differences: tuple[QuantityDifference, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """The figures of runs.

    Attributes:
        runs: The figures of each run.
        comparisons: The comparison of each further run with the first.
        viewer: The command that serves the page to which the links lead.
    """

    runs: tuple[RunFigures, ...]
    comparisons: tuple[RunComparison, ...] = ()
    viewer: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON; a number that is not finite is None."""
        record = _plain(asdict(self))
        for run, own in zip(record["runs"], self.runs, strict=True):
            run["costs"] = {history: cost.to_dict() for history, cost in own.costs.items()}
        return record


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("Sequence[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
