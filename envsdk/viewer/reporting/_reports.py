"""Report on runs: read each once, and compare each further one with the first."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...errors import ConfigError
from .._sources import Source
from ._collecting import Collector
from ._comparing import compare_runs
from ._figures import RunReport
from ._links import VIEWER, Links
from ._scales import shared_edges


def report(*runs: Path | str, viewer: str = VIEWER, most: int = 3) -> RunReport:
    """Report what happened in runs, and how each further run differs from the first.

    Neither the environment nor its renderer is needed. A damaged line is counted and named, and the rest is reported.

    Args:
        runs: Run folders, or files of trajectories.
        viewer: Where links to episodes lead: the address of `envsdk view`, or a file of `envsdk view --html`.
        most: The maximum number of best and of worst episodes of each run.

    Raises:
        ConfigError: If no run is given, one does not exist, or `viewer` is not an address.
        RunFolderError: If a `run.json` or `manifest.json` is damaged.
        MissingPackage: If a run is compressed and zstandard is not installed.
    """
    if not runs or most < 0:
        raise ConfigError(
            f"report() got {len(runs)} runs and most={most!r}; expected a run, and a number of at least 0"
        )
    sources = [Source(run) for run in runs]
    links = Links([str(run) for run in runs], viewer)
    collected = [_collected(run, source, links) for run, source in enumerate(sources)]
    edges = shared_edges([one.quantities for one in collected])
    named = zip(collected, sources, _names(sources), strict=True)
    found = [(one.figures(source, name, most, edges), one.values) for one, source, name in named]
    (first, one), *others = found
    comparisons = tuple(compare_runs(first, one, second, other) for second, other in others)
    return RunReport(tuple(figures for figures, _ in found), comparisons, links.viewer_command)


def _collected(run: int, source: Source, links: Links) -> Collector:
    collector = Collector(run, links)
    for row, trajectory in source.episodes():
        collector.add(row, trajectory)
    return collector


def _names(sources: Sequence[Source]) -> list[str]:
    """Return a name for each run that no other run has: the folder's name, else the path, else with a number."""
    names = [source.info.name for source in sources]
    counts = Counter(names)
    names = [str(source.path) if counts[name] > 1 else name for source, name in zip(sources, names, strict=True)]
    counts = Counter(names)
    return [f"{name} ({index})" if counts[name] > 1 else name for index, name in enumerate(names, start=1)]
