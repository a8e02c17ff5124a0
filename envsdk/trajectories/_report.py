"""Figures of a set of trajectories, as a table and as text."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._visible import on_one_line, visible
from ._samples import Sample
from ._trajectory import Trajectory

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a set of trajectories and their samples.

    Attributes:
        episodes: How many episodes there are.
        failed: How many of them failed.
        scored: How many of them were scored; see `Trajectory.not_scored_because`.
        mean_reward: The mean over the episodes that were scored; None if there is none.
        steps: How many steps they have.
        breaks: The number of breaks by reason.
        stop_reasons: The number of episodes by stop reason.
        metrics: The sum of each metric over all steps; environments with tools have `tool_calls` and `tool_errors`.
        samples: How many samples there are.
        observed_tokens: How many tokens were observed.
        sampled_tokens: How many tokens were sampled.
        sample_tokens: How many tokens a trainer computes when each sample is a sequence of its own.
        tree_tokens: The same when the samples of an episode form one prefix tree.
    """

    episodes: int
    failed: int
    scored: int
    mean_reward: float | None
    steps: int
    breaks: dict[str, int]
    stop_reasons: dict[str, int]
    metrics: dict[str, float]
    samples: int
    observed_tokens: int
    sampled_tokens: int
    sample_tokens: int
    tree_tokens: int

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> "Report":
        """Add up the figures of trajectories and their samples."""
        sound = [t for t in trajectories if t.status != "error"]
        rewards = [reward for t in trajectories if (reward := t.scored_reward) is not None]
        metrics: Counter[str] = Counter()
        for trajectory in trajectories:
            for step in trajectory.steps:
                metrics.update(step.metrics)  # pyright: ignore[reportArgumentType] (it adds floats as well)
        return cls(
            episodes=len(trajectories),
            failed=len(trajectories) - len(sound),
            scored=len(rewards),
            mean_reward=sum(rewards) / len(rewards) if rewards else None,
            steps=sum(len(t.steps) for t in trajectories),
            breaks=dict(Counter(break_.reason for t in trajectories for break_ in t.breaks)),
            stop_reasons=dict(Counter(t.stop_reason for t in trajectories)),
            metrics=dict(sorted(metrics.items())),
            samples=len(samples),
            observed_tokens=sum(t.observed_tokens for t in trajectories),
            sampled_tokens=sum(t.sampled_tokens for t in trajectories),
            sample_tokens=sum(len(sample) for sample in samples),
            tree_tokens=sum(t.tree_size() for t in sound),
        )


def summary(report: Report) -> Iterator[str]:
    """Yield lines with what the table has no room for: how episodes ended, and the metrics."""
    if report.scored < report.episodes:
        yield f"scored {report.scored} of {report.episodes}: the mean reward is of these"
    yield "ended: " + ", ".join(f"{count} {reason}" for reason, count in sorted(report.stop_reasons.items()))
    metrics = dict(report.metrics)
    calls, errors = metrics.pop("tool_calls", None), metrics.pop("tool_errors", 0)
    crashes = metrics.pop("tool_crashes", 0)
    if calls is not None:
        yield f"tool errors: {errors:g} of {calls:g} calls" + (f", {crashes:g} of them crashes" if crashes else "")
    if metrics:
        yield "metrics: " + ", ".join(f"{name} {value:g}" for name, value in metrics.items())


# Headings have two lines and numbers never wrap, so that the table fits into 80 columns.
_COLUMNS = ("epi-\nsodes", "mean\nreward", "\nsteps", "breaks by\nreason", "sam-\nples")
_TOKEN_COLUMNS = ("ob-\nserved", "as\nsamples", "as a\ntree")


def table(title: str, rows: Sequence[tuple[Sequence[str], Report]], labels: Sequence[str]) -> "Table":
    """Return reports as a table, with one row each.

    Args:
        title: The title of the table.
        rows: For each row its labels and its report.
        labels: The headings of the label columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    caption = "Tokens observed, tokens trained as separate samples, tokens trained as a prefix tree."
    drawn = Table(
        title=Text(on_one_line(title), "italic"), caption=caption, box=SIMPLE_HEAD, padding=0, show_edge=False
    )
    for label in labels:
        drawn.add_column("\n" + label, no_wrap=True)
    for column in (*_COLUMNS, *_TOKEN_COLUMNS):
        if column.startswith("breaks"):
            drawn.add_column(column, min_width=13, overflow="fold")
        else:
            drawn.add_column(column, justify="right", no_wrap=True)
    for names, report in rows:
        drawn.add_row(*(Text(visible(cell)) for cell in (*names, *_cells(report))))
    return drawn


def _cells(report: Report) -> list[str]:
    failed = f" ({report.failed} failed)" if report.failed else ""
    tokens = (report.observed_tokens, report.sample_tokens, report.tree_tokens)
    return [
        f"{report.episodes}{failed}",
        "–" if report.mean_reward is None else f"{report.mean_reward:.3f}",
        str(report.steps),
        "\n".join(f"{count} {_wrapped(reason)}" for reason, count in sorted(report.breaks.items())) or "none",
        str(report.samples),
        *(f"{count:,}" for count in tokens),
    ]


def _wrapped(reason: str) -> str:
    return reason.replace("_", "_\n", 1)
