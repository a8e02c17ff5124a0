"""Report on runs: read each once, one trajectory at a time, and compare each further one with the first."""

import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from ..._untrusted import open_file, read_lines
from ..._visible import brief, on_one_line
from ...diagnostics._costs import Cost, cost
from ...diagnostics._divergence import Estimate
from ...diagnostics._history_gap import history_gap
from ...errors import ConfigError, InvalidRecord
from ...rollouts.scores import task_of
from ...trajectories._samples import Sample
from ...trajectories._tally import Tally
from ...trajectories._trajectory import Trajectory
from .._rows import EpisodeRow
from .._sources import Source
from ._comparison import compare_runs, mean_reward
from ._figures import (
    Breaks,
    Damage,
    Distribution,
    Divergence,
    EpisodeLink,
    FailureClass,
    RunFigures,
    RunReport,
    histogram_edges,
)

VIEWER = "http://127.0.0.1:8123/"
"""The address at which `envsdk view RUN --port 8123` shows runs."""
_SCHEMES = ("http", "https", "file", "")
_SAMPLES, _MARK = "samples.jsonl", b'"reference_logprobs"'
_LENGTHS = ("steps", "observed_tokens", "sampled_tokens", "duration_s")


def report(*runs: Path | str, viewer: str = VIEWER, most: int = 3, model: Any = None) -> RunReport:
    """Report what happened in runs, and how each further run differs from the first.

    A segment of a run, which begins where its environment changed (`allow_changed`), is reported as a run of its own.

    Neither the environment nor its renderer is needed. A damaged line is counted and named, and the rest is reported.

    Args:
        runs: Run folders, or files of trajectories.
        viewer: The target of links to episodes: the address of `envsdk view`, or a file of `envsdk view --html`.
        most: The maximum number of best and of worst episodes of each run.
        model: The causal language model of transformers that sampled the runs. If it is given, the report has what
            forgetting cost in nats (`diagnostics.history_gap`): a forward pass over each episode, twice.

    Raises:
        ConfigError: If no run is given, one does not exist, or `viewer` is not an address.
        RunFolderError: If a `run.json` or `manifest.json` is damaged.
        MissingPackage: If a run is compressed and zstandard is not installed.
    """
    if not runs or most < 0:
        raise ConfigError(
            f"report() got {len(runs)} runs and most={most!r}; expected at least one run, and most of at least 0"
        )
    address = urlsplit(viewer)
    if not viewer or address.scheme not in _SCHEMES or address.fragment or on_one_line(viewer) != viewer:
        raise ConfigError(f"viewer is {brief(viewer)}; expected an address such as {VIEWER}, or an HTML file")
    sources = [Source(run) for run in runs]
    names = [source.info.name for source in sources]
    counts = Counter(names)
    names = [str(source.path) if counts[name] > 1 else name for source, name in zip(sources, names, strict=True)]
    counts = Counter(names)
    names = [f"{name} ({index})" if counts[name] > 1 else name for index, name in enumerate(names, start=1)]
    parts = [part for source, name in zip(sources, names, strict=True) for part in _parts(source, name)]
    collectors = [Collector(str(part.source.path), f"{viewer}#/run/{sources.index(part.source)}") for part in parts]
    for source in sources:  # each is read once
        own = [(part.last, one) for part, one in zip(parts, collectors, strict=True) if part.source is source]
        for row, trajectory in source.episodes():
            next(collector for last, collector in own if row.line <= last).add(row, trajectory)
    quantities = [collector.quantities for collector in collectors]
    edges: dict[str, tuple[float, ...]] = {}  # of the histogram of each quantity, the same for all runs
    for name in dict.fromkeys(name for own in quantities for name in own):
        if values := [value for own in quantities for value in own.get(name, ())]:
            edges[name] = tuple(histogram_edges(np.asarray(values)).tolist())
    figures = [collector.figures(part, most, edges) for collector, part in zip(collectors, parts, strict=True)]
    if model is not None:
        for index, part in enumerate(parts):
            played = [one for _, one in part.episodes() if one is not None and one.status != "error"]
            gap = history_gap(played, model, renderer=part.source.renderers)
            figures[index] = replace(figures[index], history_gap=gap)
    comparisons = [
        compare_runs(figures[0], collectors[0].values, own, collector.values)
        for own, collector in islice(zip(figures, collectors, strict=True), 1, None)
    ]
    is_here = address.scheme == "http" and address.hostname in ("127.0.0.1", "localhost")
    command = shlex.join(["envsdk", "view", *map(str, runs), "--port", str(address.port or 80)]) if is_here else ""
    return RunReport(tuple(figures), tuple(comparisons), command)


