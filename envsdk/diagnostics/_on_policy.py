"""The on-policy check: the divergence between sampler and trainer on the tokens that were sampled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from ..contexts._roles import reply_spans
from ..errors import ConfigError, UnknownName
from ..rendering.renderer import Renderer
from ..trajectories._samples import Sample
from ._divergence import VERDICTS, Estimate, NumericFormat, Verdict, thresholds_of
from ._inputs import LogprobPair, check_clip, pair_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind: TypeAlias = Literal["content", "call", "border", "control"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORCED_ABOVE = -0.01
"""A token is forced if the sampler's log-probability of it, in nats, is larger than this."""
DEPTHS = (0, 8_000, 64_000)
"""The first position of each part of `KL.by_depth`."""


class Cluster(NamedTuple):
    """A part of the tokens that has most of the outliers, and far more of them per token than the rest."""

    view: str
    """The view of `KL`: `kind`, `depth`, `offset`, `offset_from_end`, `step` or `position`."""
    key: int | str
    """The key of the part in that view."""
    outliers_share: float
    """The share of all outliers that are in the part, from 0 to 1."""
    tokens_share: float
    """The share of all tokens that are in the part, from 0 to 1."""

    def __str__(self) -> str:
        shares = f"{self.outliers_share:.0%} of the outliers and {self.tokens_share:.1%} of the tokens"
        return f"{self.view.replace('_', ' ')} {self.key} has {shares}"


@dataclass(frozen=True, slots=True)
class KL:
    """The divergence between sampler and trainer.

    Attributes:
        all: The estimate over all tokens with mask True.
        free: The estimate over the tokens that were not forced.
        forced: The estimate over the forced tokens. The sampler was almost certain of them (its log-probability is
            above -0.01), so they hide a divergence of the other tokens in the mean.
        forced_token_ratio: The share of forced tokens, from 0 to 1.
        shift: 1 if the trainer's log-probabilities fit far better one position later than where they belong, -1 if
            earlier, else 0.
        by_step: Estimates by the index of the step in its trajectory (`Sample.metadata["steps"]`, else `step_ids`).
        by_position: Estimates by the position in the sample, in bins. The key is the first position of the bin.
        by_depth: Estimates by the position in the sample, in three parts: from 0, 8,000 and 64,000 on. They show a
            difference that grows with the context.
        by_offset: Estimates by the distance from the first trained token of the reply, in bins that double: 0, 1, 2 to
            3, 4 to 7, ...
        by_offset_from_end: Estimates by the distance from the last one, in the same bins. Key 0 shows last tokens that
            are missing.
        by_kind: Estimates by the kind of token (`content`, `call`, `border`, `control`); empty without a renderer.
            `call` shows calls that were written and tokenized again, `border` text that was tokenized apart from
            another neighbor.
        bin_size: The number of positions in a bin of `by_position`.
        clipped_token_ratio: The share of tokens whose difference was clipped, from 0 to 1.
        verdict: The worse of the verdicts over all tokens and over those that were not forced: `"healthy"`, `"warning"`
            or `"critical"`.
        clusters: Where the outliers are, if they are not spread evenly.
    """

    all: Estimate
    free: Estimate
    forced: Estimate
    forced_token_ratio: float
    shift: int
    by_step: dict[int, Estimate]
    by_position: dict[int, Estimate]
    by_depth: dict[int, Estimate]
    by_offset: dict[int, Estimate]
    by_offset_from_end: dict[int, Estimate]
    by_kind: dict[Kind, Estimate]
    bin_size: int
    clipped_token_ratio: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worse of `all.verdict` and `free.verdict`."""
        return VERDICTS[max(VERDICTS.index(part.verdict) for part in (self.all, self.free))]

    @property
    def clusters(self) -> list[Cluster]:
        """The parts of each view that hold at least half of the outliers, the most telling one first.

        A token in such a part is an outlier at least four times as often as one outside.
        """
        found: list[Cluster] = []
        for view in _VIEWS:
            parts: Mapping[int | str, Estimate] = getattr(self, f"by_{view}")
            for key, part in parts.items():
                others = self.all.tokens - part.tokens
                is_denser = part.outliers * others >= 4 * (self.all.outliers - part.outliers) * part.tokens
                if others and is_denser and 2 * part.outliers >= max(self.all.outliers, 1):
                    shares = part.outliers / self.all.outliers, part.tokens / self.all.tokens
                    found.append(Cluster(view, key, *shares))
        return sorted(found, key=lambda cluster: cluster.tokens_share - cluster.outliers_share)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict, the clusters and the fields as plain values for JSON. The keys of bins are strings."""
        record: dict[str, Any] = asdict(self)
        for view in _VIEWS:
            record[f"by_{view}"] = {str(key): part for key, part in record[f"by_{view}"].items()}
        return {"verdict": self.verdict, "clusters": [each._asdict() for each in self.clusters], **record}

    def __str__(self) -> str:
        ratio = f"{self.forced_token_ratio:.1%} of the tokens"
        lines = [
            f"{self.verdict}: {str(self.all).partition(': ')[2]}",
            f"not forced: {self.free}",
            f"forced (above {FORCED_ABOVE} for the sampler), {ratio}: {self.forced}",
        ]
        if self.clipped_token_ratio:
            lines.append(f"clipped: {self.clipped_token_ratio:.1%} of the tokens")
        if self.shift:
            where = "later" if self.shift > 0 else "earlier"
            lines.append(f"shifted: the trainer's log-probabilities are one position {where} than the sampler's")
        for name, part in (("step", self.by_step), ("position", self.by_position), ("token of reply", self.by_offset)):
            if part:
                key = max(part, key=lambda key: part[key].k2)
                lines.append(f"worst {name}, {key}: {part[key]}")
        limit = thresholds_of(self.all.dtype).outlier
        lines.append(
            f"outliers (more than {limit:.2g} nats apart): {self.all.outliers:,} of {self.all.tokens:,} tokens"
        )
        return "\n".join([*lines, *(f"  {cluster}" for cluster in self.clusters)])


