"""TRL's GRPOTrainer with the images of rollouts.

A `rollout_func` returns tokens only: GRPOTrainer (TRL 1.16) takes images from the columns of its dataset, or from its
own tools. What it trains with is a batch with the arrays of the image processor, though, and the subclass here adds
those of the samples to it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import ConfigError, InvalidSample
from ..rendering._vision import Vision, token_types
from ..rendering.tokenizers import load_tokenizer
from ..trajectories._samples import Sample
from ._image_inputs import image_arrays
from ._packages import load
from ._rows import response_start

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KNOWN = ("pixel_values", "image_grid_thw", "pixel_attention_mask", "image_sizes", "image_position_ids")
"""The arrays of an image processor that GRPOTrainer passes to a model, in the row of each image or patch."""
_TYPES = ("mm_token_type_ids", "token_type_ids")
_METHODS = ("_generate_and_score_completions", "_get_per_token_logps_and_entropies")


class _HasSamples(Protocol):
    envsdk_samples: list[Sample | None]


def image_trainer(trainer: type[Any] | None = None) -> type[Any]:
    """Return a GRPOTrainer class that trains the rollouts of a `RolloutFunc` with their images.

    Pass it a processor as `processing_class`: the image processor of the model, and the tokenizer. Rows with and
    without images may be in one batch.

    Args:
        trainer: The class to extend; by default TRL's GRPOTrainer.

    Returns:
        A subclass. Its batches have `pixel_values`, `num_images` and what else the image processor makes, and
        `mm_token_type_ids` (or `token_type_ids`, of models without `image_grid_thw`), which are 1 at the tokens of
        images. Training raises `InvalidSample` if that processor writes other tokens for an image than the sample has.

    Raises:
        ConfigError: If the class does not have the methods of TRL 1.16 that are extended.
        MissingPackage: If TRL is not installed.
    """
    base: Any = load("trl", "trl").GRPOTrainer if trainer is None else trainer
    if missing := [name for name in _METHODS if not hasattr(base, name)]:
        raise ConfigError(
            f"{base.__name__} has no {' and no '.join(missing)}, which images need: install trl==1.16.0, or drop the "
            "images in the environment"
        )

    generate_and_score, logprobs = (getattr(base, name) for name in _METHODS)

    class ImageGRPOTrainer(base):
        """A GRPOTrainer that takes the images of a `RolloutFunc`."""

        takes_images = True
        _is_scoring = False

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            self._is_scoring = True
            try:
                output: Any = generate_and_score(self, inputs)
            finally:
                self._is_scoring = False
            ids = load("torch", "trl").cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            return {**output, **self._images(ids, output["completion_ids"].size(1))}

        def _get_per_token_logps_and_entropies(
            self,
            model: Any,
            input_ids: Any,
            attention_mask: Any,
            logits_to_keep: int,
            batch_size: int | None = None,
            **options: Any,
        ) -> Any:
            if not self._is_scoring:
                given = options
                if not any(options.get("num_images") or ()):
                    given = {name: options[name] for name in options if name not in {*_KNOWN, *_TYPES, "num_images"}}
                return logprobs(self, model, input_ids, attention_mask, logits_to_keep, batch_size, **given)
            # Of the weights before this step, or of the reference: the batch does not have its images yet. Models
            # refuse a call with images in no row, so that each call has its own.
            size, parts = batch_size or input_ids.size(0), list[Any]()
            for start in range(0, input_ids.size(0), size):
                rows = slice(start, start + size)
                given = {**options, **self._images(input_ids[rows], logits_to_keep, start)}
                parts.append(logprobs(self, model, input_ids[rows], attention_mask[rows], logits_to_keep, **given))
            return tuple(_joined(values) for values in zip(*parts, strict=True))

        def _images(self, ids: Any, completion_length: int, first: int = 0) -> dict[str, Any]:
            """Return the images of rows, from the row `first` of the batch on, whose padded tokens these are."""
            rollouts: _HasSamples = self.rollouts_with("envsdk_samples")
            samples = rollouts.envsdk_samples[first : first + ids.size(0)]
            fields = batch_images(samples, ids.cpu().numpy(), ids.size(1) - completion_length, self.image_processor)
            torch = load("torch", "trl")
            return {
                name: torch.from_numpy(value).to(ids.device) if isinstance(value, np.ndarray) else value
                for name, value in fields.items()
            }

        def rollouts_with(self, attribute: str) -> Any:
            """Return the `RolloutFunc` of the trainer, after checking that it has an attribute."""
            rollouts: Any = getattr(self, "rollout_func", None)
            if not hasattr(rollouts, attribute):
                raise ConfigError(
                    f"the rollout_func of this trainer has no {attribute}: pass a RolloutFunc of envsdk.trainers.trl, "
                    "or use GRPOTrainer"
                )
            return rollouts

        def image_processor(self) -> Vision:
            """Return the trainer's own processor, which caches the last images."""
            if not hasattr(self, "_own_vision"):
                given: Any = self.processing_class
                if not hasattr(given, "tokenizer"):
                    raise ConfigError(
                        "the rollouts have images, but processing_class is a tokenizer: pass the processor of the model"
                    )
                self._own_vision = Vision(given, load_tokenizer(given.tokenizer))
            return self._own_vision

    return ImageGRPOTrainer