class _Part(NamedTuple):
    """A run, or one of its segments: its name in the report, its lines, and what had changed when it began."""

    source: Source
    name: str
    first: int = 1
    last: float = math.inf
    changed: str = ""

    @property
    def is_segment(self) -> bool:
        """Whether the run has further segments."""
        return self.first > 1 or self.last < math.inf

    def episodes(self) -> Iterator[tuple[EpisodeRow, Trajectory | None]]:
        """Read its episodes; see `Source.episodes`."""
        return (pair for pair in self.source.episodes() if self.first <= pair[0].line <= self.last)


def _parts(source: Source, name: str) -> list[_Part]:
    """Return the segments of a run; the run, if it has only one."""
    segments = source.info.segments
    if not segments:
        return [_Part(source, name)]
    ends = [0, *(one["episodes"] for one in segments), math.inf]
    changed = ["", *("; ".join(one["changed"]) for one in segments)]
    return [
        _Part(source, f"{name}, segment {number}", int(ends[number - 1]) + 1, ends[number], changed[number - 1])
        for number in range(1, len(ends))
    ]


class Collector:
    """Adds up the figures of one run, or of one of its segments, episode by episode.

    Args:
        path: The run, as commands name it.
        url: Its place in the viewer.

    Attributes:
        values: The values of each quantity by task, for comparisons.
    """

    def __init__(self, path: str, url: str) -> None:
        self.values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._path, self._url, self._tally = path, url, Tally()
        self._envs, self._break_episodes = Counter[str](), Counter[str]()
        self._lengths, self._rewards = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        self._scored: list[EpisodeRow] = []
        self._failures: dict[tuple[str, str], list[EpisodeRow]] = {}
        self._costs: dict[str, Cost] = {}
        self._damaged: list[tuple[int, str]] = []
        self._ids = set[str]()

    def add(self, row: EpisodeRow, trajectory: Trajectory | None) -> None:
        """Add an episode; or a damaged line, which is only counted."""
        if trajectory is None:
            self._damaged.append((row.line, row.damage))
            return
        self._ids.add(trajectory.id)
        self._tally += Tally.of(trajectory)
        self._envs[trajectory.env] += 1
        self._break_episodes.update(row.breaks.keys())
        # As the command line takes it, such as `compact:every=2`, without options that are not set.
        options = {name: value for name, value in trajectory.history.items() if name != "name" and value is not None}
        history = str(trajectory.history.get("name", "unknown"))
        history += ":" * bool(options) + ",".join(f"{name}={value}" for name, value in options.items())
        own = cost(trajectory)
        self._costs[history] = self._costs[history] + own if history in self._costs else own
        is_failed = row.status == "error"
        quantities = {"failed": float(is_failed)}
        if is_failed:
            error = (row.error or "").partition(":")[0] or "unknown"
            self._failures.setdefault((row.error_kind or "unknown", error), []).append(row)
        else:
            for name in _LENGTHS:
                if (length := getattr(row, name)) is not None:
                    self._lengths[name].append(float(length))
            quantities |= {name: float(getattr(row, name)) for name in _LENGTHS[:3]}
        if row.is_scored and not is_failed:
            self._scored.append(row)
            named = {name: value for name, value in row.rewards.items() if name != "reward"}
            for name, value in named.items():
                self._rewards[name].append(value)
            quantities |= {"reward": row.reward, **{f"reward.{name}": value for name, value in named.items()}}
        for name, value in quantities.items():
            self.values[name][task_of(trajectory)].append(value)

    @property
    def quantities(self) -> dict[str, list[float]]:
        """The values of each quantity: `reward`, `reward.NAME`, and the lengths."""
        named = {f"reward.{name}": values for name, values in self._rewards.items()}
        return {"reward": [row.reward for row in self._scored], **named, **self._lengths}

    def figures(self, part: _Part, most: int, edges: Mapping[str, Sequence[float]]) -> RunFigures:
        """Return the figures.

        Args:
            part: The run, or the segment.
            most: The maximum number of best and of worst episodes.
            edges: The edges of the histogram of each quantity.
        """
        source, info, facts = part.source, part.source.info, self._tally
        ids = self._ids if part.is_segment else None
        divergence, why_none, damaged_samples = stored_divergence(source.file.parent, ids)
        spread = {name: Distribution.of(own, edges.get(name, ())) for name, own in self.quantities.items()}
        ranked = sorted(self._scored, key=lambda row: (-row.reward, row.line))
        best, rest = ranked[:most], [row for row in ranked[most:] if row.reward < ranked[0].reward]
        worst = sorted(rest[max(0, len(rest) - most) :], key=lambda row: (row.reward, row.line))
        total = sum(islice(self._costs.values(), 1, None), next(iter(self._costs.values()))) if self._costs else None
        breaks = sorted(total.breaks.items(), key=lambda item: (-item[1].breaks, item[0])) if total else ()
        failures = sorted(self._failures.items(), key=lambda item: (-len(item[1]), item[0]))
        return RunFigures(
            name=part.name,
            path=info.path,
            envs=_by_count(self._envs),
            policy=info.policy,
            model=info.model,
            renderer=info.renderer,
            created=info.created,
            is_complete=info.is_complete,
            planned=0 if part.is_segment else info.episodes,
            policy_versions=tuple(sorted(facts.policy_versions)),
            episodes=facts.episodes,
            failed=facts.failed,
            not_scored=facts.episodes - facts.failed - len(self._scored),
            not_scored_because=_by_count(facts.not_scored),
            statuses=_by_count(facts.statuses),
            stop_reasons=_by_count(facts.stop_reasons),
            mean_reward=mean_reward(self.values),
            reward=spread["reward"],
            rewards={own: one for own in sorted(self._rewards) if (one := spread[f"reward.{own}"]) is not None},
            metrics=dict(sorted(facts.metrics.items())),
            **{length: spread.get(length) for length in _LENGTHS},
            reply_errors=facts.reply_errors,
            breaks={
                reason: Breaks(one.breaks, self._break_episodes[reason], one.dropped, one.kept, one.observed)
                for reason, one in breaks
            },
            costs=self._costs,
            failures=tuple(
                FailureClass(kind, error, len(rows), rows[0].error or "", self._link(rows[0], None))
                for (kind, error), rows in failures
            ),
            divergence=divergence,
            no_divergence_because=why_none,
            best=tuple(self._link(row, row.reward) for row in best),
            worst=tuple(self._link(row, row.reward) for row in worst),
            damaged=(*(Damage(source.file.name, line, why) for line, why in self._damaged), *damaged_samples),
            unread_bytes=source.unread_bytes if part.last == math.inf else 0,
            changes=part.changed,
            history_gap=None,
        )

    def _link(self, row: EpisodeRow, reward: float | None) -> EpisodeLink:
        """Return a link to an episode. The command names its line if its id cannot be typed."""
        can_be_typed = re.fullmatch(r"[^\s-]\S*", row.id) and not row.id.isdigit() and on_one_line(row.id) == row.id
        return EpisodeLink(
            line=row.line,
            id=row.id,
            reward=reward,
            steps=row.steps,
            stop_reason=row.stop_reason,
            task=row.task,
            command=shlex.join(["envsdk", "show", self._path, row.id if can_be_typed else str(row.line)]),
            url=f"{self._url}/{row.line}",
        )


