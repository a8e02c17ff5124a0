"""The images of a tree as a vision model gets them: each once, with positions along the branches."""

from typing import Any

from .._packages import load
from ..errors import TreeUnsupported
from ..images import within
from ..rendering._model_images import ModelImages
from ..rendering._vision import Vision
from ._runs import Runs, TreeArrays

_EXACT = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""The models whose language model attends to an image causally, and where the tokens after an image begin at the
largest of its positions, plus one."""


def image_inputs(tree: TreeArrays, model: Any, vision: Vision | None) -> dict[str, Any]:
    """Return the arguments of a vision model besides the tokens: arrays and positions; {} for a tree without images.

    Raises:
        TreeUnsupported: If the model is not known to be exact for a tree with images.
        ConfigError: If the image processor is missing, or makes other tokens of an image.
    """
    if not tree.media:
        return {}
    kind = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
    if kind not in _EXACT:
        raise TreeUnsupported(
            f"the tree has images, and {kind} is not one of the vision models for which that is known to be exact: "
            f"{', '.join(_EXACT)}. In others (Gemma 3), the tokens of an image see one another, which the mask of a "
            "tree does not allow: train the samples as separate sequences"
        )
    images = ModelImages(model, vision)
    images.check(tree.tokens, tree.media)
    torch = load("torch", "the inputs of a model need", "pip install 'envsdk[torch]'")
    runs = Runs.of(tree)
    found, ends, start = list[Any](), list[int](), 0
    # The positions of a run continue after the largest one of the run that it follows.
    for size, parent in zip(runs.sizes, runs.parents, strict=True):
        media = [placed.moved(-start) for placed in within(tree.media, start, start + size)]
        positions = images.positions(tree.tokens[start : start + size], media) + (ends[parent] if parent >= 0 else 0)
        found.append(positions)
        ends.append(int(positions.max()) + 1)
        start += size
    positions = torch.cat(found, 1)[:, None].to(model.device)
    return {**images.arrays(tree.media), "position_ids": positions}
