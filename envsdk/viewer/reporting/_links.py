"""Where an episode can be looked at: its place in the page of `envsdk view`, and the command that prints it."""

import re
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

from ..._visible import on_one_line
from ...errors import ConfigError

VIEWER = "http://127.0.0.1:8123/"
"""Where `envsdk view RUN --port 8123` shows runs."""
_SCHEMES = ("http", "https", "file", "")


class Links:
    """Links to the episodes of a report.

    Args:
        paths: The runs, in the order in which `envsdk view` gets them.
        viewer: The address of `envsdk view`, or the file that `envsdk view --html` wrote.

    Raises:
        ConfigError: If `viewer` is not an address of a page or a file.
    """

    def __init__(self, paths: Sequence[str], viewer: str = VIEWER) -> None:
        address = urlsplit(viewer)
        if not viewer or address.scheme not in _SCHEMES or address.fragment or on_one_line(viewer) != viewer:
            raise ConfigError(f"viewer is {viewer!r:.80}; expected an address such as {VIEWER}, or an HTML file")
        self._paths, self._viewer = paths, viewer

    @property
    def viewer_command(self) -> str:
        """The command that shows the runs where the links lead; empty if that is not a server on this machine."""
        address = urlsplit(self._viewer)
        if address.scheme != "http" or address.hostname not in ("127.0.0.1", "localhost"):
            return ""
        return shlex.join(["envsdk", "view", *self._paths, "--port", str(address.port or 80)])

    def url(self, run: int, line: int) -> str:
        """Return the place of an episode in the viewer.

        Args:
            run: The index of the run.
            line: The number of the episode's line, from 1.
        """
        return f"{self._viewer}#/run/{run}/{line}"

    def command(self, run: int, line: int, id: str) -> str:
        """Return the command that prints an episode: by its id, or by its line if the id cannot be typed."""
        can_be_typed = on_one_line(id) == id and re.fullmatch(r"[^\s-]\S*", id) is not None and not id.isdigit()
        return shlex.join(["envsdk", "show", self._paths[run], id if can_be_typed else str(line)])
