"""The description of a batch for the log of a first step: its contents, and the tokens that are trained."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from .._visible import on_one_line
from ..errors import InvalidSample
from ..rendering.tokenizers import Tokenizer
from ..trajectories._samples import Sample
from ..tree import TreeBatch
from ._inputs import valid_samples
from ._on_policy import FORCED_ABOVE

if TYPE_CHECKING:
    from numpy.typing import NDArray

Layout: TypeAlias = Literal["samples", "padded", "packed", "tree"]
Shapes: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""The type and the shape of each array, by its name."""

_COLUMNS = ("tokens", "mask", "step_ids", "sample_ids", "position_ids")
_OPTIONAL = ("logprobs", "advantage")  # of the columns
_ENDS = 6  # tokens that are shown at each end of a part
_WIDTH = 32  # characters of a string that are shown
_MAX_ARRAYS, _MAX_PARTS = 18, 8  # lines of the text


@dataclass(frozen=True, slots=True)
class ValueStatistics:
    """Statistics of the values of trained tokens.

    Attributes:
        missing: The number of values that are not finite; the others are about the finite ones.
        smallest: The smallest value; 0.0 if there is none, and so for all others.
        mean: The mean.
        largest: The largest value.
        zero_share: The share of values that are exactly 0, from 0 to 1.
    """

    missing: int
    smallest: float
    mean: float
    largest: float
    zero_share: float

    @classmethod
    def of(cls, values: "NDArray[Any]") -> "ValueStatistics":
        """Compute the statistics of values, shape (m,)."""
        known = values[np.isfinite(values)].astype(np.float64)
        missing = len(values) - len(known)
        if not len(known):
            return cls(missing, 0.0, 0.0, 0.0, 0.0)
        mean = float(known.mean())
        return cls(missing, float(known.min()), mean, float(known.max()), np.count_nonzero(known == 0) / len(known))

    def __str__(self) -> str:
        missing = f"; {self.missing:,} are not finite" if self.missing else ""
        numbers = f"min {self.smallest:.4g}, mean {self.mean:.4g}, max {self.largest:.4g}"
        return f"{numbers}; {self.zero_share:.1%} are exactly 0{missing}"


class BatchPart(NamedTuple):
    """A run of tokens that were observed, or sampled in one step."""

    sequence: int
    """The index of the sample; in a tree, that of the sample which trains the run, or -1 for what samples share."""
    start: int
    """The position of its first token in the sample."""
    length: int
    """The number of its tokens."""
    is_reply: bool
    """True if it was sampled in this sample; in a tree, if it is trained."""
    trained: int
    """The number of its tokens with mask True."""
    first: str
    """Its first tokens as text, or as ids without a tokenizer."""
    last: str
    """Its last tokens, if there are more than the first ones."""

    def __str__(self) -> str:
        kind = "reply" if self.is_reply else "observation"
        trained = f", {self.trained:,} trained" if self.trained else ""
        ends = _quoted(self.first) + (f" ... {_quoted(self.last, from_end=True)}" if self.last else "")
        return f"  {kind:11} at {self.start:>6,}: {self.length:,} tokens{trained}: {ends}"


