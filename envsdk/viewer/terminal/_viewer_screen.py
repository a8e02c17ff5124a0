"""What the screens share."""

from collections.abc import Callable
from typing import Any, cast

from textual.app import App
from textual.screen import Screen


class ViewerScreen(Screen[None]):
    """A screen that opens others."""

    def open_screen(self, screen: Screen[Any], answer: Callable[[Any], None] | None = None) -> None:
        """Show another screen; a function gets what it returns."""
        cast("App[None]", self.app).push_screen(screen, answer)  # pyright: ignore[reportUnknownMemberType]
