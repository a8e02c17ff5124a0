"""The inputs of a vision model of transformers besides its tokens: image arrays and positions.

The supported models are Qwen's (Qwen2-VL and later). Their language model attends to the tokens of an image causally,
as to text, and a token has three positions: in time, height and width (mRoPE). The positions come from the model's own
`get_rope_index`. Torch is imported when something is computed.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .._packages import load
from ..errors import ConfigError
from ..images import Image, PlacedImage
from ._vision import Vision, find_processor, joined_arrays, token_types
from .tokenizers._load import local_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_GRIDS = 100_000  # images whose grids are kept
_ADVICE = "pip install 'envsdk[torch]'"


class ModelImages:
    """Prepares the image inputs of a model.

    Attributes:
        has_positions: True if each token of the model has three positions, which are equal for text.

    Args:
        model: A model of transformers.
        vision: The model's image processor, such as the renderer's `Renderer.vision`. By default, the processor in the
            folder that the model was loaded from.
    """

    def __init__(self, model: Any, vision: Vision | None = None) -> None:
        self._model = model
        self._given = vision
        modules: Any = getattr(model, "modules", tuple)()
        self._rope: Any = next((module for module in modules if hasattr(module, "get_rope_index")), None)
        """The submodule that computes positions in three dimensions; None if the model has none."""
        self.has_positions = self._rope is not None
        self._grids: dict[str, tuple[int, NDArray[np.int64]]] = {}  # the number of tokens, and `image_grid_thw`

    @cached_property
    def vision(self) -> Vision:
        """The image processor.

        Raises:
            ConfigError: If none was given, and the model's folder does not contain one.
        """
        if self._given is not None:
            return self._given
        tokenizer = local_tokenizer(str(getattr(self._model, "name_or_path", "")))
        processor = None if tokenizer is None else find_processor(tokenizer)
        if tokenizer is None or processor is None:
            raise ConfigError(
                "there are images, and no image processor was found next to the model: pass vision=renderer.vision, "
                "from the renderer that wrote them"
            )
        return Vision(processor, tokenizer)

    def check(self, tokens: "NDArray[np.integer[Any]]", media: Sequence[PlacedImage]) -> None:
        """Check that the model accepts the images, and that the tokens contain exactly their placeholders.

        Raises:
            ConfigError: If it does not, or the image processor gives a different number of tokens for an image.
        """
        if not media:
            return
        if not self.has_positions:
            raise ConfigError(
                f"there are images, and {type(self._model).__name__} is not one of the vision models whose inputs "
                "envsdk knows: those with get_rope_index, Qwen's. Remove the images, or compute its inputs yourself "
                "from Vision.process(image).arrays"
            )
        for placed in media:
            count = self._grid(placed.image)[0]
            if count != placed.stop - placed.start:
                raise ConfigError(
                    f"{placed.image!r} has {placed.stop - placed.start} tokens, but the image processor gives it "
                    f"{count}: pass vision=renderer.vision, from the renderer that wrote it"
                )
        found = int(np.isin(tokens, self.vision.token_ids).sum())
        expected = sum(placed.stop - placed.start for placed in media)
        if found != expected:
            raise ConfigError(
                f"{found} tokens are placeholders of images, but the images have {expected}: the model sampled the "
                "others and would read them as images. Leave this episode out"
            )

    def arrays(self, media: Sequence[PlacedImage]) -> dict[str, Any]:
        """Return the concatenated arrays of images by the model's argument names; an empty dict without images.

        They are tensors on the model's device, such as `pixel_values`, float32 of shape (patches, values), and
        `image_grid_thw`, int64 of shape (images, 3).
        """
        if not media:
            return {}
        torch = load("torch", "the inputs of a model need", _ADVICE)
        joined = joined_arrays([self.vision.process(placed.image) for placed in media])
        device: Any = getattr(self._model, "device", "cpu")
        return {name: torch.as_tensor(array, device=device) for name, array in joined.items()}

    def positions(self, tokens: "NDArray[np.integer[Any]]", media: Sequence[PlacedImage]) -> Any:
        """Return the positions of the tokens of one sequence: a tensor on the CPU, int64 of shape (3, n)."""
        torch = load("torch", "the inputs of a model need", _ADVICE)
        if not media:
            return torch.arange(len(tokens)).expand(3, -1)
        kinds = torch.as_tensor(token_types(media, len(tokens)))[None]
        grids = [self._grid(placed.image)[1] for placed in media]
        ids = torch.as_tensor(np.asarray(tokens, dtype=np.int64))[None]
        grid = torch.as_tensor(np.concatenate(grids))
        return self._rope.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)[0][:, 0]

    def inputs(self, tokens: "NDArray[np.integer[Any]]", media: Sequence[PlacedImage]) -> dict[str, Any]:
        """Return the model's arguments for one sequence besides the tokens: the arrays and the positions.

        Raises:
            ConfigError: See `check`.
        """
        self.check(tokens, media)
        if not self.has_positions:
            return {}
        positions = self.positions(tokens, media)[:, None].to(getattr(self._model, "device", "cpu"))
        return {**self.arrays(media), "position_ids": positions}

    def _grid(self, image: Image) -> "tuple[int, NDArray[np.int64]]":
        """Return the grid of an image, which stays cached after the processor has dropped the image's arrays."""
        if image.sha256 not in self._grids:
            processed = self.vision.process(image)
            if len(self._grids) >= _MAX_GRIDS:
                self._grids.clear()
            self._grids[image.sha256] = processed.count, processed.arrays["image_grid_thw"]
        return self._grids[image.sha256]
