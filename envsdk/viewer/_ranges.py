"""Where the tokens of an episode are in the logs of its contexts: of each prompt, each break, each sample and the tree.

Everything follows from `trajectories/replay.py` and `trajectories/segments.py`; no rule of theirs is repeated here.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..errors import InvalidRecord
from ..trajectories._replay import Paths, Piece, ReplayedStep, replay
from ..trajectories._segments import Segment, segments, trained_steps
from ..trajectories._trajectory import Trajectory


class Range(NamedTuple):
    """Consecutive tokens of a log: `contexts[context].tokens[start:stop]`."""

    context: str
    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return self.stop - self.start


def merged(pieces: Sequence[Piece] | Sequence[Range]) -> list[Range]:
    """Return pieces as ranges, with those that follow each other in a log as one."""
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
    """Where the tokens of a step's prompt are, and those that it dropped."""

    step: ReplayedStep
    prompt: list[Range]
    dropped: list[Range]


class Node(NamedTuple):
    """A node of the tree of an episode: a run of tokens of one log. Branches begin only after its last token."""

    number: int
    """Its index in the list of nodes."""
    context: str
    start: int
    stop: int
    parent: int
    """The index of the node before it, -1 for a root."""
    step: int
    """The index of the step that opened it."""


def step_ranges(trajectory: Trajectory) -> Iterator[StepRanges]:
    """Yield where the tokens of each step's prompt are, and those that it dropped from its context.

    Raises:
        InvalidRecord: If the steps do not fit the logs.
        UndeclaredBreak: If a step drops tokens and no break declares it.
    """
    paths = Paths(trajectory.contexts)
    for replayed in replay(trajectory.steps, trajectory.contexts):
        step = replayed.step
        before = [] if replayed.is_new else list(paths[step.context].pieces)
        starts = [] if replayed.is_new else list(paths[step.context].starts)
        prompt = paths.observe(replayed)
        yield StepRanges(replayed, merged(prompt.pieces), merged(_after(before, starts, step.keep)))
        paths.act(replayed)


def prompt_of(trajectory: Trajectory, step: int) -> list[Range]:
    """Return where the tokens of the prompt of one step are.

    Raises:
        InvalidRecord: If the episode does not have that step.
    """
    found = next((ranges.prompt for ranges in step_ranges(trajectory) if ranges.step.step_index == step), None)
    if found is None:
        raise InvalidRecord(
            f"{trajectory.id!r} has no steps[{step}]; expected an index from 0 to {len(trajectory.steps) - 1}"
        )
    return found


def _after(pieces: Sequence[Piece], starts: Sequence[int], keep: int) -> list[Range]:
    """Return what a path holds after its first `keep` tokens."""
    found: list[Range] = []
    for piece, position in zip(pieces, starts, strict=True):
        start = piece.start + max(0, keep - position)
        if start < piece.stop:
            found.append(Range(piece.context, start, piece.stop))
    return found


def sample_segments(trajectory: Trajectory) -> list[Segment]:
    """Return the segments that `Trajectory.samples` are made of, in the same order; failed episodes included."""
    if not trajectory.is_trainable:
        return []
    steps, contexts, origins = trajectory.steps, trajectory.contexts, trajectory.origins
    return segments(steps, contexts, trained_steps(steps, contexts, origins, "all", include_failed=True))


def segment_ranges(segment: Segment) -> list[Range]:
    """Return where the tokens of a segment are, up to its last trained token, in order."""
    left, found = len(segment.tokens), list[Range]()
    for whole in merged(segment.pieces):
        count = min(left, whole.length)
        found.append(whole._replace(stop=whole.start + count))
        left -= count
    return [piece for piece in found if piece.length]


def tree_nodes(trajectory: Trajectory) -> list[Node]:
    """Return the nodes of the tree of an episode, in the order of the logs: every token is in exactly one.

    A node ends where a later step continues from its last token in another way: after a rewrite, or in another context.
    """
    opened: list[tuple[str, int, Range | None, int]] = []  # where a branch begins, what it follows, its step
    for ranges in step_ranges(trajectory):
        step = ranges.step.step
        if ranges.step.starts_segment:
            own = step.action_start - step.start
            kept = merged(_before(ranges.prompt, own)) if step.keep else []
            opened.append((step.context, step.start, kept[-1] if kept else None, ranges.step.step_index))
    cuts: dict[str, set[int]] = defaultdict(set)
    for context, start, kept, _ in opened:
        cuts[context].add(start)
        if kept is not None:
            cuts[kept.context].add(kept.stop)
    return _nodes(trajectory, opened, {name: sorted(found) for name, found in cuts.items()})


def _before(prompt: Sequence[Range], own: int) -> list[Range]:
    """Return a prompt without its last `own` tokens."""
    found, left = list(prompt), own
    while left:
        count = min(left, found[-1].length)
        found[-1] = found[-1]._replace(stop=found[-1].stop - count)
        left -= count
        if not found[-1].length:
            found.pop()
    return found


def _nodes(
    trajectory: Trajectory, opened: list[tuple[str, int, Range | None, int]], cuts: dict[str, list[int]]
) -> list[Node]:
    branches = {(context, start): (kept, step) for context, start, kept, step in opened}
    bounds: list[Range] = []
    for name, log in trajectory.contexts.items():
        edges = [*(cut for cut in cuts.get(name, ()) if cut < len(log.tokens)), len(log.tokens)]
        bounds += [Range(name, start, stop) for start, stop in pairwise(edges)]
    stops = {name: [(own.stop, index) for index, own in enumerate(bounds) if own.context == name] for name in cuts}
    nodes: list[Node] = []
    for index, own in enumerate(bounds):
        kept, step = branches.get((own.context, own.start), (None, nodes[-1].step if nodes else 0))
        if (own.context, own.start) not in branches:  # the rest of a run that another branch leaves
            parent = index - 1
        elif kept is None:
            parent = -1
        else:
            parent = stops[kept.context][bisect_left(stops[kept.context], (kept.stop, 0))][1]
        nodes.append(Node(index, own.context, own.start, own.stop, parent, step))
    return nodes
