"""Builds the tree of a batch from trajectories, by their own ranges, or from samples.

A trajectory says itself what its contexts share, so its steps are put in as they are, each token once. What several
trajectories, or samples, have in common is found by comparison; see `PrefixTree`.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidSample
from ..trajectories.replay import replay
from ..trajectories.samples import Sample
from ..trajectories.segments import LossRule, trained_steps
from ..trajectories.steps import Step
from ..trajectories.trajectory import Trajectory
from .prefix_tree import NO_TOKEN, PrefixTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What is told of trained tokens, with what it is on all others.
TRAINING: dict[str, tuple[Any, Any]] = {
    "mask": (np.bool_, False),
    "logprobs": (np.float32, 0.0),
    "sample_ids": (np.int32, -1),
    "step_ids": (np.int32, -1),
    "temperature": (np.float32, 1.0),
    "policy_version": (np.int32, -1),
    "advantage": (np.float32, 0.0),
}


@dataclass(frozen=True, slots=True)
class TreeSample:
    """What a loss needs to know of a sample whose tokens stand in a tree; see `Sample`."""

    trajectory_id: str
    group_id: str | None
    context: str
    role: str
    reward: float
    step_rewards: "NDArray[np.float32]"
    """Shape (n_steps,): the reward of each step in this sample; 0.0 for one that was not scored."""
    loss_weight: float
    """Trained tokens of this sample / trained tokens of the trajectory."""
    length: int
    """How many tokens it has as a sequence of its own."""
    trained_tokens: int


@dataclass(slots=True)
class _Segment:
    """A segment of a context: what came together of it."""

    context: str
    rewards: list[float] = field(default_factory=list[float])
    length: int = 0
    """How many tokens the context had behind the last trained one."""
    trained: "list[tuple[NDArray[np.int64], dict[str, Any]]]" = field(
        default_factory=list[tuple["NDArray[np.int64]", dict[str, Any]]]
    )
    """Its trained tokens, with what is told of them."""

    @property
    def trained_tokens(self) -> int:
        return sum(len(tokens) for tokens, _ in self.trained)


class TreeBuilder:
    """Takes trajectories or samples, one after the other.

    Args:
        merges: Whether they are compared with each other. One trajectory alone says itself what is shared.
    """

    def __init__(self, *, merges: bool) -> None:
        self.samples: list[TreeSample] = []
        self.has_advantages = False
        self._tree = PrefixTree(merges=merges)
        self._trained: list[tuple[NDArray[np.int64], dict[str, Any]]] = []
        self._tokenizers: dict[str, str] = {}  # with where it was met first

    # A trajectory.

    def add_trajectory(self, trajectory: Trajectory, loss: LossRule = "all", *, include_failed: bool = False) -> None:
        """Add a trajectory: see `Trajectory.samples`, whose samples are the ones that count here.

        Raises:
            UndeclaredBreak: If a step drops tokens and no break says so.
            InvalidSample: If tokens of another tokenizer are trained.
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
            observed = trajectory.contexts[name].tokens[step.start : step.action_start]
            last = _end(tree.add(observed, last, is_trained=False), last)
            ends[name] = self._act(trajectory, step, last, current[name], is_trained(step))
        self._close(trajectory, [segment for segment in segments if segment.trained])

    def _act(self, trajectory: Trajectory, step: Step, last: int, segment: _Segment, is_trained: bool) -> int:
        """Add what was sampled at a step; returns its last token."""
        log, start = trajectory.contexts[step.context], step.action_start
        for part in step.parts:
            tokens = self._tree.add(log.tokens[start : part.stop], last, is_trained=is_trained)
            last = _end(tokens, last)
            if is_trained and len(tokens):
                values: dict[str, Any] = {
                    "logprobs": log.logprobs[start : part.stop],
                    "step_ids": len(segment.rewards),
                    "temperature": part.temperature,
                    "policy_version": -1 if part.policy_version is None else part.policy_version,
                }
                segment.trained.append((tokens, values))
                segment.length = self._tree.length(last)
            start = part.stop
        segment.rewards.append(step.reward or 0.0)
        return last

    def _close(self, trajectory: Trajectory, segments: list[_Segment]) -> None:
        """Take the segments in which a token is trained: they are the samples."""
        total = sum(segment.trained_tokens for segment in segments)
        for segment in segments:
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
                loss_weight=segment.trained_tokens / total,
                length=segment.length,
                trained_tokens=segment.trained_tokens,
            )
            self._take(sample, log.tokenizer or trajectory.tokenizer)

    # A sample.

    def add_sample(self, sample: Sample) -> None:
        """Add a sample, along what is there already as far as it is equal.

        Raises:
            InvalidSample: If the sample is not sound, has an advantage where others have none, or is of another
                tokenizer.
        """
        sample.validate()
        if self.samples and self.has_advantages != (sample.advantage is not None):
            raise InvalidSample(f"of {len(self.samples) + 1} samples some have an advantage and some have none")
        self.has_advantages = sample.advantage is not None
        tokens, mask = self._place(sample), sample.mask
        parts = sample.part_ids[mask]
        advantage = np.asarray(0.0 if sample.advantage is None else sample.advantage, dtype=np.float32)
        self._train(
            tokens[mask],
            logprobs=np.nan if sample.logprobs is None else sample.logprobs[mask],
            step_ids=sample.step_ids[mask],
            temperature=sample.temperature[parts],
            policy_version=sample.policy_version[parts],
            advantage=np.broadcast_to(advantage, mask.shape)[mask],
        )
        taken = TreeSample(
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
        self._take(taken, sample.metadata.get("tokenizer") or "")

    def _place(self, sample: Sample) -> "NDArray[np.int64]":
        """Find or add each token of a sample: shape (L,)."""
        changes = np.flatnonzero(sample.mask[1:] != sample.mask[:-1]) + 1
        last, pieces = NO_TOKEN, list["NDArray[np.int64]"]()
        for piece in np.split(np.arange(len(sample)), changes):
            pieces.append(self._tree.add(sample.tokens[piece], last, is_trained=bool(sample.mask[piece[0]])))
            last = _end(pieces[-1], last)
        return np.concatenate(pieces)

    # What comes of both.

    def _train(self, tokens: "NDArray[np.int64]", **values: Any) -> None:
        """Say of tokens that they are trained, in the sample that is taken next."""
        self._trained.append((tokens, {**values, "mask": True, "sample_ids": len(self.samples)}))

    def _take(self, sample: TreeSample, tokenizer: str) -> None:
        where = f"context {sample.context!r} of trajectory {sample.trajectory_id!r}"
        if tokenizer:
            self._tokenizers.setdefault(tokenizer, where)
        if len(self._tokenizers) > 1:
            (first, there), (second, here) = self._tokenizers.items()
            raise InvalidSample(
                f"the tokens are of two tokenizers, whose ids mean different things: {first!r} ({there}) and "
                f"{second!r} ({here}). Make a tree for each: of the samples, chosen by their role or their context"
            )
        self.samples.append(sample)

    def columns(self) -> "dict[str, NDArray[Any]]":
        """All tokens in depth-first order, each array of shape (N,): the fields of a `TreeBatch`, by name.

        Raises:
            InvalidSample: If no token is trained, or one that nothing predicts (the first one of a sample).
        """
        if not self._trained:
            raise InvalidSample("no token is trained: what there is failed or sampled nothing, or `loss` chose no step")
        layout, count = self._tree.layout(), len(self._tree)
        training: dict[str, NDArray[Any]] = {
            name: np.full(count, value, dtype) for name, (dtype, value) in TRAINING.items()
        }
        for tokens, values in self._trained:
            for name, value in values.items():
                training[name][tokens] = value
        columns: dict[str, NDArray[Any]] = {name: array[layout.order] for name, array in training.items()}
        alone = np.flatnonzero(columns["mask"] & (layout.parent == NO_TOKEN))
        if len(alone):
            sample = self.samples[int(columns["sample_ids"][alone[0]])]
            raise InvalidSample(
                f"the first token of a sample of {sample.trajectory_id!r} is trained; nothing predicts it"
            )
        return {
            "tokens": self._tree.tokens.view[layout.order],
            "position_ids": layout.position_ids,
            "parent": layout.parent,
            "exit": layout.exit,
            **columns,
        }


def _end(tokens: "NDArray[np.int64]", last: int) -> int:
    """The last of these tokens; the one before them if there are none."""
    return int(tokens[-1]) if len(tokens) else last
