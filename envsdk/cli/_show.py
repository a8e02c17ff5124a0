"""`envsdk show`: print episodes as conversations."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from .._visible import on_one_line
from ..errors import ConfigError, ImageError
from ..trajectories._trajectory import Trajectory
from ..viewer._contents import Match, find
from ..viewer._drawing import drawing
from ..viewer._episodes import episode
from ..viewer._filters import parse_filter
from ..viewer._sources import Source
from ..viewer._transcript import hit_text, transcript
from ._output import console, print_text

WHICH = "A number, from 1; an id; or a filter: 'reward<0.5 text:\"refund policy\"'."


class PrintedText(NamedTuple):
    """Text to print, of one or more lines; whether it is a heading; and the hash of the image that it names."""

    text: str
    is_heading: bool
    sha256: str = ""


def show(
    run: Annotated[Path, typer.Argument(help="A run folder, or a file of trajectories.", metavar="RUN")],
    which: Annotated[str, typer.Argument(help=WHICH, metavar="[WHICH]", show_default=False)] = "1",
    contexts: Annotated[
        bool, typer.Option("--contexts", help="Print a drawing of the contexts, with handoffs and breaks, instead.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Print long text and repeated messages in full.")] = False,
) -> None:
    """Print episodes as conversations, with their rewards and breaks: the first one, or those that WHICH chooses.

    On a terminal it opens a pager: $MANPAGER, $PAGER or less.
    """
    source = Source(run)
    matches = _chosen(source, which)

    def lines() -> Iterator[PrintedText]:
        for match in matches:
            trajectory = source.trajectory(match.line)
            shown = drawn_lines(trajectory) if contexts else lines_of(trajectory, full=full, searched=match.searched)
            yield next(shown)
            for hit in match.hits:
                yield PrintedText(hit_text(hit), False)
            if match.count > len(match.hits):
                yield PrintedText(f"found in {match.count - len(match.hits):,} further messages", False)
            notes: dict[str, str] = {}
            for line in shown:
                if line.sha256 and line.sha256 not in notes:  # it reads and hashes the file
                    notes[line.sha256] = _note_on_image(trajectory, line.sha256, source.media)
                note = notes.get(line.sha256, "")
                yield line._replace(text=f"{line.text[:-1]}: {note}]") if note else line

    print_lines(lines())


def _note_on_image(trajectory: Trajectory, sha256: str, folder: Path) -> str:
    """Return the file of an image in the folder, and whether it is missing or was changed; empty if none is needed."""
    image = next(image for image in trajectory.images if image.sha256 == sha256)
    file = folder / image.file_name
    try:
        image.data  # noqa: B018
        return on_one_line(str(file)) if file.is_file() else ""
    except ImageError:
        what = "the file was changed: it has another SHA-256" if file.is_file() else "the file is missing"
        return f"{on_one_line(str(file))} ({what})"


def print_lines(lines: Iterator[PrintedText]) -> None:
    """Print lines: through a pager on a terminal, else one after the other."""
    is_paged = console.is_terminal and sys.stdin.isatty() and sys.stdout.isatty()
    # Unless the user chose otherwise, less ends if all fits, passes styles on, and leaves the text on the screen.
    os.environ.setdefault("LESS", "-FRX")
    with console.pager(styles=True) if is_paged else nullcontext():
        for line in lines:
            print_text(line.text, style="bold" if line.is_heading else "")


def _chosen(source: Source, which: str) -> list[Match]:
    """Return the episodes that an argument chooses: by number, by id, or by a filter.

    Raises:
        ConfigError: If it chooses none.
        InvalidFilter: If it is none of the three.
    """
    number = int(which) if which.isdecimal() else None
    try:  # up to the number; lines after it are not read
        while (not number or len(source.rows) < number) and source.refresh(most=1 if number else None):
            pass
    except OSError as error:
        raise ConfigError(f"{str(source.file)!r} cannot be read: {error}. Expected a file of trajectories") from error
    unread = f", and {source.unread_bytes} bytes of an incomplete line" if source.unread_bytes else ""
    size = f"it has {len(source.rows)}{unread}"
    if number is not None:
        if not 1 <= number <= len(source.rows):
            raise ConfigError(f"{str(source.path)!r} has no trajectory {number}; {size}")
        return [Match(number)]
    found = [Match(row.line) for row in source.rows if row.id == which]
    if not found:
        found = [match for _, match in source.search(parse_filter(which)) if match is not None]
    if not found:
        raise ConfigError(f"no episode of {str(source.path)!r} matches {which!r}; {size}")
    return found


def drawn_lines(trajectory: Trajectory) -> Iterator[PrintedText]:
    """Yield the drawing of the contexts of an episode."""
    yield PrintedText(on_one_line(trajectory.id), True)
    for row in drawing(episode(trajectory)):
        yield PrintedText(f"{row.lanes} {row.text}", row.kind == "rewrite")


def lines_of(trajectory: Trajectory, *, full: bool = False, searched: Sequence[str] = ()) -> Iterator[PrintedText]:
    """Yield an episode as the lines of a conversation.

    Args:
        trajectory: The episode.
        full: Whether long text is printed in full, and messages that a context began with.
        searched: Strings, as `str.casefold` returns them, that are never folded away.
    """
    for outer in transcript(trajectory):
        for entry in outer.inherited if outer.kind == "inherited" and full else (outer,):
            for heading in entry.headings:
                yield PrintedText(heading, True)
            for break_ in entry.breaks:
                yield PrintedText(f"before it {break_}", True)
            if entry.kind == "inherited":
                yield PrintedText("(left out; --full prints them)", False)
            for part in entry.parts:
                is_open = full or any(find(part.text, one) for one in searched)
                text, left_out = (part.text, "") if is_open else part.folded()
                text += f"\n[{left_out} more: --full]" if left_out else ""
                shown = f"<think>{text}</think>" if part.kind == "reasoning" else text
                yield PrintedText(shown, False, part.sha256)
