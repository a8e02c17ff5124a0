"""Batches for your own training loop: samples as padded or packed arrays of numpy or torch."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .._arguments import explain_arguments
from .._packages import load
from .._visible import brief
from ..contexts._side_data import PerToken, Ragged, per_token
from ..diagnostics import ImportanceWeights
from ..errors import ConfigError, InvalidSample
from ..limits import LARGEST
from ..trajectories._samples import Sample
from ._capability import Capability
from ._checks import check_samples
from ._image_inputs import whole_images
from ._plain_inputs import check_packed
from ._plain_inputs import model_inputs as model_inputs
from ._rows import (
    IGNORED,
    BatchLayout,
    advantages,
    check_lengths,
    check_max_length,
    labels,
    observation_weights,
    temperatures,
)

__all__ = ["collate", "model_inputs"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "Your own loop",
    several_samples=True,
    loss_weight="In the batch, not applied: multiply by it if the loss is averaged per sample, not if it is a sum.",
    images="`media` of the batch: for each sample its images, each with the range of its tokens.",
)

Layout: TypeAlias = Literal["padded", "packed"]
Arrays: TypeAlias = Literal["numpy", "torch"]
PadTo: TypeAlias = Literal["longest", "max_length"]
Batch: TypeAlias = dict[str, Any]
_OBSERVED = ("system", "developer", "user", "tool", "scaffold")
"""The labels of tokens that may be observed. Those of an assistant's text are what a policy samples."""


