"""Ranges of the logs of an episode's contexts: of each prompt, each break, each sample and the nodes of the tree.

Everything follows from `trajectories/_replay.py` and `trajectories/_segments.py`; no rule of theirs is repeated here.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..errors import InvalidRecord
from ..trajectories._replay import LogPiece, Paths, ReplayedStep, replay
from ..trajectories._segments import TrainedSegment
from ..trajectories._trajectory import Trajectory
from ._json import NodeJSON


class Range(NamedTuple):
    """Consecutive tokens of a log: `contexts[context].tokens[start:stop]`."""

    context: str
    start: int
    stop: int

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return self.stop - self.start


def merged(pieces: Sequence[LogPiece] | Sequence[Range]) -> list[Range]:
    """Return pieces as ranges, and merge those that follow each other in a log."""
    found: list[Range] = []
    context, first, last = "", 0, 0
    for piece in pieces:
        if piece.start == last and piece.context == context:
            last = piece.stop
        elif piece.start < piece.stop:
            if first < last:
                found.append(Range(context, first, last))
            context, first, last = piece.context, piece.start, piece.stop
    if first < last:
        found.append(Range(context, first, last))
    return found


class StepRanges(NamedTuple):
    """The ranges of a step's prompt, and of the tokens that it dropped."""

    step: ReplayedStep
    prompt: list[Range]
    dropped: list[Range]


def step_ranges(trajectory: Trajectory) -> Iterator[StepRanges]:
    """Yield, for each step, the ranges of its prompt and of the tokens that it dropped from its context.

    Raises:
        InvalidRecord: If the steps do not fit the logs.
        UndeclaredBreak: If a step drops tokens and no break declares it.
    """
    paths = Paths(trajectory.contexts)
    for replayed in replay(trajectory.steps, trajectory.contexts):
        step = replayed.step
        path = None if replayed.is_new else paths[step.context]
        before = [] if path is None else [*zip(path.pieces, path.starts, strict=True)]
        rest = [
            Range(piece.context, piece.start + max(0, step.keep - position), piece.stop)
            for piece, position in before
            if step.keep < position + piece.stop - piece.start
        ]
        yield StepRanges(replayed, merged(paths.observe(replayed).pieces), merged(rest))
        paths.act(replayed)


def prompt_of(trajectory: Trajectory, step: int) -> list[Range]:
    """Return the ranges of the prompt of one step.

    Raises:
        InvalidRecord: If the episode does not have that step.
    """
    for ranges in step_ranges(trajectory):
        if ranges.step.step_index == step:
            return ranges.prompt
    raise InvalidRecord(
        f"{trajectory.id!r} has no steps[{step}]; expected an index from 0 to {len(trajectory.steps) - 1}"
    )


def sample_segments(trajectory: Trajectory) -> list[tuple[int, TrainedSegment]]:
    """Return the segments that `Trajectory.samples` are made of, in the same order; failed episodes included.

    Returns:
        Each with its number in its context, which is `Sample.segment_index`.
    """
    if not trajectory.is_trainable:
        return []
    counts: dict[str, int] = defaultdict(int)
    numbered: list[tuple[int, TrainedSegment]] = []
    for segment in trajectory.segments(include_failed=True):
        numbered.append((counts[segment.context], segment))
        counts[segment.context] += 1
    return numbered


def segment_ranges(segment: TrainedSegment) -> list[Range]:
    """Return the ranges of a segment, in order, up to its last trained token."""
    return _first(merged(segment.pieces), len(segment.tokens))


def _first(ranges: Iterable[Range], count: int) -> list[Range]:
    """Return the ranges of the first `count` tokens of ranges."""
    found: list[Range] = []
    for own in ranges:
        if count:
            found.append(own._replace(stop=min(own.stop, own.start + count)))
            count -= found[-1].length
    return found


def tree_nodes(trajectory: Trajectory) -> list[NodeJSON]:
    """Return the nodes of the tree of an episode, in the order of the logs: every token is in exactly one.

    A node ends where a later step continues from its last token in another way: after a rewrite, or in another context.
    """
    branches: dict[tuple[str, int], tuple[Range | None, int]] = {}  # by start: the range that it continues, its step
    cuts: dict[str, set[int]] = defaultdict(set)
    for ranges in step_ranges(trajectory):
        step = ranges.step.step
        if ranges.step.starts_segment:
            kept = next(reversed(_first(ranges.prompt, step.keep)), None)
            branches[step.context, step.start] = kept, ranges.step.step_index
            cuts[step.context].add(step.start)
            if kept is not None:
                cuts[kept.context].add(kept.stop)
    bounds: list[Range] = []
    for name, log in trajectory.contexts.items():
        edges = [*sorted(cut for cut in cuts[name] if cut < len(log.tokens)), len(log.tokens)]
        bounds += [Range(name, start, stop) for start, stop in pairwise(edges)]
    ending_at = {(own.context, own.stop): number for number, own in enumerate(bounds)}
    nodes: list[NodeJSON] = []
    for number, own in enumerate(bounds):
        if (own.context, own.start) in branches:
            kept, step_index = branches[own.context, own.start]
            parent = -1 if kept is None else ending_at[kept.context, kept.stop]
        else:  # the tokens after a point where another branch leaves
            parent, step_index = number - 1, nodes[-1]["step"] if nodes else 0
        nodes.append(
            {
                "number": number,
                "context": own.context,
                "start": own.start,
                "stop": own.stop,
                "parent": parent,
                "step": step_index,
            }
        )
    return nodes
