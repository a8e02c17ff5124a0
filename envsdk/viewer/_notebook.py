"""`trajectory.view()`: the page with one episode, in a notebook or in the browser."""

import base64
import sys
import tempfile
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..errors import ImageError
from ..rendering.tokenizers import load_tokenizer
from ..rollouts._stored_run import PLAIN
from ..trajectories._media import MEDIA, write_images
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import storing
from ._filters import parse_filter
from ._page import write_page
from ._resources import Resources
from ._sources import Source

_LARGEST_FRAME = 1_400_000
"""The maximum size of a page in a frame, in bytes: Chromium refuses base64 addresses of more than 2 MiB."""
_HEIGHT = 640


@dataclass(eq=False, repr=False)
class TrajectoryPage:
    """The page of the viewer with one episode. A notebook displays it.

    Attributes:
        path: The file; it needs no server and no network.
    """

    path: Path

    @property
    def url(self) -> str:
        """The address of the episode in the file."""
        return self.path.resolve().as_uri()

    def __repr__(self) -> str:
        return f"<TrajectoryPage {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        """Return the page in an iframe, isolated from the notebook."""
        page = self.path.read_bytes()
        if len(page) > _LARGEST_FRAME:
            return f"<p>The page is too large for a notebook ({len(page) / 1e6:.1f} MB). Open {escape(self.url)}</p>"
        source = f"data:text/html;base64,{base64.b64encode(page).decode()}"
        style = f"width:100%;height:{_HEIGHT}px;border:1px solid currentColor"
        return f'<iframe title="Trajectory" sandbox="allow-scripts" style="{style}" src="{source}"></iframe>'


def view(trajectory: Trajectory, tokenizer: Any = None) -> TrajectoryPage:
    """Write the page of an episode into a temporary folder, and open it in the browser unless a notebook displays it.

    Images whose bytes are missing are named. `Trajectory.from_json(line, media=FOLDER)` reads a record with its images.

    Args:
        trajectory: The episode.
        tokenizer: The episode's tokenizer: anything that `load_tokenizer` accepts. None is the embedded one. Tokens
            of another tokenizer are shown by their ids.

    Raises:
        ConfigError: If the tokenizer cannot be loaded.
        StorageError: If the page cannot be written.
    """
    loaded = load_tokenizer("embedded" if tokenizer is None else tokenizer)
    folder = Path(tempfile.mkdtemp(prefix="envsdk-view-"))
    for image in trajectory.images:
        with suppress(ImageError):  # an image without bytes is shown by its name
            write_images([image], folder / MEDIA)
    with storing(folder / PLAIN):
        (folder / PLAIN).write_bytes(trajectory.to_json(embed_images=False) + b"\n")
    source = Source(folder / PLAIN, {loaded.fingerprint: loaded})
    page = TrajectoryPage(folder / "trajectory.html")
    write_page(page.path, Resources([source]), parse_filter(""))
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:  # there is no kernel that displays HTML
        webbrowser.open(page.url)
    return page
