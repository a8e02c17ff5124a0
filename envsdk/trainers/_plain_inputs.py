"""The arguments of a transformers model for a collated batch, with the images of its samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._describing import around_difference
from .._packages import load
from ..errors import ConfigError, InvalidSample
from ..rendering._model_images import ModelImages
from ..rendering._vision import Vision
from ..trajectories._samples import Sample
from ..tree._masks import state_layers
from ..tree._run_attention import text_config
from ._image_inputs import whole_images


def check_packed(model: Any) -> None:
    """Check that a model keeps the samples of a packed row apart by `position_ids` alone.

    Raises:
        ConfigError: If it has state-space, linear attention or convolution layers. They read a row as one sequence,
            unless their kernels get the boundaries of its samples.
    """
    found = next(state_layers(model), None)
    if found is not None:
        name = getattr(text_config(model), "model_type", None) or type(model).__name__
        raise ConfigError(
            f"in a packed row, samples would see the samples before them in {name}: {found}. Use layout='padded', or "
            "pass handles_boundaries=True if the kernels of these layers get `cu_seqlens` or `seq_idx`, such as those "
            "of causal_conv1d, flash-linear-attention and mamba_ssm"
        )


def model_inputs(
    batch: Mapping[str, Any],
    samples: Sequence[Sample],
    model: Any,
    *,
    vision: Vision | None = None,
    handles_boundaries: bool = False,
) -> dict[str, Any]:
    """Return the arguments of a transformers model for a batch: `model(**model_inputs(batch, samples, model)).logits`.

    Args:
        batch: The batch of `collate`, of either layout.
        samples: Its samples, in the same order, which have the images.
        model: The model.
        vision: The image processor for samples with images: `renderer.vision`, of the renderer that wrote them. By
            default, the processor in the folder that the model was loaded from.
        handles_boundaries: Whether the layers of the model get the boundaries of the samples in a packed row. If True,
            the arguments have them in the forms that transformers knows: `cu_seq_lens_q`, `cu_seq_lens_k` and
            `seq_idx`, int32, `max_length_q` and `max_length_k`.

    Returns:
        Tensors on the model's device, of shape (B, L) or (1, N), as in the batch: `input_ids`, int64; if padded
        `attention_mask`, int64, 0 on padding; `position_ids`, int64, from 0 in each sample, by which transformers keeps
        the samples of a packed row apart. A vision model gets `position_ids` of shape (4, B, L) or (4, 1, N): that
        position, then time, height and width (mRoPE). With images, the arrays of the processor, each image once, in
        order: `pixel_values`, float32, and `image_grid_thw`, int64. `use_cache` is False.

    Raises:
        InvalidSample: If the samples are not those of the batch, or an image was cut.
        ConfigError: If the model does not take the images, or the processor is missing or makes other tokens of one;
            or if a packed row has several samples, and the model has layers that see across them.
        MissingPackage: If torch is not installed.
    """
    torch = load("torch", "the inputs of a model need", "pip install 'envsdk[torch]'")
    lengths: list[int] = np.asarray(batch["lengths"]).tolist()
    given = [len(sample) for sample in samples]
    if len(given) != len(lengths) or any(own < length for own, length in zip(given, lengths, strict=True)):
        of_batch, of_samples = around_difference(str(lengths), str(given), 80)
        raise InvalidSample(
            f"the batch has samples of {of_batch} tokens, and samples of {of_samples} tokens were given; expected "
            "those that were collated, in the same order"
        )
    device = getattr(model, "device", "cpu")
    names = {"input_ids": "tokens", "attention_mask": "attention_mask", "position_ids": "position_ids"}
    inputs: dict[str, Any] = {
        name: torch.as_tensor(batch[own], device=device).long() for name, own in names.items() if own in batch
    }
    if "attention_mask" not in batch and len(lengths) > 1:
        if not handles_boundaries:
            check_packed(model)
        else:
            bounds = torch.as_tensor(batch["cu_seqlens"], device=device).int()
            longest = int(batch["max_seqlen"])
            inputs |= {
                "cu_seq_lens_q": bounds,
                "cu_seq_lens_k": bounds,
                "max_length_q": longest,
                "max_length_k": longest,
                "seq_idx": torch.as_tensor(batch["sample_ids"], device=device).int(),
            }
    images = ModelImages(model, vision)
    media = [
        whole_images(index, sample, length) for index, (sample, length) in enumerate(zip(samples, lengths, strict=True))
    ]
    pairs = [(sample.tokens[:length], own) for sample, length, own in zip(samples, lengths, media, strict=True)]
    for tokens, own in pairs:
        images.check(tokens, own)
    if images.has_positions:
        positions = [images.positions(tokens, own).to(device) for tokens, own in pairs]
        laid_out = inputs["position_ids"].repeat(4, 1, 1)  # the position in the sample, then three dimensions
        is_padded, start = len(inputs["position_ids"]) == len(positions), 0
        for row, each in enumerate(positions):
            laid_out[1:, row if is_padded else 0, start : start + each.shape[1]] = each
            start = 0 if is_padded else start + each.shape[1]
        inputs["position_ids"] = laid_out
    return {**inputs, **images.arrays([placed for own in media for placed in own]), "use_cache": False}