@dataclass(frozen=True, slots=True)
class BatchDescription:
    """The contents of a batch.

    Attributes:
        layout: `samples`, `padded`, `packed` or `tree`.
        sequences: The number of samples.
        tokens: The number of tokens without padding.
        padding: The number of tokens of padding.
        trained: The number of tokens with mask True.
        trained_share: `trained / tokens`.
        arrays: The type and the shape of each array, by its name. Those of samples are the first sample's.
        logprobs: The statistics of the sampler's log-probabilities of trained tokens; None if there are none.
        forced_token_ratio: The share of trained tokens of which the sampler was almost certain (above -0.01 nats); None
            without log-probabilities.
        advantage: The statistics of the advantages of trained tokens; None if there are none.
        rewards: The reward of each sample.
        parts: The observations and replies of the first samples; of a tree, its first ones.
    """

    layout: Layout
    sequences: int
    tokens: int
    padding: int
    trained: int
    arrays: Shapes
    logprobs: ValueStatistics | None
    forced_token_ratio: float | None
    advantage: ValueStatistics | None
    rewards: tuple[float, ...]
    parts: tuple[BatchPart, ...]

    @property
    def trained_share(self) -> float:
        """The share of tokens that are trained, from 0 to 1; 0.0 without tokens."""
        return self.trained / self.tokens if self.tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `trained_share` as plain values for JSON."""
        return {**asdict(self), "trained_share": self.trained_share, "parts": [part._asdict() for part in self.parts]}

    def __str__(self) -> str:
        padding = f", and {self.padding:,} of padding" if self.padding else ""
        lines = [
            f"{self.layout}: {self.sequences:,} sequences, {self.tokens:,} tokens{padding}; "
            f"{self.trained:,} trained ({self.trained_share:.1%})"
        ]
        named = [f"  {on_one_line(name):18} {kind:8} {shape}" for name, (kind, shape) in self.arrays.items()]
        lines += _shortened(named, _MAX_ARRAYS)
        if self.logprobs is not None:
            lines.append(f"log-probabilities: {self.logprobs}; {self.forced_token_ratio:.1%} are forced")
        if self.advantage is not None:
            lines.append(f"advantages: {self.advantage}")
        if self.rewards:
            lines.append(f"rewards: {ValueStatistics.of(np.asarray(self.rewards))}")
        for sequence in dict.fromkeys(part.sequence for part in self.parts) if self.layout != "tree" else ():
            own = [str(part) for part in self.parts if part.sequence == sequence]
            lines += [f"sequence {sequence}, reward {self.rewards[sequence]:g}", *_shortened(own, _MAX_PARTS)]
        if self.layout == "tree":
            lines += ["in depth-first order", *_shortened([str(part) for part in self.parts], 3 * _MAX_PARTS)]
        return "\n".join(lines)


def describe(
    batch: Sequence[Sample] | Mapping[str, Any] | TreeBatch, tokenizer: Tokenizer | None = None, *, show: int = 3
) -> BatchDescription:
    """Describe a batch for the log of a first step: shapes, what is trained, log-probabilities, and the text of parts.

    Its text has at most about 60 lines. Characters that could control a terminal are escaped there; `parts` have the
    text as it is.

    Args:
        batch: Samples, a batch of `envsdk.trainers.plain.collate` (of numpy or torch), or a tree batch.
        tokenizer: The tokenizer for the text of parts; without one, parts show ids.
        show: The number of samples whose parts are described.

    Raises:
        InvalidSample: If it is none of them, a sample is invalid, or the batch lacks an array.
    """
    layout, columns, rewards, arrays = _read(batch)
    sequences: NDArray[Any] = columns["sample_ids"]
    is_real = sequences >= (0 if layout == "padded" else -1)  # -1 is padding, or what branches share
    flat: dict[str, Any] = {name: column[is_real] for name, column in columns.items() if column is not None}
    trained = flat["mask"].astype(np.bool_)
    logprobs: Any = flat["logprobs"][trained] if "logprobs" in flat else None
    advantage: Any = flat["advantage"][trained] if "advantage" in flat else None
    forced = None if logprobs is None else float((logprobs > FORCED_ABOVE).mean()) if len(logprobs) else 0.0
    starts: Any = np.ones(len(trained), dtype=np.bool_)
    starts[1:] = (np.diff(flat["sample_ids"]) != 0) | (np.diff(flat["step_ids"]) != 0)
    if layout == "tree":
        starts |= cast("TreeBatch", batch).parent != np.arange(-1, len(trained) - 1)
    return BatchDescription(
        layout=layout,
        sequences=len(rewards),
        tokens=len(trained),
        padding=int(np.count_nonzero(~is_real)),
        trained=int(trained.sum()),
        arrays=_shapes(arrays),
        logprobs=None if logprobs is None else ValueStatistics.of(logprobs),
        forced_token_ratio=forced,
        advantage=None if advantage is None else ValueStatistics.of(advantage),
        rewards=tuple(np.asarray(rewards, dtype=np.float32).tolist()),
        parts=tuple(_parts(layout, flat, np.flatnonzero(starts), tokenizer, show)),
    )


def _read(batch: Any) -> tuple[Layout, dict[str, Any], list[float], Mapping[str, Any]]:
    """Return the layout of a batch, its columns with a value for each token, its rewards, and all its arrays."""
    if isinstance(batch, TreeBatch):
        columns = {name: getattr(batch, name) for name in (*_COLUMNS, *_OPTIONAL)}
        rewards = [sample.reward for sample in batch.samples]
        return "tree", columns, rewards, {**columns, "parent": batch.parent, "exit": batch.exit}
    if isinstance(batch, Mapping):
        given = cast("Mapping[str, Any]", batch)
        if missing := [name for name in (*_COLUMNS, "reward") if name not in given]:
            raise InvalidSample(
                f"the batch has no {', '.join(missing)}; expected a batch of envsdk.trainers.plain.collate, samples, "
                "or a tree batch"
            )
        values = {name: _array(given[name]) for name in (*_COLUMNS, *_OPTIONAL, "reward") if name in given}
        return "padded" if "attention_mask" in given else "packed", values, values.pop("reward").tolist(), given
    samples = valid_samples(batch)
    lengths = [len(sample) for sample in samples]
    columns: dict[str, Any] = {
        "sample_ids": np.repeat(np.arange(len(samples)), lengths),
        "position_ids": np.concatenate([np.empty(0, dtype=np.int64), *map(np.arange, lengths)]),
    }
    for name in ("tokens", "mask", "step_ids", *_OPTIONAL):
        rows = [getattr(sample, name) for sample in samples]
        if all(row is not None for row in rows) and (rows or name not in _OPTIONAL):
            whole = [np.broadcast_to(row, length) for row, length in zip(rows, lengths, strict=True)]
            columns[name] = np.concatenate(whole) if whole else np.empty(0, dtype=np.int32)
    names = ("tokens", "mask", "logprobs", "step_ids", "temperature", "policy_version", "advantage")
    arrays = {name: getattr(samples[0], name) for name in names} if samples else {}
    return "samples", columns, [sample.reward for sample in samples], arrays


def _array(value: Any) -> "NDArray[Any]":
    """Return an array or a tensor as an array, half precision as float32."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return np.asarray(value)


