"""Reports on stored runs, and comparisons of runs with intervals: data, HTML, Markdown and plots.

`report` reads runs one episode at a time and returns frozen figures; the other functions write them.
"""

from ..._arguments import explain_arguments
from ._figures import RunComparison, RunFigures, RunReport
from ._html import as_html
from ._markdown import as_markdown
from ._plots import write_plots
from ._report import report

__all__ = ["RunComparison", "RunFigures", "RunReport", "as_html", "as_markdown", "report", "write_plots"]

explain_arguments(globals())
