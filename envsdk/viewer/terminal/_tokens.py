"""The screen with tokens: of a context, or of the prompt of a step. One line for each token, and for each image."""

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from rich.color import Color
from rich.style import Style
from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType

from ..._palette import SAMPLED, TROUBLE
from ..._visible import brief, on_one_line
from ...errors import EnvsdkError, InvalidFilter
from .._episodes import image_name
from .._ranges import Range
from ._lines import TOKEN_STYLES, LineSource, Question, ViewerScreen

_SHADES = [
    Style(
        bgcolor=Color.from_rgb(*(40 + (end - 40) * n // 8 for end in bytes.fromhex(SAMPLED.light_text[1:]))),
        color="white",
    )
    for n in range(9)
]
"""The background of a sampled token, from a probability of 1 to one of e**-4 or less."""
_HEADING = f"{'position':>8} {'id':>6} {'step':>5} {'mask':4} {'role':18} {'logprob':>8}  text"


class TokenColumns:
    """The columns of the tokens of one context, by position.

    Args:
        columns: The columns, as `Resources.tokens` returns them.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self._controls = frozenset(columns["controls"])
        self.problem: str | None = columns.get("problem")
        self.images: Sequence[tuple[int, int, str]] = columns["images"]
        names = ("steps", "sampled", "trained", "dropped", "roles")
        self.starts = {name: [start for start, _ in columns[name]] for name in names}
        """The positions at which the runs of equal values of a column begin."""

    def at(self, name: str, position: int) -> Any:
        """Return the value of a column at a position; None if the column has no value there."""
        if name not in self.starts:
            return None if self._columns[name] is None else self._columns[name][position]
        index = bisect_right(self.starts[name], position) - 1
        return None if index < 0 else self._columns[name][index][1]

    def text(self, position: int) -> Text:
        r"""Return the text of a token: spaces as dots, bytes of parts of characters as `\xe2`, control tokens bold."""
        token = self._columns["ids"][position]
        if not self._columns["has_texts"]:
            return Text("(the tokenizer is not stored)", "dim")
        partial = self._columns["bytes"].get(str(token))
        if partial is not None:
            return Text("".join(f"\\x{byte:02x}" for byte in bytes.fromhex(partial)), "italic")
        text = self._columns["texts"].get(str(token))
        if text is None:
            return Text("(not in the vocabulary)", TROUBLE.text)
        return Text(on_one_line(text).replace(" ", "·"), "bold" if token in self._controls else "")

    def details(self, position: int) -> str:
        """Return the facts of a token that its line does not show."""
        dropped = self.at("dropped", position)
        facts = {
            "trainer's logprob": self.at("reference_logprobs", position),
            "advantage": self.at("advantages", position),
            "trained by sample": self.at("trained", position),
            "dropped by step": None if dropped is None else dropped + 1,
        }
        return " · ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


class TokenRun(NamedTuple):
    """Tokens that follow one another: one line each; or the placeholders of an image, which are one line."""

    context: str
    start: int
    stop: int
    sha256: str = ""

    @property
    def lines(self) -> int:
        return 1 if self.sha256 else self.stop - self.start


class TokenLines(LineSource):
    """The tokens of ranges, one after the other, as lines. The placeholders of an image are one line.

    Args:
        ranges: The ranges of the tokens.
        columns: The columns of each context.
        images: The facts of each image, by its hash; see `image_facts`.
    """

    def __init__(
        self, ranges: Sequence[Range], columns: Mapping[str, TokenColumns], images: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._columns, self._images = columns, images
        self._runs: list[TokenRun] = []
        for own in ranges:
            position = own.start
            for first, last, sha256 in columns[own.context].images:
                start, stop = max(own.start, first), min(own.stop, last)
                if start < stop:
                    self._runs += [TokenRun(own.context, position, start), TokenRun(own.context, start, stop, sha256)]
                    position = stop
            self._runs.append(TokenRun(own.context, position, own.stop))
        self._runs = [run for run in self._runs if run.start < run.stop]
        self._starts = [0, *accumulate(run.lines for run in self._runs)]

    def __len__(self) -> int:
        return self._starts[-1]

    def place(self, index: int) -> tuple[TokenRun, int]:
        """Return the run that the token of a line is in, and the token's position in the context."""
        number = bisect_right(self._starts, index, hi=len(self._runs)) - 1
        run = self._runs[number]
        return run, run.start + index - self._starts[number]

    def line_of(self, position: int) -> int:
        """Return the line of the token at a position in all ranges."""
        for run, start in zip(self._runs, self._starts, strict=False):
            length = run.stop - run.start
            if position < length:
                return start + min(position, run.lines - 1)
            position -= length
        return max(0, len(self) - 1)

    def next_step(self, index: int, direction: int) -> int:
        """Return the line at which the next step or range begins (1), or this or the last one (-1)."""
        edges, last = {index}, None
        for own, start in zip(self._runs, self._starts, strict=False):
            if last is None or (last.context, last.stop) != (own.context, own.start):
                edges.add(start)
            begins = self._columns[own.context].starts["steps"]
            inside = begins[bisect_left(begins, own.start) : bisect_left(begins, own.stop)]
            edges.update(start + min(position - own.start, own.lines - 1) for position in inside)
            last = own
        ordered = sorted(edges)
        at = ordered.index(index) + direction
        return ordered[at] if 0 <= at < len(ordered) else index

    def line(self, index: int, width: int) -> Text:
        """Return the line of a token, or of an image."""
        run, position = self.place(index)
        columns = self._columns[run.context]
        names = ("ids", "steps", "trained", "sampled", "roles", "logprobs", "dropped")
        token, step, trained, is_sampled, role, logprob, dropped = (columns.at(name, position) for name in names)
        line = Text(f"{position:>8} {token:>6} {'' if step is None else step + 1:>5} ")
        source = "sampled" if is_sampled else "observed"
        line.append(f"{0 if trained is None else 1:<4} ", "bold")
        line.append(f"{on_one_line(role or source)[:18]:18} ", TOKEN_STYLES[source])
        line.append(f"{'' if logprob is None else f'{logprob:.3f}':>8}  ")
        if run.sha256:
            facts = {**self._images[run.sha256], "tokens": run.stop - run.start}  # those in this range
            text = Text(f"[{on_one_line(image_name(run.sha256, facts))}]", TOKEN_STYLES["observed"])
        else:
            text = columns.text(position)
        if logprob is not None:
            text.stylize(shade(logprob))
        if trained is not None:
            text.stylize("underline")
        if dropped is not None:
            text.stylize("strike")
        return line.append_text(text).append("" if dropped is None else "  dropped", "dim")


def shade(logprob: float) -> Style:
    """Return the background of a token: the less probable it was, the stronger."""
    if math.isinf(logprob):
        return _SHADES[-1]
    return _SHADES[min(len(_SHADES) - 1, max(0, round(-2 * logprob)))]


class TokensScreen(ViewerScreen[TokenLines]):
    """The screen with the tokens of ranges.

    Args:
        title: The heading.
        ranges: The ranges of the tokens.
        read: Reads the columns of a context.
        start: The position in all ranges that has the cursor at first.
        images: The facts of each image, by its hash.
    """

    PARTS = ("title", "heading", "lines", "details", "status")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("n", "step(1)", "Next step"),
        Binding("N", "step(-1)", "Step before"),
        Binding("slash", "go", "Go to a line"),
    ]

    def __init__(
        self,
        title: str,
        ranges: Sequence[Range],
        read: Callable[[str], Mapping[str, Any]],
        start: int,
        images: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__()
        self._columns: dict[str, TokenColumns] = {}
        self.source = TokenLines([], self._columns, images)
        self._title, self._ranges, self._read, self._start, self._images = title, ranges, read, start, images

    @work(exclusive=True)
    async def on_mount(self) -> None:
        """Read the tokens, and show them."""
        self.write("title", self._title, "bold")
        self.write("heading", Text(_HEADING, "bold"))
        try:
            for context in dict.fromkeys(own.context for own in self._ranges):
                self._columns[context] = TokenColumns(await asyncio.to_thread(self._read, context))
        except (EnvsdkError, OSError) as error:
            self.write("title", str(error), TROUBLE.text)
            return
        self.source = TokenLines(self._ranges, self._columns, self._images)
        line = self.source.line_of(self._start)
        self.lines.move_to(line, top=line)

    def on_line_view_moved(self) -> None:
        """Describe the token with the cursor."""
        cursor = self.lines.cursor
        if not len(self.source):
            return
        run, position = self.source.place(cursor)
        columns = self._columns[run.context]
        step = columns.at("steps", position)
        self.write("details", columns.problem or columns.details(position))
        facts = [f"{cursor + 1:,} of {len(self.source):,}", run.context, "" if step is None else f"step {step + 1}"]
        self.write("status", " · ".join(filter(None, facts)))

    def action_step(self, direction: int) -> None:
        """Go to the first token of the next step."""
        line = self.source.next_step(self.lines.cursor, direction)
        self.lines.move_to(line, top=line)

    def action_go(self) -> None:
        """Ask for a line, and go to it."""

        def check(text: str) -> None:
            if text and not text.replace(",", "").isdecimal():
                raise InvalidFilter(f"{brief(text, 20)} is not a number", 0, len(text))

        def go(text: str | None) -> None:
            if text:
                line = int(text.replace(",", "")) - 1
                self.lines.move_to(line, top=line)

        self.open_screen(Question(f"Line, 1 to {len(self.source)}", "", check), go)
