"""The lines of tokens of ranges of an episode's contexts: one for each token, and one for each image."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from rich.color import Color
from rich.style import Style
from rich.text import Text

from ..._visible import on_one_line
from .._images import image_name
from .._ranges import Range

_SHADES = [Style(bgcolor=Color.from_rgb(40 + 24 * n, 40 + 8 * n, 40), color="white") for n in range(9)]
"""The background of a sampled token, from a probability of 1 to one of e**-4 or less."""
HEADING = f"{'position':>8} {'id':>6} {'step':>5} {'mask':4} {'role':18} {'logprob':>8}  text"


class TokenColumns:
    """What is known about the tokens of one context, by position.

    Args:
        columns: What `Resources.tokens` returns.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self._controls = frozenset(columns["controls"])
        names = ("steps", "sampled", "trained", "dropped", "roles")
        self._starts = {name: [start for start, _ in columns[name]] for name in names}

    def __len__(self) -> int:
        return len(self._columns["ids"])

    @property
    def problem(self) -> str | None:
        """Why the stored samples are left out, or None."""
        return self._columns.get("problem")

    def at(self, name: str, position: int) -> Any:
        """Return the value of a column at a position; None if the column knows nothing there."""
        starts = self._starts.get(name)
        if starts is None:
            return None if self._columns[name] is None else self._columns[name][position]
        index = bisect_right(starts, position) - 1
        return None if index < 0 else self._columns[name][index][1]

    def images_in(self, start: int, stop: int) -> list[tuple[int, int, str]]:
        """Return the images of a range of positions, each with the part of its placeholders in the range."""
        found = [(max(start, first), min(stop, last), sha256) for first, last, sha256 in self._columns["images"]]
        return [(first, last, sha256) for first, last, sha256 in found if first < last]

    def begins(self, name: str) -> list[int]:
        """Return where the runs of equal values of a column begin."""
        return self._starts[name]

    def text(self, position: int) -> Text:
        r"""Return the text of a token: spaces as dots, bytes of parts of characters as `\xe2`, control tokens bold."""
        token = self._columns["ids"][position]
        if not self._columns["has_texts"]:
            return Text("(the tokenizer is not stored)", "dim")
        partial = self._columns["bytes"].get(str(token))
        if partial is not None:
            return Text("".join(f"\\x{byte:02x}" for byte in bytes.fromhex(partial)), "magenta")
        text = self._columns["texts"].get(str(token))
        if text is None:
            return Text("(not in the vocabulary)", "red")
        shown = on_one_line(text).replace(" ", "·")
        return Text(shown, "bold magenta" if token in self._controls else "")


class _Run(NamedTuple):
    """Tokens that follow one another: one line each; or the placeholders of an image, which are one line."""

    context: str
    start: int
    stop: int
    sha256: str = ""

    @property
    def lines(self) -> int:
        return 1 if self.sha256 else self.stop - self.start


def _runs(ranges: Sequence[Range], columns_of: Callable[[str], TokenColumns]) -> Iterator[_Run]:
    for own in ranges:
        position = own.start
        for start, stop, sha256 in columns_of(own.context).images_in(own.start, own.stop):
            if position < start:
                yield _Run(own.context, position, start)
            yield _Run(own.context, start, stop, sha256)
            position = stop
        if position < own.stop:
            yield _Run(own.context, position, own.stop)


