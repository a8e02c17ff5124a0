"""A widget that shows any number of lines: only those in sight are made."""

from typing import ClassVar, Protocol

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

_CONSOLE = Console()
"""Resolves the names of styles; nothing is printed on it."""


class LineSource(Protocol):
    """What makes lines."""

    def __len__(self) -> int:
        """Return how many lines there are."""
        ...

    def line(self, index: int, width: int) -> Text:
        """Return a line. Its text is safe to print."""
        ...

    def resize(self, width: int, cursor: int) -> int:
        """Lay out for another width; return where the line of the cursor is now."""
        ...


class Lines(Widget, can_focus=True):
    """Lines with a cursor. The cursor moves by keys, the wheel, and clicks.

    Args:
        source: What makes the lines.

    Attributes:
        source: What makes the lines.
        cursor: The index of the line with the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Line up", show=False),
        Binding("down,j", "move(1)", "Line down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown,space", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(0)", "First line", show=False),
        Binding("end,G", "edge(1)", "Last line", show=False),
        Binding("enter", "choose", "Open"),
    ]
    DEFAULT_CSS = "Lines { height: 1fr; }"

    class Moved(Message):
        """The cursor is on another line, or the lines changed."""

    class Chosen(Message):
        """Enter was pressed on a line, or it was clicked while it had the cursor."""

    def __init__(self, source: LineSource) -> None:
        super().__init__()
        self.source = source
        self.cursor = 0
        self._top = 0

    def show(self, source: LineSource, cursor: int = 0) -> None:
        """Show other lines."""
        self.source = source
        self.move_to(cursor)

    def move_to(self, index: int) -> None:
        """Move the cursor to a line, and scroll as far as needed to see it."""
        self.cursor = max(0, min(index, len(self.source) - 1))
        height = max(1, self.size.height)
        self._top = min(self._top, self.cursor, max(0, len(self.source) - height))
        self._top = max(self._top, self.cursor - height + 1)
        self.refresh()
        self.post_message(self.Moved())

    def move_to_top(self, index: int) -> None:
        """Move the cursor to a line, and show it as the first one if there are enough lines after it."""
        self._top = max(0, min(index, len(self.source) - max(1, self.size.height)))
        self.move_to(index)

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        index, width = self._top + y, self.size.width
        if index >= len(self.source):
            return Strip.blank(width, self.rich_style)
        line = self.source.line(index, width)
        style = self.rich_style
        if index == self.cursor:  # in one color, which is readable on any terminal
            line, style = Text(line.plain), style + Style(reverse=True)
        line.stylize_before(line.style)  # `render` leaves it out
        return Strip(list(line.render(_CONSOLE))).adjust_cell_length(width).apply_style(style)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out the lines for the new size."""
        self.move_to(self.source.resize(event.size.width, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a line, or choose it."""
        index = self._top + event.y
        if index == self.cursor:
            self.action_choose()
        elif index < len(self.source):
            self.move_to(index)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move three lines down."""
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move three lines up."""
        self.action_move(-3)

    def action_move(self, count: int) -> None:
        """Move the cursor by a number of lines."""
        self.move_to(self.cursor + count)

    def action_page(self, count: int) -> None:
        """Move the cursor by a number of pages."""
        self.move_to(self.cursor + count * max(1, self.size.height - 1))

    def action_edge(self, is_last: int) -> None:
        """Move the cursor to the first or the last line."""
        self.move_to(len(self.source) - 1 if is_last else 0)

    def action_choose(self) -> None:
        """Choose the line with the cursor."""
        if len(self.source):
            self.post_message(self.Chosen())
