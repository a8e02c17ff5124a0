"""`envsdk report`: report on runs, and compare them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from .._visible import on_one_line
from ..errors import ConfigError
from ..policies import load_model
from ..trajectories.records import storing, whole_file
from ..viewer.reporting import as_html, as_markdown, report, write_plots
from ..viewer.reporting._plots import check_matplotlib
from ..viewer.reporting._report import VIEWER
from ..viewer.reporting._sections import FORGETTING, Section, Table, sections_of
from ._options import AsJson
from ._output import print_json, print_table, print_text

_VIEWER = "The target of links to episodes: the address of envsdk view, or a file of envsdk view --html."


def report_(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or files of trajectories.", metavar="RUN...")],
    html: Annotated[Path | None, typer.Option(help="Write one HTML page that needs no network.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown, for a model card.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw plots into this folder, as PNG and SVG.")] = None,
    viewer: Annotated[str, typer.Option(help=_VIEWER)] = VIEWER,
    most: Annotated[int, typer.Option(min=0, help="The number of best and of worst episodes.")] = 3,
    history_gap: Annotated[
        Path | None,
        typer.Option(help="The folder of the model that sampled the runs: measure what forgetting cost."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report what happened in runs: rewards, lengths, endings, breaks, cost, failures, the best and worst episodes.

    Each further run is compared with the first, with 95 % intervals. The environment is not needed. It prints the
    main figures; --html, --markdown and --json have all of them.
    """
    if plots is not None:
        check_matplotlib()  # before runs are read, which may take minutes
    model = None if history_gap is None else load_model(history_gap)
    found = report(*runs, viewer=viewer, most=most, model=model)
    if html is not None:
        _write(html, as_html(found))
    if markdown is not None:
        _write(markdown, as_markdown(found))
    drawn = [] if plots is None else write_plots(found, plots)
    if as_json:
        print_json(found.to_dict())
        return
    shown = sections_of(found)
    for section in shown[: 1 + len(found.comparisons)] + [one for one in shown if one.title == FORGETTING]:
        _print(section)
        print_text()
    for path in filter(None, (html, markdown, *drawn)):
        print_text(f"wrote {path}")


def _print(section: Section) -> None:
    """Print the tables and paragraphs of a section. Strings of a record cannot control the terminal."""
    print_text(on_one_line(section.title), style="bold")
    for block in section.blocks:
        if isinstance(block, Table):
            drawn = RichTable(box=None, padding=(0, 1))
            for index, head in enumerate(block.heads):
                name, is_text = on_one_line(head), index < block.texts
                if is_text:
                    drawn.add_column(Text(name), overflow="fold", min_width=max(map(len, name.split()), default=0))
                else:
                    drawn.add_column(Text("\n".join(name.rsplit(maxsplit=1))), justify="right", no_wrap=True)
            for row in block.rows:
                drawn.add_row(*(Text(on_one_line(cell if isinstance(cell, str) else cell.text)) for cell in row))
            print_table(drawn)
        elif isinstance(block, str):
            print_text(on_one_line(block))


def _write(path: Path, text: str) -> None:
    """Write a file as a whole.

    Raises:
        ConfigError: If its folder does not exist.
        StorageError: If it cannot be written.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{str(path)!r} cannot be written: the folder {str(path.parent)!r} does not exist")
    with whole_file(path) as unfinished, storing(path):
        unfinished.write_text(text, encoding="utf-8")
