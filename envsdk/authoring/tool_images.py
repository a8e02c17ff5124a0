"""The results of tools that have images."""

import sys
from collections.abc import Sequence
from typing import Any, cast

from ..images import Image
from ..messages import ContentPart, ImagePart, TextPart


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


def _part(item: Any) -> ContentPart:
    if isinstance(item, (TextPart, ImagePart)):
        return item
    return TextPart(text=item) if isinstance(item, str) else ImagePart(item)
