"""A trainer's forward pass over samples, with transformers: what the on-policy check compares with the sampler."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError
from ..packages import load
from ..trajectories.samples import Sample
from .inputs import valid_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray


def forward_logprobs(model: Any, samples: Sequence[Sample]) -> "list[NDArray[np.float64]]":
    """Compute the log-probabilities that a model gives to the sampled tokens, one sample after the other.

    They come from all logits in float32, divided by the temperature of each token. A sampler that restricts its
    distribution (top-k, top-p) gives larger ones.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        samples: The samples.

    Returns:
        For each sample, nats, float64 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If the model is in training mode, or lacks a token id of a sample.
        InvalidSample: If a sample is invalid.
        MissingPackage: If torch is not installed.
    """
    torch = load("torch", "A forward pass needs", "pip install 'envsdk[torch]'")
    if model.training:
        raise ConfigError("the model is in training mode, where dropout changes its output: call model.eval()")
    with torch.no_grad():
        return [_of_sample(torch, model, sample) for sample in valid_samples(samples)]


def _of_sample(torch: Any, model: Any, sample: Sample) -> "NDArray[np.float64]":
    rows: int = model.config.get_text_config(decoder=True).vocab_size
    if sample.tokens.max() >= rows:
        raise ConfigError(
            f"a sample has the token id {sample.tokens.max()}, but the model has the ids 0 to {rows - 1}: the samples "
            "were made with the tokenizer of a different family"
        )
    positions = np.flatnonzero(sample.mask)
    tokens = torch.as_tensor(sample.tokens, device=model.device).long()
    before = torch.as_tensor(positions - 1, device=model.device)
    logits = model(input_ids=tokens[None], use_cache=False, logits_to_keep=before).logits[0].float()
    temperature = sample.temperature[sample.part_ids[positions]]
    logits /= torch.as_tensor(np.where(temperature > 0, temperature, 1.0), device=model.device)[:, None]
    found = logits.log_softmax(-1).gather(1, tokens[before + 1][:, None])[:, 0]
    values = np.zeros(len(sample), dtype=np.float64)
    values[positions] = found.cpu().numpy()
    return values
