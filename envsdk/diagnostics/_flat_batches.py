"""The tokens of samples, collated batches and tree batches in one form: flat, without padding."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from ..errors import InvalidSample
from ..tree import TreeBatch
from ._inputs import valid_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

Layout: TypeAlias = Literal["samples", "padded", "packed", "tree"]
Shapes: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""The type and the shape of each array, by its name."""

_NEEDED = ("tokens", "mask", "step_ids", "sample_ids", "position_ids")


class FlatBatch(NamedTuple):
    """The tokens of a batch without padding, n of them; each array has the shape (n,)."""

    layout: Layout
    tokens: "NDArray[Any]"
    mask: "NDArray[np.bool_]"
    sequence: "NDArray[Any]"
    step: "NDArray[Any]"
    """-1 where nothing was sampled."""
    position: "NDArray[Any]"
    begins: "NDArray[np.bool_]"
    """True where another part begins."""
    logprobs: "NDArray[Any] | None"
    advantage: "NDArray[Any] | None"
    rewards: "NDArray[Any]"
    arrays: Shapes
    padding: int = 0


def flat_batch(batch: Any) -> FlatBatch:
    """Return the tokens of samples, a collated batch, or a tree batch.

    Raises:
        InvalidSample: If it is none of them, a sample is invalid, or the batch lacks an array.
    """
    if isinstance(batch, TreeBatch):
        return _of_tree(batch)
    return _of_collated(cast("Mapping[str, Any]", batch)) if isinstance(batch, Mapping) else _of_samples(batch)


def _of_samples(batch: Any) -> FlatBatch:
    samples = valid_samples(batch)

    def joined(name: str) -> Any:
        rows = [getattr(sample, name) for sample in samples]
        if not rows or any(row is None for row in rows):
            return None if name in ("logprobs", "advantage") else np.empty(0, dtype=np.int32)
        return np.concatenate([np.broadcast_to(row, len(own)) for row, own in zip(rows, samples, strict=True)])

    lengths = [len(sample) for sample in samples]
    sequence = np.repeat(np.arange(len(samples)), lengths)
    step = joined("step_ids")
    first = samples[0] if samples else None
    names = ("tokens", "mask", "logprobs", "step_ids", "temperature", "policy_version", "advantage")
    return FlatBatch(
        layout="samples",
        tokens=joined("tokens"),
        mask=joined("mask").astype(np.bool_),
        sequence=sequence,
        step=step,
        position=np.concatenate([np.empty(0, dtype=np.int64), *map(np.arange, lengths)]),
        begins=_changes(sequence, step),
        logprobs=joined("logprobs"),
        advantage=joined("advantage"),
        rewards=np.array([sample.reward for sample in samples], dtype=np.float32),
        arrays=_kinds({name: getattr(first, name, None) for name in names}),
    )


def _of_collated(batch: Mapping[str, Any]) -> FlatBatch:
    missing = [name for name in (*_NEEDED, "reward") if name not in batch]
    if missing:
        raise InvalidSample(
            f"the batch has no {', '.join(missing)}; expected a batch of envsdk.trainers.plain.collate, samples, or a "
            "tree batch"
        )
    values = {name: _array(batch[name]) for name in (*_NEEDED, "logprobs", "advantage") if name in batch}
    is_real = values["sample_ids"] >= 0
    flat = {name: value[is_real] for name, value in values.items()}
    sequence, step = flat["sample_ids"], flat["step_ids"]
    return FlatBatch(
        layout="padded" if "attention_mask" in batch else "packed",
        tokens=flat["tokens"],
        mask=flat["mask"].astype(np.bool_),
        sequence=sequence,
        step=step,
        position=flat["position_ids"],
        begins=_changes(sequence, step),
        logprobs=flat.get("logprobs"),
        advantage=flat.get("advantage"),
        rewards=_array(batch["reward"]),
        arrays=_kinds(batch),
        padding=int(np.count_nonzero(~is_real)),
    )


def _of_tree(tree: TreeBatch) -> FlatBatch:
    is_new_branch = tree.parent != np.arange(-1, len(tree) - 1)
    names = ("tokens", "position_ids", "parent", "exit", "mask", "logprobs", "sample_ids", "step_ids", "advantage")
    return FlatBatch(
        layout="tree",
        tokens=tree.tokens,
        mask=tree.mask,
        sequence=tree.sample_ids,
        step=tree.step_ids,
        position=tree.position_ids,
        begins=_changes(tree.sample_ids, tree.step_ids) | is_new_branch,
        logprobs=tree.logprobs,
        advantage=tree.advantage,
        rewards=np.array([sample.reward for sample in tree.samples], dtype=np.float32),
        arrays=_kinds({name: getattr(tree, name) for name in names}),
    )


def _changes(*columns: "NDArray[Any]") -> "NDArray[np.bool_]":
    """Return where a value differs from the previous one in any column; the first one counts as different."""
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return changes


def _kinds(arrays: Mapping[str, Any], prefix: str = "") -> Shapes:
    """Return the type and the shape of each array, also of those in a dict."""
    found: Shapes = {}
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            found |= _kinds(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        elif hasattr(value, "dtype"):
            found[prefix + name] = (str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return found


def _array(value: Any) -> "NDArray[Any]":
    """Return an array or a tensor as an array, half precision as float32."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return np.asarray(value)
