"""A model's forward pass over samples, with transformers: the log-probabilities of a trainer, teacher or reference."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._packages import load
from .._visible import type_of
from ..errors import ConfigError, InvalidSample
from ..policies._grammar import grammar_masks
from ..rendering._model_images import ModelImages
from ..rendering._vision import Vision
from ..rendering.renderer import Renderer
from ..trajectories._samples import Sample
from ._inputs import valid_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray


def forward_logprobs(
    model: Any,
    samples: Sequence[Sample],
    *,
    temperature: float | None = None,
    vision: Vision | None = None,
    renderer: Renderer | None = None,
) -> "list[NDArray[np.float32]]":
    """Compute the log-probabilities that a model gives to the sampled tokens, one sample after the other.

    They come from all logits in float32, divided by the temperature, or from those that the grammar of a reply allows.
    A sampler that restricts its distribution in another way (top-k, top-p) gives larger ones.

    Args:
        model: A causal language model of transformers, without dropout or in evaluation mode.
        samples: The samples.
        temperature: The temperature, above 0. By default, that at which each token was sampled.
        vision: The image processor for samples with images: `renderer.vision`, of the renderer that wrote them. By
            default, the processor in the folder that the model was loaded from.
        renderer: The renderer of the samples, for replies that were sampled under a grammar (`extra["grammar"]`). By
            default, their log-probabilities come from all logits, too.

    Returns:
        For each sample, nats, float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If the model lacks a token id of a sample, or does not take its images; or if a grammar does not
            allow a token that was sampled under it.
        InvalidSample: If a sample is invalid, or was sampled at temperature 0 and no temperature was given. The error
            names the sample.
        MissingPackage: If torch is not installed, or llguidance, if there are grammars.
    """
    torch = load("torch", "the log-probabilities of a model need", "pip install 'envsdk[torch]'")
    if not hasattr(model, "get_input_embeddings"):
        raise ConfigError(f"model is {type_of(model)}; expected a causal language model of transformers")
    images, given = ModelImages(model, vision), valid_samples(samples)
    rows: int = model.get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    found: list[NDArray[np.float32]] = []
    for index, sample in enumerate(given):
        where = f"sample {index}, of trajectory {sample.trajectory_id!r}"
        if sample.tokens.max() >= rows:
            raise ConfigError(
                f"{where}: it has the token id {sample.tokens.max()}, but the model has the ids 0 to {rows - 1}; it "
                "was made with the tokenizer of a different family"
            )
        positions = np.flatnonzero(sample.mask)
        sampled = sample.temperature[sample.part_ids[positions]]
        if temperature is None and not sampled.all():
            raise InvalidSample(f"{where}: it was sampled at temperature 0; give the temperature of the model")
        divisors = sampled if temperature is None else np.full(len(positions), temperature, np.float32)
        tokens = torch.as_tensor(sample.tokens.astype(np.int64), device=device)
        before = torch.as_tensor(positions - 1, device=device)
        with torch.no_grad():
            inputs = images.inputs(sample.tokens, sample.media)
            logits = model(input_ids=tokens[None], **inputs, use_cache=False, logits_to_keep=before).logits[0].float()
            if renderer is not None and "grammar" in sample.extra:
                allowed = _allowed(renderer, sample, positions, rows)
                logits = logits.masked_fill(~torch.as_tensor(allowed, device=device), -torch.inf)
            scaled = logits / torch.as_tensor(divisors, device=device)[:, None]
            logprobs = scaled.log_softmax(-1).gather(-1, tokens[before + 1][:, None])[:, 0]
        values = np.zeros(len(sample), dtype=np.float32)
        values[positions] = logprobs.cpu().numpy()
        found.append(values)
    return found


def _allowed(renderer: Renderer, sample: Sample, positions: "NDArray[np.intp]", rows: int) -> "NDArray[np.bool_]":
    """Return the ids that the trained tokens at these positions were sampled from, shape (n, rows)."""
    allowed = np.ones((len(positions), rows), dtype=np.bool_)
    for step in np.unique(sample.step_ids[positions]):
        reply = np.flatnonzero(sample.step_ids == step)
        grammar = sample.extra["grammar"][sample.part_ids[reply[0]]]
        if grammar is not None:
            masks = grammar_masks(renderer, grammar, sample.tokens[reply])[sample.mask[reply], :rows]
            at = np.searchsorted(positions, reply[sample.mask[reply]])
            allowed[at] = False
            allowed[at, : masks.shape[1]] = masks
    return allowed
