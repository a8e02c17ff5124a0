"""The log-probabilities of a reference: a teacher to distill from, or the policy to stay close to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from .._visible import brief, type_of
from ..diagnostics._forward import forward_logprobs
from ..diagnostics._inputs import logprobs_of, valid_samples
from ..errors import ConfigError
from ..limits import LARGEST
from ..rendering._vision import Vision
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


def add_reference(
    samples: Sequence[Sample],
    reference: "Callable[[NDArray[np.int32]], Any] | Any",
    *,
    temperature: float | None = None,
    vision: Vision | None = None,
) -> list[Sample]:
    """Add the log-probabilities of a reference: for on-policy distillation, or a KL penalty.

    Args:
        samples: The samples.
        reference: A causal language model of transformers, which computes one sample at a time on its own device; or a
            function, such as one that asks a server, from token ids, shape (L,), to their log-probabilities in nats,
            shape (L,): the value at i is that of token i, given the tokens before it. The value at 0 is ignored.
        temperature: The temperature by which a model's logits are divided. By default, that at which each token was
            sampled, as in `Sample.logprobs`. A function does this itself.
        vision: The image processor for samples with images and a model: `renderer.vision`, of the renderer that wrote
            them. By default, the processor in the folder that the model was loaded from.

    Returns:
        New samples in the same order, with `reference_logprobs`: float32 of shape (L,), 0.0 where mask is False.

    Raises:
        ConfigError: If the reference or the temperature is not valid.
        InvalidSample: If a sample is not valid, or was sampled at temperature 0 and no temperature was given; or if the
            reference returns another shape, or a value that is not a log-probability. The error names the sample.
        MissingPackage: If a model is given and torch is not installed.
    """
    if temperature is not None and (not isinstance(temperature, Real) or not 0 < temperature <= LARGEST):
        raise ConfigError(f"temperature is {brief(temperature)}; expected None or a finite number above 0")
    if not callable(reference):
        raise ConfigError(f"reference is {type_of(reference)}; expected a model of transformers or a function")
    is_model = hasattr(reference, "get_input_embeddings")
    if temperature is not None and not is_model:
        raise ConfigError("temperature is for models; a function divides logits itself")
    checked = valid_samples(samples)
    computed = forward_logprobs(reference, checked, temperature=temperature, vision=vision) if is_model else []
    found: list[Sample] = []
    for index, sample in enumerate(checked):
        whose = f"the reference's logprobs of sample {index}, of trajectory {sample.trajectory_id!r}"
        given = computed[index] if is_model else reference(sample.tokens.copy())
        logprobs = np.where(sample.mask, np.minimum(logprobs_of(given, sample, whose), 0), 0)
        metadata = {name: value for name, value in sample.metadata.items() if name != "teacher"}
        found.append(replace(sample, reference_logprobs=logprobs.astype(np.float32), metadata=metadata))
    return found
