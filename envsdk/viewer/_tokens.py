"""The tokens of one context as columns for any front end: what each is, who wrote it, and what became of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidRecord
from ..rendering.tokenizers import Tokenizer
from ..trajectories._samples import Sample
from ..trajectories._segments import Segment
from ..trajectories._trajectory import Trajectory
from ._ranges import Range, sample_segments, segment_ranges, step_ranges, tree_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGITS = 5


class _Trained(NamedTuple):
    """What a trainer added to the samples of an episode, for the tokens of one context: float32, NaN where unknown."""

    logprobs: "NDArray[np.float32] | None"
    advantages: "NDArray[np.float32] | None"


def context_tokens(
    trajectory: Trajectory, context: str, tokenizer: Tokenizer | None, samples: Sequence[Sample] = ()
) -> dict[str, Any]:
    """Return the tokens of a context's log as columns, as plain values for JSON.

    A column that has long runs of equal values is a list of `[position, value]`, one for each run.

    Args:
        trajectory: The episode.
        context: The name of the context.
        tokenizer: The tokenizer of the context; None if it is not known.
        samples: The stored samples of the episode, which may have advantages and a reference's log-probabilities.

    Returns:
        `ids`: the token ids, n of them. `texts`: by id, the text of the tokens that are whole UTF-8. `bytes`: by id,
        the bytes of all others, as hexadecimal digits. `controls`: the ids of control tokens. `logprobs`: n numbers;
        None where a token was observed or the policy gave none. `reference_logprobs`, `advantages`: n numbers or None;
        None in place of the list if the samples have none. As runs: `steps` (the index of the step), `sampled` (whether
        the token was sampled), `trained` (the index of the sample that trains it, or None), `samples` (the indices of
        all samples that have it), `nodes` (the index of the tree's node), `dropped` (the index of the step that dropped
        it, or None), and `roles` (what it belongs to, or None; the list is empty if that was not recorded). `images`:
        the images as `[start, stop, SHA-256]`, with the range of their placeholders.

    Raises:
        InvalidRecord: If there is no such context, the steps do not fit the logs, or the stored samples are not this
            episode's.
    """
    log = trajectory.contexts.get(context)
    if log is None:
        raise InvalidRecord(f"{trajectory.id!r} has no context {context!r}; it has {', '.join(trajectory.contexts)}")
    segments = sample_segments(trajectory)
    added = _added(trajectory, context, segments, samples)
    is_sampled = _sampled(trajectory, context)
    logprobs = np.where(is_sampled, log.logprobs, np.nan)
    return {
        "context": context,
        "ids": log.tokens.tolist(),
        **_pieces(log.tokens, tokenizer),
        "logprobs": _numbers(logprobs),
        "reference_logprobs": None if added.logprobs is None else _numbers(added.logprobs),
        "advantages": None if added.advantages is None else _numbers(added.advantages),
        "steps": _step_runs(trajectory, context),
        "sampled": _runs(is_sampled),
        "trained": _or_none(_runs(_trainers(len(log.tokens), context, segments))),
        "samples": _sample_runs(len(log.tokens), context, segments),
        "nodes": [[node.start, node.number] for node in tree_nodes(trajectory) if node.context == context],
        "dropped": _or_none(_runs(_droppers(trajectory, context))),
        "images": [[placed.start, placed.stop, placed.image.sha256] for placed in log.media],
        "roles": [] if log.roles is None else _role_runs(log.roles.starts, log.roles.run_codes, log.roles.legend),
    }


def _pieces(tokens: "NDArray[np.int32]", tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return what the ids are, by id: texts, bytes of what is not whole UTF-8, and which are control tokens."""
    if tokenizer is None:
        return {"has_texts": False, "texts": {}, "bytes": {}, "controls": []}
    known = np.unique(tokens[(tokens >= 0) & (tokens < tokenizer.vocab_size)]).astype(np.int32)
    texts: dict[str, str] = {}
    partial: dict[str, str] = {}
    for token, piece in zip(known.tolist(), tokenizer.token_bytes(known), strict=True):
        try:
            texts[str(token)] = piece.decode()
        except UnicodeDecodeError:
            partial[str(token)] = piece.hex()
    controls = sorted(set(tokenizer.control_tokens.values()).intersection(known.tolist()))
    return {"has_texts": True, "texts": texts, "bytes": partial, "controls": controls}


def _sampled(trajectory: Trajectory, context: str) -> "NDArray[np.bool_]":
    found = np.zeros(len(trajectory.contexts[context].tokens), dtype=np.bool_)
    for step in trajectory.steps:
        if step.context == context:
            found[step.action_start : step.stop] = True
    return found


