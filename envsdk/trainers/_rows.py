"""The parts that several adapters share: per-token values, the start of the response, the samples of a rollout."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contexts._side_data import Aligned
from ..errors import ConfigError, InvalidSample
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


IGNORED = -100
"""The label of a token that is not trained: the default of `ignore_index` in torch's cross entropy."""


def temperatures(sample: Sample) -> "NDArray[np.float32]":
    """Return the sampling temperature of each token: float32, shape (L,), 1.0 where mask is False."""
    values = np.ones(len(sample), dtype=np.float32)
    values[sample.mask] = sample.temperature[sample.part_ids[sample.mask]]
    return values


def advantages(sample: Sample) -> "NDArray[np.float32]":
    """Return the advantage of each token: float32, shape (L,), 0.0 where mask is False. The sample must have one."""
    return np.where(sample.mask, np.asarray(sample.advantage, dtype=np.float32), np.float32(0))


def logprobs(sample: Sample) -> "NDArray[np.float32]":
    """Return a copy of the sampler's log-probabilities, in nats: float32, shape (L,), 0.0 where mask is False.

    Raises:
        InvalidSample: If the sample has no log-probabilities.
    """
    if sample.logprobs is None:
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has no log-probabilities: the policy must return "
            "Action(..., logprobs=...)"
        )
    return sample.logprobs.copy()


def labels(sample: Sample) -> "NDArray[np.int64]":
    """Return the token ids where mask is True, and `IGNORED` elsewhere: int64, shape (L,)."""
    return np.where(sample.mask, sample.tokens.astype(np.int64), IGNORED)


def padded(rows: "Sequence[NDArray[Any]]", value: float, width: int) -> "NDArray[Any]":
    """Return arrays of at most `width` rows as one array, each of them followed by padding."""
    filled = np.full((len(rows), width, *rows[0].shape[1:]), value, dtype=rows[0].dtype)
    for row, given in zip(filled, rows, strict=True):
        row[: len(given)] = given
    return filled


def check_max_length(max_length: Any) -> None:
    """Check that a largest length is None or a positive integer.

    Raises:
        ConfigError: If it is not.
    """
    is_integer = isinstance(max_length, (int, np.integer)) and not isinstance(max_length, bool)
    if max_length is not None and not (is_integer and max_length > 0):
        raise ConfigError(f"max_length is {max_length!r:.80}; expected None or a number of tokens, at least 1")


def check_lengths(samples: Iterable[Sample], max_length: int | None, first: int = 0) -> None:
    """Check that no sample is longer than `max_length`.

    Raises:
        InvalidSample: If one is. The error names it; `first` is the index of the first sample.
    """
    for index, sample in enumerate(samples, start=first):
        if max_length is not None and len(sample) > max_length:
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, has {len(sample)} tokens, but max_length is "
                f"{max_length}: raise it, limit the environment with Limits(max_context_tokens={max_length}), or cut "
                "off what is longer with truncate=True"
            )


def response_start(sample: Sample) -> int:
    """Return the index of the first trained token, at which trainers that separate prompt and response split."""
    return int(np.argmax(sample.mask))


def routed_experts(sample: Sample) -> "NDArray[np.int32]":
    """Return the experts of all tokens but the last one, which no trained token follows: int32, (L - 1, layers, top_k).

    A trainer replays them, so each of these tokens needs its own.

    Raises:
        InvalidSample: If the sample has no experts over all tokens, or a token has none.
    """
    experts = sample.extra.get("routed_experts")
    if not isinstance(experts, Aligned) or experts.over != "all" or experts.values.ndim != 3:
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has extra['routed_experts'] {experts!r:.80}; expected "
            "Aligned(..., over='all') with rows of shape (layers, top_k), such as VLLM gives if the server was started "
            "with --enable-return-routed-experts"
        )
    known = experts.known[:-1]
    if not known.all():
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has no experts at token {int(np.argmin(known))}, so they "
            "cannot be replayed: the server must return those of the prompt, too"
        )
    return experts.values[:-1].astype(np.int32)


