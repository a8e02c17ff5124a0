"""The forms in which trainers take the images of a sample: arrays of an image processor, files in RGB, token types."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidSample
from ..images import Image, PlacedImage
from ..packages import load
from ..rendering.vision import Vision
from ..trajectories.samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEEDS_VISION = (
    "the trainer gets the arrays of the model's image processor, and none was given: pass vision=renderer.vision"
)
"""Why an adapter refuses images without a processor."""


def rgb_image(image: Image) -> Image:
    """Return an image whose file is in RGB: itself, or a PNG of the pixels that the model sees.

    Trainers treat transparency in different ways.

    Raises:
        ImageError: If the bytes of the image are missing.
    """
    pillow = load("PIL.Image", "images need", "pip install 'envsdk[vision]'")
    with pillow.open(io.BytesIO(image.data)) as opened:
        return image if opened.mode == "RGB" else Image.read(image.pixels)


def token_types(media: Sequence[PlacedImage], length: int) -> "NDArray[np.int64]":
    """Return `mm_token_type_ids` of a sequence: 1 on the tokens of images, 0 elsewhere. int64, shape (length,)."""
    types = np.zeros(length, dtype=np.int64)
    for placed in media:
        types[placed.start : placed.stop] = 1
    return types


def image_arrays(sample: Sample, vision: Vision) -> "dict[str, NDArray[Any]]":
    """Return what a model gets of the images of a sample besides their tokens, one image after the other.

    Args:
        sample: The sample.
        vision: The processor of the trained model.

    Returns:
        Arrays by the names that the processor gives them, such as `pixel_values`, float32 of shape (patches, values),
        and `image_grid_thw`, int64 of shape (images, 3). Empty without images.

    Raises:
        InvalidSample: If the processor writes another number of tokens for an image than the sample has, or makes
            arrays of the images that cannot be joined.
        RenderError: If the processor refuses an image.
    """
    processed = [vision.process(placed.image) for placed in sample.media]
    for placed, own in zip(sample.media, processed, strict=True):
        count = int(np.isin(sample.tokens[placed.start : placed.stop], own.token_ids).sum())
        if own.count != count:
            raise InvalidSample(
                f"{placed.image!r} has {count} placeholders in a sample of trajectory {sample.trajectory_id!r}, but "
                f"the processor writes {own.count}: use the processor that the environment's renderer has"
            )
    joined: dict[str, NDArray[Any]] = {}
    for name in processed[0].arrays if processed else ():
        arrays = [own.arrays[name] for own in processed]
        if len({array.shape[1:] for array in arrays}) > 1:
            raise InvalidSample(
                f"the processor's {name} of the images of a sample of trajectory {sample.trajectory_id!r} have the "
                f"shapes {[array.shape for array in arrays]}, which cannot be joined: give all images the same size"
            )
        joined[name] = np.concatenate(arrays)
    return joined
