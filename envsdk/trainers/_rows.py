"""The parts that several adapters share: per-token values, the start of the response, the samples of a rollout."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._visible import brief
from ..contexts._side_data import Aligned, Ragged
from ..errors import ConfigError, InvalidSample
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


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


class BatchLayout:
    """The places of the tokens of B samples in the arrays of a batch.

    Args:
        lengths: The number of tokens of each sample.
        width: The length of the row that each sample has; 0 puts all samples into one row, without padding.

    Attributes:
        lengths: As an array: int64, shape (B,).
        shape: The shape of the arrays: (B, width), or (1, N) for one row with N tokens.
    """

    def __init__(self, lengths: Sequence[int], width: int) -> None:
        self.lengths = np.array(lengths, dtype=np.int64)
        self.shape = (len(lengths), width) if width else (1, sum(lengths))
        self._starts = np.arange(len(lengths)) * width if width else np.cumsum(self.lengths) - self.lengths

    def array(self, values: "Iterable[ArrayLike]", dtype: Any, padding: float = 0, row: Sequence[int] = ()) -> Any:
        """Return an array with the values of the samples, each in its place.

        Args:
            values: For each sample an array with one value (or one row) for each token, of which those after the
                sample's length are left out; or one value for all of its tokens.
            dtype: The type of the array. Values are converted to it.
            padding: The value where no sample is.
            row: The shape of the row of one token.
        """
        filled = np.full((self.shape[0] * self.shape[1], *row), padding, dtype=dtype)
        for start, length, value in zip(self._starts.tolist(), self.lengths.tolist(), values, strict=True):
            filled[start : start + length] = value[:length] if isinstance(value, np.ndarray) and value.ndim else value
        return filled.reshape(*self.shape, *row)


def check_max_length(max_length: Any) -> None:
    """Check that a largest length is None or a positive integer.

    Raises:
        ConfigError: If it is not.
    """
    is_integer = isinstance(max_length, (int, np.integer)) and not isinstance(max_length, bool)
    if max_length is not None and not (is_integer and max_length > 0):
        raise ConfigError(f"max_length is {brief(max_length)}; expected None or a number of tokens, at least 1")


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


class Response(NamedTuple):
    """A sample as a prompt and a response of m tokens, as lists."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """1 for each trained token of the response, 0 for each other one."""
    logprobs: list[float]
    """The sampler's log-probabilities of the response, 0.0 where the mask is 0; empty if the sample has none."""


def split_response(sample: Sample, longest_prompt: int | None = None) -> Response:
    """Split a sample at its first trained token, or after `longest_prompt` tokens if the prompt is longer."""
    start = response_start(sample) if longest_prompt is None else min(response_start(sample), longest_prompt)
    return Response(
        sample.tokens[:start].tolist(),
        sample.tokens[start:].tolist(),
        sample.mask[start:].astype(int).tolist(),
        [] if sample.logprobs is None else sample.logprobs[start:].tolist(),
    )


def routed_experts(sample: Sample, dtype: Any = np.int32) -> "NDArray[Any]":
    """Return the experts of all tokens but the last one, which no trained token follows: shape (L - 1, layers, top_k).

    A trainer replays them, so each of these tokens needs its own.

    Raises:
        InvalidSample: If the sample has no experts over all tokens, a token has none, or `dtype` does not hold one.
    """
    experts = sample.extra.get("routed_experts")
    if not isinstance(experts, Aligned) or experts.over != "all" or experts.values.ndim != 3:
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has extra['routed_experts'] {brief(experts)}; expected "
            "Aligned(..., over='all') with rows of shape (layers, top_k), such as VLLM gives if the server was started "
            "with --enable-return-routed-experts"
        )
    known = experts.known[:-1]
    if not known.all():
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has no experts at token {int(np.argmin(known))}, so they "
            "cannot be replayed: the server must return those of the prompt, too"
        )
    largest = int(experts.values[:-1].max(initial=0))
    if largest > np.iinfo(dtype).max:
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has expert {largest}; expected at most "
            f"{np.iinfo(dtype).max}, because the trainer stores experts as {np.dtype(dtype)}"
        )
    return experts.values[:-1].astype(dtype)


