"""Dialogs over a screen: one line of input, and the list of keys."""

from collections.abc import Callable, Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ..._visible import on_one_line
from ...errors import EnvsdkError


class Question(ModalScreen[str | None]):
    """Asks for a line of text; None if it was left with Escape.

    Args:
        question: What is asked.
        value: What is in the line at first.
        check: Raises an `EnvsdkError` if a text is not valid; its message is shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it as it was")]
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
            self.query_one("#question", Static).update(Text(on_one_line(str(error)), "red"))
        else:
            self.dismiss(event.value)

    def action_leave(self) -> None:
        """Return nothing."""
        self.dismiss(None)


class Keys(ModalScreen[None]):
    """Lists the keys of a screen.

    Args:
        bindings: The keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "leave", "Close")]
    DEFAULT_CSS = """
    Keys { align: center middle; background: $background 30%; }
    Keys > VerticalScroll { width: 56; max-width: 100%; height: auto; max-height: 100%; }
    Keys > VerticalScroll { background: $panel; padding: 0 2; }
    Keys Static { height: auto; }
    """

    def __init__(self, bindings: Iterable[BindingType]) -> None:
        super().__init__()
        self._keys = [binding for binding in bindings if isinstance(binding, Binding)]

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        text = Text("Keys\n", "bold")
        for binding in self._keys:
            text.append(f"{_names(binding.key):>20}  ", "bold cyan").append(f"{binding.description}\n", "not bold")
        with VerticalScroll():
            yield Static(text)

    def action_leave(self) -> None:
        """Close the list."""
        self.dismiss(None)


_NAMES = {"question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]"}


def _names(keys: str) -> str:
    return " ".join(_NAMES.get(key, key) for key in keys.split(","))
