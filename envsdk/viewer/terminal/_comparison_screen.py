"""The screen with two episodes side by side."""

import asyncio
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from ..._visible import on_one_line
from ...errors import EnvsdkError
from .._divergence import first_different_token
from .._resources import Resources
from .._transcript import transcript
from ._comparison import ComparisonLines, Shown
from ._episodes import Listed
from ._lines import Lines
from ._viewer_screen import ViewerScreen


class ComparisonScreen(ViewerScreen):
    """Two episodes, message by message, and where they diverge.

    Args:
        resources: The runs.
        one: The first episode.
        other: The second one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("n", "difference(1)", "Next difference"),
        Binding("N", "difference(-1)", "Difference before"),
    ]

    def __init__(self, resources: Resources, one: Listed, other: Listed) -> None:
        super().__init__()
        self._resources, self._pair = resources, (one, other)
        nothing = Shown({"contexts": []}, [])
        self.source = ComparisonLines(nothing, nothing, 80)

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="title")
        yield Lines(self.source)
        yield Static(id="details")
        yield Static(id="status")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.read_episodes()

    @work(exclusive=True)
    async def read_episodes(self) -> None:
        """Read both episodes, and show where they diverge."""
        try:
            own = [await asyncio.to_thread(self._resources.trajectory, run, row.line) for run, row in self._pair]
            episodes = [await asyncio.to_thread(self._resources.episode, run, row.line) for run, row in self._pair]
            shown = [Shown(*one) for one in zip(episodes, map(list, map(transcript, own, episodes)), strict=True)]
        except (EnvsdkError, OSError) as error:
            self.query_one("#title", Static).update(Text(on_one_line(str(error)), "red"))
            return
        lines = self.query_one(Lines)
        self.source = ComparisonLines(shown[0], shown[1], lines.size.width or 80)
        self.query_one("#title", Static).update(Text(on_one_line(f"{own[0].id}  │  {own[1].id}"), "bold"))
        rewards = " │ ".join(f"{one.stop_reason}, {one.reward_text}, {len(one.steps)} steps" for one in own)
        context = next(iter(own[0].contexts), "")
        at = first_different_token(own[0], own[1], context)
        token = "" if at is None else f"\nfirst different token of {context}: {at:,}"
        self.query_one("#details", Static).update(Text("\n".join(map(on_one_line, f"{rewards}{token}".split("\n")))))
        lines.show(self.source)
        self.action_difference(1)

    def on_lines_moved(self) -> None:
        """Describe where the cursor is."""
        cursor = self.query_one(Lines).cursor
        self.query_one("#status", Static).update(Text(f"line {cursor + 1:,} of {len(self.source):,}"))

    def action_difference(self, direction: int) -> None:
        """Go to the next message that differs."""
        lines = self.query_one(Lines)
        found = self.source.next_difference(lines.cursor, direction)
        if found is None:
            self.notify("There is no further difference.", markup=False)
        else:
            lines.move_to_top(max(0, found - 3))
            lines.move_to(found)
