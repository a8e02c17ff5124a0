"""The builder of a tree batch from samples. It finds the tokens that they share by comparison; see `PrefixTree`."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._visible import brief
from ..contexts._side_data import Aligned, PerToken, joined, per_token, placed
from ..errors import InvalidSample
from ..images import Image, PlacedImage
from ..trajectories._samples import Sample
from ._prefix_tree import NO_TOKEN, PrefixTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The columns of a `TreeBatch` that describe trained tokens: the dtype, and the value on all other tokens.
TRAINED_COLUMNS: dict[str, tuple[Any, Any]] = {
    "mask": (np.bool_, False),
    "logprobs": (np.float32, 0.0),
    "sample_ids": (np.int32, -1),
    "step_ids": (np.int32, -1),
    "temperature": (np.float32, 1.0),
    "policy_version": (np.int32, -1),
    "advantage": (np.float32, 0.0),
    "reference_logprobs": (np.float32, 0.0),
}


_FIRST_IMAGE = -2  # no token id, and not NO_TOKEN
_STREAM = "stream_weights."
"""The prefix of the columns with the weights of streams."""


@dataclass(frozen=True, slots=True)
class TreeSample:
    """The record of one sample in a `TreeBatch`: all that a loss needs besides the tokens, which are in the tree.

    Attributes:
        trajectory_id: The id of the sample's trajectory.
        group_id: The id of the group of rollouts of the same task; None if there is no group.
        context: The name of the context, such as `main`.
        role: The role of the agent that acts in the context.
        reward: The reward of the context.
        step_rewards: The reward of each step in this sample, 0.0 for a step that was not scored: float32, shape
            (n_steps,).
        loss_weight: The trained tokens of this sample, divided by the trained tokens of its trajectory.
        length: The number of tokens of the sample as a separate sequence.
        trained_tokens: The number of tokens that this sample trains.
    """

    trajectory_id: str
    group_id: str | None
    context: str
    role: str
    reward: float
    step_rewards: "NDArray[np.float32]"
    loss_weight: float
    length: int
    trained_tokens: int


class TreeBuilder:
    """The builder of one tree: add samples, then read `columns` and `samples`.

    Args:
        extra: The keys of the side data that the tree has.
    """

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self.samples: list[TreeSample] = []
        self._has: dict[str, bool] = {}  # which optional fields the samples have
        self._tree = PrefixTree()
        self._tokens = array("i")  # the ids of the tokens, by their numbers in the tree
        self._rows: dict[str, list[tuple[NDArray[np.int64], PerToken]]] = {key: [] for key in extra}
        self._trained: list[tuple[NDArray[np.int64], dict[str, Any]]] = []
        self._images: dict[int, tuple[Image, int]] = {}  # each with its length, by the number of its first placeholder
        self._image_keys: dict[str, int] = {}  # what takes the place of an image's placeholders in the tree, by hash
        self._tokenizers: dict[str, str] = {}  # each fingerprint, with the first place that used it

    def add(self, sample: Sample, keys: "NDArray[Any] | None" = None) -> None:
        """Add a sample. It shares the tokens of the tree as far as their keys are equal, from the first token on.

        Args:
            sample: The sample.
            keys: What identifies each token: int, shape (L,). By default, its id, and for an image its content.

        Raises:
            InvalidSample: If the sample has an advantage where earlier samples have none or the reverse, belongs to
                another tokenizer, or lacks side data.
        """
        self._check(sample)
        if keys is None:
            keys = sample.tokens.copy()
            for image, start, stop in sample.media:
                keys[start:stop] = self._image_keys.setdefault(image.sha256, _FIRST_IMAGE - len(self._image_keys))
        mask, last, pieces = sample.mask, NO_TOKEN, list["NDArray[np.int64]"]()
        for piece in np.split(np.arange(len(sample)), np.flatnonzero(mask[1:] != mask[:-1]) + 1):
            known = len(self._tree)
            pieces.append(self._tree.add(keys[piece], last, is_trained=bool(mask[piece[0]])))
            last = int(pieces[-1][-1])
            new = piece[len(piece) - (len(self._tree) - known) :]
            self._tokens.frombytes(sample.tokens[new].astype(np.int32).tobytes())
        tokens = np.concatenate(pieces)
        for image, start, stop in sample.media:
            self._images[int(tokens[start])] = image, stop - start
        parts = sample.part_ids[mask]
        advantage = np.asarray(0.0 if sample.advantage is None else sample.advantage, dtype=np.float32)
        values: dict[str, Any] = {
            "mask": True,
            "sample_ids": len(self.samples),
            "logprobs": np.nan if sample.logprobs is None else sample.logprobs[mask],
            "step_ids": sample.step_ids[mask],
            "temperature": sample.temperature[parts],
            "policy_version": sample.policy_version[parts],
            "advantage": np.broadcast_to(advantage, mask.shape)[mask],
            "reference_logprobs": 0.0 if sample.reference_logprobs is None else sample.reference_logprobs[mask],
            **{_STREAM + name: weights[mask] for name, weights in sample.stream_weights.items()},
        }
        self._trained.append((tokens[mask], values))
        for key in self._rows:
            self._add_rows(key, sample, tokens)
        self.samples.append(
            TreeSample(
                trajectory_id=sample.trajectory_id,
                group_id=sample.group_id,
                context=sample.context,
                role=sample.role,
                reward=sample.reward,
                step_rewards=sample.step_rewards,
                loss_weight=sample.loss_weight,
                length=len(sample),
                trained_tokens=int(np.count_nonzero(mask)),
            )
        )

    def _check(self, sample: Sample) -> None:
        """Check that a sample has the optional fields and the tokenizer of the samples before it."""
        who = f"sample {len(self.samples)}, of trajectory {sample.trajectory_id!r}"
        has = {name: getattr(sample, name) is not None for name in ("advantage", "reference_logprobs")}
        has |= {f"stream_weights[{name!r}]": True for name in sample.stream_weights}
        if self.samples and self._has != has:
            name = min(name for name in {*has, *self._has} if has.get(name) != self._has.get(name))
            raise InvalidSample(
                f"{who}, {'has' if has.get(name) else 'lacks'} {name}, unlike the samples before it; expected {name} "
                "in all samples or in none"
            )
        self._has = has
        for name, weights in sample.stream_weights.items():
            if (weights[~sample.mask] != 0).any():
                raise InvalidSample(
                    f"stream_weights[{name!r}] of {who}, is not 0.0 on a token with mask False, but a tree trains only "
                    "tokens with mask True: train such samples as separate sequences"
                )
        tokenizer: str = sample.metadata.get("tokenizer") or ""
        if tokenizer:
            place = f"context {sample.context!r} of trajectory {sample.trajectory_id!r}"
            self._tokenizers.setdefault(tokenizer, place)
        if len(self._tokenizers) > 1:
            (first, there), (second, here) = self._tokenizers.items()
            raise InvalidSample(
                f"the tokens belong to two tokenizers, whose ids mean different things: {first!r} ({there}) and "
                f"{second!r} ({here}). Make one tree for each tokenizer: select samples by their role or context"
            )

    def _add_rows(self, key: str, sample: Sample, tokens: "NDArray[np.int64]") -> None:
        """Add the known rows of a sample's side data to its tokens."""
        data, earlier = per_token(sample.extra.get(key)), self._rows[key]
        if data is None:
            raise InvalidSample(
                f"sample {len(self.samples)}, of trajectory {sample.trajectory_id!r}, has no extra[{key!r}] with a row "
                "for each token: request only what the policy gives for all actions"
            )
        if earlier and not earlier[0][1].is_like(data):
            raise InvalidSample(
                f"extra[{key!r}] is {brief(earlier[0][1])} for some samples, and {brief(data)} for others; "
                "expected rows of one kind, type and shape"
            )
        is_over_all = isinstance(data, Aligned) and data.over == "all"
        known = np.flatnonzero(data.known if is_over_all else data.known & sample.mask)
        earlier.append((tokens[known], data.take(known)))

    def columns(self) -> dict[str, Any]:
        """Return all tokens in depth-first order: the array fields of a `TreeBatch` by name, each of shape (N,).

        Raises:
            InvalidSample: If no token is trained, or the first token of a sample is trained (nothing predicts it).
        """
        if not self._trained:
            raise InvalidSample(
                "no token is trained: every episode failed or sampled nothing, or `loss` selected no step; pass at "
                "least one sample with mask True somewhere"
            )
        layout, count = self._tree.layout(), len(self._tree)
        streams = [name for name in self._trained[0][1] if name.startswith(_STREAM)]
        kinds = {**TRAINED_COLUMNS, **dict.fromkeys(streams, (np.float32, 0.0))}
        trained: dict[str, NDArray[Any]] = {name: np.full(count, value, kind) for name, (kind, value) in kinds.items()}
        for tokens, values in self._trained:
            for name, value in values.items():
                trained[name][tokens] = value
        columns: dict[str, Any] = {name: array[layout.order] for name, array in trained.items()}
        unpredicted = np.flatnonzero(columns["mask"] & (layout.parent == NO_TOKEN))
        if len(unpredicted):
            sample = self.samples[int(columns["sample_ids"][unpredicted[0]])]
            raise InvalidSample(
                f"the first token of a sample of trajectory {sample.trajectory_id!r}, context {sample.context!r}, is "
                "trained, but nothing predicts it; set mask[0] to False"
            )
        for name in ("advantage", "reference_logprobs"):
            columns[name] = columns[name] if self._has[name] else None
        extra: dict[str, PerToken] = {}
        for key, parts in self._rows.items():
            numbers = np.concatenate([tokens for tokens, _ in parts])
            rows = np.full(count, NO_TOKEN, dtype=np.int64)
            rows[numbers] = np.arange(len(numbers))
            extra[key] = placed(joined([data for _, data in parts]), rows[layout.order])
        index = np.argsort(layout.order)
        starts = {int(index[number]): image for number, image in self._images.items()}
        return {
            "stream_weights": {name.removeprefix(_STREAM): columns.pop(name) for name in streams},
            "extra": extra,
            "tokens": np.asarray(self._tokens)[layout.order],
            "media": [PlacedImage(image, start, start + length) for start, (image, length) in sorted(starts.items())],
            "position_ids": layout.position_ids,
            "parent": layout.parent,
            "exit": layout.exit,
            **columns,
        }