def collate(
    samples: Iterable[Sample],
    *,
    layout: Layout = "padded",
    arrays: Arrays = "numpy",
    pad_token_id: int = 0,
    pad_to: PadTo = "longest",
    max_length: int | None = None,
    truncate: bool = False,
    extra: Sequence[str] = (),
    observation_weight: Mapping[str, float] | None = None,
    importance: ImportanceWeights | None = None,
    model: Any = None,
    handles_boundaries: bool = False,
) -> Batch:
    """Collate samples into one batch.

    The logits at a token predict the next token: compare `logits[:, :-1]` with `tokens[:, 1:]` where `mask[:, 1:]` is
    True. The first token of a sample is never trained, so the same shift is correct for a packed row, too.

    Args:
        samples: B samples.
        layout: `"padded"`: one row for each sample, padded on the right to one length L, shape (B, L). `"packed"`: all
            N tokens in one row without padding, shape (1, N).
        arrays: The type of the arrays: `"numpy"` or `"torch"`.
        pad_token_id: The token id that pads `tokens`.
        pad_to: L: `"longest"` is the length of the longest sample, and `"max_length"` that number.
        max_length: The largest length of a sample, in tokens; None for any.
        truncate: Whether a longer sample loses its tokens after `max_length`, instead of being refused.
        extra: The keys of `Sample.extra` to collate, such as `["routed_experts"]`: those with a row for each token.
        observation_weight: The weights of observed tokens in a loss on observations (ECHO), by their label in
            `Sample.roles`: `{"tool": 0.1}`, `{"tool:search": 0.2, "user": 0.1}`. An observed token has its weight once,
            in the sample that trains the reply to it.
        importance: The importance weights of these samples, from `envsdk.diagnostics.importance_weights`. Multiply the
            loss of each token by its weight.
        model: The transformers model that gets the batch, or its configuration. If it has state-space, linear attention
            or convolution layers, a packed row is refused, because they let its samples see each other.
        handles_boundaries: Whether the kernels of these layers get the boundaries of the samples (`cu_seqlens`), so
            that the row is not refused.

    Returns:
        A dict. Arrays of the shape of the layout: `tokens`, `step_ids`, `position_ids` (from 0 in each sample) and
        `sample_ids` (the index of the sample, -1 on padding), all int64; `labels`, int64: the token ids where mask is
        True, else -100, which the loss of a transformers model shifts by one itself; `mask`, bool; `temperature`,
        float32, 1.0 where mask is False; `logprobs` and `advantage`, float32, 0.0 where mask is False, if the samples
        have them; and if padded `attention_mask`, bool. Arrays of shape (B,): `lengths`, int64, `reward` and
        `loss_weight`, float32; with `truncate`, also `dropped_tokens`, int64: how many trained tokens were cut off. For
        kernels of variable length: `cu_seqlens`, int32 of shape (B + 1,), and `max_seqlen`, an int.

        If the samples have them, `reference_logprobs`, float32, and a dict `stream_weights` of float32 arrays, of the
        shape of the layout. With `observation_weight`, `observation_weight`: float32, of that shape, 0.0 on all other
        tokens. With `importance`, `importance_weight`: float32, of that shape, 0.0 where mask is False. With `extra`, a
        dict `extra` by key: an array of that shape and of a row, with the fill value on padding; or, for lists, a dict
        of `values`, shape (m,), with the items of all lists one after the other, and `lengths`, int64 of that shape.

        If a sample has images, `media`: for each sample a list of `PlacedImage`, whose tokens are counted from the
        sample's first one. The arrays that the model gets of an image are `renderer.vision.process(image).arrays`.

    Raises:
        InvalidSample: If a sample is invalid, only some samples have a field, a sample lacks a key of `extra` or has
            rows of another kind, a sample is longer than `max_length`, roles are needed and missing, `importance` has
            the weights of other samples, or there are no samples.
        ConfigError: If another argument is invalid, or samples of a packed row would see each other in `model`.
        MissingPackage: If torch tensors are requested and torch is not installed.
    """
    for name, choice, known in (("layout", layout, Layout), ("arrays", arrays, Arrays), ("pad_to", pad_to, PadTo)):
        if choice not in get_args(known):
            raise ConfigError(f"{name} is {choice!r}; expected one of {get_args(known)}")
    check_max_length(max_length)
    if pad_to == "max_length" and (max_length is None or layout == "packed"):
        raise ConfigError("pad_to is 'max_length'; expected a max_length, and the layout 'padded'")
    if isinstance(pad_token_id, bool) or not isinstance(pad_token_id, Integral) or not 0 <= pad_token_id < 2**31:
        raise ConfigError(f"pad_token_id is {brief(pad_token_id)}; expected a token id, from 0 to 2**31 - 1")
    valid = _check(samples)
    if layout == "packed" and len(valid) > 1 and model is not None and not handles_boundaries:
        check_packed(model)
    if not truncate:
        check_lengths(valid, max_length)
    lengths = [min(len(sample), max_length or len(sample)) for sample in valid]
    places = BatchLayout(lengths, 0 if layout == "packed" else max(lengths) if pad_to == "longest" else max_length or 0)
    batch = _columns(valid, places, pad_token_id)
    if observation_weight is not None:
        own = _observed(valid, observation_weight)
        batch["observation_weight"] = places.array(own, np.float32)
    if importance is not None:
        batch["importance_weight"] = places.array(_importance(valid, importance), np.float32)
    if layout == "padded":
        batch["attention_mask"] = places.array([True] * len(valid), np.bool_)
    if truncate:
        cut = [np.count_nonzero(sample.mask[length:]) for sample, length in zip(valid, lengths, strict=True)]
        batch["dropped_tokens"] = np.array(cut, dtype=np.int64)
    batch["lengths"], batch["max_seqlen"] = places.lengths, max(lengths)
    batch["cu_seqlens"] = np.append(0, np.cumsum(lengths)).astype(np.int32)
    for name in ("reward", "loss_weight"):
        batch[name] = np.array([getattr(sample, name) for sample in valid], dtype=np.float32)
    if valid[0].stream_weights:
        batch["stream_weights"] = {
            name: places.array([sample.stream_weights[name] for sample in valid], np.float32)
            for name in valid[0].stream_weights
        }
    if extra:
        batch["extra"] = {key: _extra(key, valid, places) for key in extra}
    if any(sample.media for sample in valid):
        batch["media"] = [
            whole_images(i, sample, length) for i, (sample, length) in enumerate(zip(valid, lengths, strict=True))
        ]
    if arrays == "numpy":
        return batch
    torch = load("torch", "a batch of tensors needs", "pip install torch")

    def tensor(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensor(own) for name, own in cast("Batch", value).items()}
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    return tensor(batch)


