"""The colors of tokens and of outcomes: the same in drawings, the page of the viewer, the terminal, reports and cards.

What was sampled is warm and what was observed is cool. Trained tokens are underlined, and dropped ones are hatched
(struck through in the terminal). Red is only for trouble: errors and failed episodes. Rewards above zero are green,
others purple.
`make page` writes the colors into `viewer/src/palette.css`, and the legend into `viewer/src/types.ts`.
"""

from typing import NamedTuple


class Shade(NamedTuple):
    """A color as hexadecimal RGB: of areas and of text on a light and on a dark ground, and of text on any ground."""

    light: str
    dark: str
    light_text: str
    dark_text: str
    text: str


KEPT = Shade("#d5dbe5", "#4a535f", "#565e68", "#a6afb9", "#7d8590")
OBSERVED = Shade("#5b9bd5", "#4a86c0", "#1a5fb4", "#7fb3f5", "#3d85c8")
SAMPLED = Shade("#f0a23b", "#cf8a2e", "#8a4b00", "#f0ae60", "#c27600")
GOOD = Shade("#3f9a66", "#48a470", "#1a7340", "#72cf95", "#2e9656")
BAD = Shade("#9467b8", "#a27cc6", "#7b3294", "#cfa3ee", "#9b62bd")
TROUBLE = Shade("#d9534a", "#e0685f", "#b3261e", "#ff958b", "#e0463b")
SHADES = {"kept": KEPT, "observed": OBSERVED, "sampled": SAMPLED, "good": GOOD, "bad": BAD, "trouble": TROUBLE}
"""The shades by name."""
LEGEND = {
    "kept": "in the prompt already: a step neither renders nor sends it again",
    "observed": "new in a prompt: what the environment and the chat format added",
    "sampled": "sampled by the model",
    "trained": "underlined: sampled, and in the loss of a sample",
    "dropped": "hatched: a later break took it out of the prompt",
}
"""The kinds of tokens and their meanings, in the order of a legend."""
