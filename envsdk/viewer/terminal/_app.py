"""The program of `envsdk view --terminal`."""

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from .._resources import Resources
from ._lines import KeyList, LineView
from ._list import ListScreen


class TerminalViewer(App[None]):
    """Shows runs in a terminal.

    Args:
        resources: The runs.
        filter: The initial filter of the list.
        follow: Whether to look for new episodes once a second.

    Raises:
        InvalidFilter: If the filter is not valid.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "envsdk"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "Keys"),
        Binding("d", "toggle_dark", "Dark or light", show=False),
        Binding("q,ctrl+q", "quit", "Quit", show=False),
    ]
    CSS = """
    #title, #heading, #status { height: 1; width: 100%; text-wrap: nowrap; text-overflow: ellipsis; }
    #title { background: $primary 30%; }
    #details { height: 2; width: 100%; text-wrap: nowrap; text-overflow: ellipsis; color: $text-muted; }
    #status { background: $panel; }
    """

    def __init__(self, resources: Resources, filter: str = "", *, follow: bool = False) -> None:
        super().__init__()
        self._list = ListScreen(resources, filter, follow=follow)

    def on_mount(self) -> None:
        """Show the list."""
        self.push_screen(self._list)

    def action_keys(self) -> None:
        """List the keys."""
        self.push_screen(KeyList([*self.screen.BINDINGS, *LineView.BINDINGS, *self.BINDINGS]))
