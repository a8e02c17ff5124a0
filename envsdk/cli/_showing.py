"""`envsdk show`: print episodes as conversations."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from .._visible import on_one_line
from ..errors import ConfigError, ImageError
from ..images import Image
from ..trajectories._trajectory import Trajectory
from ..viewer._contents import Match, find
from ..viewer._drawing import drawing
from ..viewer._episodes import episode
from ..viewer._filters import parse_filter
from ..viewer._sources import Source
from ..viewer._transcript import Entry, Part, hit_text, transcript
from ._output import console, print_text

WHICH = "A number, from 1; an id; or a filter: 'reward<0.5 text:\"refund policy\"'."


def show(
    run: Annotated[Path, typer.Argument(help="A run folder, or a file of trajectories.", metavar="RUN")],
    which: Annotated[str, typer.Argument(help=WHICH, metavar="[WHICH]", show_default=False)] = "1",
    contexts: Annotated[
        bool, typer.Option("--contexts", help="Print a drawing of the contexts, with handoffs and breaks, instead.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Print long texts and repeated messages in full.")] = False,
) -> None:
    """Print episodes as conversations, with their rewards and breaks: the first one, or those that WHICH chooses.

    On a terminal it opens a pager: $MANPAGER, $PAGER or less.
    """
    source = Source(run)
    print_lines(line for match in _chosen(source, which) for line in _lines(source, match, contexts, full))


class Line(NamedTuple):
    """A text to print, which may have several lines, whether it is a heading, and the hash of the image it names."""

    text: str
    is_heading: bool
    sha256: str = ""


def _lines(source: Source, match: Match, contexts: bool, full: bool) -> Iterator[Line]:
    trajectory = source.trajectory(match.line)
    lines = drawn_lines(trajectory) if contexts else lines_of(trajectory, full=full, searched=match.searched)
    heading = next(lines)
    yield heading
    images = {image.sha256: image for image in trajectory.images}

    @cache  # it reads and hashes the file
    def note_of(sha256: str) -> str:
        return _note_on_file(images[sha256], source.media)

    for hit in match.hits:
        yield Line(hit_text(hit), False)
    if match.count > len(match.hits):
        yield Line(f"found in {match.count - len(match.hits):,} further messages", False)
    for line in lines:
        note = note_of(line.sha256) if line.sha256 else ""
        yield line._replace(text=f"{line.text[:-1]}: {note}]") if note else line


def _note_on_file(image: Image, folder: Path) -> str:
    """Return the file of an image in the folder, and whether it is missing or was changed; empty if none is needed."""
    file = folder / image.file_name
    try:
        image.data  # noqa: B018
        return on_one_line(str(file)) if file.is_file() else ""
    except ImageError:
        what = "the file was changed: it has another SHA-256" if file.is_file() else "the file is missing"
        return f"{on_one_line(str(file))} ({what})"


def print_lines(lines: Iterator[Line]) -> None:
    """Print lines: through a pager on a terminal, else one after the other."""
    is_paged = console.is_terminal and sys.stdin.isatty() and sys.stdout.isatty()
    # Unless the user chose otherwise, less ends if all fits, passes styles on, and leaves the text on the screen.
    os.environ.setdefault("LESS", "-FRX")
    with console.pager(styles=True) if is_paged else nullcontext():
        for line in lines:
            print_text(line.text, style="bold" if line.is_heading else "")


def _chosen(source: Source, which: str) -> list[Match]:
    """Return the episodes that a text chooses: by number, by id, or by a filter.

    Raises:
        ConfigError: If it chooses none.
        InvalidFilter: If it is none of the three.
    """
    try:
        if which.isdecimal():
            return [Match(_checked(source, int(which)))]
        _read(source)
    except OSError as error:
        raise ConfigError(f"{str(source.file)!r} cannot be read: {error}. Expected a file of trajectories") from error
    found = [Match(row.line) for row in source.rows if row.id == which]
    if not found:
        found = [match for _, match in source.search(parse_filter(which)) if match is not None]
    if not found:
        raise ConfigError(f"no episode of {str(source.path)!r} matches {which!r}; {_size(source)}")
    return found


def _checked(source: Source, number: int) -> int:
    """Return a number of an episode, once its row is read; lines after it are not read.

    Raises:
        ConfigError: If there is no such episode.
    """
    while (number < 1 or len(source.rows) < number) and source.refresh(most=1):
        pass
    if not 1 <= number <= len(source.rows):
        raise ConfigError(f"{str(source.path)!r} has no trajectory {number}; {_size(source)}")
    return number


def _read(source: Source) -> None:
    while source.refresh():
        pass


def _size(source: Source) -> str:
    rest = f", and {source.unread_bytes} bytes of a line that has no end" if source.unread_bytes else ""
    return f"it has {len(source.rows)}{rest}"


def drawn_lines(trajectory: Trajectory) -> Iterator[Line]:
    """Yield the drawing of the contexts of an episode."""
    yield Line(on_one_line(trajectory.id), True)
    for row in drawing(episode(trajectory)):
        yield Line(f"{row.lanes} {row.text}", row.kind == "rewrite")


def lines_of(trajectory: Trajectory, *, full: bool = False, searched: Sequence[str] = ()) -> Iterator[Line]:
    """Yield an episode as the lines of a conversation.

    Args:
        trajectory: The episode.
        full: Whether long texts are printed in full, and messages that a context began with.
        searched: Texts, as `str.casefold` returns them, that are not folded away.
    """
    for entry in transcript(trajectory):
        if entry.kind == "inherited" and full:
            for own in entry.inherited:
                yield from _entry(own, full, searched)
        else:
            yield from _entry(entry, full, searched)


def _entry(entry: Entry, full: bool, searched: Sequence[str]) -> Iterator[Line]:
    for heading in entry.headings:
        yield Line(heading, True)
    for break_ in entry.breaks:
        yield Line(f"before it {break_}", True)
    if entry.kind == "inherited":
        yield Line("(left out; --full prints them)", False)
    for part in entry.parts:
        is_found = any(find(part.text, one) for one in searched)
        yield Line(_text(part, full or is_found), False, part.sha256)


def _text(part: Part, full: bool) -> str:
    text, left_out = (part.text, "") if full else part.folded()
    if left_out:
        text += f"\n[{left_out} more: --full]"
    return f"<think>{text}</think>" if part.kind == "reasoning" else text
