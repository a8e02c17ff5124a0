"""Figures of a set of trajectories, as a table and as lines of text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._visible import on_one_line, visible
from ..trajectories._samples import Sample
from ..trajectories._tally import Tally, tally
from ..trajectories._trajectory import Trajectory

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class TrajectoryReport:
    """Figures of a set of trajectories and their samples.

    Attributes:
        tally: The facts of the trajectories.
        samples: The number of samples.
        sample_tokens: The tokens that a trainer processes if each sample is a separate sequence.
        tree_tokens: The tokens that a trainer processes if the samples of each episode are one prefix tree.
    """

    tally: Tally
    samples: int
    sample_tokens: int
    tree_tokens: int

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> "TrajectoryReport":
        """Add up the figures of trajectories and their samples."""
        sizes = sum(map(len, samples)), sum(trajectory.tree_size() for trajectory in trajectories)
        return cls(tally(trajectories), len(samples), *sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON."""
        names = ("episodes", "failed", "scored", "mean_reward", "steps", "breaks", "stop_reasons", "metrics")
        tokens = ("observed_tokens", "sampled_tokens")
        return {
            **{name: getattr(self.tally, name) for name in names},
            "samples": self.samples,
            **{name: getattr(self.tally, name) for name in tokens},
            "sample_tokens": self.sample_tokens,
            "tree_tokens": self.tree_tokens,
        }


def summary(report: TrajectoryReport) -> Iterator[str]:
    """Yield lines with facts that the table does not show: how episodes ended, breaks by reason, and the metrics."""
    facts, metrics = report.tally, dict(sorted(report.tally.metrics.items()))
    if facts.scored < facts.episodes:
        yield f"scored {facts.scored} of {facts.episodes}: the mean reward is over these"
    for name, counts in (("ended", facts.stop_reasons), ("breaks", facts.breaks)):
        if counts:
            yield f"{name}: " + ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    calls, errors = metrics.pop("tool_calls", None), metrics.pop("tool_errors", 0)
    crashes = metrics.pop("tool_crashes", 0)
    if calls is not None:
        yield f"tool errors: {errors:g} of {calls:g} calls" + (f", {crashes:g} of them crashes" if crashes else "")
    if metrics:
        yield "metrics: " + ", ".join(f"{name} {value:g}" for name, value in metrics.items())


# Headings are whole words and numbers never wrap, so that a row is one line of 80 columns.
_COLUMNS = ("mean\nreward", "\nsteps", "\nbreaks", "\nsamples", "tokens\nobserved", "as\nsamples", "as a\ntree")


def table(title: str, rows: Sequence[tuple[Sequence[str], TrajectoryReport]], labels: Sequence[str]) -> "Table":
    """Return reports as a table, with one row each.

    Args:
        title: The title of the table.
        rows: For each row its labels and its report.
        labels: The headings of the label columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    caption = "Tokens observed; tokens trained as samples, or as a tree."
    drawn = Table(
        title=Text(on_one_line(title), "italic"), caption=caption, box=SIMPLE_HEAD, padding=0, show_edge=False
    )
    for label in labels:
        drawn.add_column("\n" + label, no_wrap=True)
    for column in _COLUMNS:
        drawn.add_column(column, justify="right", no_wrap=True)
    for names, report in rows:
        facts = report.tally
        mean = "–" if facts.mean_reward is None else f"{facts.mean_reward:.3f}"
        counts = facts.steps, sum(facts.breaks.values()), report.samples
        tokens = [f"{count:,}" for count in (facts.observed_tokens, report.sample_tokens, report.tree_tokens)]
        drawn.add_row(*(Text(visible(cell)) for cell in (*names, mean, *map(str, counts), *tokens)))
    return drawn
