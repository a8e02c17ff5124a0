"""Plots of a report by matplotlib, as PNG and SVG."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._packages import load
from ..._palette import OBSERVED, SAMPLED
from ..._visible import on_one_line, shorten
from ...diagnostics._history_gap import draw_gap
from ...trajectories.records import storing
from ._figures import RunComparison, RunFigures, RunReport
from ._sections import interval_of, interval_scales, short_history, signed

_COLORS = ("#3d4955", "#0f8b8d", "#cc79a7", "#9c8b00", "#7b52ab", "#8c959f")
"""The colors of runs: none of those of tokens."""
_OF_TOKENS = {"observed_tokens": OBSERVED.light, "sampled_tokens": SAMPLED.light}
_OF_COSTS = (OBSERVED.light, SAMPLED.light, SAMPLED.light_text)
"""The colors of prompts, of what is trained as samples, and as trees."""
_FORMATS = ("png", "svg")
_SETTINGS = {"svg.hashsalt": "envsdk", "axes.spines.top": False, "axes.spines.right": False, "font.size": 10}


def check_matplotlib() -> tuple[Any, Any]:
    """Return matplotlib and its module `figure`.

    Raises:
        MissingPackage: If matplotlib is not installed.
    """
    first, second = (
        load(name, "a plot needs", "pip install 'envsdk[report]'") for name in ("matplotlib", "matplotlib.figure")
    )
    return first, second


def write_plots(report: RunReport, folder: Path | str) -> list[Path]:
    """Draw rewards, lengths, endings, costs and comparisons, each into a PNG and an SVG file.

    Args:
        report: The figures.
        folder: The folder for the files. It is created with its parents.

    Returns:
        The files. There is no file for figures that the runs do not have, such as rewards if all episodes failed.

    Raises:
        MissingPackage: If matplotlib is not installed.
        StorageError: If a file cannot be written.
    """
    matplotlib, figure = check_matplotlib()
    target, written = Path(folder), list[Path]()
    with storing(target):
        target.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # matplotlib draws a box instead
        for name, (size, draw, *arguments) in _drawings(report).items():
            drawn = figure.Figure(figsize=size, layout="constrained")
            draw(drawn, *arguments)
            for suffix in _FORMATS:
                path = target / f"{name}.{suffix}"
                with storing(path):
                    drawn.savefig(path, dpi=160, metadata={"Date": None} if suffix == "svg" else None)
                written.append(path)
    return written


def _drawings(report: RunReport) -> dict[str, tuple[Any, ...]]:
    """Return the plots by name: the size in inches, a function that draws into a figure, and its arguments."""
    runs = report.runs
    found: dict[str, tuple[Any, ...]] = {}
    if any(run.reward for run in runs):
        found["rewards"] = (7, 4), _histograms, runs, {"reward": "reward"}
    if any(run.steps for run in runs):
        fields = {"steps": "steps", "observed_tokens": "observed tokens", "sampled_tokens": "sampled tokens"}
        found["lengths"] = (12, 4), _histograms, runs, fields
    if any(run.stop_reasons for run in runs):
        names = {name for run in runs for name in (*run.stop_reasons, *run.breaks)}
        found["endings"] = (10, 1.8 + 0.3 * len(names)), _endings, runs
    if any(run.costs for run in runs):
        found["cost"] = (9, 1.6 + 0.8 * sum(len(run.costs) for run in runs)), _costs, runs
    for index, run in enumerate(runs, start=1):
        if run.history_gap is not None:
            name = "history-gap" if len(runs) == 1 else f"history-gap-{index}"
            found[name] = (12, 4), draw_gap, run.history_gap
    scales = interval_scales(report.comparisons)
    for index, one in enumerate(report.comparisons, start=2):
        if one.differences:
            found[f"comparison-{index}"] = (8, 1.4 + 0.45 * len(one.differences)), _comparison, one, scales
    return found


def _histograms(figure: Any, runs: Sequence[RunFigures], fields: Mapping[str, str]) -> None:
    """Draw the distributions of quantities, as shares of the episodes, so that runs of any size can be compared."""
    axes = figure.subplots(1, len(fields), squeeze=False)[0]
    for axis, (field, label) in zip(axes, fields.items(), strict=True):
        for index, run in enumerate(runs):
            own = getattr(run, field)
            if own is None:
                continue
            shares = [count / own.count for count in own.counts]
            color = _OF_TOKENS.get(field) if len(runs) == 1 else None
            color = color or _COLORS[index % len(_COLORS)]
            axis.stairs(shares, own.edges, color=color, fill=True, alpha=0.35)
            axis.stairs(shares, own.edges, color=color, label=f"{index + 1}. {_plain(shorten(run.name, 40))}")
            axis.axvline(own.mean, color=color, linestyle="--", linewidth=1)
        axis.set(xlabel=label, ylabel="share of the episodes", ylim=(0, None))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_title("Dashed: the mean", loc="left", fontsize=9, color="#59636e")
    _legend(figure, axes[0])


def _endings(figure: Any, runs: Sequence[RunFigures]) -> None:
    """Draw the stop reasons as shares of the episodes, and the number of breaks by reason."""
    counts: list[list[Mapping[str, float]]] = [
        [{name: n / max(1, run.episodes) for name, n in run.stop_reasons.items()} for run in runs],
        [{name: one.breaks / max(1, run.episodes) for name, one in run.breaks.items()} for run in runs],
    ]
    titles = ("Stop reasons: share of the episodes", "Breaks in an episode, by reason")
    axes = figure.subplots(1, 2)
    for axis, title, of_runs in zip(axes, titles, counts, strict=True):
        names = [*dict.fromkeys(name for one in of_runs for name in one)]
        height = 0.8 / max(1, len(runs))
        for index, (run, one) in enumerate(zip(runs, of_runs, strict=True)):
            places = [place + height * (index - (len(runs) - 1) / 2) for place in range(len(names))]
            values, color = [one.get(name, 0.0) for name in names], _COLORS[index % len(_COLORS)]
            axis.barh(places, values, height, color=color, label=f"{index + 1}. {_plain(shorten(run.name, 40))}")
        axis.set_yticks(range(len(names)), [_plain(shorten(name, 40)) for name in names])
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.set_title(title, loc="left")
        if not names:
            axis.text(0.5, 0.5, "none", ha="center", va="center", transform=axis.transAxes, color="#59636e")
            axis.set(xticks=[], yticks=[])
    _legend(figure, axes[0])


def _costs(figure: Any, runs: Sequence[RunFigures]) -> None:
    """Draw the tokens of each history policy: prompts, and what a trainer processes as samples and as trees."""
    rows = [(index, run, history, cost) for index, run in enumerate(runs) for history, cost in run.costs.items()]
    axis = figure.subplots()
    parts = {"prompts": "prompts", "as_samples": "trained, as samples", "as_tree": "trained, as trees"}
    for number, (field, label) in enumerate(parts.items()):
        places = [place + 0.27 * (number - 1) for place in range(len(rows))]
        tokens = [getattr(cost, field) / max(1, cost.episodes) for *_, cost in rows]
        axis.barh(places, tokens, 0.25, color=_OF_COSTS[number], label=label)
    labels = [f"{index + 1}. {shorten(run.name, 24)}\n{short_history(history)}" for index, run, history, _ in rows]
    axis.set_yticks(range(len(rows)), [_plain(label, lines=True) for label in labels])
    axis.invert_yaxis()
    axis.set_title("Tokens per episode, by history policy", loc="left")
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    _legend(figure, axis)


def _comparison(figure: Any, one: RunComparison, scales: Mapping[str, float]) -> None:
    """Draw each difference with its interval, on the scale of its quantity, which all comparisons share."""
    axis = figure.subplots()
    for place, own in enumerate(one.differences):
        low, _, high = interval_of(own)
        scale = scales[own.quantity]
        axis.plot([low / scale, high / scale], [place, place], color=_COLORS[0], linewidth=2)
        axis.plot(own.difference / scale, place, "o", color=_COLORS[0])
        interval = "" if own.low is None else f"  [{signed(low)}, {signed(high)}]"
        axis.text(1.08, place, f"{signed(own.difference)}{interval}", va="center", fontsize=9)
    axis.axvline(0, color="#8c959f", linewidth=1)
    names = [_plain(shorten(own.quantity.replace("_", " "), 40)) for own in one.differences]
    axis.set_yticks(range(len(names)), names)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.tick_params(left=False)
    axis.set(xlim=(-1.05, 1.05), xticks=[], ylim=(len(names) - 0.5, -0.5))
    title = f"{_plain(shorten(one.second, 40))} minus {_plain(shorten(one.first, 40))}, with 95 % intervals"
    axis.set_title(title, loc="left")


def _legend(figure: Any, axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def _plain(text: str, *, lines: bool = False) -> str:
    """Return a string that matplotlib does not read as a formula."""
    parts = [on_one_line(line) for line in text.split("\n")] if lines else [on_one_line(text)]
    return "\n".join(parts).replace("$", r"\$")