def _check(samples: Iterable[Sample]) -> list[Sample]:
    valid = check_samples(samples, logprobs=False, no_images=None)
    if not valid:
        raise InvalidSample("samples is empty; expected at least one sample, because a batch needs a row")
    for name in ("logprobs", "advantage", "reference_logprobs"):
        has = [getattr(sample, name) is not None for sample in valid]
        if any(has) and not all(has):
            raise InvalidSample(
                f"sample {has.index(False)} has no {name}, but sample {has.index(True)} has; expected {name} in all "
                "samples or in none"
            )
    names = [set(sample.stream_weights) for sample in valid]
    for index, own in enumerate(names):
        if own != names[0]:
            raise InvalidSample(
                f"sample {index} has the stream_weights {sorted(own)}, but sample 0 has {sorted(names[0])}; expected "
                "the same streams in all samples"
            )
    return valid


def _columns(samples: Sequence[Sample], places: BatchLayout, pad_token_id: int) -> Batch:
    """Return the arrays that have one value for each token."""
    batch: Batch = {
        "tokens": places.array([sample.tokens for sample in samples], np.int64, pad_token_id),
        "labels": places.array([labels(sample) for sample in samples], np.int64, IGNORED),
        "mask": places.array([sample.mask for sample in samples], np.bool_),
        "step_ids": places.array([sample.step_ids for sample in samples], np.int64, -1),
        "position_ids": places.array([np.arange(len(sample)) for sample in samples], np.int64),
        "sample_ids": places.array(range(len(samples)), np.int64, -1),
        "temperature": places.array([temperatures(sample) for sample in samples], np.float32, 1),
    }
    for name in ("logprobs", "reference_logprobs"):
        if getattr(samples[0], name) is not None:
            batch[name] = places.array([getattr(sample, name) for sample in samples], np.float32)
    if samples[0].advantage is not None:
        batch["advantage"] = places.array([advantages(sample) for sample in samples], np.float32)
    return batch


def _observed(samples: Sequence[Sample], weights: Mapping[str, float]) -> "list[NDArray[np.float32]]":
    """Return the weights of observed tokens, after checking their labels."""
    for label, weight in weights.items():
        if label.partition(":")[0] not in _OBSERVED or (":" in label and not label.startswith("tool:")):
            raise ConfigError(
                f"observation_weight has the label {brief(label)}; expected one of {_OBSERVED}, or tool:NAME"
            )
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= weight <= LARGEST:
            raise ConfigError(
                f"observation_weight[{label!r}] is {brief(weight)}; expected a finite number of at least 0"
            )
    return [observation_weights(sample, weights) for sample in samples]


def _importance(samples: Sequence[Sample], importance: ImportanceWeights) -> "list[NDArray[np.float32]]":
    """Return the importance weights of the samples."""
    if len(importance.weights) != len(samples):
        raise InvalidSample(
            f"importance has the weights of {len(importance.weights)} samples, but there are {len(samples)} samples"
        )
    for index, (sample, weights) in enumerate(zip(samples, importance.weights, strict=True)):
        if weights.shape != sample.tokens.shape:
            raise InvalidSample(
                f"importance.weights[{index}] has shape {weights.shape}; expected {sample.tokens.shape}: pass the "
                "samples in the order in which importance_weights had them"
            )
    return list(importance.weights)


def _extra(key: str, samples: Sequence[Sample], places: BatchLayout) -> "NDArray[Any] | Batch":
    """Return the side data of the samples: an array, or the values and lengths of lists."""
    data: list[PerToken] = []
    for index, sample in enumerate(samples):
        own = per_token(sample.extra.get(key))
        if own is None or (data and not data[0].is_like(own)):
            given = brief(sample.extra[key]) if key in sample.extra else "missing"
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}: extra[{key!r}] is {given}; expected a row "
                "for each token, of one kind, type and shape in all samples"
            )
        data.append(own.take(slice(int(places.lengths[index]))))
    first = data[0]
    if isinstance(first, Ragged):
        lengths = places.array([cast("Ragged", own).lengths for own in data], np.int64)
        return {"values": np.concatenate([own.values for own in data]), "lengths": lengths}
    return places.array([own.values for own in data], first.values.dtype, first.unknown, first.values.shape[1:])


explain_arguments(globals())
