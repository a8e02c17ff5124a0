"""Opens a viewer on an episode. Viewers are layers above this one, so they are found as plug-ins are.

An entry point in the group `envsdk.viewers` points to a function that takes a trajectory and a tokenizer.
"""

from typing import Any

from ..errors import PluginError

VIEWERS = "envsdk.viewers"


def open_viewer(trajectory: Any, tokenizer: Any) -> Any:
    """Show an episode in the viewer of this package.

    Args:
        trajectory: The episode.
        tokenizer: What `load_tokenizer` accepts, or None.

    Returns:
        What the viewer returns; a notebook displays it.

    Raises:
        PluginError: If the viewer is not among the entry points of installed packages.
    """
    from importlib.metadata import entry_points

    point = next((point for point in entry_points(group=VIEWERS) if point.name == "page"), None)
    if point is None:
        raise PluginError(
            f"no installed package has the entry point 'page' in the group {VIEWERS!r}, which envsdk has: install it "
            "again (pip install -e . in a checkout)"
        )
    return point.load()(trajectory, tokenizer)