_VIEWS = ("kind", "depth", "offset", "offset_from_end", "step", "position")


def kl(
    samples: Sequence[Sample],
    trainer_logprobs: Sequence[Any],
    *,
    bin_size: int = 256,
    dtype: NumericFormat | None = None,
    renderer: Renderer | None = None,
    clip: float | None = None,
) -> KL:
    """Compare the trainer's log-probabilities of the sampled tokens with those of the sampler.

    Before the first update, both have the same weights. Then a difference is a fault: tokens that are not the sampled
    ones, shifted log-probabilities, a different temperature, or different numerics.

    Args:
        samples: Samples with log-probabilities. Only tokens with mask True are compared.
        trainer_logprobs: For each sample, the trainer's log-probabilities in nats, shape (L,), computed at the sample's
            temperature. The value at i is that of token i, given the tokens before it.
        bin_size: The number of positions in a bin of `KL.by_position`.
        dtype: The less precise of the numeric formats that sampler and trainer compute in: `"bfloat16"`, `"float16"` or
            `"float32"`. The verdicts then allow what its rounding explains. None for the published thresholds, which
            are those of half precision: 0.01 for k1, and 0.001 for k2 and k3.
        renderer: The renderer of the samples, for `KL.by_kind`.
        clip: The largest difference of a token that counts in the estimates, in nats; None for no bound. For weights
            that were trained on these samples, of which few tokens may be far off. Leave it out before the first
            update, where such tokens are faults.

    Raises:
        InvalidSample: If lengths or shapes differ, a sample is invalid or has no log-probabilities, or a value of the
            trainer is positive, NaN or infinite where mask is True.
        ConfigError: If `bin_size` is not a positive integer, or `clip` is not a number above the threshold for
            outliers, whose count it would change.
        UnknownName: If the numeric format does not exist.
    """
    if not isinstance(bin_size, Integral) or bin_size < 1:
        raise ConfigError(f"bin_size is {bin_size!r}; expected an integer of at least 1")
    if dtype is not None and dtype not in get_args(NumericFormat):
        raise UnknownName.of("numeric format", dtype, get_args(NumericFormat))
    pairs = pair_logprobs(samples, trainer_logprobs)
    difference = _joined([pair.trainer - pair.sampler for pair in pairs])
    bound = np.inf if clip is None else check_clip(clip, thresholds_of(dtype).outlier)
    is_clipped = np.abs(difference) > bound
    difference = np.clip(difference, -bound, bound)
    is_forced = _joined([pair.sampler for pair in pairs]) > FORCED_ABOVE

    def by(key: "Callable[[LogprobPair], NDArray[Any]]") -> dict[int, Estimate]:
        keys = _joined([key(pair) for pair in pairs])
        order = np.argsort(keys, kind="stable")
        found, starts = np.unique(keys[order], return_index=True)
        parts = np.split(difference[order], starts[1:])
        # Without keys, np.split still returns one (empty) part.
        return {int(own): Estimate.of(part, dtype) for own, part in zip(found, parts, strict=False)}

    by_kind = {} if renderer is None else by(lambda pair: token_kinds(pair.sample, renderer)[pair.positions])
    return KL(
        all=Estimate.of(difference, dtype),
        free=Estimate.of(difference[~is_forced], dtype),
        forced=Estimate.of(difference[is_forced], dtype),
        forced_token_ratio=float(is_forced.mean()) if len(is_forced) else 0.0,
        shift=_shift(pairs),
        by_step=by(_steps),
        by_position=by(lambda pair: pair.positions // bin_size * bin_size),
        by_depth=by(lambda pair: np.asarray(DEPTHS)[np.searchsorted(DEPTHS, pair.positions, side="right") - 1]),
        by_offset=by(lambda pair: _offsets(pair.sample.step_ids[pair.positions], pair.positions)),
        by_offset_from_end=by(
            lambda pair: _offsets(pair.sample.step_ids[pair.positions][::-1], pair.positions[::-1])[::-1]
        ),
        by_kind={KINDS[code]: part for code, part in by_kind.items()},
        bin_size=bin_size,
        clipped_token_ratio=float(is_clipped.mean()) if len(is_clipped) else 0.0,
    )


def _joined(arrays: "Sequence[NDArray[Any]]") -> "NDArray[np.float64]":
    return np.concatenate([np.empty(0), *arrays])


def _steps(pair: LogprobPair) -> "NDArray[Any]":
    ids = pair.sample.step_ids[pair.positions]
    steps: list[int] | None = pair.sample.metadata.get("steps")
    return ids if steps is None or len(steps) <= ids.max() else np.asarray(steps, dtype=np.int64)[ids]


def _offsets(ids: "NDArray[np.int32]", positions: "NDArray[np.intp]") -> "NDArray[np.float64]":
    """Return the distance of each token from the first one of its run of equal ids, rounded down to a power of two."""
    begins = np.append(True, ids[1:] != ids[:-1])
    offset = np.abs(positions - positions[begins][np.cumsum(begins) - 1])
    return np.where(offset > 0, 2.0 ** np.floor(np.log2(np.maximum(offset, 1))), 0.0)


def _shift(pairs: Sequence[LogprobPair]) -> int:
    """Return the number of positions by which the trainer's values are shifted: 1, -1 or 0.

    A shift has to explain all but a quarter of the squared differences of the tokens that it compares.
    """
    unexplained = {1: 1.0, -1: 1.0}  # the share that is left after a shift within the replies
    for shift in unexplained:
        before = after = 0.0
        for pair in pairs:
            ids = pair.sample.step_ids[pair.positions]
            is_next = (np.diff(pair.positions) == 1) & (np.diff(ids) == 0)
            here, there = (np.flatnonzero(is_next), np.flatnonzero(is_next) + 1)[::shift]
            before += float(np.sum((pair.trainer[here] - pair.sampler[here]) ** 2))
            after += float(np.sum((pair.trainer[there] - pair.sampler[here]) ** 2))
        unexplained[shift] = after / before if before else 1.0
    best = min(unexplained, key=lambda shift: unexplained[shift])
    return best if unexplained[best] < 0.25 else 0


def token_kinds(sample: Sample, renderer: Renderer) -> "NDArray[np.int8]":
    """Return the kind of each token, as an index of `KINDS`: int8, shape (L,), -1 where nothing was sampled.

    A token that is next to a control token of its reply, or the first of its reply, is a `border`: that is where
    another encoding of the same text merges otherwise. Text of calls is a `call`, as in `Sample.roles`. All other text,
    reasoning included, is `content`.

    Args:
        sample: A sample.
        renderer: The renderer of its context. Each step is read by itself.
    """
    controls = list(renderer.tokenizer.control_tokens.values())
    kinds = np.full(len(sample), -1, dtype=np.int8)
    for step in np.unique(sample.step_ids[sample.step_ids >= 0]):
        where = np.flatnonzero(sample.step_ids == step)
        tokens = sample.tokens[where]
        is_control = np.isin(tokens, controls)
        own = np.full(len(tokens), KINDS.index("content"), dtype=np.int8)
        for span in reply_spans(renderer, tokens, renderer.parse(tokens)):
            own[span.start : span.stop] = KINDS.index("call" if span.label == "call" else "content")
        own[np.append(True, is_control[:-1]) | np.append(is_control[1:], False)] = KINDS.index("border")
        own[is_control] = KINDS.index("control")
        kinds[where] = own
    return kinds
