"""The tokens of one context as columns for any front end: their text, steps, samples and log-probabilities."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidRecord
from ..rendering.tokenizers import Tokenizer
from ..trajectories._samples import Sample
from ..trajectories._segments import TrainedSegment
from ..trajectories._trajectory import Trajectory
from ._json import TokensJSON
from ._ranges import Range, sample_segments, segment_ranges, step_ranges, tree_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGITS = 5


def context_tokens(
    trajectory: Trajectory, context: str, tokenizer: Tokenizer | None, samples: Sequence[Sample] = ()
) -> TokensJSON:
    """Return the tokens of a context's log as columns, as plain values for JSON.

    A column that has long runs of equal values is a list of `[position, value]`, one for each run.

    Args:
        trajectory: The episode.
        context: The name of the context.
        tokenizer: The tokenizer of the context; None if it is not known.
        samples: The stored samples of the episode, which may have advantages and a reference's log-probabilities.

    Returns:
        `ids`: the token ids, n of them. `texts`: by id, the text of each token that is valid UTF-8. `bytes`: by id,
        the bytes of all others, as hexadecimal digits. `controls`: the ids of control tokens. `logprobs`: n numbers;
        None where a token was observed or the policy gave none. `reference_logprobs`, `advantages`: n numbers or None;
        None in place of the list if the samples have none. `teacher`: the history policy under which
        `reference_logprobs` were computed (`credit.add_teacher`); None if they are a trainer's. As runs: `steps` (the
        index of the step), `sampled` (whether the token was sampled), `trained` (the index of the sample that trains
        it, or None), `samples` (the indices of all samples that have it), `nodes` (the index of the tree's node),
        `dropped` (the index of the step that dropped it, or None), and `roles` (what it belongs to, or None; the list
        is empty if that was not recorded). `images`: the images as `[start, stop, SHA-256]`, with the range of their
        placeholders.

    Raises:
        InvalidRecord: If there is no such context, the steps do not fit the logs, or the stored samples are not this
            episode's.
    """
    log = trajectory.contexts.get(context)
    if log is None:
        raise InvalidRecord(f"{trajectory.id!r} has no context {context!r}; it has {', '.join(trajectory.contexts)}")
    length, numbered = len(log.tokens), sample_segments(trajectory)
    steps = [(index, step) for index, step in enumerate(trajectory.steps) if step.context == context]
    is_sampled = np.zeros(length, dtype=np.bool_)
    for _, step in steps:
        is_sampled[step.action_start : step.stop] = True
    dropped_by, trained_by = (np.full(length, -1, dtype=np.int32) for _ in range(2))
    for ranges in step_ranges(trajectory):
        for own in ranges.dropped:
            if own.context == context == ranges.step.step.context:
                dropped_by[own.start : own.stop] = ranges.step.step_index
    placed = [(index, segment, [*_placed(segment, context)]) for index, (_, segment) in enumerate(numbered)]
    placed = [one for one in placed if one[2]]  # the samples that have tokens of this context
    is_in = np.zeros((len(placed), length), dtype=np.bool_)
    for row, (index, segment, found) in zip(is_in, placed, strict=True):
        for own, at in found:
            row[own.start : own.stop] = True
            trained_by[own.start : own.stop][segment.mask[at : at + own.length]] = index
    in_sample = np.array([index for index, *_ in placed], dtype=np.int64)
    added = _added(trajectory, context, numbered, samples)
    texts, partial, controls = _pieces(log.tokens, tokenizer)
    roles = () if log.roles is None else zip(log.roles.starts.tolist(), log.roles.run_codes.tolist(), strict=True)
    legend = {} if log.roles is None else dict(enumerate(log.roles.legend))
    return {
        "context": context,
        "ids": log.tokens.tolist(),
        "has_texts": tokenizer is not None,
        "texts": texts,
        "bytes": partial,
        "controls": controls,
        "logprobs": _numbers(np.where(is_sampled, log.logprobs, np.nan)),
        "reference_logprobs": added["reference_logprobs"],
        "teacher": next((str(one.metadata["teacher"]) for one in samples if "teacher" in one.metadata), None),
        "advantages": added["advantage"],
        "steps": [(step.start, index) for index, step in steps if step.start < step.stop],
        "sampled": _runs(is_sampled),
        "trained": _runs(trained_by),
        "samples": [(int(at), in_sample[is_in[:, at]].tolist()) for at in _run_starts(is_in)],
        "nodes": [(node["start"], node["number"]) for node in tree_nodes(trajectory) if node["context"] == context],
        "dropped": _runs(dropped_by),
        "images": [(placed.start, placed.stop, placed.image.sha256) for placed in log.media],
        "roles": [(start, legend.get(code)) for start, code in roles],
    }


def _pieces(
    tokens: "NDArray[np.int32]", tokenizer: Tokenizer | None
) -> tuple[dict[str, str], dict[str, str], list[int]]:
    """Return the text by id, the bytes by id where they are not valid UTF-8, and the ids of control tokens."""
    texts: dict[str, str] = {}
    partial: dict[str, str] = {}
    if tokenizer is None:
        return texts, partial, []
    known = np.unique(tokens[(tokens >= 0) & (tokens < tokenizer.vocab_size)]).astype(np.int32)
    for token, piece in zip(known.tolist(), tokenizer.token_bytes(known), strict=True):
        try:
            texts[str(token)] = piece.decode()
        except UnicodeDecodeError:
            partial[str(token)] = piece.hex()
    return texts, partial, sorted(set(tokenizer.control_tokens.values()).intersection(known.tolist()))


def _placed(segment: TrainedSegment, context: str) -> Iterable[tuple[Range, int]]:
    """Yield the ranges of a segment's tokens in a context, each with its position in the segment."""
    position = 0
    for own in segment_ranges(segment):
        if own.context == context:
            yield own, position
        position += own.length


def _added(
    trajectory: Trajectory, context: str, numbered: Sequence[tuple[int, TrainedSegment]], samples: Sequence[Sample]
) -> dict[str, list[float | None] | None]:
    """Return the columns that a trainer added to stored samples, at the trained tokens of a context.

    Raises:
        InvalidRecord: If a sample is not one of this episode's.
    """
    length = len(trajectory.contexts[context].tokens)
    columns = {name: np.full(length, np.nan, dtype=np.float32) for name in ("reference_logprobs", "advantage")}
    known: set[str] = set()
    by_place = {(segment.context, number): segment for number, segment in numbered}
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
    return {name: _numbers(column) if name in known else None for name, column in columns.items()}


def _numbers(values: "NDArray[np.floating[Any]]") -> list[float | None]:
    """Return numbers with five decimal places; None in place of NaN."""
    rounded = np.round(values.astype(np.float64), _DIGITS)
    return [None if value != value else value for value in rounded.tolist()]


def _runs(values: "NDArray[Any]") -> list[tuple[int, Any]]:
    """Return the start and the value of each run of equal values; None in place of -1."""
    return [(int(at), None if values[at] == -1 else values[at].item()) for at in _run_starts(values[np.newaxis])]


def _run_starts(rows: "NDArray[Any]") -> "NDArray[np.int64]":
    """Return the first column of each run of equal columns."""
    changes = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    return np.flatnonzero(np.append(rows.shape[1] > 0, changes))
