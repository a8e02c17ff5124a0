"""Reports on stored runs, and comparisons of runs with intervals: data, HTML, Markdown and plots.

`report` reads runs one episode at a time and returns frozen figures; the other functions write them.
"""

from .figures import (
    Breaks,
    Damage,
    Difference,
    Distribution,
    Divergence,
    EpisodeLink,
    Failure,
    MeanReward,
    RunComparison,
    RunFigures,
    RunReport,
)
from .html import as_html
from .markdown import as_markdown
from .plots import write_plots
from .reports import report

__all__ = [
    "Breaks",
    "Damage",
    "Difference",
    "Distribution",
    "Divergence",
    "EpisodeLink",
    "Failure",
    "MeanReward",
    "RunComparison",
    "RunFigures",
    "RunReport",
    "as_html",
    "as_markdown",
    "report",
    "write_plots",
]