def sampling_mask(sample: Sample) -> Ragged:
    """Return the ids that the sampler chose each trained token from, as int32; an empty list for each other token.

    A trainer computes log-probabilities over these ids only, so each trained token must be one of its own.

    Raises:
        InvalidSample: If a trained token has no list, or is not in its list.
    """
    mask = sample.extra.get("sampling_mask")
    if not isinstance(mask, Ragged) or mask.values.dtype.kind not in "iu":
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has extra['sampling_mask'] {brief(mask)}; expected "
            "Ragged with a list of token ids for each sampled token, such as VLLM gives if the server was started with "
            "--return-sampling-mask"
        )
    owners = np.repeat(np.arange(len(mask)), mask.lengths)
    is_in_list = np.zeros(len(sample), dtype=np.bool_)
    is_in_list[owners[mask.values == sample.tokens[owners]]] = True
    missing = np.flatnonzero(sample.mask & ~is_in_list)
    if len(missing):
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has extra['sampling_mask'] without token {missing[0]}, "
            f"which has the id {sample.tokens[missing[0]]}, so its log-probability would be -inf: the sampler must "
            "return the ids of each token that it samples"
        )
    return Ragged(mask.values[sample.mask[owners]].astype(np.int32), np.where(sample.mask, mask.lengths, 0))


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
    # What was kept from an earlier segment or another context has its weight there.
    begins = [each.kept for each in sample.breaks if each.kind == "rewrite" or each.base != each.context]
    is_new = np.arange(len(sample)) >= (begins[-1] if begins else 0)
    is_observed = (sample.step_ids < 0) & is_answered & is_new
    found = np.zeros(len(sample), dtype=np.float32)
    for label in sorted(weights, key=len):  # a longer name is a more special one
        found[is_observed & sample.roles.are(label)] = weights[label]
    return found


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
    found = [list(rollout.values()) for rollout in rollouts.values()]
    for rollout in found:
        check_one_reward(rollout)
        where = f"trajectory {rollout[0].trajectory_id!r}"
        groups = {sample.group_id for sample in rollout}
        if len(groups) > 1:
            raise InvalidSample(
                f"the samples of {where} are in several groups: {', '.join(sorted(map(repr, groups)))}; expected one "
                "group_id"
            )
        for context in dict.fromkeys(sample.context for sample in rollout):
            own = [sample for sample in rollout if sample.context == context]
            if any(sample.n_segments != len(own) or not 0 <= sample.segment_index < len(own) for sample in own):
                raise InvalidSample(
                    f"context {context!r} of {where} has {max(s.n_segments for s in own)} segments, but the samples "
                    f"are the segments {sorted(s.segment_index for s in own)}: convert all samples of a rollout "
                    "together"
                )
    return found


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


@contextmanager
def hidden_states_at(model: Any, indices: Any, **arguments: Any) -> Generator[None]:
    """Let a model return the last hidden states of these tokens only: one token may predict several ones of a tree.

    Args:
        model: A causal language model of transformers, whose output layer computes the tokens at `indices` only.
        indices: The indices of tokens, as a tensor.
        **arguments: Arguments of the layers, for a trainer whose own forward pass does not hand them on.
    """
    backbone = model.model if model.base_model is model else model.base_model  # what makes the last hidden states

    def select(_: Any, __: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"][:, indices]
        return output

    def add(_: Any, args: Any, own: Any) -> tuple[Any, dict[str, Any]]:
        return args, {**own, **arguments}

    with ExitStack() as hooks:
        hooks.callback(backbone.register_forward_hook(select).remove)
        hooks.callback(backbone.register_forward_pre_hook(add, with_kwargs=True).remove)
        yield
