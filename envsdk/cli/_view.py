"""`envsdk view`: show runs in a browser, or in the terminal."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from .._packages import load
from ..errors import ConfigError
from ..viewer._filters import parse_filter
from ..viewer._page import write_page
from ..viewer._resources import Resources
from ..viewer._server import ViewerServer
from ..viewer._sources import Source
from ._output import print_text


def view(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or files of trajectories.", metavar="RUN...")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on this machine; 0 finds a free one.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file that needs no server, and end.")] = None,
    filter: Annotated[
        str, typer.Option(help="Only these episodes: reward<0.5 break:summary ... With --html or --terminal.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Show new episodes of runs in progress.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show them in this terminal.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
) -> None:
    """Show runs in a browser, or in the terminal: their episodes, conversations, contexts and tokens.

    The server answers only this machine, and only reads.
    """
    if html is not None and follow:
        raise ConfigError("--html writes a file, which cannot follow a run; leave out --html or --follow")
    if terminal and (html is not None or port):
        raise ConfigError("--terminal shows runs in this terminal, without a page; leave out --html and --port")
    if filter and html is None and not terminal:
        raise ConfigError("--filter chooses what --html writes; in the browser, type it into the filter of the page")
    if terminal:
        load("textual", "--terminal needs", "pip install 'envsdk[terminal]'")
    resources = Resources([Source(run) for run in runs], follow=follow)
    if html is not None:
        count = write_page(html, resources, parse_filter(filter))
        print_text(
            f"wrote {count} {'episode' if count == 1 else 'episodes'} to {html} ({html.stat().st_size / 1e6:,.1f} MB)"
        )
        return
    if terminal:
        from ..viewer.terminal._app import TerminalViewer

        TerminalViewer(resources, filter, follow=follow).run()
        return
    with ViewerServer(resources, port) as server:
        print_text(f"{server.url} (Ctrl-C ends)")
        if not no_open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print_text("ended")
