"""Arrays for a training loop of your own: samples as one batch, padded or packed, of numpy or of torch."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from ..errors import ConfigError, InvalidSample
from ..packages import load
from ..trajectories.samples import Sample
from .capability import Capability
from .checks import checked
from .rows import advantages, temperatures

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "A loop of your own",
    several_samples=True,
    loss_weight="In the batch, not applied: multiply by it where a loss is averaged per sample, not where it sums.",
)

Layout: TypeAlias = Literal["padded", "packed"]
Arrays: TypeAlias = Literal["numpy", "torch"]
Batch: TypeAlias = dict[str, Any]
_PADDING = {"temperature": 1.0, "step_ids": -1, "sample_ids": -1}  # elsewhere 0


def collate(
    samples: Iterable[Sample],
    *,
    layout: Layout = "padded",
    arrays: Arrays = "numpy",
    pad_token_id: int = 0,
) -> Batch:
    """Make one batch of samples.

    Token i is predicted from those before it: compare `logits[:, :-1]` with `tokens[:, 1:]` under `mask[:, 1:]`.
    No sample's first token is trained, so that the same shift crosses no border of a packed row.

    Args:
        samples: The samples, B of them.
        layout: `"padded"`: a row for each sample, filled on the right to the longest: shape (B, L). `"packed"`: one row
            of all, without any padding: shape (1, N).
        arrays: The kind of arrays.
        pad_token_id: What fills `tokens`: a token id.

    Returns:
        For each token `tokens`, `mask`, `step_ids`, `position_ids` (from 0 in each sample), `sample_ids` (row; -1 on
        padding), `temperature` (1.0 where nothing was sampled), and where the samples have them `logprobs` and
        `advantage` (0.0 where mask is False); padded also `attention_mask`. For each sample `lengths`, `reward` and
        `loss_weight`, shape (B,). For kernels of variable length `cu_seqlens`, int32 of shape (B + 1,), and
        `max_seqlen`.

    Raises:
        InvalidSample: If a sample is not sound, if only some have log-probabilities or an advantage, or if there are
            no samples at all: a batch without rows has no shape.
        ConfigError: If a choice is not known, or `pad_token_id` is no token id.
        ImportError: If torch is asked for and not installed.
    """
    for name, choice, known in (("layout", layout, Layout), ("arrays", arrays, Arrays)):
        if choice not in get_args(known):
            raise ConfigError(f"{name} is {choice!r}; expected one of {get_args(known)}")
    if isinstance(pad_token_id, bool) or not isinstance(pad_token_id, Integral) or not 0 <= pad_token_id < 2**31:
        raise ConfigError(f"pad_token_id is {pad_token_id!r:.80}; expected a token id, from 0 to 2**31 - 1")
    sound = _sound(samples)
    rows = [_row(index, sample) for index, sample in enumerate(sound)]
    lengths = np.array([len(row["tokens"]) for row in rows], dtype=np.int64)
    if layout == "packed":
        batch: Batch = {name: np.concatenate([row[name] for row in rows])[None] for name in rows[0]}
    else:
        padding = {**_PADDING, "tokens": pad_token_id}
        batch = {name: _padded([row[name] for row in rows], padding.get(name, 0)) for name in rows[0]}
        batch["attention_mask"] = np.arange(lengths.max()) < lengths[:, None]
    batch["lengths"], batch["max_seqlen"] = lengths, int(lengths.max())
    batch["cu_seqlens"] = np.append(0, np.cumsum(lengths)).astype(np.int32)
    for name in ("reward", "loss_weight"):
        batch[name] = np.array([getattr(sample, name) for sample in sound], dtype=np.float32)
    return batch if arrays == "numpy" else _tensors(batch)


def _sound(samples: Iterable[Sample]) -> list[Sample]:
    sound = checked(samples, logprobs=False)
    if not sound:
        raise InvalidSample("there are no samples: nothing to make a batch of")
    for name in ("logprobs", "advantage"):
        has = [getattr(sample, name) is not None for sample in sound]
        if any(has) and not all(has):
            raise InvalidSample(f"sample {has.index(False)} has no {name}, sample {has.index(True)} has: all or none")
    return sound


def _row(index: int, sample: Sample) -> "dict[str, NDArray[Any]]":
    """The arrays of a sample that have an entry for each token."""
    row: dict[str, NDArray[Any]] = {
        "tokens": sample.tokens.astype(np.int64),
        "mask": sample.mask,
        "step_ids": sample.step_ids.astype(np.int64),
        "position_ids": np.arange(len(sample), dtype=np.int64),
        "sample_ids": np.full(len(sample), index, dtype=np.int64),
        "temperature": temperatures(sample),
    }
    if sample.logprobs is not None:
        row["logprobs"] = sample.logprobs
    if sample.advantage is not None:
        row["advantage"] = advantages(sample)
    return row


def _padded(rows: "Sequence[NDArray[Any]]", value: float) -> "NDArray[Any]":
    filled = np.full((len(rows), max(map(len, rows))), value, dtype=rows[0].dtype)
    for row, given in zip(filled, rows, strict=True):
        row[: len(given)] = given
    return filled


def _tensors(batch: Batch) -> Batch:
    torch = load("torch", "a batch of tensors needs", "pip install torch")
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
