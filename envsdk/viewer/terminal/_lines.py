"""The parts of the screens: a widget that renders only the visible lines, a screen around it, and dialogs."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Input, Static

from ..._palette import KEPT, LEGEND, OBSERVED, SAMPLED, TROUBLE
from ..._visible import on_one_line
from ...errors import EnvsdkError

_CONSOLE = Console()
"""Resolves the names of styles; nothing is printed on it."""
TOKEN_STYLES = {
    "kept": KEPT.text,
    "observed": OBSERVED.text,
    "sampled": SAMPLED.text,
    "trained": f"underline {SAMPLED.text}",
    "dropped": "strike",
}
"""The styles of the kinds of tokens."""
_KEYS = {"question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]"}


class LineSource(Protocol):
    """Makes the lines that `LineView` shows."""

    def __len__(self) -> int:
        """Return the number of lines."""
        ...

    def line(self, index: int, width: int) -> Text:
        """Return a line. Its text is safe to print."""
        ...

    def resize(self, width: int, cursor: int) -> int:
        """Lay out the lines for another width; return the new line of the cursor. By default, nothing changes."""
        return cursor


class LineView(Widget, can_focus=True):
    """The lines of the source of its screen, with a cursor. The cursor moves by keys, the wheel, and clicks.

    Attributes:
        cursor: The index of the line with the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "go('up')", "Line up", show=False),
        Binding("down,j", "go('down')", "Line down", show=False),
        Binding("pageup", "go('page up')", "Page up", show=False),
        Binding("pagedown,space", "go('page down')", "Page down", show=False),
        Binding("home,g", "go('first')", "First line", show=False),
        Binding("end,G", "go('last')", "Last line", show=False),
        Binding("enter", "choose", "Open"),
    ]
    DEFAULT_CSS = "LineView { height: 1fr; }"

    class Moved(Message):
        """The cursor is on another line, or the lines changed."""

    class Chosen(Message):
        """Enter was pressed on a line, or it was clicked while it had the cursor."""

    cursor = 0
    _top = 0

    @property
    def source(self) -> LineSource:
        """The source of the lines."""
        return cast("ViewerScreen[LineSource]", self.screen).source

    def move_to(self, index: int, *, top: int | None = None) -> None:
        """Move the cursor to a line, and scroll as far as needed to see it.

        Args:
            index: The line.
            top: The line to show first if there are enough lines after it; None scrolls as little as possible.
        """
        height = max(1, self.size.height)
        last_top = max(0, len(self.source) - height)
        self.cursor = max(0, min(index, len(self.source) - 1))
        self._top = min(self._top if top is None else max(0, top), self.cursor, last_top)
        self._top = max(self._top, self.cursor - height + 1)
        self.refresh()
        self.post_message(self.Moved())

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

    @on(events.MouseScrollDown)
    @on(events.MouseScrollUp)
    def scroll_lines(self, event: events.MouseEvent) -> None:
        """Move by three lines."""
        self.move_to(self.cursor + (3 if isinstance(event, events.MouseScrollDown) else -3))

    def action_go(self, where: str) -> None:
        """Move the cursor by a line or a page, or to the first or the last line."""
        page, every = max(1, self.size.height - 1), len(self.source)
        counts = {"up": -1, "down": 1, "page up": -page, "page down": page, "first": -every, "last": every}
        self.move_to(self.cursor + counts[where])

    def action_choose(self) -> None:
        """Choose the line with the cursor."""
        if len(self.source):
            self.post_message(self.Chosen())


_Source = TypeVar("_Source", bound=LineSource)


class ViewerScreen(Screen[Any], Generic[_Source]):
    """A screen with lines, and text above and below them.

    Attributes:
        PARTS: Its parts from top to bottom: ids of text widgets, and `lines`.
        source: The source of the lines.
    """

    PARTS: ClassVar[tuple[str, ...]] = ("title", "lines", "status")
    source: _Source

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        for part in self.PARTS:
            yield LineView() if part == "lines" else Static(id=part)
        yield Footer(show_command_palette=False)

    @property
    def lines(self) -> LineView:
        """The lines."""
        return self.query_one(LineView)

    def write(self, part: str, text: Text | str, style: str = "") -> None:
        """Show text above or below the lines; a string is shown on one line."""
        shown = Text(on_one_line(text), style) if isinstance(text, str) else text
        self.query_one(f"#{part}", Static).update(shown)

    def open_screen(self, screen: Screen[Any], answer: Callable[[Any], None] | None = None) -> None:
        """Show another screen; `answer` is called with its result."""
        cast("App[None]", self.app).push_screen(screen, answer)  # pyright: ignore[reportUnknownMemberType]


class Question(ModalScreen[str | None]):
    """Asks for a line of text; the result is None after Escape.

    Args:
        question: The question.
        value: The initial answer.
        check: Raises an `EnvsdkError` if an answer is not valid; its message is shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave it as it was")]
    DEFAULT_CSS = """
    Question { align: center bottom; background: $background 30%; }
    Question > Static { width: 100%; height: auto; background: $panel; padding: 0 1; }
    Question > Input { width: 100%; }
    """

    def __init__(self, question: str, value: str = "", check: Callable[[str], object] = str) -> None:
        super().__init__()
        self._question, self._value, self._check = question, value, check

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(Text(self._question), id="question")
        yield Input(self._value, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the text, or show why it is not valid."""
        try:
            self._check(event.value)
        except EnvsdkError as error:
            self.query_one("#question", Static).update(Text(on_one_line(str(error)), TROUBLE.text))
        else:
            self.dismiss(event.value)


class KeyList(ModalScreen[None]):
    """Lists the keys of a screen.

    Args:
        bindings: The keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss(None)", "Close")]
    DEFAULT_CSS = """
    KeyList { align: center middle; background: $background 30%; }
    KeyList > VerticalScroll { width: 56; max-width: 100%; height: auto; max-height: 100%; }
    KeyList > VerticalScroll { background: $panel; padding: 0 2; }
    KeyList Static { height: auto; }
    """

    def __init__(self, bindings: Iterable[BindingType]) -> None:
        super().__init__()
        self._text = Text("Tokens  ", "bold")
        for kind in LEGEND:
            self._text.append(kind, f"not bold {TOKEN_STYLES[kind]}").append("  ")
        self._text.append("\n\nKeys\n", "bold")
        for binding in bindings:
            if isinstance(binding, Binding):
                keys = " ".join(_KEYS.get(key, key) for key in binding.key.split(","))
                self._text.append(f"{keys:>20}  ", "bold cyan").append(f"{binding.description}\n", "not bold")

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        with VerticalScroll():
            yield Static(self._text)
