"""The drawings of the documentation, by the names of their files in `docs/drawings/`. `make drawings` writes them."""

from collections.abc import Callable, Mapping
from functools import partial

from ..names import CHECKOUT
from . import charts, episodes, results, sequence, tokens

FOLDER = CHECKOUT / "docs" / "drawings"
DRAWINGS: Mapping[str, Callable[[], str]] = {
    "episode.svg": partial(episodes.in_viewer, moves=True),
    "viewer.svg": partial(episodes.in_viewer, moves=False),
    "deltas.svg": episodes.deltas,
    "breaks.svg": episodes.breaks,
    "handoffs.svg": episodes.handoffs,
    "folds.svg": partial(episodes.folds, as_played=True),
    "unfolded.svg": partial(episodes.folds, as_played=False),
    "tree.svg": episodes.tree,
    "retokenized.svg": tokens.retokenized,
    "on-policy.svg": charts.on_policy,
    "layers.svg": charts.layers,
    "step.svg": sequence.step,
    **{f"history-{name}.svg": partial(episodes.history, name) for name in episodes.POLICIES},
    **{f"results-{game}.svg": partial(results.rewards, game) for game in ("guess", "shelves")},
}


def write_drawings() -> None:
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
