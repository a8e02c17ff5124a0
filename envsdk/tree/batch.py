"""A tree as arrays: what a loss needs of it, and how it is cut to a size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from ..errors import InvalidSample, TreeTooLarge, unknown_name
from ..trajectories.samples import Sample
from ..trajectories.segments import LossRule
from ..trajectories.trajectory import Trajectory
from .builder import TRAINING, TreeBuilder, TreeSample
from .masks import MAX_DENSE_TOKENS, block_mask, dense_mask, model_inputs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Reduction: TypeAlias = Literal["sum", "sample_mean"]
TreeSource: TypeAlias = Trajectory | Sample | Sequence[Trajectory] | Sequence[Sample]

# A batch more outweighs any number of tokens that are repeated.
_BATCH_COST = 1 << 40


@dataclass(slots=True)
class TreeBatch:
    """Several samples as one tree of N tokens, in depth-first order; it may have several roots.

    A query `q` sees a key `k` exactly when `enter[k] <= enter[q] < exit[k]`: the keys that it sees are its branch up
    to itself. The logits that predict the token at `trained[i]` stand at `predecessors[i]`.
    """

    tokens: "NDArray[np.int32]"
    """Shape (N,)."""
    position_ids: "NDArray[np.int32]"
    """Shape (N,): how many tokens come before it in its branch."""
    parent: "NDArray[np.int32]"
    """Shape (N,): the index of the token before it in its branch; -1 at a root."""
    exit: "NDArray[np.int32]"
    """Shape (N,): the index of the first later token whose branch does not hold it; N if there is none."""
    mask: "NDArray[np.bool_]"
    """Shape (N,): True on the tokens that are trained."""
    logprobs: "NDArray[np.float32] | None"
    """Shape (N,): the sampler's log-probabilities; 0.0 where mask is False, NaN where the policy gave none. None if
    there are none at all."""
    sample_ids: "NDArray[np.int32]"
    """Shape (N,): the sample in which a token is trained, as an index of `samples`; -1 where mask is False."""
    step_ids: "NDArray[np.int32]"
    """Shape (N,): the sample's step that a trained token was sampled in; -1 where mask is False."""
    temperature: "NDArray[np.float32]"
    """Shape (N,): the sampling temperature of a trained token; 1.0 where mask is False."""
    policy_version: "NDArray[np.int32]"
    """Shape (N,): which weights sampled a trained token; -1 if unknown or where mask is False."""
    advantage: "NDArray[np.float32] | None"
    """Shape (N,): 0.0 where mask is False. None until you set it, if the samples had none: see `per_token`."""
    samples: list[TreeSample]
    """The samples, in the order of `trajectory.samples()`; the batches that `split` makes share one list."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def enter(self) -> "NDArray[np.int32]":
        """When a token enters, shape (N,): its index, since the order is depth-first."""
        return np.arange(len(self), dtype=np.int32)

    @property
    def trained(self) -> "NDArray[np.int32]":
        """The indices of the trained tokens: shape (M,)."""
        return np.flatnonzero(self.mask).astype(np.int32)

    @property
    def predecessors(self) -> "NDArray[np.int32]":
        """For each trained token the index of the token whose logits predict it: shape (M,)."""
        return self.parent[self.mask]

    @property
    def tokens_separate(self) -> int:
        """How many tokens the samples trained here have as sequences of their own."""
        trained_here: list[int] = np.unique(self.sample_ids[self.mask]).tolist()
        return sum(self.samples[index].length for index in trained_here)

    @property
    def ratio(self) -> float:
        """How many times the tokens of the tree the separate samples have."""
        return self.tokens_separate / len(self)

    def path(self, index: int) -> "NDArray[np.int32]":
        """The indices of the tokens that the token at `index` sees, from its root to itself."""
        before = np.arange(index + 1, dtype=np.int32)
        return before[self.exit[: index + 1] > index]

    def per_token(self, values: "ArrayLike") -> "NDArray[np.float32]":
        """Give each trained token what its sample has: `tree.advantage = tree.per_token(advantages)`.

        Args:
            values: A number for each of `samples`, shape (len(samples),).

        Returns:
            Shape (N,), float32: 0.0 where mask is False.

        Raises:
            InvalidSample: If there are more values or fewer, or they are no finite numbers.
        """
        try:
            given = np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InvalidSample(f"values are no numbers: {error}") from error
        if given.shape != (len(self.samples),):
            raise InvalidSample(f"values has shape {given.shape}; there are {len(self.samples)} samples")
        if not np.isfinite(given).all():
            at = int(np.argmin(np.isfinite(given)))
            raise InvalidSample(f"values[{at}] is {given[at]}; expected numbers that are finite in float32")
        return np.where(self.mask, given[self.sample_ids], np.float32(0.0))

    def weights(self, reduction: Reduction = "sum") -> "NDArray[np.float32]":
        """What each token's loss counts, such that the sum over all tokens, and all batches, is the loss.

        Args:
            reduction: `"sum"`: each trained token counts 1. `"sample_mean"`: the mean over a sample's trained tokens
                counts the sample's `loss_weight`. However an episode is segmented, that is the mean over its tokens.

        Returns:
            Shape (N,), float32: 0.0 where mask is False.

        Raises:
            UnknownName: If there is no such reduction; it suggests one.
        """
        if reduction == "sum":
            return self.mask.astype(np.float32)
        if reduction == "sample_mean":
            return self.per_token([sample.loss_weight / sample.trained_tokens for sample in self.samples])
        raise unknown_name("reduction", reduction, get_args(Reduction))

    def split(self, max_tokens: int) -> "list[TreeBatch]":
        """Cut the tree between branches into batches of at most `max_tokens` tokens.

        The tokens before a cut branch are repeated, with mask False: each token is trained in exactly one batch. There
        are as few batches as can be without changing the order; of those ways, the one that repeats least is taken.

        Raises:
            TreeTooLarge: If a branch alone is longer than that.
        """
        longest = int(self.position_ids.max()) + 1
        if longest > max_tokens:
            where = self.samples[int(self.sample_ids[self.mask & (self.position_ids >= max_tokens)][0])]
            raise TreeTooLarge(
                f"a branch has {longest:,} tokens, more than max_tokens={max_tokens:,}: the longest is in the tree of "
                f"{len(self):,} tokens of trajectory {where.trajectory_id!r}, context {where.context!r}. A branch is "
                "not cut; give at least its length, limit the context (`Limits(max_context_tokens=...)`), or choose a "
                "history policy that rewrites it"
            )
        if len(self) <= max_tokens:
            return [self]
        bounds = [*self._cuts(max_tokens), len(self)]
        return [self._between(start, stop) for start, stop in pairwise(bounds)]

    def _cuts(self, max_tokens: int) -> list[int]:
        """Where the batches begin: the cheapest of all ways to cut in front of branches."""
        begins = self.parent != np.arange(-1, len(self) - 1)
        begins[0] = True
        bounds = np.append(np.flatnonzero(begins), len(self))
        depths = self.position_ids[bounds[:-1]].astype(np.int64)
        # From bound i, a batch takes all up to bound last[i] - 1, with the depth of its first token repeated.
        last = np.searchsorted(bounds, bounds[:-1] + max_tokens - depths, side="right")
        costs = np.full(len(bounds), np.iinfo(np.int64).max)
        costs[0] = 0
        came_from = np.zeros(len(bounds), dtype=np.int64)
        for index, stop in enumerate(last.tolist()):
            cost = costs[index] + _BATCH_COST + depths[index]
            cheaper = np.flatnonzero(costs[index + 1 : stop] > cost) + index + 1
            costs[cheaper], came_from[cheaper] = cost, index
        chosen = [int(came_from[-1])]
        while chosen[-1]:
            chosen.append(int(came_from[chosen[-1]]))
        return bounds[chosen[::-1]].tolist()

    def _between(self, start: int, stop: int) -> "TreeBatch":
        """The tokens from `start` to `stop`, behind those of the branch in which `start` stands."""
        above = np.flatnonzero(self.exit[:start] > start)
        kept = np.concatenate([above, np.arange(start, stop)])
        batch = self._take(kept)
        for name, (_, elsewhere) in TRAINING.items():
            column = getattr(batch, name)
            if column is not None:
                column[: len(above)] = elsewhere
        return batch

    def _take(self, kept: "NDArray[np.int64]") -> "TreeBatch":
        """The tokens at these indices, which are in order; the token before each of them is among them."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in ("tokens", "position_ids", *TRAINING)}
        taken: dict[str, Any] = {name: None if array is None else array[kept] for name, array in columns.items()}
        parent = self.parent[kept]
        return TreeBatch(
            **taken,
            parent=np.where(parent < 0, -1, np.searchsorted(kept, parent)).astype(np.int32),
            exit=np.searchsorted(kept, self.exit[kept]).astype(np.int32),
            samples=self.samples,
        )

    def dense_mask(
        self, sliding_window: int | None = None, *, max_tokens: int = MAX_DENSE_TOKENS
    ) -> "NDArray[np.bool_] | dict[str, NDArray[np.bool_]]":
        """Which keys each query sees, as a whole matrix: N * N bytes.

        Args:
            sliding_window: If given, how many tokens back along its branch a query sees in sliding-window layers.
            max_tokens: The largest tree for which the matrix is made.

        Returns:
            Shape (N, N), bool: `[q, k]` is True if query q sees key k. With a window the masks of both kinds of
            layers, by the names that transformers gives them: `"full_attention"` and `"sliding_attention"`.

        Raises:
            TreeTooLarge: If the tree has more than `max_tokens` tokens.
        """
        return dense_mask(self, sliding_window, max_tokens=max_tokens)

    def block_mask(self, sliding_window: int | None = None, *, device: Any = "cpu") -> Any:
        """The same for torch's FlexAttention: a `BlockMask`, or with a window a dict of two. Needs torch.

        Args:
            sliding_window: See `dense_mask`.
            device: Where the mask is needed.
        """
        return block_mask(self, sliding_window, device=device)

    def model_inputs(self, model: Any, *, max_dense_tokens: int = MAX_DENSE_TOKENS) -> dict[str, Any]:
        """What a model of transformers takes: `logits = model(**tree.model_inputs(model)).logits[0]`. Needs torch.

        A model whose attention is `flex_attention` gets block masks, any other one additive masks in its own dtype.

        Args:
            model: The model; its configuration says which kinds of layers need a mask.
            max_dense_tokens: See `dense_mask`.

        Returns:
            `input_ids` and `position_ids`, both of shape (1, N), int64; `attention_mask`, of shape (1, 1, N, N) or a
            dict of such for each kind of layers; `use_cache`, False. The log-probability of the token at `trained[i]`
            is `logits[predecessors[i]].log_softmax(-1)[tokens[trained[i]]]`.

        Raises:
            TreeUnsupported: If the tree would not be exact for the model; see `check_model`.
            TreeTooLarge: If it needs a dense mask, and the tree is too large for one.
        """
        return model_inputs(self, model, max_dense_tokens=max_dense_tokens)