def _joined(values: Sequence[Any]) -> Any:
    """Join what is known of each part of a batch: log-probabilities, entropies or losses. None is for all of them."""
    torch = load("torch", "trl")
    return (
        None if values[0] is None else torch.cat(list(values)) if values[0].dim() else torch.stack(list(values)).mean()
    )


def batch_images(
    samples: Sequence[Sample | None], ids: "NDArray[Any]", prompt_length: int, vision: Any
) -> dict[str, Any]:
    """Return what GRPOTrainer adds to a batch for the images of its rows; nothing if no row has an image.

    Args:
        samples: The sample of each row; None for a row that trains nothing.
        ids: The token ids of the batch: int64, shape (B, P + C), with prompts padded on the left.
        prompt_length: P.
        vision: A function that returns the processor.

    Returns:
        The arrays of the image processor, all images of the batch one after the other; `num_images`, the number of each
        row; and the token types, int64, shape (B, P + C).

    Raises:
        InvalidSample: If the tokens of a row differ from its sample's, or the processor makes arrays that GRPOTrainer
            does not pass on, or writes other tokens for an image.
    """
    if not any(sample is not None and sample.media for sample in samples):
        return {}
    types, made = np.zeros(ids.shape, dtype=np.int64), list[dict[str, Any]]()
    for row, sample in zip(range(len(ids)), samples, strict=True):
        if sample is None or not sample.media:
            continue
        first = prompt_length - response_start(sample)
        place = slice(first, first + len(sample))
        if first < 0 or not np.array_equal(ids[row, place], sample.tokens):
            raise InvalidSample(
                f"the tokens of row {row} of GRPOTrainer's batch differ from those of the sample of trajectory "
                f"{sample.trajectory_id!r}, whose images belong to it: leave the rows of RolloutFunc as they are"
            )
        types[row, place] = token_types(sample.media, len(sample))
        made.append(image_arrays(sample, vision()))
    if unknown := sorted(set(made[0]) - set(_KNOWN)):
        raise InvalidSample(
            f"the image processor makes {', '.join(unknown)}, which GRPOTrainer does not pass to a model; it passes "
            f"{', '.join(_KNOWN)}"
        )
    kind = _TYPES[0] if "image_grid_thw" in made[0] else _TYPES[1]
    return {
        **{name: np.concatenate([arrays[name] for arrays in made]) for name in made[0]},
        "num_images": [0 if sample is None else len(sample.media) for sample in samples],
        kind: types,
    }