class TokenLines:
    """The tokens of ranges, one after the other, as lines. The placeholders of an image are one line.

    Args:
        ranges: Which tokens.
        columns_of: Returns the columns of a context.
        images: What is known of each image, by its hash; see `image_facts`.
    """

    def __init__(
        self,
        ranges: Sequence[Range],
        columns_of: Callable[[str], TokenColumns],
        images: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._columns_of, self._images = columns_of, images or {}
        self._runs = list(_runs(ranges, columns_of))
        self._starts = [0, *accumulate(run.lines for run in self._runs)]

    def __len__(self) -> int:
        return self._starts[-1]

    def resize(self, width: int, cursor: int) -> int:
        """Nothing depends on the width."""
        return cursor

    def place(self, index: int) -> tuple[str, int]:
        """Return the context and the position of the token of a line."""
        run, after = self._run_at(index)
        return run.context, run.start + after

    def _run_at(self, index: int) -> tuple[_Run, int]:
        """Return the run of a line, and how many lines come after its first one."""
        number = bisect_right(self._starts, index, hi=len(self._runs)) - 1
        return self._runs[number], index - self._starts[number]

    def line_of(self, position: int) -> int:
        """Return the line of the token at a position in all ranges."""
        for run, start in zip(self._runs, self._starts, strict=False):
            length = run.stop - run.start
            if position < length:
                return start + min(position, run.lines - 1)
            position -= length
        return max(0, len(self) - 1)

    def step(self, index: int) -> int | None:
        """Return the index of the step that observed or sampled the token of a line."""
        context, position = self.place(index)
        return self._columns_of(context).at("steps", position)

    def next_step(self, index: int, direction: int) -> int:
        """Return the first line of the next step (1), or of this or the last one (-1)."""
        edges = self._step_edges
        at = bisect_right(edges, index) if direction > 0 else bisect_left(edges, index) - 1
        return edges[at] if 0 <= at < len(edges) else index

    @cached_property
    def _step_edges(self) -> list[int]:
        """The lines that steps begin at, and those that ranges begin at."""
        edges, last = set[int](), None
        for own, start in zip(self._runs, self._starts, strict=False):
            if last is None or (last.context, last.stop) != (own.context, own.start):
                edges.add(start)
            begins = self._columns_of(own.context).begins("steps")
            inside = begins[bisect_left(begins, own.start) : bisect_left(begins, own.stop)]
            edges.update(start + min(position - own.start, own.lines - 1) for position in inside)
            last = own
        return sorted(edges)

    def line(self, index: int, width: int) -> Text:
        """Return the line of a token, or of an image."""
        run, after = self._run_at(index)
        context, position = run.context, run.start + after
        columns = self._columns_of(context)
        logprob = columns.at("logprobs", position)
        is_dropped = columns.at("dropped", position) is not None
        step, role = columns.at("steps", position), columns.at("roles", position)
        token = columns.at("ids", position)
        line = Text(f"{position:>8} {token:>6} {'' if step is None else step + 1:>5} ")
        line.append(f"{_mask(columns, position):4} ", "bold green")
        line.append(f"{on_one_line(role or _origin(columns, position))[:18]:18} ", "cyan")
        line.append(f"{'' if logprob is None else f'{logprob:.3f}':>8}  ")
        text = self._name_of(run) if run.sha256 else columns.text(position)
        if logprob is not None:
            text.stylize(shade(logprob))
        if is_dropped:
            text.stylize("strike")
        return line.append_text(text).append("  dropped" if is_dropped else "", "dim red")

    def _name_of(self, run: _Run) -> Text:
        """Return an image in words, with the number of its tokens in this run."""
        facts = {**self._images[run.sha256], "tokens": run.stop - run.start}
        return Text(f"[{on_one_line(image_name(run.sha256, facts))}]", "magenta")


def _mask(columns: TokenColumns, position: int) -> str:
    return "1" if columns.at("trained", position) is not None else "0"


def _origin(columns: TokenColumns, position: int) -> str:
    return "sampled" if columns.at("sampled", position) else "observed"


def shade(logprob: float) -> Style:
    """Return the background of a token: the less probable it was, the stronger."""
    if math.isinf(logprob):
        return _SHADES[-1]
    return _SHADES[min(len(_SHADES) - 1, max(0, round(-2 * logprob)))]


def details(columns: TokenColumns, position: int) -> str:
    """Return what a line of a token has no room for."""
    facts = {
        "trainer's logprob": columns.at("reference_logprobs", position),
        "advantage": columns.at("advantages", position),
        "trained by sample": columns.at("trained", position),
        "dropped by step": None if (step := columns.at("dropped", position)) is None else step + 1,
    }
    return " · ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
