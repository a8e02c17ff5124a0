"""A report as sections of paragraphs, tables, charts and commands: the same for HTML and Markdown; short numbers.

Strings are as recorded: a page escapes them. The command line prints the first sections: the summary, and the
comparisons.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..._visible import shorten
from ._comparison import FEW_TASKS
from ._figures import Distribution, QuantityDifference, RunComparison, RunFigures, RunReport

FORGETTING = "What forgetting cost"
"""The title of the section about the history gap."""
_MAX_OPTION, _MAX_HISTORY = 24, 48
_MAX_DAMAGED, _MAX_LISTED = 20, 3
_MAX_ID = 80
_EMPTY = "–"
_DISTRIBUTION = ("n", "mean", "least", "25 %", "median", "75 %", "most")


@dataclass(frozen=True, slots=True)
class Link:
    """A link.

    Attributes:
        text: The text that is shown.
        url: The target.
    """

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line."""

    text: str


Cell: TypeAlias = str | Link | Command


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        heads: The heading of each column.
        rows: The cells.
        texts: The number of columns, from the left, that hold text; the others hold numbers.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of a quantity in one run, on the scale of all runs.

    Attributes:
        title: The caption.
        quantity: What the values are: `steps`, `sampled tokens`, or the name of a reward.
        distribution: The values of the run.
        low: The smallest value of all runs.
        high: The largest value of all runs.
        share: The largest share of the values of a run that one bin has.
    """

    title: str
    quantity: str
    distribution: Distribution
    low: float
    high: float
    share: float


@dataclass(frozen=True, slots=True)
class Intervals:
    """Differences with their intervals. Each quantity has a separate scale, the same in all comparisons."""

    title: str
    differences: tuple[QuantityDifference, ...]
    scales: Mapping[str, float]


Block: TypeAlias = str | Table | Histogram | Intervals | Command


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its heading.
        blocks: Paragraphs, tables, charts and commands, in order.
    """

    title: str
    blocks: tuple[Block, ...]


def interval_of(one: QuantityDifference) -> tuple[float, float, float]:
    """Return the lower end, the difference, and the upper end; without an interval, all three are the difference."""
    low, high = (one.difference if end is None else end for end in (one.low, one.high))
    return low, one.difference, high


def interval_scales(comparisons: Iterable[RunComparison]) -> dict[str, float]:
    """Return the largest distance from 0 of each quantity's differences and their intervals, over all comparisons."""
    found: dict[str, float] = {}
    for one in (difference for comparison in comparisons for difference in comparison.differences):
        found[one.quantity] = max(found.get(one.quantity, 0.0), *map(abs, interval_of(one)))
    return {quantity: distance if distance and math.isfinite(distance) else 1.0 for quantity, distance in found.items()}


