"""The arrays of an image processor, which trainers get besides the tokens of a sample."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidSample
from ..images import PlacedImage
from ..rendering._vision import Vision, joined_arrays
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEEDS_VISION = (
    "the trainer gets the arrays of the model's image processor, and none was given: pass vision=renderer.vision"
)
"""The reason why an adapter refuses images without a processor."""


def whole_images(index: int, sample: Sample, length: int) -> list[PlacedImage]:
    """Return the images of the first tokens of a sample of a batch.

    Raises:
        InvalidSample: If an image is cut.
    """
    for placed in sample.media:
        if placed.start < length < placed.stop:
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, is cut after {length} tokens, within the "
                f"tokens {placed.start} to {placed.stop} of an image: choose another max_length"
            )
    return [placed for placed in sample.media if placed.stop <= length]


def image_arrays(sample: Sample, vision: Vision) -> "dict[str, NDArray[Any]]":
    """Return what a model gets of the images of a sample besides their tokens, one image after the other.

    Args:
        sample: The sample.
        vision: The processor of the trained model.

    Returns:
        Arrays by the names that the processor gives them, such as `pixel_values`, float32 of shape (patches, values),
        and `image_grid_thw`, int64 of shape (images, 3). Empty without images.

    Raises:
        InvalidSample: If the processor writes a number of tokens for an image that differs from the sample's, or makes
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
    for name in processed[0].arrays if processed else ():
        shapes = [own.arrays[name].shape for own in processed]
        if len({shape[1:] for shape in shapes}) > 1:
            raise InvalidSample(
                f"the processor's {name} of the images of a sample of trajectory {sample.trajectory_id!r} have the "
                f"shapes {shapes}, which cannot be joined: give all images the same size"
            )
    return joined_arrays(processed)
