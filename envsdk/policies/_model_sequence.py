"""The tokens of a prompt and its reply, with the images, as a model of transformers receives them piece by piece."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..images import PlacedImage, keyed, within
from ..rendering._model_images import ModelImages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ModelSequence:
    """A prompt, and the tokens that were sampled after it so far.

    Args:
        torch: The module `torch`.
        images: Makes the model's inputs of images.
        prompt: The whole prompt, int32 of shape (n,).
        media: The images in it.

    Raises:
        ConfigError: If the model does not take the images.
    """

    def __init__(
        self, torch: Any, images: ModelImages, prompt: "NDArray[np.int32]", media: Sequence[PlacedImage]
    ) -> None:
        images.check(prompt, media)
        self._torch, self._images, self._media = torch, images, media
        self._tokens: list[int] = prompt.tolist()
        self.prompt_keys = keyed(prompt, media)
        """The tokens, with a number for each image in place of its placeholders: int64, shape (n,)."""
        self.keys: list[int] = self.prompt_keys.tolist()
        """The same, with the sampled tokens."""
        self._positions: Any = images.positions(prompt, media) if images.has_positions else None
        self._next = 0 if self._positions is None else int(self._positions.max()) + 1

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Add a sampled token."""
        self._tokens.append(token)
        self.keys.append(token)

    def inputs(self, start: int, device: Any) -> dict[str, Any]:
        """Return the arguments of the model for the tokens from `start` on.

        Raises:
            ConfigError: If `start` is inside an image.
        """
        inputs = {"input_ids": self._torch.tensor([self._tokens[start:]], device=device)}
        new = [placed for placed in self._media if placed.stop > start]
        if new and new[0].start < start:
            raise ConfigError(f"token {start} is inside {new[0].image!r}; expected its first token, or one after it")
        inputs |= self._images.arrays(within(new, start, len(self._tokens)))
        if self._positions is not None:
            known = self._positions.shape[1]
            first, last = max(start - known, 0), len(self._tokens) - known
            # Those of sampled tokens follow the largest one of the prompt.
            sampled = self._torch.arange(self._next + first, self._next + last).expand(3, -1)
            positions = self._torch.cat([self._positions[:, start:], sampled], 1)
            inputs["position_ids"] = positions.to(device)[:, None]
        return inputs