def tree_batch(source: TreeSource, *, loss: LossRule = "all", include_failed: bool = False) -> TreeBatch:
    """Put samples that share prefixes into one tree; `split` cuts it to a size.

    - A trajectory gives the tree of its own deltas, without any comparison: N is `trajectory.tree_size()`, if all is
      trained.
    - Several trajectories, or samples, are merged as far as their tokens are equal from the first one on: the prompts
      of a group, and the past of a sample, or of a fork, with what is trained of it elsewhere. Only what is trained is
      never merged with something else that is trained, equal or not: each reply of a group has tokens of its own.

    So a shared token has the same tokens before it in all samples that share it, and none is trained for more than one
    of them. Tokens that no trained token follows are left out.

    Args:
        source: A trajectory, a sample, or a list of either.
        loss: Which steps of trajectories are trained; see `Trajectory.samples`. Samples have their masks already.
        include_failed: Whether failed trajectories, and failed sub-agents, take part with the steps that they had.

    Returns:
        The tree. Its samples are those of `trajectory.samples(loss)`, in order.

    Raises:
        InvalidSample: If the source is something else or mixes both, if trained tokens are of several tokenizers, if
            no token is trained, or if one is trained that nothing predicts (the first one of a sample).
        UndeclaredBreak: If a step drops tokens and no break says so.
    """
    sources = _listed(source)
    builder = TreeBuilder(merges=len(sources) > 1)
    if isinstance(sources[0], Sample):
        if loss != "all":
            raise InvalidSample("loss chooses steps of trajectories; samples have their masks already: leave it out")
        for sample in cast("list[Sample]", sources):
            builder.add_sample(sample)
    else:
        for trajectory in cast("list[Trajectory]", sources):
            builder.add_trajectory(trajectory, loss, include_failed=include_failed)
    return _batch(builder)


