"""The screen with the drawing of the contexts of an episode."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static

from ..._visible import on_one_line
from .._drawing import DrawnRow
from ._lines import Lines

_STYLES = {"rewrite": "red", "handoff": "cyan", "return": "cyan", "switch": "cyan", "end": "dim"}


class DrawingLines:
    """The rows of a drawing as lines.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: Sequence[DrawnRow]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def line(self, index: int, width: int) -> Text:
        """Return a line."""
        row = self.rows[index]
        return Text(f"{row.lanes}  ", "bold green").append(row.text, f"not bold {_STYLES.get(row.kind, 'default')}")

    def resize(self, width: int, cursor: int) -> int:
        """Nothing depends on the width."""
        return cursor


class DrawingScreen(Screen[int | None]):
    """The contexts of an episode as lanes. Choosing a row returns the index of its first step.

    Args:
        title: The id of the episode.
        rows: The rows of the drawing.
        step: The index of the step that has the cursor at first, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "Back")]

    def __init__(self, title: str, rows: Sequence[DrawnRow], step: int | None) -> None:
        super().__init__()
        self._title, self._step = title, step
        self.source = DrawingLines(rows)

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(Text(f"contexts of {on_one_line(self._title)}", "bold"), id="title")
        yield Lines(self.source)
        yield Static(id="details")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Put the cursor on the step."""
        own = (index for index, row in enumerate(self.source.rows) if row.kind == "steps" and self._step in row.steps)
        self.query_one(Lines).move_to(next(own, 0))

    def on_lines_moved(self) -> None:
        """Show the text of the row with the cursor in full."""
        row = self.source.rows[self.query_one(Lines).cursor]
        self.query_one("#details", Static).update(Text(row.text))

    def on_lines_chosen(self) -> None:
        """Return the first step of the row with the cursor."""
        steps = self.source.rows[self.query_one(Lines).cursor].steps
        self.dismiss(steps[0] if steps else None)

    def action_leave(self) -> None:
        """Return nothing."""
        self.dismiss(None)