def observation_weights(sample: Sample, weights: Mapping[str, float]) -> "NDArray[np.float32]":
    """Return the weight of each observed token in a loss on observations: float32, shape (L,), 0.0 elsewhere.

    A token counts once: where it was observed before a trained reply of this segment, and not where it was kept.

    Args:
        sample: A sample with roles.
        weights: The weight of each label that is trained; `tool:NAME` overrides `tool`.

    Raises:
        InvalidSample: If the sample has no roles.
    """
    if sample.roles is None:
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has no roles: set records_roles = True on the environment"
        )
    sampled = np.flatnonzero(sample.step_ids >= 0)
    following = sampled[np.searchsorted(sampled, np.arange(len(sample))).clip(max=len(sampled) - 1)]
    is_answered = np.isin(sample.step_ids[following], sample.step_ids[sample.mask])
    is_observed = (sample.step_ids < 0) & is_answered & (np.arange(len(sample)) >= _kept(sample))
    found = np.zeros(len(sample), dtype=np.float32)
    for label in sorted(weights, key=len):  # a longer name is a more special one
        found[is_observed & sample.roles.are(label)] = weights[label]
    return found


def _kept(sample: Sample) -> int:
    """Return how many tokens at the start of a sample were kept from an earlier segment or another context."""
    begins = (break_ for break_ in reversed(sample.breaks) if break_.kind == "rewrite" or break_.base != break_.context)
    first = next(begins, None)
    return 0 if first is None else first.kept


def group_by_rollout(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Group the samples by rollout. Rollouts are in the order in which they first appear.

    Raises:
        InvalidSample: If the samples of a rollout have different rewards (the trainer gives all of them one advantage)
            or different groups, if a sample of a rollout is missing, or if two rollouts have the same id.
    """
    rollouts: dict[str, dict[tuple[str, int], Sample]] = {}
    for index, sample in enumerate(samples):
        rollout, segment = rollouts.setdefault(sample.trajectory_id, {}), (sample.context, sample.segment_index)
        if segment in rollout:
            raise InvalidSample(
                f"sample {index} is segment {segment[1]} of context {segment[0]!r} of trajectory "
                f"{sample.trajectory_id!r} for the second time: give each rollout a unique id (reset option "
                "`episode_id`)"
            )
        rollout[segment] = sample
    for name, rollout in rollouts.items():
        _check_rollout(name, list(rollout.values()))
    return [list(rollout.values()) for rollout in rollouts.values()]


def check_one_reward(rollout: Sequence[Sample]) -> None:
    """Check that the samples of a rollout have the same reward, because the trainer has one reward for a rollout.

    Raises:
        InvalidSample: If contexts have different rewards.
    """
    rewards = {sample.context: sample.reward for sample in rollout}
    if len(set(rewards.values())) > 1:
        raise InvalidSample(
            f"the contexts of trajectory {rollout[0].trajectory_id!r} have different rewards ({rewards}), but the "
            "trainer has one reward for a rollout: convert the samples of each context (each player) separately, with "
            "different trajectory ids"
        )


def _check_rollout(name: str, rollout: Sequence[Sample]) -> None:
    check_one_reward(rollout)
    groups = {sample.group_id for sample in rollout}
    if len(groups) > 1:
        raise InvalidSample(
            f"the samples of trajectory {name!r} are in several groups: {', '.join(sorted(map(repr, groups)))}; "
            "expected one group_id"
        )
    for context in dict.fromkeys(sample.context for sample in rollout):
        own = [sample for sample in rollout if sample.context == context]
        if any(sample.n_segments != len(own) or not 0 <= sample.segment_index < len(own) for sample in own):
            raise InvalidSample(
                f"context {context!r} of trajectory {name!r} has {max(s.n_segments for s in own)} segments, but the "
                f"samples are the segments {sorted(s.segment_index for s in own)}: convert all samples of a rollout "
                "together"
            )