def number(value: float) -> str:
    """Format a number for reading: thousands with commas, and about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"


def signed(value: float) -> str:
    """Format a number with its sign."""
    return number(value) if value < 0 or value == 0 else f"+{number(value)}"


def short_history(history: str) -> str:
    """Return a history policy with its long options left out, such as the instruction of `summarize`."""
    name, _, options = history.partition(":")
    parts = [part.partition("=") for part in options.split(",") if len(part) <= _MAX_OPTION]
    shown = ["".join(part) for part in parts if part[2] and part[2][0] not in "[{"]
    return shorten(f"{name}:{','.join(shown)}" if shown else name, _MAX_HISTORY)


def sections_of(report: RunReport) -> list[Section]:
    """Return the sections of a report, without those that would be empty."""
    scales = interval_scales(report.comparisons)
    sections = [
        ("Summary", _summary(report)),
        *((f"{one.second} compared with {one.first}", _comparison(one, scales)) for one in report.comparisons),
        ("Rewards", _rewards(report.runs)),
        ("Lengths", _lengths(report.runs)),
        ("How episodes ended", _endings(report.runs)),
        ("Breaks", _breaks(report.runs)),
        ("Cost by history policy", _costs(report.runs)),
        ("Divergence from the trainer or a reference", _divergence(report.runs)),
        (FORGETTING, _history_gaps(report.runs)),
        ("Failures", _failures(report.runs)),
        ("Best and worst episodes", _episodes(report)),
        ("Damaged lines", _damaged(report.runs)),
    ]
    return [Section(title, blocks) for title, given in sections if (blocks := tuple(given))]


def _summary(report: RunReport) -> Iterator[Block]:
    heads = ("run", "environment", "policy", "history", "episodes", "failed", "not scored")
    rows: list[tuple[Cell, ...]] = []
    for run in report.runs:
        mean, interval = _EMPTY, _EMPTY
        if (given := run.mean_reward) is not None:
            mean = number(given.mean)
            if given.low is not None and given.high is not None:
                interval = f"{number(given.low)} to {number(given.high)}"
        policy = ": ".join(filter(None, (run.policy, run.model))) or _EMPTY
        counts = _counts(run.episodes, run.failed, run.not_scored)
        envs, histories = _listed(run.envs), _listed(map(short_history, run.costs))
        rows.append((run.name, envs, policy, histories, *counts, mean, interval))
    yield Table((*heads, "mean reward", "95 % interval"), tuple(rows), texts=4)
    for run in report.runs:
        for note in _run_notes(run):
            yield _of(report.runs, run, note)


def _run_notes(run: RunFigures) -> Iterator[str]:
    mean = run.mean_reward
    if not run.episodes:
        yield "the run has no episode that could be read."
    elif run.failed == run.episodes:
        yield "all episodes failed, so there is no reward."
    elif mean is None:
        yield "no episode was scored: that is not a reward of 0."
    else:
        tasks, scored = _counted(mean.tasks, "task"), _counted(mean.episodes, "scored episode")
        yield f"the mean reward is over {tasks} with {scored}."
        if run.not_scored_because:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in run.not_scored_because.items())
            yield f"scored {mean.episodes:,} of {_counted(run.episodes, 'episode')}; not scored: {reasons}."
        if mean.low is not None and mean.tasks < FEW_TASKS:
            yield f"with fewer than {FEW_TASKS} tasks, the interval is too narrow."
    if run.changes:
        yield f"it began with this change: {run.changes}."
    if run.damaged:
        yield f"{_counted(len(run.damaged), 'line')} could not be read; the figures are for the others."
    if run.unread_bytes:
        yield f"{run.unread_bytes:,} bytes follow the last whole line: it is being written, or was cut off."
    if run.is_complete is False:
        planned = f" It has {run.episodes:,} of {_counted(run.planned, 'episode')}." if run.planned else ""
        yield f"the run is not complete.{planned}"


def _comparison(comparison: RunComparison, scales: Mapping[str, float]) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    for one in comparison.differences:
        first, second = (f"{count:,}" for count in one.tasks)
        tasks = f"{first} paired" if one.method == "paired" else f"{first} and {second}, unpaired"
        if one.episodes != one.tasks:
            tasks += f"; {one.episodes[0]:,} and {one.episodes[1]:,} episodes"
        p_value = _EMPTY if one.p_value is None else "< 0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}"
        rows.append(
            (
                one.quantity if one.quantity.startswith("reward.") else one.quantity.replace("_", " "),
                tasks,
                number(one.first),
                number(one.second),
                signed(one.difference),
                _EMPTY if one.low is None or one.high is None else f"{signed(one.low)} to {signed(one.high)}",
                p_value,
            )
        )
    if rows:
        heads = ("quantity", "tasks", comparison.first, comparison.second, "difference", "95 % interval", "p")
        yield Table(heads, tuple(rows), texts=2)
        yield Intervals(f"{comparison.second} minus {comparison.first}", comparison.differences, scales)
        yield (
            f"The difference is {comparison.second} minus {comparison.first}. Intervals and p-values are from a "
            "bootstrap over tasks, each with the mean of its episodes. Paired: over the tasks that both runs have."
        )
    yield from comparison.notes


def _rewards(runs: Sequence[RunFigures]) -> Iterator[Block]:
    named = [
        (run, name, own)
        for run in runs
        for name, own in (("reward", run.reward), *run.rewards.items())
        if own is not None
    ]
    if named:
        yield _distributions(runs, "reward", named)
    if any(run.mean_reward and run.mean_reward.tasks != run.mean_reward.episodes for run in runs):
        yield "The means of this table are over episodes; those with intervals are over tasks."
    yield from _histograms(runs, "reward", [(run, run.reward) for run in runs if run.reward is not None])
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    cells = [[name, *(number(run.metrics[name]) if name in run.metrics else _EMPTY for run in runs)] for name in names]
    if cells:
        yield _one_column_each(runs, "metric, over all episodes", "sum", cells)


def _lengths(runs: Sequence[RunFigures]) -> Iterator[Block]:
    names = {"steps": "steps", "observed_tokens": "observed tokens", "sampled_tokens": "sampled tokens"}
    names |= {"duration_s": "duration in s"}
    found = [(run, label, own) for run in runs for name, label in names.items() if (own := getattr(run, name))]
    if found:
        yield _distributions(runs, "of an episode", found)
    for chosen in ("steps", "sampled tokens"):
        yield from _histograms(runs, chosen, [(run, own) for run, label, own in found if label == chosen])
    for run in runs:
        if run.reply_errors:
            errors = _counted(run.reply_errors, "error")
            yield _of(runs, run, f"replies have {errors}: malformed text or calls.")


def _distributions(
    runs: Sequence[RunFigures], head: str, named: Sequence[tuple[RunFigures, str, Distribution]]
) -> Table:
    rows = [
        (run.name, name, f"{own.count:,}", *map(number, (own.mean, own.minimum, *own.quartiles, own.maximum)))
        for run, name, own in named
    ]
    return _by_run(runs, ("run", head, *_DISTRIBUTION), rows, texts=2)


def _histograms(
    runs: Sequence[RunFigures], title: str, found: Sequence[tuple[RunFigures, Distribution]]
) -> Iterator[Block]:
    """Yield the histogram of each run, on one scale; none if all values are the same."""
    low = min((own.minimum for _, own in found), default=0.0)
    high = max((own.maximum for _, own in found), default=0.0)
    if low < high:
        share = max(max(own.counts) / own.count for _, own in found)
        for run, own in found:
            yield Histogram(_of(runs, run, title), title, own, low, high, share)


def _endings(runs: Sequence[RunFigures]) -> Iterator[Block]:
    """Yield the number of episodes by stop reason, with a column for each run."""
    reasons = dict.fromkeys(reason for run in runs for reason in run.stop_reasons)
    if reasons:
        cells = [
            [reason, *(_share(run.stop_reasons.get(reason, 0), run.episodes) for run in runs)] for reason in reasons
        ]
        yield _one_column_each(runs, "stop reason", "episodes", cells)


def _breaks(runs: Sequence[RunFigures]) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = [
        (
            *(run.name, reason, f"{own.breaks:,}", _share(own.episodes, run.episodes)),
            *_counts(own.dropped, own.kept, own.observed),
        )
        for run in runs
        for reason, own in run.breaks.items()
    ]
    if rows:
        heads = ("run", "reason", "breaks", "episodes with one", "dropped tokens", "kept tokens", "observed there")
        yield _by_run(runs, heads, rows, texts=2)
    elif any(run.episodes for run in runs):
        yield "No observation dropped or rewrote anything."


def _costs(runs: Sequence[RunFigures]) -> Iterator[Block]:
    found = [(run, history, cost) for run in runs for history, cost in run.costs.items()]
    if not found:
        return
    heads = ["run", "history", "episodes", "samples", "sampled", "prompts", "kept", "as samples", "as trees", "saved"]
    note = (
        "In tokens. Kept: the share of the prompts that a KV cache holds already. As samples, as trees: what a "
        "trainer processes, each sample as a separate sequence, or the samples of an episode as one prefix tree; "
        "saved is the difference. Failed episodes are not trained."
    )
    has_images = any(cost.images for _, _, cost in found)
    has_cache = any(cost.cache is not None for _, _, cost in found)
    if has_images:
        heads += ["images", "image tokens"]
        note += " Images: as often as they were observed; their tokens are part of the prompts."
    if has_cache:
        heads.append("cache hits")
        note += " Cache hits: the share of the prompts that servers read from their caches."
    rows: list[tuple[Cell, ...]] = []
    for run, history, cost in found:
        row = [run.name, short_history(history), *_counts(cost.episodes, cost.samples, cost.sampled, cost.prompts)]
        row += [
            (f"{cost.kept / cost.prompts:.0%}" if cost.prompts else _EMPTY),
            *_counts(cost.as_samples, cost.as_tree),
        ]
        row.append(f"{(cost.as_samples - cost.as_tree) / cost.as_samples:.0%}" if cost.as_samples else _EMPTY)
        row += _counts(cost.images, cost.image_tokens) if has_images else []
        if has_cache:
            row.append(_EMPTY if cost.cache is None else f"{cost.cache.cached_share:.0%}")
        rows.append(tuple(row))
    yield _by_run(runs, heads, rows, texts=2)
    yield note


def _divergence(runs: Sequence[RunFigures]) -> Iterator[Block]:
    rows = [
        (run.name, *_counts(own.samples, own.tokens), *map(number, (own.k1, own.k2, own.k3)), f"{own.outliers:,}")
        for run in runs
        if (own := run.divergence) is not None
    ]
    if rows:
        yield _by_run(runs, ("run", "samples", "tokens", "k1", "k2", "k3", "outliers"), rows, texts=1)
        yield (
            "Estimates of KL(sampler || trainer or reference) in nats per sampled token (Schulman 2020). Outliers are "
            "tokens that are at least twice as likely for one of the two."
        )
    for run in runs:
        if run.no_divergence_because:
            yield _of(runs, run, f"not known, because {run.no_divergence_because}.")


def _history_gaps(runs: Sequence[RunFigures]) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        gap = run.history_gap
        for reason, one in () if gap is None else [("all replies", gap.all), *gap.by_reason.items()]:
            interval = f"{number(one.low)} to {number(one.high)}"
            rows.append((run.name, reason or "before any break", number(one.mean), interval, *_counts(one.replies)))
    if rows:
        yield _by_run(runs, ("run", "after", "nats", "95 % interval", "replies"), rows, texts=2)
        yield (
            "Mean difference of the log-probability of a sampled token with the past that it saw and with the whole "
            "past, under the same weights: an estimate of KL(as played || keep) in nats per token."
        )
    for run in runs:
        if run.history_gap is not None:
            yield from (_of(runs, run, f"left out: {why}.") for why in run.history_gap.left_out)


def _failures(runs: Sequence[RunFigures]) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        for one in run.failures:
            example = Link(shorten(one.example.id, _MAX_ID), one.example.url)
            rows.append((run.name, one.kind, one.error, example, shorten(one.message, 90), f"{one.count:,}"))
    if rows:
        yield _by_run(runs, ("run", "whose error", "class", "first episode", "its message", "episodes"), rows, texts=5)


def _episodes(report: RunReport) -> Iterator[Block]:
    for run in report.runs:
        rows: list[tuple[Cell, ...]] = []
        for rank, episodes in (("best", run.best), ("worst", run.worst)):
            for one in episodes:
                link, task = Link(shorten(one.id, _MAX_ID), one.url), shorten(one.task, 44) or _EMPTY
                reward = _EMPTY if one.reward is None else number(one.reward)
                shown = (link, task, one.stop_reason, Command(one.command), reward, f"{one.steps:,}")
                rows.append((run.name, rank, *shown))
        if run.reward is not None and run.reward.minimum == run.reward.maximum and run.reward.count > 1:
            yield _of(report.runs, run, f"all scored episodes have the reward {number(run.reward.mean)}.")
        if rows:
            heads = ("run", "rank", "episode", "task", "ended", "command", "reward", "steps")
            yield _by_run(report.runs, heads, rows, texts=6)
    if report.viewer and any(run.best for run in report.runs):
        yield "The links lead to the page of this command:"
        yield Command(report.viewer)


def _damaged(runs: Sequence[RunFigures]) -> Iterator[Block]:
    found = [(run.name, one.file, f"{one.line:,}", shorten(one.why, 160)) for run in runs for one in run.damaged]
    if found:
        yield _by_run(runs, ("run", "file", "line", "what is damaged"), found[:_MAX_DAMAGED], texts=4)
    if len(found) > _MAX_DAMAGED:
        yield f"and {len(found) - _MAX_DAMAGED:,} more"


def _by_run(runs: Sequence[RunFigures], heads: Sequence[str], rows: Sequence[tuple[Cell, ...]], texts: int) -> Table:
    """Return a table whose first column is the run; with a single run, without this column."""
    first = 0 if len(runs) > 1 else 1
    return Table(tuple(heads[first:]), tuple(row[first:] for row in rows), texts - first)


def _one_column_each(runs: Sequence[RunFigures], head: str, single: str, cells: Sequence[Sequence[str]]) -> Table:
    """Return a table with a column for each run, which is named if there are several."""
    heads = [run.name for run in runs] if len(runs) > 1 else [single]
    return Table((head, *heads), tuple(map(tuple, cells)))


def _of(runs: Sequence[RunFigures], run: RunFigures, text: str) -> str:
    """Return a sentence about a run, which is named if there are several."""
    return f"{run.name}: {text}" if len(runs) > 1 else text[0].upper() + text[1:]


def _listed(names: Iterable[str]) -> str:
    """Return names, the first few of them if there are many."""
    found = [shorten(name, _MAX_ID) for name in names]
    more = [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
    return ", ".join([*found[:_MAX_LISTED], *more]) or _EMPTY


def _counts(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.0%})" if whole else "0"


def _counted(value: int, name: str) -> str:
    return f"{value:,} {name}" if value == 1 else f"{value:,} {name}s"
