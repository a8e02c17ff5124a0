"""The arrays of a prefix tree that a loss needs, and the split of a tree to fit a token budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .._cards import card, mask_bar, shortened
from .._visible import brief, type_of
from ..contexts._side_data import Aligned, PerToken, placed
from ..errors import InvalidSample, TreeTooLarge, UnknownName
from ..images import PlacedImage
from ..rendering._vision import Vision
from ..trajectories._samples import Sample
from ..trajectories._segments import LossRule
from ..trajectories._trajectory import Trajectory
from ._builder import TRAINED_COLUMNS, TreeBuilder, TreeSample
from ._masks import MAX_DENSE_TOKENS, Attention, block_mask, for_window, full_mask, model_inputs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Reduction: TypeAlias = Literal["sum", "sample_mean"]
TreeSource: TypeAlias = Trajectory | Sample | Sequence[Trajectory] | Sequence[Sample]

# One more batch costs more than any number of repeated tokens.
_BATCH_COST = 1 << 40


@dataclass(slots=True)
class TreeBatch:
    """Several samples as one prefix tree of N tokens, in depth-first order. The tree may have several roots.

    A query `q` sees a key `k` exactly when `enter[k] <= enter[q] < exit[k]`. So a token sees the tokens of its own
    branch up to and including itself. The logits at `predecessors[i]` predict the token at `trained[i]`.

    Attributes:
        tokens: Token ids: int32, shape (N,).
        position_ids: The number of tokens before each token in its branch: int32, shape (N,).
        parent: The index of the token before each token in its branch, -1 for a root: int32, shape (N,).
        exit: The index of the first later token whose branch does not contain this token, N if there is none: int32,
            shape (N,).
        mask: True for trained tokens: bool, shape (N,).
        logprobs: The sampler's log-probabilities, in nats: float32, shape (N,). 0.0 where mask is False, NaN where the
            policy did not report one. None if it reported none at all.
        sample_ids: The index in `samples` of the sample that trains each token, -1 where mask is False: int32, shape
            (N,).
        step_ids: The index of the step, within its sample, in which each trained token was sampled, -1 where mask is
            False: int32, shape (N,).
        temperature: The sampling temperature of each trained token, 1.0 where mask is False: float32, shape (N,).
        policy_version: The version of the weights that sampled each trained token, -1 if unknown or where mask is
            False: int32, shape (N,).
        advantage: The advantage of each token, 0.0 where mask is False: float32, shape (N,). None if the samples had no
            advantages, until you set it (see `per_token`).
        reference_logprobs: The log-probabilities of a reference, 0.0 where mask is False: float32, shape (N,). None if
            the samples had none.
        samples: One record for each sample, in the order of `trajectory.samples()`. The batches that `split` returns
            share one list.
        stream_weights: `Sample.stream_weights` by the name of the stream, 0.0 where mask is False: float32, shape (N,).
        extra: The side data that `tree_batch(extra=)` requested, by key: `Aligned` or `Ragged` with N rows. What
            belongs to sampled tokens is known where mask is True.
        media: The images in the tokens, in order, each with the range of its placeholder tokens. Branches share an
            image like other tokens; two images with equally many placeholders are different tokens.
        enter: The index of each token, which is the time at which it enters the tree: int32, shape (N,).
        trained: The indices of the M trained tokens: int32, shape (M,).
        predecessors: For each trained token, the index of the token whose logits predict it: int32, shape (M,).
        tokens_separate: The number of tokens that the samples trained here have as separate sequences.
        ratio: `tokens_separate / len(tree)`.
    """

    tokens: "NDArray[np.int32]"
    position_ids: "NDArray[np.int32]"
    parent: "NDArray[np.int32]"
    exit: "NDArray[np.int32]"
    mask: "NDArray[np.bool_]"
    logprobs: "NDArray[np.float32] | None"
    sample_ids: "NDArray[np.int32]"
    step_ids: "NDArray[np.int32]"
    temperature: "NDArray[np.float32]"
    policy_version: "NDArray[np.int32]"
    advantage: "NDArray[np.float32] | None"
    reference_logprobs: "NDArray[np.float32] | None"
    samples: list[TreeSample]
    stream_weights: "Mapping[str, NDArray[np.float32]]" = field(default_factory=dict[str, "NDArray[np.float32]"])
    extra: Mapping[str, PerToken] = field(default_factory=dict[str, PerToken])
    media: list[PlacedImage] = field(default_factory=list[PlacedImage])

    def __len__(self) -> int:
        return len(self.tokens)

    def _repr_html_(self) -> str:
        """Return a card for notebooks, with a bar that shows which tokens are trained."""
        samples = [
            f"{one.trajectory_id} · {one.context}: {one.length:,} tokens, {one.trained_tokens:,} trained, "
            f"reward {one.reward:g}"
            for one in self.samples
        ]
        facts = {
            "tokens": f"{len(self):,}",
            "trained": f"{int(np.count_nonzero(self.mask)):,}",
            "as separate samples": f"{self.tokens_separate:,} tokens",
            "ratio": f"{self.ratio:.2f}" if len(self) else None,
            "roots": int(np.count_nonzero(self.parent < 0)),
        }
        title, folded = f"Tree of {len(samples)} samples", {"Samples": shortened(samples, 40, 300)}
        return card(title, facts, bar=mask_bar(self.mask), folded=folded)

    @property
    def enter(self) -> "NDArray[np.int32]":
        """The index of each token, which is the time at which it enters the tree: int32, shape (N,)."""
        return np.arange(len(self), dtype=np.int32)

    @property
    def trained(self) -> "NDArray[np.int32]":
        """The indices of the M trained tokens: int32, shape (M,)."""
        return np.flatnonzero(self.mask).astype(np.int32)

    @property
    def predecessors(self) -> "NDArray[np.int32]":
        """For each trained token, the index of the token whose logits predict it: int32, shape (M,)."""
        return self.parent[self.mask]

    @property
    def tokens_separate(self) -> int:
        """The number of tokens that the samples trained here have as separate sequences."""
        trained_here: list[int] = np.unique(self.sample_ids[self.mask]).tolist()
        return sum(self.samples[index].length for index in trained_here)

    @property
    def ratio(self) -> float:
        """The number of tokens of the separate samples, divided by the number of tokens of the tree."""
        return self.tokens_separate / len(self)

    def path(self, index: int) -> "NDArray[np.int32]":
        """Return the indices of the tokens that the token at `index` sees, from its root to itself: int32, shape (n,).

        Args:
            index: The index of a token, from 0 to N - 1.
        """
        before = np.arange(index + 1, dtype=np.int32)
        return before[self.exit[: index + 1] > index]

    def per_token(self, values: "ArrayLike") -> "NDArray[np.float32]":
        """Give each trained token the value of its sample: `tree.advantage = tree.per_token(advantages)`.

        Args:
            values: One number for each of `samples`, shape (len(samples),).

        Returns:
            float32, shape (N,): 0.0 where mask is False.

        Raises:
            InvalidSample: If the number of values is wrong, or a value is not a finite number.
        """
        try:
            given = np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InvalidSample(f"values must be numbers, one for each sample: {error}") from error
        if given.shape != (len(self.samples),):
            raise InvalidSample(
                f"values has shape {given.shape}; expected ({len(self.samples)},), one number for each of tree.samples"
            )
        if not np.isfinite(given).all():
            at = int(np.argmin(np.isfinite(given)))
            raise InvalidSample(f"values[{at}] is {given[at]}; expected a number that is finite in float32")
        return np.where(self.mask, given[self.sample_ids], np.float32(0.0))

    def weights(self, reduction: Reduction = "sum") -> "NDArray[np.float32]":
        """Return the weight of each token's loss. The weighted sum over the tokens of all batches is the loss.

        Args:
            reduction: `"sum"` gives each trained token the weight 1. `"sample_mean"` takes the mean over the trained
                tokens of each sample, times the sample's `loss_weight`. This is the mean over the trained tokens of the
                episode, however the episode was segmented.

        Returns:
            float32, shape (N,): 0.0 where mask is False.

        Raises:
            UnknownName: If the reduction does not exist. The error suggests a similar name.
        """
        if reduction == "sum":
            return self.mask.astype(np.float32)
        if reduction == "sample_mean":
            return self.per_token([sample.loss_weight / sample.trained_tokens for sample in self.samples])
        raise UnknownName.of("reduction", reduction, get_args(Reduction))

    def split(self, max_tokens: int) -> "list[TreeBatch]":
        """Split the tree between branches into batches of at most `max_tokens` tokens.

        Where a batch begins with a branch, the tokens before that branch are repeated with mask False. So each token is
        trained in exactly one batch. The split keeps the order of the tokens, makes as few batches as possible, and
        repeats as few tokens as possible with that number of batches.

        Args:
            max_tokens: The largest number of tokens in a batch.

        Returns:
            The batches, in order. They share one `samples` list.

        Raises:
            TreeTooLarge: If a single branch is longer than `max_tokens`.
        """
        longest = int(self.position_ids.max()) + 1
        if longest > max_tokens:
            where = self.samples[int(self.sample_ids[self.mask & (self.position_ids >= max_tokens)][0])]
            raise TreeTooLarge(
                f"a branch has {longest:,} tokens, more than max_tokens={max_tokens:,}, in context {where.context!r} "
                f"of trajectory {where.trajectory_id!r} (the tree has {len(self):,} tokens). A branch cannot be split: "
                f"pass max_tokens={longest} or more, limit the context with Limits(max_context_tokens=...), or choose "
                "a history policy that rewrites it"
            )
        if len(self) <= max_tokens:
            return [self]
        # Each batch begins at the start of a branch. The costs of all batches up to each start are minimal.
        begins = self.parent != np.arange(-1, len(self) - 1)
        begins[0] = True
        bounds = np.append(np.flatnonzero(begins), len(self))
        depths = self.position_ids[bounds[:-1]].astype(np.int64)
        # A batch that begins at bound i repeats `depths[i]` tokens and may extend up to bound last[i] - 1.
        last = np.searchsorted(bounds, bounds[:-1] + max_tokens - depths, side="right")
        costs = np.full(len(bounds), np.iinfo(np.int64).max)
        costs[0] = 0
        came_from = np.zeros(len(bounds), dtype=np.int64)
        for index, stop in enumerate(last.tolist()):
            cost = costs[index] + _BATCH_COST + depths[index]
            cheaper = np.flatnonzero(costs[index + 1 : stop] > cost) + index + 1
            costs[cheaper], came_from[cheaper] = cost, index
        chosen = [len(bounds) - 1]
        while chosen[-1]:
            chosen.append(int(came_from[chosen[-1]]))
        return [self._between(start, stop) for start, stop in pairwise(bounds[chosen[::-1]].tolist())]

    def _between(self, start: int, stop: int) -> "TreeBatch":
        """Return the tokens from `start` to `stop`, after the untrained tokens of the branch that `start` is in."""
        prefix = np.flatnonzero(self.exit[:start] > start)
        batch = self._select(np.concatenate([prefix, np.arange(start, stop)]))
        for name, (_, untrained) in TRAINED_COLUMNS.items():
            column = getattr(batch, name)
            if column is not None:
                column[: len(prefix)] = untrained
        is_own = np.arange(len(batch)) >= len(prefix)
        batch.stream_weights = {name: own * is_own.astype(np.float32) for name, own in batch.stream_weights.items()}
        rows = np.where(is_own, np.arange(len(batch)), -1)
        is_shared = {key: isinstance(data, Aligned) and data.over == "all" for key, data in batch.extra.items()}
        batch.extra = {key: data if is_shared[key] else placed(data, rows) for key, data in batch.extra.items()}
        return batch

    def _select(self, indices: "NDArray[np.int64]") -> "TreeBatch":
        """Return the tree of the tokens at `indices`, which are sorted and include the parent of each token."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in ("tokens", "position_ids", *TRAINED_COLUMNS)}
        selected: dict[str, Any] = {name: None if array is None else array[indices] for name, array in columns.items()}
        parent = self.parent[indices]
        starts = np.searchsorted(indices, [image.start for image in self.media]).tolist()
        media = [
            image.moved(start - image.start)
            for image, start in zip(self.media, starts, strict=True)
            if start < len(indices) and indices[start] == image.start
        ]
        return TreeBatch(
            **selected,
            parent=np.where(parent < 0, -1, np.searchsorted(indices, parent)).astype(np.int32),
            exit=np.searchsorted(indices, self.exit[indices]).astype(np.int32),
            samples=self.samples,
            stream_weights={name: weights[indices] for name, weights in self.stream_weights.items()},
            extra={key: data.take(indices) for key, data in self.extra.items()},
            media=media,
        )

    def dense_mask(
        self, sliding_window: int | None = None, *, max_tokens: int = MAX_DENSE_TOKENS
    ) -> "NDArray[np.bool_] | dict[str, NDArray[np.bool_]]":
        """Return the attention mask as a matrix of N * N bytes.

        Args:
            sliding_window: The size of the window in sliding-window layers, in tokens: a query sees itself and the
                `sliding_window - 1` tokens before it in its branch. None if the model has no such layers.
            max_tokens: The largest tree, in tokens, for which the matrix is made.

        Returns:
            bool, shape (N, N): `[q, k]` is True if query q sees key k. With a window, a dict with one mask for each
            kind of layer, under the names that transformers uses: `"full_attention"` and `"sliding_attention"`.

        Raises:
            TreeTooLarge: If the tree has more than `max_tokens` tokens.
            ConfigError: If `sliding_window` is less than 1.
        """
        return for_window(sliding_window, lambda window: full_mask(self, window, max_tokens))

    def block_mask(self, sliding_window: int | None = None, *, device: Any = "cpu") -> Any:
        """Return the attention mask for torch's FlexAttention: a `BlockMask`, or with a window a dict of two.

        It needs torch, and memory for about (N / 128)**2 blocks instead of N**2 pairs.

        Args:
            sliding_window: See `dense_mask`.
            device: The torch device of the mask.

        Raises:
            ConfigError: If `sliding_window` is less than 1.
            MissingPackage: If torch is not installed.
        """
        return for_window(sliding_window, lambda window: block_mask(self, window, device))

    def model_inputs(
        self,
        model: Any,
        *,
        attention: Attention | None = None,
        max_dense_tokens: int = MAX_DENSE_TOKENS,
        vision: Vision | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of a transformers model: `logits = model(**tree.model_inputs(model)).logits[0]`.

        Args:
            model: The model. Its configuration specifies which kinds of layers need a mask.
            attention: `"runs"`: each run of the tree attends to its ancestors and to itself, so the cost follows the
                tree; this installs an attention function in the model, which is the model's own for ordinary sequences
                (see `tree_attention`). `"flex"`: block masks, for a model with
                `attn_implementation="flex_attention"`. `"dense"`: additive masks of N * N values in the model's dtype.
                By default `"flex"` for such a model, else `"runs"`.
            max_dense_tokens: The largest tree, in tokens, for which a dense mask is made.
            vision: The image processor for a tree with images: `renderer.vision`, of the renderer that wrote them. By
                default, the processor in the folder that the model was loaded from.

        Returns:
            `input_ids` and `position_ids`, both int64 of shape (1, N), `position_ids` of shape (3, 1, N) if there are
            images (mRoPE: time, height and width, along each branch), with the arrays of the images, each of `media`
            once (`pixel_values`, `image_grid_thw`); `attention_mask`, of shape (1, 1, N, N) if it is
            dense, or a dict of masks with one for each kind of layer; `use_cache`, which is False; with `"runs"`
            `tree_runs`. The log-probability of the token at `trained[i]` is
            `logits[predecessors[i]].log_softmax(-1)[tokens[trained[i]]]`.

        Raises:
            TreeUnsupported: If the tree would not be exact for the model, see `check_model`; if it has images, and the
                model is not one of Qwen's; or if the model's own attention does not take such masks.
            ConfigError: If the image processor is missing, or makes other tokens of an image.
            TreeTooLarge: If the model needs a dense mask and the tree is too large for one.
            UnknownName: If `attention` is not one of these names.
            MissingPackage: If torch is not installed.
        """
        return model_inputs(self, model, attention=attention, max_dense_tokens=max_dense_tokens, vision=vision)


def tree_batch(
    source: TreeSource, *, loss: LossRule = "all", include_failed: bool = False, extra: Sequence[str] = ()
) -> TreeBatch:
    """Merge samples that share prefixes into one tree. `TreeBatch.split` splits it to fit a token budget.

    - One trajectory gives the tree of its own deltas: its samples share the tokens that its steps kept, and no other
      ones, even if they are equal. If all steps are trained, N is `trajectory.tree_size()`.
    - Several trajectories, or samples, share the tokens that are equal from the first token on: the prompt of a group,
      or the common past of a trajectory and its fork. A trained token may serve as the (untrained) past of any number
      of other samples, but two trained tokens are never merged, even if they are equal. So each reply of a group has
      its own tokens.

    A shared token has the same tokens before it in all samples that share it, and at most one of these samples trains
    it. Tokens that no trained token follows are left out.

    Args:
        source: A trajectory, a sample, or a list of trajectories or of samples.
        loss: Which steps of trajectories are trained; see `Trajectory.samples`. Samples have their own masks.
        include_failed: Whether to include failed trajectories and failed sub-agents, with the steps that they finished.
        extra: The keys of `Sample.extra` that the tree has as well, such as `["routed_experts"]`: those with a row for
            each token.

    Returns:
        The tree. Its samples are those of `trajectory.samples(loss)`, in order.

    Raises:
        InvalidSample: If the source is of another type or mixes both types, if the trained tokens belong to several
            tokenizers, if no token is trained, if the first token of a sample is trained (nothing predicts it), or if
            a sample lacks a key of `extra`, or has rows of another kind.
        UndeclaredBreak: If a step drops tokens without a declared break.
    """
    sources, builder = _as_list(source), TreeBuilder(extra)
    if isinstance(sources[0], Sample):
        if loss != "all":
            raise InvalidSample(
                f"loss={brief(loss)} was given with samples; it selects steps of trajectories, and samples have their "
                "masks already: leave it out, or pass trajectories"
            )
        for sample in cast("list[Sample]", sources):
            builder.add(sample.validate())
    else:
        for trajectory in cast("list[Trajectory]", sources):
            segments = trajectory.segments(loss, include_failed=include_failed)
            # The place of a token in the logs identifies it in one trajectory, which needs no comparison of tokens.
            ends = accumulate((len(log.tokens) for log in trajectory.contexts.values()), initial=0)
            starts = dict(zip(trajectory.contexts, ends, strict=False))
            for segment, sample in zip(segments, trajectory.samples_of(segments), strict=True):
                places = [np.arange(piece.start, piece.stop) + starts[piece.context] for piece in segment.pieces]
                keys = np.concatenate(places)[: len(sample)].astype(np.int32)
                builder.add(sample, keys if len(sources) == 1 else None)
    columns: dict[str, Any] = builder.columns()
    mask, exits = columns["mask"], columns["exit"]
    if np.isnan(columns["logprobs"][mask]).all():
        columns["logprobs"] = None
    trained = np.append(0, np.cumsum(mask))
    tree = TreeBatch(**columns, samples=builder.samples)
    # The tokens that are trained or that a trained token follows.
    return tree._select(np.flatnonzero(trained[exits] > trained[:-1]))  # pyright: ignore[reportPrivateUsage]


def _as_list(source: Any) -> "list[Trajectory] | list[Sample]":
    given: Any = [source] if isinstance(source, (Trajectory, Sample)) else source
    if not isinstance(given, (list, tuple)):
        raise InvalidSample(
            f"source is {type_of(source)}; expected a Trajectory, a Sample, or a list of trajectories or of samples"
        )
    items = list(cast("Sequence[Any]", given))
    if not items:
        raise InvalidSample("source is an empty list; expected at least one trajectory or sample")
    for kind in (Trajectory, Sample):
        if all(isinstance(item, kind) for item in items):
            return items
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise InvalidSample(f"source has items of {kinds}; expected a list of only trajectories or only samples")
