"""What forgetting cost in nats: the sampled tokens with the past that they saw, and with another one."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .._packages import load
from .._visible import type_of
from ..contexts._history import HistoryPolicy
from ..errors import ConfigError
from ..limits import Limits
from ..rendering._vision import Vision
from ..rendering.renderer import Renderer
from ..trajectories._trajectory import Trajectory
from ._forward import forward_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

History: TypeAlias = str | Mapping[str, Any] | HistoryPolicy
Renderers: TypeAlias = Renderer | Mapping[str, Renderer]
Reply: TypeAlias = tuple[str, int]
"""The name of a context, and the number of a reply in it, from 0."""

_Z = 1.959964  # of a 95 % interval


class GapEstimate(NamedTuple):
    """A mean difference, in nats per token, with its 95 % interval.

    The interval treats replies as independent (the linearized variance of a ratio of sums).

    Attributes:
        mean: The mean over all tokens.
        low: The lower end of the interval; negative infinity for one reply.
        high: The upper end; infinity for one reply.
        tokens: The number of tokens.
        replies: The number of replies.
    """

    mean: float
    low: float
    high: float
    tokens: int
    replies: int


@dataclass(frozen=True, slots=True)
class HistoryGap:
    """The differences of log-probabilities between two pasts, reply by reply.

    Each estimate is the mean of `lp_b - lp_a` over sampled tokens, in nats: an unbiased estimate of KL(b || a) per
    token if the tokens were sampled under past b by this model.

    Attributes:
        a: What the past of `lp_a` is, such as `keep`.
        b: What the past of `lp_b` is; `as played` for the recorded one.
        all: The estimate over all tokens.
        by_step: By the number of the reply in its context, from 1.
        by_reason: By the reason of the last break in the context before the reply; an empty string before any break.
        by_distance: By the number of replies since that break, from 1. Replies before any break are not in it.
        left_out: What could not be compared, a sentence each: replies that one of the two pasts does not have.
    """

    a: str
    b: str
    all: GapEstimate
    by_step: dict[int, GapEstimate]
    by_reason: dict[str, GapEstimate]
    by_distance: dict[int, GapEstimate]
    left_out: list[str]

    def __str__(self) -> str:
        lines = [f"KL({self.b} || {self.a}), in nats per token", f"  all replies: {_written(self.all)}"]
        lines += [f"  after {key or 'no break'}: {_written(one)}" for key, one in self.by_reason.items()]
        lines += [f"  {key} replies after a break: {_written(one)}" for key, one in self.by_distance.items()]
        return "\n".join([*lines, *(f"  left out: {why}" for why in self.left_out)])

    def plot(self, path: str | Path) -> None:
        """Draw the estimates by step, by the reason of the last break and by the distance from it, with intervals.

        Args:
            path: The file, whose suffix is the format: `.png` or `.svg`.

        Raises:
            MissingPackage: If matplotlib is not installed.
        """
        figure = load("matplotlib.figure", "a plot needs", "pip install 'envsdk[examples]'").Figure(
            figsize=(12, 4), layout="constrained"
        )
        draw_gap(figure, self)
        figure.savefig(path)


def history_gap(
    trajectories: Trajectory | Sequence[Trajectory],
    model: Any,
    a: History = "keep",
    b: History | None = None,
    *,
    renderer: Renderers | None = None,
    temperature: float | None = None,
    vision: Vision | None = None,
) -> HistoryGap:
    """Measure what forgetting cost, without a rollout: each sampled token with two pasts, under the same weights.

    Args:
        trajectories: One episode, or several.
        model: A causal language model of transformers: the one that sampled the tokens.
        a: The history policy of the first past. By default everything is visible, also what the model folded.
        b: That of the second; None is the past that each reply saw.
        renderer: The episodes' renderer, or renderers by role; see `Trajectory.under`.
        temperature: The temperature by which logits are divided; see `forward_logprobs`.
        vision: The image processor; see `forward_logprobs`.

    Raises:
        CannotReplay: If an episode cannot be replayed; see `Trajectory.under`.
        ConfigError: If no reply can be compared, or the model does not fit the tokens.
        MissingPackage: If torch is not installed.
    """
    episodes = episodes_of(trajectories)
    by_step: dict[int, list[NDArray[np.float64]]] = {}
    by_reason: dict[str, list[NDArray[np.float64]]] = {}
    by_distance: dict[int, list[NDArray[np.float64]]] = {}
    everything: list[NDArray[np.float64]] = []
    left_out: list[str] = []
    for episode in episodes:
        played = past(episode, b, renderer)
        first = reply_logprobs(past(episode, a, renderer), model, temperature=temperature, vision=vision)
        second = reply_logprobs(played, model, temperature=temperature, vision=vision)
        missing = sum(int(np.count_nonzero(~np.isnan(second[key]))) for key in second.keys() - first.keys())
        if missing:
            left_out.append(f"{episode.id}: {missing} sampled tokens that only {name_of(b)} has")
        last: dict[str, tuple[str, int]] = {}  # by context, the reason of its last break, and the replies since
        for step, key in zip(played.steps, replies_of(played), strict=True):
            reason, distance = last.get(step.context, ("", 0))
            if step.break_ is not None and step.break_.kind == "rewrite":
                reason, distance = step.break_.reason, 0
            last[step.context] = reason, distance + 1
            if key not in first or key not in second:
                continue
            gap = second[key] - first[key]
            gap = gap[~np.isnan(gap)]
            if not gap.size:
                continue
            everything.append(gap)
            by_step.setdefault(key[1] + 1, []).append(gap)
            by_reason.setdefault(reason, []).append(gap)
            if reason:
                by_distance.setdefault(distance + 1, []).append(gap)
    if not everything:
        raise ConfigError("no sampled token is in both pasts, so there is nothing to compare: give other episodes")
    return HistoryGap(
        a=name_of(a),
        b=name_of(b),
        all=_estimate(everything),
        by_step=_estimates(by_step),
        by_reason={key: _estimate(gaps) for key, gaps in by_reason.items()},
        by_distance=_estimates(by_distance),
        left_out=left_out,
    )


def draw_gap(figure: Any, gap: HistoryGap) -> None:
    """Draw the estimates into a figure of matplotlib."""
    panels: dict[str, Mapping[Any, GapEstimate]] = {
        "number of the reply": gap.by_step,
        "last break": {key or "none": one for key, one in gap.by_reason.items()},
        "replies since the last break": gap.by_distance,
    }
    axes: Any = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, estimates) in zip(axes, panels.items(), strict=True):
        keys, means = list(estimates), [one.mean for one in estimates.values()]
        wide = [min(one.high - one.mean, abs(one.mean) + 1) for one in estimates.values()]
        axis.errorbar(keys, means, yerr=wide, marker=".", capsize=2, linestyle="none")
        axis.axhline(0, color="gray", linewidth=0.5)
        axis.set(xlabel=title)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="nats per token")
    figure.suptitle(f"KL({gap.b} || {gap.a})")


def episodes_of(trajectories: Trajectory | Iterable[Trajectory]) -> list[Trajectory]:
    """Return one episode, or several, as a list.

    Raises:
        ConfigError: If `trajectories` is neither.
    """
    given = [trajectories] if isinstance(trajectories, Trajectory) else trajectories
    episodes: list[Any] = list(given) if isinstance(given, Iterable) else [given]  # pyright: ignore[reportUnnecessaryIsInstance]
    wrong = [type_of(one) for one in episodes if not isinstance(one, Trajectory)]
    if wrong or not episodes:
        got = wrong[0] if wrong else "nothing"
        raise ConfigError(f"trajectories has {got}; expected one episode, or a list of them")
    return episodes


def past(trajectory: Trajectory, history: History | None, renderer: Renderers | None) -> Trajectory:
    """Return an episode with another past, also where no context would be long enough; None is the recorded one."""
    return trajectory if history is None else trajectory.under(history, renderer, limits=Limits(), folds=False)


def replies_of(trajectory: Trajectory) -> list[Reply]:
    """Return the reply of each step."""
    numbers: Counter[str] = Counter()
    replies: list[Reply] = []
    for step in trajectory.steps:
        replies.append((step.context, numbers[step.context]))
        numbers[step.context] += 1
    return replies


def reply_logprobs(trajectory: Trajectory, model: Any, **options: Any) -> "dict[Reply, NDArray[np.float64]]":
    """Return the log-probabilities that a model gives to the tokens of each reply, NaN for those that are not trained.

    Args:
        trajectory: The episode.
        model: A causal language model of transformers.
        **options: Those of `forward_logprobs`.
    """
    replies, segments = replies_of(trajectory), trajectory.segments(include_failed=True)
    found: dict[Reply, NDArray[np.float64]] = {}
    for segment, values in zip(
        segments, forward_logprobs(model, trajectory.samples_of(segments), **options), strict=True
    ):
        for place, replayed in enumerate(segment.steps):
            own = np.flatnonzero(segment.step_ids == place)
            step = replayed.step
            logprobs = np.full(step.stop - step.action_start, math.nan)
            logprobs[: len(own)] = np.where(segment.mask[own], values[own].astype(np.float64), math.nan)
            found[replies[replayed.step_index]] = logprobs
    return found


def _estimate(gaps: "Sequence[NDArray[np.float64]]") -> GapEstimate:
    """Return the mean over the tokens of replies, with its interval."""
    sums, counts = np.array([gap.sum() for gap in gaps]), np.array([len(gap) for gap in gaps])
    tokens, replies = int(counts.sum()), len(gaps)
    mean = float(sums.sum() / tokens)
    half = math.inf
    if replies > 1:
        residuals = sums - mean * counts
        half = _Z * math.sqrt(replies / (replies - 1) * float(residuals @ residuals)) / tokens
    return GapEstimate(mean, mean - half, mean + half, tokens, replies)


def _estimates(gaps: "Mapping[int, Sequence[NDArray[np.float64]]]") -> dict[int, GapEstimate]:
    return {key: _estimate(gaps[key]) for key in sorted(gaps)}


def name_of(history: History | None) -> str:
    """Return the name of a past: of its history policy, or `as played`."""
    if history is None:
        return "as played"
    if isinstance(history, str):
        return history
    return str(history.get("name")) if isinstance(history, Mapping) else history.name or type(history).__name__


def _written(one: GapEstimate) -> str:
    interval = "" if math.isinf(one.high) else f" [{one.low:.4g}, {one.high:.4g}]"
    return f"{one.mean:.4g}{interval} over {one.tokens:,} tokens of {one.replies:,} replies"
