"""The results of tools that have images."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..images import Image
from ..messages import ContentPart, ImagePart, TextPart

if TYPE_CHECKING:
    from numpy.typing import NDArray


def parts_of(result: Any) -> list[ContentPart] | None:
    """Return the content parts of a tool's result, or None if the result has no image and is written as text.

    Args:
        result: An `Image`, an `ImagePart`, an image of Pillow, or a list or tuple of these with texts (`str`,
            `TextPart`) between them.

    Raises:
        TypeError: If a list has images and something else than texts.
        ImageError: If an image of Pillow cannot be stored.
    """
    items: Sequence[Any] = cast("Sequence[Any]", result) if isinstance(result, (list, tuple)) else [result]
    if not any(map(_is_image, items)):
        return None
    for item in items:
        if not isinstance(item, (str, TextPart)) and not _is_image(item):
            raise TypeError(
                f"a tool returned a list with an image and a {type(item).__name__}; expected only texts and images"
            )
    return [_part(item) for item in items]


def _is_image(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")  # there are images of Pillow only if something imported it
    return isinstance(value, (Image, ImagePart)) or (pillow is not None and isinstance(value, pillow.Image))


def is_binary(value: Any) -> bool:
    """Return whether a value is bytes, or the pixels of an image: uint8, shape (height, width, 3 or 4)."""
    return isinstance(value, (bytes, bytearray, memoryview)) or _is_pixels(value)


def _is_pixels(value: Any) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    array = cast("NDArray[Any]", value)
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (3, 4)


def not_a_result(value: object) -> TypeError:
    """Return the error for bytes, or the pixels of an image, that a tool returned: they may be meant as an image."""
    shape: Any = getattr(value, "shape", None) if _is_pixels(value) else None
    what = type(value).__name__ if shape is None else f"an array of uint8 with the shape {shape}"
    return TypeError(
        f"a tool returned {what}, which is not a text: return an image as envsdk.ImagePart(data), and anything else as "
        "text or JSON (an array as array.tolist())"
    )


def _part(item: Any) -> ContentPart:
    if isinstance(item, (TextPart, ImagePart)):
        return item
    return TextPart(text=item) if isinstance(item, str) else ImagePart(item)