def _listed(source: Any) -> "list[Trajectory] | list[Sample]":
    given: Any = [source] if isinstance(source, (Trajectory, Sample)) else source
    if not isinstance(given, (list, tuple)):
        raise InvalidSample(
            f"cannot make a tree of {type(source).__name__}; expected a Trajectory, a Sample or a list of either"
        )
    items = list(cast("Sequence[Any]", given))
    if not items:
        raise InvalidSample("the list is empty: there is nothing to make a tree of")
    for kind in (Trajectory, Sample):
        if all(isinstance(item, kind) for item in items):
            return items
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise InvalidSample(f"the list holds {kinds}; expected trajectories alone, or samples alone")


def _batch(builder: TreeBuilder) -> TreeBatch:
    """The tokens that a trained token follows, or that are trained themselves."""
    columns: dict[str, Any] = builder.columns()
    mask, exits = columns["mask"], columns["exit"]
    if not builder.has_advantages:
        columns["advantage"] = None
    if np.isnan(columns["logprobs"][mask]).all():
        columns["logprobs"] = None
    trained = np.append(0, np.cumsum(mask))
    tree = TreeBatch(**columns, samples=builder.samples)
    return tree._take(np.flatnonzero(trained[exits] > trained[:-1]))  # pyright: ignore[reportPrivateUsage]