def _step_runs(trajectory: Trajectory, context: str) -> list[list[int]]:
    steps = enumerate(trajectory.steps)
    return [[step.start, index] for index, step in steps if step.context == context and step.start < step.stop]


def _droppers(trajectory: Trajectory, context: str) -> "NDArray[np.int32]":
    """Return the index of the step that dropped each token; -1 where none did."""
    found = np.full(len(trajectory.contexts[context].tokens), -1, dtype=np.int32)
    for ranges in step_ranges(trajectory):
        for own in ranges.dropped:
            if own.context == context and ranges.step.step.context == context:
                found[own.start : own.stop] = ranges.step.step_index
    return found


def _trainers(length: int, context: str, segments: Sequence[Segment]) -> "NDArray[np.int32]":
    """Return the index of the sample that trains each token; -1 where none does."""
    found = np.full(length, -1, dtype=np.int32)
    for index, segment in enumerate(segments):
        for own, at in _placed(segment, context):
            trained = segment.mask[at : at + own.length]
            found[own.start : own.stop][trained] = index
    return found


def _sample_runs(length: int, context: str, segments: Sequence[Segment]) -> list[list[Any]]:
    """Return which samples have each token, as runs."""
    changes: dict[int, list[tuple[int, bool]]] = {0: []} if length else {}
    for index, segment in enumerate(segments):
        for own, _ in _placed(segment, context):
            changes.setdefault(own.start, []).append((index, True))
            changes.setdefault(own.stop, []).append((index, False))
    held: dict[int, int] = {}
    runs: list[list[Any]] = []
    for position in sorted(changes):
        for index, begins in changes[position]:
            held[index] = held.get(index, 0) + (1 if begins else -1)
        now = sorted(index for index, count in held.items() if count)
        if position < length and (not runs or runs[-1][1] != now):
            runs.append([position, now])
    return runs


def _placed(segment: Segment, context: str) -> Iterable[tuple[Range, int]]:
    """Yield the ranges of a segment's tokens in a context, each with its position in the segment."""
    position = 0
    for own in segment_ranges(segment):
        if own.context == context:
            yield own, position
        position += own.length


def _added(trajectory: Trajectory, context: str, segments: Sequence[Segment], samples: Sequence[Sample]) -> _Trained:
    """Return what stored samples have that the trajectory lacks, at the tokens that each of them trains.

    Raises:
        InvalidRecord: If a sample is not one of this episode's.
    """
    length = len(trajectory.contexts[context].tokens)
    columns = {name: np.full(length, np.nan, dtype=np.float32) for name in ("reference_logprobs", "advantage")}
    known: set[str] = set()
    by_place = dict(zip(_places(segments), segments, strict=True))
    for sample in samples:
        segment = by_place.get((sample.context, sample.segment_index))
        if segment is None or not np.array_equal(segment.tokens, sample.tokens):
            raise InvalidRecord(
                f"the stored sample {sample.segment_index} of {sample.context!r} in {sample.trajectory_id!r} does not "
                "have the tokens of this episode; write the samples of these trajectories again"
            )
        for name, column in columns.items():
            given = getattr(sample, name)
            if given is None:
                continue
            known.add(name)
            values = np.broadcast_to(np.asarray(given, dtype=np.float32), sample.tokens.shape)
            for own, at in _placed(segment, context):
                trained = sample.mask[at : at + own.length]
                column[own.start : own.stop][trained] = values[at : at + own.length][trained]
    found = [column if name in known else None for name, column in columns.items()]
    return _Trained(*found)


def _places(segments: Sequence[Segment]) -> list[tuple[str, int]]:
    seen: dict[str, int] = {}
    places: list[tuple[str, int]] = []
    for segment in segments:
        seen[segment.context] = seen.get(segment.context, -1) + 1
        places.append((segment.context, seen[segment.context]))
    return places


def _numbers(values: "NDArray[np.floating[Any]]") -> list[float | None]:
    """Return numbers with five decimal places; None in place of NaN."""
    rounded = np.round(values.astype(np.float64), _DIGITS)
    return [None if value != value else value for value in rounded.tolist()]


def _runs(values: "NDArray[Any]") -> list[list[Any]]:
    """Return where each run of equal values begins, and its value."""
    if not len(values):
        return []
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return [[int(start), values[start].item()] for start in starts]


def _or_none(runs: list[list[Any]]) -> list[list[Any]]:
    return [[start, None if value == -1 else value] for start, value in runs]


def _role_runs(starts: Any, codes: Any, legend: Sequence[str]) -> list[list[Any]]:
    names: Mapping[int, str] = dict(enumerate(legend))
    return [[start, names.get(code)] for start, code in zip(starts.tolist(), codes.tolist(), strict=True)]
