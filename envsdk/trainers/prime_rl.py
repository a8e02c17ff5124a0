"""The adapter for prime-rl: samples as its `TrainingSample` records, in which each list has the length of the sequence.

Source: the public definition of `TrainingSample`. It has moved twice: it is in `prime_rl.transports.batch` now, was in
`prime_rl.transports.rollouts` in August 2026, and in `prime_rl.transport` before. The fields that this adapter sets
have the same names and meanings in all three; `sampling_mask` was added in September 2026.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, NotRequired, TypedDict

import numpy as np

from .._arguments import explain_arguments
from ..errors import InvalidSample
from ..images import rgb_image
from ..rendering._vision import token_types
from ..trajectories._samples import Sample
from ._capability import Capability
from ._checks import check_samples
from ._rows import advantages, logprobs, temperatures
from ._rows import routed_experts as experts_of
from ._rows import sampling_mask as ids_of

__all__ = ["TrainingSample", "to_training_samples"]

CAPABILITY = Capability(
    "prime-rl",
    several_samples=True,
    loss_weight="Left out: its loss is a sum over tokens, divided by the number of tokens in the batch.",
    images="`mm_refs`, each image as a `data:` URL with the range of its tokens, and `mm_token_type_ids`.",
)


class MMImageRef(NamedTuple):
    """The fields of prime-rl's record of this name, in its order: msgpack writes both as the same array."""

    url: str
    """The image as a `data:` URL."""
    offset: int
    """The position of its first token."""
    length: int
    """The number of its tokens."""


class MMRefs(NamedTuple):
    """The fields of prime-rl's record of this name."""

    images: list[MMImageRef]
    """The images of the sample, in order."""


class RoutedExperts(NamedTuple):
    """The fields of prime-rl's record of this name, in its order: msgpack writes both as the same array."""

    data: bytes
    """The ids of the experts, as the bytes of an array."""
    shape: list[int]
    """The number of tokens, of layers, and of experts for each token."""
    dtype: str
    """The name of the array's type."""


class SamplingMask(NamedTuple):
    """The fields of prime-rl's record of this name, in its order: msgpack writes both as the same array."""

    ids: bytes
    """The ids that the tokens were sampled from, one list after the other, as the bytes of an int32 array."""
    counts: bytes
    """The number of ids of each token, 0 where none are known, as the bytes of an int32 array."""
    logprobs: bytes | None = None
    """The sampler's log-probability of each id; servers do not return it."""


class TrainingSample(TypedDict):
    """The fields of prime-rl's record that are set: `prime_rl.transports.batch.types.TrainingSample(**record)`."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    advantages: list[float]
    mm_refs: NotRequired[MMRefs]
    mm_token_type_ids: NotRequired[list[int]]
    routed_experts: NotRequired[RoutedExperts]
    sampling_mask: NotRequired[SamplingMask]
    ref_logprobs: NotRequired[list[float]]
    rl_weights: NotRequired[list[float]]
    ce_weights: NotRequired[list[float]]
    ref_kl_weights: NotRequired[list[float]]


_STREAMS: Mapping[str, Literal["rl_weights", "ce_weights", "ref_kl_weights"]] = {
    "rl": "rl_weights",
    "ce": "ce_weights",
    "kl": "ref_kl_weights",
}
"""The fields of the weights of prime-rl's three losses, by the names of `Sample.stream_weights`."""


def to_training_samples(
    samples: Iterable[Sample],
    *,
    env_name: str | None = None,
    routed_experts: bool = False,
    sampling_mask: bool = False,
) -> list[TrainingSample]:
    """Convert each sample to one record.

    prime-rl truncates sequences that are longer than its trainer's sequence length, without an error. Limit episodes
    with `Limits(max_context_tokens=...)`.

    A sample with images has `mm_refs` and `mm_token_type_ids`. The trainer applies its own image processor to them, and
    checks the number of tokens. They need a prime-rl whose struct has these fields (`prime_rl.transports.batch`).

    Args:
        samples: The samples, with log-probabilities and advantages.
        env_name: The name of the environment in prime-rl; by default its id.
        routed_experts: Whether to add the experts of the sampler, `extra["routed_experts"]`, for router replay. That of
            the last token, which no trained token follows, is 0, as prime-rl itself writes it.
        sampling_mask: Whether to add the ids that each token was sampled from, `extra["sampling_mask"]`, for sampling
            with `top_p` or `top_k`. It needs a prime-rl of September 2026 or later.

    Raises:
        InvalidSample: If a sample is invalid, has no log-probabilities or no advantage, or was sampled at temperature
            0, by which prime-rl's trainer divides; if experts are requested and a token has none; if sampling masks
            are requested and a trained token has none, or is not in its own; or if it has weights of a loss that
            prime-rl does not have.
    """
    valid = check_samples(samples, advantage=True, no_images=None)
    all_temperatures = [temperatures(sample) for sample in valid]
    for index, (sample, temperature) in enumerate(zip(valid, all_temperatures, strict=True)):
        if not temperature.all():
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, was sampled at temperature 0, by which "
                "prime-rl's trainer divides: sample at a positive temperature"
            )
    records = [
        TrainingSample(
            token_ids=sample.tokens.tolist(),
            mask=sample.mask.tolist(),
            logprobs=logprobs(sample).tolist(),
            temperatures=temperature.tolist(),
            env_name=env_name or str(sample.metadata.get("env", "")),
            advantages=advantages(sample).tolist(),
        )
        for sample, temperature in zip(valid, all_temperatures, strict=True)
    ]
    for record, sample in zip(records, valid, strict=True):
        if sample.reference_logprobs is not None:
            record["ref_logprobs"] = sample.reference_logprobs.tolist()
        for name, weights in sample.stream_weights.items():
            if name not in _STREAMS:
                raise InvalidSample(
                    f"a sample of trajectory {sample.trajectory_id!r} has stream_weights[{name!r}]; prime-rl has the "
                    f"streams {list(_STREAMS)}"
                )
            record[_STREAMS[name]] = weights.tolist()
        if sample.media:
            images = [
                MMImageRef(rgb_image(placed.image).url, placed.start, placed.stop - placed.start)
                for placed in sample.media
            ]
            record["mm_refs"] = MMRefs(images)
            record["mm_token_type_ids"] = token_types(sample.media, len(sample)).tolist()
        if routed_experts:
            known = experts_of(sample)
            experts = np.concatenate([known, np.zeros((1, *known.shape[1:]), dtype=known.dtype)])
            record["routed_experts"] = RoutedExperts(experts.tobytes(), list(experts.shape), experts.dtype.name)
        if sampling_mask:
            ids = ids_of(sample)
            record["sampling_mask"] = SamplingMask(ids.values.tobytes(), ids.lengths.astype(np.int32).tobytes())
    return records


explain_arguments(globals())
