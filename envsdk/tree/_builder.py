"""The builder of a tree batch, from the deltas of trajectories or from samples.

The deltas of a trajectory specify what its contexts share, so each of its tokens is added once, without comparison.
The tokens that several trajectories or samples share are found by comparison; see `PrefixTree`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contexts._side_data import Aligned, PerToken, joined, per_token, placed
from ..errors import InvalidSample
from ..images import Image, PlacedImage
from ..rendering._model_images import within
from ..trajectories._replay import replay
from ..trajectories._samples import Sample, loss_weights
from ..trajectories._segments import LossRule, trained_steps
from ..trajectories._steps import Step
from ..trajectories._trajectory import Trajectory
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


@dataclass(slots=True)
class _Segment:
    """The segment of a context that is being built."""

    context: str
    rewards: list[float] = field(default_factory=list[float])
    length: int = 0
    """The number of tokens of the context up to and including the last trained token."""
    trained: "list[tuple[NDArray[np.int64], dict[str, Any]]]" = field(
        default_factory=list[tuple["NDArray[np.int64]", dict[str, Any]]]
    )
    """The trained tokens, with the values of their `TRAINED_COLUMNS`."""

    @property
    def trained_tokens(self) -> int:
        return sum(len(tokens) for tokens, _ in self.trained)


class TreeBuilder:
    """The builder of one tree: add trajectories or samples, then read `columns` and `samples`.

    Args:
        merges: Whether to compare what is added with the tree and share equal tokens. One trajectory alone needs no
            comparison, because its deltas specify what is shared.
        extra: The keys of the side data that the tree has.
    """

    def __init__(self, *, merges: bool, extra: Sequence[str] = ()) -> None:
        self.samples: list[TreeSample] = []
        self._has: dict[str, bool] = {}  # which optional fields the samples have
        self._streams: dict[str, list[NDArray[np.float32]]] = {}  # the weights of the trained tokens of each sample
        self._tree = PrefixTree(merges=merges)
        self._rows: dict[str, list[tuple[NDArray[np.int64], PerToken]]] = {key: [] for key in extra}
        self._trained: list[tuple[NDArray[np.int64], dict[str, Any]]] = []
        self._images: dict[int, tuple[Image, NDArray[np.int32]]] = {}  # by the number of their first placeholder
        self._image_keys: dict[str, int] = {}  # what takes the place of an image's placeholders in the tree, by hash
        self._tokenizers: dict[str, str] = {}  # each fingerprint, with the first place that used it

    def add_trajectory(self, trajectory: Trajectory, loss: LossRule = "all", *, include_failed: bool = False) -> None:
        """Add a trajectory. Its samples are those of `Trajectory.samples(loss)`.

        Raises:
            UndeclaredBreak: If a step drops tokens without a declared break.
            InvalidSample: If its trained tokens belong to another tokenizer than those of an earlier trajectory.
        """
        if trajectory.status == "error" and not include_failed:
            return
        steps, contexts, origins = trajectory.steps, trajectory.contexts, trajectory.origins
        is_trained = trained_steps(steps, contexts, origins, loss, include_failed=include_failed)
        tree = self._tree
        ends: dict[str, int] = {}  # the last token of each context
        current: dict[str, _Segment] = {}
        segments: list[_Segment] = []
        for replayed in replay(steps, contexts):
            step, name = replayed.step, replayed.step.context
            if replayed.starts_segment:
                current[name] = _Segment(name)
                segments.append(current[name])
            last = tree.ancestor(ends.get(step.base, NO_TOKEN), step.keep)
            log = trajectory.contexts[name]
            observed = log.tokens[step.start : step.action_start]
            media = [image.moved(-step.start) for image in within(log.media, step.start, step.action_start)]
            last = _end(self._add(observed, media, last, is_trained=False), last)
            ends[name] = self._add_action(trajectory, step, last, current[name], is_trained(step))
        self._add_segments(trajectory, [segment for segment in segments if segment.trained])

    def _add_action(self, trajectory: Trajectory, step: Step, last: int, segment: _Segment, is_trained: bool) -> int:
        """Add the sampled tokens of a step after the token `last`, and return the last token of them."""
        log, start = trajectory.contexts[step.context], step.action_start
        for part in step.parts:
            for first, stop, is_masked in step.runs(start, part.stop):
                tokens = self._tree.add(log.tokens[first:stop], last, is_trained=is_trained and not is_masked)
                last = _end(tokens, last)
                if is_trained and not is_masked:
                    values: dict[str, Any] = {
                        "logprobs": log.logprobs[first:stop],
                        "step_ids": len(segment.rewards),
                        "temperature": part.temperature,
                        "policy_version": -1 if part.policy_version is None else part.policy_version,
                    }
                    segment.trained.append((tokens, values))
                    segment.length = self._tree.length(last)
                    for key in self._rows if len(tokens) else ():
                        data = per_token(part.extra.get(key))
                        if data is None:
                            raise _lacks(key, "an action")
                        if not _is_over_all(data):
                            self._add_rows(key, tokens, data.take(slice(first - start, first - start + len(tokens))))
            for key in self._rows:
                data = per_token(part.extra.get(key))
                if data is not None and _is_over_all(data):
                    self._add_rows(key, self._tree.branch(last, len(data)), data)
            start = part.stop
        segment.rewards.append(step.reward or 0.0)
        return last

    def _add_segments(self, trajectory: Trajectory, segments: list[_Segment]) -> None:
        """Make a sample of each segment. Each one has at least one trained token."""
        weights = loss_weights([segment.trained_tokens for segment in segments])
        for segment, loss_weight in zip(segments, weights, strict=True):
            log = trajectory.contexts[segment.context]
            for tokens, values in segment.trained:
                self._train(tokens, **values)
            sample = TreeSample(
                trajectory_id=trajectory.id,
                group_id=trajectory.group_id,
                context=segment.context,
                role=log.role,
                reward=trajectory.reward_of(segment.context),
                step_rewards=np.array(segment.rewards, dtype=np.float32),
                loss_weight=loss_weight,
                length=segment.length,
                trained_tokens=segment.trained_tokens,
            )
            self._add_record(sample, log.tokenizer or trajectory.tokenizer)

    def add_sample(self, sample: Sample) -> None:
        """Add a sample. It shares the tokens of the tree as far as they are equal, from the first token on.

        Raises:
            InvalidSample: If the sample is invalid (`Sample.validate`), has an advantage where earlier samples have
                none or the reverse, or belongs to another tokenizer.
        """
        sample.validate()
        has = {name: getattr(sample, name) is not None for name in ("advantage", "reference_logprobs")}
        has |= {f"stream_weights[{name!r}]": True for name in sample.stream_weights}
        if self.samples and self._has != has:
            name = min(name for name in {*has, *self._has} if has.get(name) != self._has.get(name))
            raise InvalidSample(
                f"sample {len(self.samples)}, of trajectory {sample.trajectory_id!r}, "
                f"{'has' if has.get(name) else 'lacks'} {name}, unlike the samples before it; expected {name} in all "
                "samples or in none"
            )
        self._has = has
        mask, last, pieces = sample.mask, NO_TOKEN, list["NDArray[np.int64]"]()
        for piece in np.split(np.arange(len(sample)), np.flatnonzero(mask[1:] != mask[:-1]) + 1):
            start, stop = int(piece[0]), int(piece[-1]) + 1
            media = [image.moved(-start) for image in within(sample.media, start, stop)]
            pieces.append(self._add(sample.tokens[piece], media, last, is_trained=bool(mask[start])))
            last = _end(pieces[-1], last)
        tokens = np.concatenate(pieces)
        parts = sample.part_ids[mask]
        advantage = np.asarray(0.0 if sample.advantage is None else sample.advantage, dtype=np.float32)
        self._train(
            tokens[mask],
            logprobs=np.nan if sample.logprobs is None else sample.logprobs[mask],
            step_ids=sample.step_ids[mask],
            temperature=sample.temperature[parts],
            policy_version=sample.policy_version[parts],
            advantage=np.broadcast_to(advantage, mask.shape)[mask],
            reference_logprobs=0.0 if sample.reference_logprobs is None else sample.reference_logprobs[mask],
        )
        for name, weights in sample.stream_weights.items():
            if (weights[~mask] != 0).any():
                raise InvalidSample(
                    f"stream_weights[{name!r}] of sample {len(self.samples)}, of trajectory {sample.trajectory_id!r}, "
                    "is not 0.0 on a token with mask False, but a tree trains only tokens with mask True: train such "
                    "samples as separate sequences"
                )
            self._streams.setdefault(name, []).append(weights[mask])
        for key in self._rows:
            data = per_token(sample.extra.get(key))
            if data is None:
                raise _lacks(key, f"sample {len(self.samples)}, of trajectory {sample.trajectory_id!r}")
            own = np.arange(len(sample)) if _is_over_all(data) else np.flatnonzero(mask)
            self._add_rows(key, tokens[own], data.take(own))
        record = TreeSample(
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
        self._add_record(record, sample.metadata.get("tokenizer") or "")

    def _add(
        self, tokens: "NDArray[np.int32]", media: Sequence[PlacedImage], last: int, *, is_trained: bool
    ) -> "NDArray[np.int64]":
        """Add tokens with their images; see `PrefixTree.add`. Placeholders are equal only if their images are."""
        if not media:
            return self._tree.add(tokens, last, is_trained=is_trained)
        keys = tokens.copy()
        for image, start, stop in media:
            keys[start:stop] = self._image_keys.setdefault(image.sha256, _FIRST_IMAGE - len(self._image_keys))
        numbers = self._tree.add(keys, last, is_trained=is_trained)
        for image, start, stop in media:
            self._images[int(numbers[start])] = image, tokens[start:stop]
        return numbers

    def _placeholders(self, order: "NDArray[np.int64]") -> "tuple[NDArray[np.int32], list[PlacedImage]]":
        """Return the tokens in the order of a tree's layout, with placeholders again, and the images in them."""
        tokens, media = np.asarray(self._tree.tokens)[order], list[PlacedImage]()
        index = np.argsort(order) if self._images else order
        for number, (image, placeholders) in self._images.items():
            start = int(index[number])
            tokens[start : start + len(placeholders)] = placeholders
            media.append(PlacedImage(image, start, start + len(placeholders)))
        return tokens, sorted(media, key=lambda each: each.start)

    def _add_rows(self, key: str, tokens: "NDArray[np.int64]", data: PerToken) -> None:
        """Add the known rows of side data to tokens."""
        known = np.flatnonzero(data.known)
        earlier = self._rows[key]
        if earlier and not earlier[0][1].is_like(data):
            raise InvalidSample(
                f"extra[{key!r}] is {earlier[0][1]!r:.80} for some samples, and {data!r:.80} for others; expected rows "
                "of one kind, type and shape"
            )
        earlier.append((tokens[known], data.take(known)))

    def _stream_weights(self, order: "NDArray[np.int64]") -> "dict[str, NDArray[np.float32]]":
        """Return the weights of each stream, in the order of a tree's layout."""
        numbers = np.concatenate([tokens for tokens, _ in self._trained])
        found: dict[str, NDArray[np.float32]] = {}
        for name, weights in self._streams.items():
            placed_weights = np.zeros(len(order), dtype=np.float32)
            placed_weights[numbers] = np.concatenate(weights)
            found[name] = placed_weights[order]
        return found

    def _extra(self, order: "NDArray[np.int64]") -> dict[str, PerToken]:
        """Return the side data by key, with a row for each token, in the order of a tree's layout."""
        found: dict[str, PerToken] = {}
        for key, parts in self._rows.items():
            numbers = np.concatenate([tokens for tokens, _ in parts])
            rows = np.full(len(order), NO_TOKEN, dtype=np.int64)
            rows[numbers] = np.arange(len(numbers))
            found[key] = placed(joined([data for _, data in parts]), rows[order])
        return found

    def _train(self, tokens: "NDArray[np.int64]", **values: Any) -> None:
        """Mark tokens as trained in the sample whose record is added next."""
        self._trained.append((tokens, {**values, "mask": True, "sample_ids": len(self.samples)}))

    def _add_record(self, sample: TreeSample, tokenizer: str) -> None:
        where = f"context {sample.context!r} of trajectory {sample.trajectory_id!r}"
        if tokenizer:
            self._tokenizers.setdefault(tokenizer, where)
        if len(self._tokenizers) > 1:
            (first, there), (second, here) = self._tokenizers.items()
            raise InvalidSample(
                f"the tokens belong to two tokenizers, whose ids mean different things: {first!r} ({there}) and "
                f"{second!r} ({here}). Make one tree for each tokenizer: select samples by their role or context"
            )
        self.samples.append(sample)

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
        trained: dict[str, NDArray[Any]] = {
            name: np.full(count, value, dtype) for name, (dtype, value) in TRAINED_COLUMNS.items()
        }
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
            columns[name] = columns[name] if self._has.get(name) else None
        tokens, media = self._placeholders(layout.order)
        return {
            "stream_weights": self._stream_weights(layout.order),
            "extra": self._extra(layout.order),
            "tokens": tokens,
            "media": media,
            "position_ids": layout.position_ids,
            "parent": layout.parent,
            "exit": layout.exit,
            **columns,
        }


def _lacks(key: str, who: str) -> InvalidSample:
    return InvalidSample(
        f"{who} has no extra[{key!r}] with a row for each token: request only what the policy gives for all actions"
    )


def _is_over_all(data: PerToken) -> bool:
    return isinstance(data, Aligned) and data.over == "all"


def _end(tokens: "NDArray[np.int64]", last: int) -> int:
    """Return the last of these tokens, or `last`, the token before them, if there are none."""
    return int(tokens[-1]) if len(tokens) else last