def _shapes(arrays: Mapping[str, Any], prefix: str = "") -> Shapes:
    """Return the type and the shape of each array, also of those in a dict."""
    found: Shapes = {}
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            found |= _shapes(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        elif hasattr(value, "dtype"):
            found[prefix + name] = (str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return found


def _parts(
    layout: Layout, flat: Mapping[str, Any], starts: "NDArray[np.intp]", tokenizer: Tokenizer | None, show: int
) -> list[BatchPart]:
    """Return the parts that are shown, which begin at `starts`."""
    stops = np.append(starts[1:], len(flat["tokens"]))
    shown = np.arange(len(starts)) < show * _MAX_PARTS if layout == "tree" else flat["sample_ids"][starts] < show
    parts: list[BatchPart] = []
    for start, stop in zip(starts[shown], stops[shown], strict=True):
        tokens = flat["tokens"][start:stop]
        ends = [tokens[:_ENDS], tokens[max(_ENDS, len(tokens) - _ENDS) :]]
        first, last = (" ".join(map(str, end.tolist())) if tokenizer is None else tokenizer.decode(end) for end in ends)
        parts.append(
            BatchPart(
                sequence=int(flat["sample_ids"][start]),
                start=int(flat["position_ids"][start]),
                length=len(tokens),
                is_reply=bool(flat["step_ids"][start] >= 0),
                trained=int(np.count_nonzero(flat["mask"][start:stop])),
                first=first,
                last=last,
            )
        )
    return parts


def _quoted(text: str, *, from_end: bool = False) -> str:
    escaped = on_one_line(text)
    if len(escaped) > _WIDTH:
        escaped = f"...{escaped[-_WIDTH:]}" if from_end else f"{escaped[:_WIDTH]}..."
    return f"'{escaped}'"


def _shortened(lines: list[str], most: int) -> list[str]:
    """Return the first and the last of the lines, with the number of those between them, at most `most` lines."""
    if len(lines) <= most:
        return lines
    head, tail = most - most // 2 - 1, most // 2
    return [*lines[:head], f"  ... {len(lines) - head - tail:,} more ...", *lines[len(lines) - tail :]]
