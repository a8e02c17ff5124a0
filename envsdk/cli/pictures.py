"""Images in the terminal, for terminals with Kitty's graphics protocol or with Sixel. Nothing is written to a pipe.

Only pixels that Pillow decoded are written, encoded again: no byte of a file reaches the terminal.

- Kitty: https://sw.kovidgoyal.net/kitty/graphics-protocol/
- Sixel: https://vt100.net/docs/vt3xx-gp/chapter14.html
"""

import base64
import io
import os
import select
import shutil
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from ..errors import EnvsdkError
from ..images import Image, pillow_module
from .output import print_text

Protocol: TypeAlias = Literal["kitty", "sixel", "none"]
OPTION = "How to show images on a terminal: auto asks it. Otherwise they are named."

_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_SIXEL_TERMS = ("foot", "mlterm", "yaft")
_MULTIPLEXERS = ("tmux", "screen")
_SIXEL_ATTRIBUTE = "4"
_ANSWER_S = 0.3
_LARGEST = (640, 400)  # pixels
_CELL_WIDTH = 8  # pixels, at least
_CHUNK = 4096
_COLORS = 128
_BAND = 6


class Choice(StrEnum):
    """How images are shown in the terminal."""

    AUTO = "auto"
    KITTY = "kitty"
    SIXEL = "sixel"
    NONE = "none"


class Pictures:
    """Shows images in the terminal, if it is one that can.

    Args:
        choice: The protocol, or `auto`.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol; `none` if the output is not a terminal, whatever was chosen."""
        if self._choice is Choice.NONE or not sys.stdout.isatty():
            return "none"
        return detected(os.environ) if self._choice is Choice.AUTO else self._choice.value

    def show(self, image: Image) -> None:
        """Show an image below its name; print why if its file is missing or damaged."""
        if self.protocol == "none":
            return
        try:
            drawn = kitty(image) if self.protocol == "kitty" else sixel(image)
        except EnvsdkError as error:
            print_text(f"-- {error}", style="red")
            return
        sys.stdout.flush()
        sys.stdout.write(f"{drawn}\n")
        sys.stdout.flush()


def detected(environ: Mapping[str, str]) -> Protocol:
    """Return the protocol of the terminal: by the variables that terminals set, else by asking it for Sixel."""
    term = environ.get("TERM", "")
    # In a multiplexer, the variables of the terminal around it are still set.
    if "TMUX" not in environ and not term.startswith(_MULTIPLEXERS):
        if term.startswith(_SIXEL_TERMS):
            return "sixel"
        if term in _KITTY_TERMS or environ.get("TERM_PROGRAM") == "ghostty" or "KITTY_WINDOW_ID" in environ:
            return "kitty"
    return "sixel" if term != "dumb" and _SIXEL_ATTRIBUTE in _attributes() else "none"


def _attributes() -> list[str]:
    """Return the attributes that the terminal answers to a request of its primary device attributes (DA1)."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return []
    try:
        import termios
        import tty
    except ImportError:  # on Windows
        return []
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    answer = b""
    try:
        tty.setcbreak(file)
        sys.stdout.write("\x1b[c")
        sys.stdout.flush()
        while not answer.endswith(b"c") and select.select([file], [], [], _ANSWER_S)[0]:
            answer += os.read(file, 64)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
    _, _, attributes = answer.decode("ascii", "replace").rpartition("\x1b[?")
    return attributes.removesuffix("c").split(";")


def _pixels(image: Image) -> Any:
    """Return an image of Pillow that fits into the terminal."""
    pixels: Any = image.pixels
    width, height = min(_LARGEST[0], shutil.get_terminal_size().columns * _CELL_WIDTH), _LARGEST[1]
    scale = min(1.0, width / pixels.width, height / pixels.height)
    return pixels.resize((max(1, round(pixels.width * scale)), max(1, round(pixels.height * scale))))


def kitty(image: Image) -> str:
    """Return the codes that show an image in Kitty's protocol: PNG in pieces, to which the terminal does not answer."""
    file = io.BytesIO()
    _pixels(image).save(file, "PNG")
    text = base64.b64encode(file.getvalue()).decode()
    pieces = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    codes: list[str] = []
    for index, piece in enumerate(pieces):
        first = "a=T,f=100,q=2," if index == 0 else ""
        codes.append(f"\x1b_G{first}m={int(index + 1 < len(pieces))};{piece}\x1b\\")
    return "".join(codes)


def sixel(image: Image) -> str:
    """Return the codes that show an image in Sixel: bands of six lines, one color after another."""
    quantize = pillow_module("Image").Quantize
    drawn = _pixels(image).quantize(_COLORS, method=quantize.MEDIANCUT)
    indices = np.asarray(drawn)
    height, width = indices.shape
    palette = np.asarray(drawn.getpalette("RGB")).reshape(-1, 3)
    colors = [
        f"#{index};2;" + ";".join(str(round(int(value) * 100 / 255)) for value in rgb)
        for index, rgb in enumerate(palette.tolist())
    ]
    bands = "".join(f"{_band(indices[top : top + _BAND])}-" for top in range(0, height, _BAND))
    return f'\x1bP0;1q"1;1;{width};{height}{"".join(colors)}{bands}\x1b\\'


def _band(indices: Any) -> str:
    """Return up to six lines: for each color, a character for each column, whose bits are its lines."""
    weights = 1 << np.arange(len(indices))
    lines: list[str] = []
    for color in np.unique(indices).tolist():
        columns = ((indices == color) * weights[:, None]).sum(axis=0)
        lines.append(f"#{color}{''.join(_runs(columns))}")
    return "$".join(lines)


def _runs(columns: Any) -> Iterator[str]:
    edges = [0, *(np.flatnonzero(np.diff(columns)) + 1).tolist(), len(columns)]
    for start, stop in pairwise(edges):
        character = chr(63 + int(columns[start]))
        yield f"!{stop - start}{character}" if stop - start > 3 else character * (stop - start)
