"""The screen with tokens: of a context, or of the prompt of a step."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from ..._visible import on_one_line
from ...errors import EnvsdkError, InvalidFilter
from .._ranges import Range
from ._dialogs import Question
from ._lines import Lines
from ._tokens import HEADING, TokenColumns, TokenLines, details
from ._viewer_screen import ViewerScreen


class TokensScreen(ViewerScreen):
    """The tokens of ranges.

    Args:
        title: What they are.
        ranges: Which tokens.
        read: Reads the columns of a context.
        start: The line that has the cursor at first.
    """

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
        self._images = images
        self._title, self._ranges, self._read, self._start = title, ranges, read, start
        self._columns: dict[str, TokenColumns] = {}
        self.source = TokenLines([], self._columns.__getitem__)

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(Text(on_one_line(self._title), "bold"), id="title")
        yield Static(Text(HEADING, "bold"), id="heading")
        yield Lines(self.source)
        yield Static(id="details")
        yield Static(id="status")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.read_tokens()

    @work(exclusive=True)
    async def read_tokens(self) -> None:
        """Read the tokens, and show them."""
        try:
            for context in dict.fromkeys(own.context for own in self._ranges):
                self._columns[context] = TokenColumns(await asyncio.to_thread(self._read, context))
        except (EnvsdkError, OSError) as error:
            self.query_one("#title", Static).update(Text(on_one_line(str(error)), "red"))
            return
        self.source = TokenLines(self._ranges, self._columns.__getitem__, self._images)
        lines = self.query_one(Lines)
        lines.source = self.source
        lines.move_to_top(self.source.line_of(self._start))

    def on_lines_moved(self) -> None:
        """Describe the token with the cursor."""
        lines = self.query_one(Lines)
        if not len(self.source):
            return
        context, position = self.source.place(lines.cursor)
        columns = self._columns[context]
        self.query_one("#details", Static).update(Text(on_one_line(columns.problem or details(columns, position))))
        step = self.source.step(lines.cursor)
        facts = [f"{lines.cursor + 1:,} of {len(self.source):,}", context, "" if step is None else f"step {step + 1}"]
        self.query_one("#status", Static).update(Text(on_one_line(" · ".join(filter(None, facts)))))

    def action_step(self, direction: int) -> None:
        """Go to the first token of the next step."""
        lines = self.query_one(Lines)
        lines.move_to_top(self.source.next_step(lines.cursor, direction))

    def action_go(self) -> None:
        """Ask for a line."""
        self.open_screen(Question(f"Line, 1 to {len(self.source)}", "", _check_number), self._go)

    def _go(self, text: str | None) -> None:
        if text:
            self.query_one(Lines).move_to_top(int(text.replace(",", "")) - 1)


def _check_number(text: str) -> None:
    if text and not text.replace(",", "").isdecimal():
        raise InvalidFilter(f"{text!r:.20} is not a number", 0, len(text))
