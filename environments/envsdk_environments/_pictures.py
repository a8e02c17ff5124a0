"""Shapes and numbers in pictures, drawn pixel by pixel: no fonts, so the same picture has the same bytes everywhere."""

from typing import Any, NamedTuple

import numpy as np

from envsdk._packages import load

COLORS = {
    "red": (208, 32, 32),
    "orange": (240, 144, 0),
    "green": (16, 144, 48),
    "blue": (32, 80, 208),
    "purple": (136, 48, 168),
    "black": (24, 24, 24),
}
SHAPES = ("circle", "square", "triangle", "diamond")
NAMES = tuple(f"{color} {shape}" for color in COLORS for shape in SHAPES)
"""All items: a color and a shape."""
_BITMAPS = {
    "0": (7, 5, 5, 5, 7),
    "1": (2, 6, 2, 2, 7),
    "2": (7, 1, 7, 4, 7),
    "3": (7, 1, 7, 1, 7),
    "4": (5, 5, 7, 1, 1),
    "5": (7, 4, 7, 1, 7),
    "6": (7, 4, 7, 5, 7),
    "7": (7, 1, 1, 2, 2),
    "8": (7, 5, 7, 5, 7),
    "9": (7, 5, 7, 1, 7),
}
"""The rows of each digit, three pixels wide, from the top; the highest bit is on the left."""
_ADVICE = "pip install 'envsdk[vision]'"


class Point(NamedTuple):
    """A point of a picture, in pixels from the left and from the top."""

    x: int
    y: int


class Picture:
    """A picture that is being drawn.

    Args:
        width: In pixels.
        height: In pixels.
        background: The color of its pixels, in RGB.

    Raises:
        MissingPackage: If Pillow is not installed.
    """

    def __init__(self, width: int, height: int, background: tuple[int, int, int] = (248, 248, 248)) -> None:
        self.image: Any = load("PIL.Image", "a picture needs", _ADVICE).new("RGB", (width, height), background)
        """The image of Pillow."""
        self._draw: Any = load("PIL.ImageDraw", "a picture needs", _ADVICE).Draw(self.image)

    def lines(self, step: int, color: tuple[int, int, int] = (216, 216, 216)) -> None:
        """Draw a grid of lines, `step` pixels apart."""
        width, height = self.image.size
        for x in range(0, width, step):
            self._draw.line((x, 0, x, height), fill=color)
        for y in range(0, height, step):
            self._draw.line((0, y, width, y), fill=color)

    def item(self, name: str, center: Point, radius: int) -> None:
        """Draw an item.

        Args:
            name: One of `NAMES`.
            center: Its center.
            radius: Half of its width and height, in pixels.
        """
        color, _, shape = name.partition(" ")
        (x, y), fill = center, COLORS[color]
        left, top, right, bottom = x - radius, y - radius, x + radius, y + radius
        match shape:
            case "circle":
                self._draw.ellipse((left, top, right, bottom), fill=fill)
            case "square":
                self._draw.rectangle((left, top, right, bottom), fill=fill)
            case "triangle":
                self._draw.polygon([(x, top), (right, bottom), (left, bottom)], fill=fill)
            case _:
                self._draw.polygon([(x, top), (right, y), (x, bottom), (left, y)], fill=fill)

    def number(self, digits: str, corner: Point, scale: int) -> None:
        """Draw a number in black.

        Args:
            digits: The digits.
            corner: The upper left corner.
            scale: How many pixels a dot of a digit has; a digit has 3 x 5 dots, and one dot of space after it.
        """
        for position, digit in enumerate(digits):
            for row, bits in enumerate(_BITMAPS[digit]):
                for column in range(3):
                    if bits & (4 >> column):
                        x, y = corner.x + (position * 4 + column) * scale, corner.y + row * scale
                        self._draw.rectangle((x, y, x + scale - 1, y + scale - 1), fill=COLORS["black"])


def different(rng: np.random.Generator, count: int, below: int) -> list[int]:
    """Draw `count` different integers from 0 to `below` - 1, such as items or cells."""
    return [int(number) for number in rng.permutation(below)[:count]]