def stored_divergence(folder: Path, ids: Container[str] | None = None) -> tuple[Divergence | None, str, list[Damage]]:
    """Estimate the divergence of the sampler from its trainer or reference, from the samples stored with a run.

    Args:
        folder: The folder of the file of trajectories.
        ids: The ids of the episodes whose samples count; None for all.

    Returns:
        The estimates, or None; the reason if they are None; and the lines that could not be read.

    Raises:
        OSError: If the file of samples exists and cannot be read.
    """
    file, damaged, number = folder / _SAMPLES, list[Damage](), 0
    if not file.is_file():
        return None, f"there is no {_SAMPLES}", damaged
    estimates: list[tuple[Estimate, int]] = []
    try:
        with open_file(file, inside=folder) as lines:
            for number, line in enumerate(read_lines(lines), start=1):
                if _MARK not in line or not line.endswith(b"\n"):  # most samples have none, and need no check
                    continue
                try:
                    sample = Sample.from_json(line).validate()
                except ValueError as error:
                    damaged.append(Damage(file.name, number, str(error)))
                    continue
                if ids is not None and sample.trajectory_id not in ids:
                    continue
                if sample.logprobs is not None and sample.reference_logprobs is not None and sample.mask.any():
                    difference = (sample.reference_logprobs.astype(np.float64) - sample.logprobs)[sample.mask]
                    estimates.append((Estimate.of(difference), len(difference)))
    except InvalidRecord as error:
        damaged.append(Damage(file.name, number + 1, str(error)))
    tokens = sum(count for _, count in estimates)
    if not tokens:
        why = (
            f"no sample in {_SAMPLES} has the log-probabilities of both the sampler and a trainer or reference; "
            "credit.add_reference adds the latter"
        )
        return None, why, damaged
    k1, k2, k3 = (sum(getattr(one, name) * count for one, count in estimates) / tokens for name in ("k1", "k2", "k3"))
    outliers = sum(one.outliers for one, _ in estimates)
    return Divergence(len(estimates), tokens, k1, k2, k3, outliers), "", damaged


def _by_count(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
