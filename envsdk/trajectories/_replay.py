"""The replay of deltas: which tokens each context holds before and after a step.

`contexts[context] = contexts[base][:keep] + tokens`. Prompts, samples, the tree of an episode and its size are all
derived from what this module yields. It searches no tokens: a step specifies which ranges of which log it adds.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import InvalidRecord, UndeclaredBreak
from ..images import PlacedImage
from ._checks import check_break
from ._context_log import ContextLog
from ._steps import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

OBSERVATION = -1
"""The part of a piece that was observed, not sampled."""


class ReplayedStep(NamedTuple):
    """A step whose range and delta were checked against the steps before it."""

    step_index: int
    """The index of the step in the trajectory."""
    step: Step
    is_new: bool
    """Whether the step is the first of its context."""
    starts_segment: bool
    """Whether the step is the first of its context, or drops tokens of it."""


class Prompt(NamedTuple):
    """The prompt of a step, and the reply to it."""

    step: Step
    prompt: "NDArray[np.int32]"
    """The whole prompt: int32, shape (n,)."""
    action: "NDArray[np.int32]"
    """The sampled tokens: int32, shape (m,)."""


class LogPiece(NamedTuple):
    """Consecutive tokens of a log: `contexts[context].tokens[start:stop]`."""

    context: str
    start: int
    stop: int
    step: int
    """The index of the step that added them."""
    part: int
    """The index of the reply's part that they were sampled in, or `OBSERVATION`."""


@dataclass(eq=False, repr=False)
class Path:
    """The tokens that a context holds, and the pieces of logs that they are. A path only truncates and appends.

    Args:
        contexts: The logs of the contexts, by name.
    """

    _contexts: Mapping[str, ContextLog]
    pieces: list[LogPiece] = field(default_factory=list[LogPiece])
    starts: list[int] = field(default_factory=list[int])
    """The position of the first token of each piece."""
    _tokens: "array[int]" = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, piece: LogPiece) -> None:
        """Add a piece of a log at the end."""
        self.pieces.append(piece)
        self.starts.append(len(self))
        tokens = self._contexts[piece.context].tokens[piece.start : piece.stop]
        self._tokens.frombytes(tokens.astype(np.int32).tobytes())

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` tokens."""
        if keep == len(self):
            return
        count = bisect_right(self.starts, keep - 1)
        del self.pieces[count:], self.starts[count:]
        if count:
            last = self.pieces[-1]
            self.pieces[-1] = last._replace(stop=last.start + keep - self.starts[-1])
        del self._tokens[keep:]

    def branch(self, keep: int) -> "Path":
        """Return another path that begins with the first `keep` tokens."""
        other = Path(self._contexts)
        other.pieces, other.starts = list(self.pieces), list(self.starts)
        other._tokens = self._tokens[:]
        other.truncate(keep)
        return other

    def tokens(self, stop: int | None = None) -> "NDArray[np.int32]":
        """Return the tokens of the path up to position `stop`: int32, a copy."""
        return np.asarray(self._tokens[:stop])


@dataclass(eq=False, repr=False)
class Paths:
    """The paths of all contexts, step by step.

    Args:
        contexts: The logs of the contexts, by name.
    """

    _contexts: Mapping[str, ContextLog]
    _paths: dict[str, Path] = field(default_factory=dict[str, Path])

    def __getitem__(self, context: str) -> Path:
        return self._paths[context]

    def observe(self, replayed: ReplayedStep) -> Path:
        """Apply a step's observation; return the path of its prompt."""
        index, step = replayed.step_index, replayed.step
        if not replayed.is_new:
            self._paths[step.context].truncate(step.keep)
        elif step.base != step.context:
            self._paths[step.context] = self._paths[step.base].branch(step.keep)
        else:
            self._paths[step.context] = Path(self._contexts)
        path = self._paths[step.context]
        path.append(LogPiece(step.context, step.start, step.action_start, index, OBSERVATION))
        return path

    def act(self, replayed: ReplayedStep) -> None:
        """Apply a step's action: one piece for each of its parts."""
        step, start = replayed.step, replayed.step.action_start
        path = self._paths[step.context]
        for number, part in enumerate(step.parts):
            path.append(LogPiece(step.context, start, part.stop, replayed.step_index, number))
            start = part.stop


def placed_images(path: Path, contexts: Mapping[str, ContextLog]) -> list[PlacedImage]:
    """Return the images in the tokens of a path, with their positions in it. A path has all tokens of one, or none."""
    found: list[PlacedImage] = []
    if not any(log.media for log in contexts.values()):
        return found
    for start, piece in zip(path.starts, path.pieces, strict=True):
        media = contexts[piece.context].media
        first = bisect_left(media, piece.start, key=attrgetter("start"))
        last = bisect_right(media, piece.stop, key=attrgetter("stop"))
        found += [placed.moved(start - piece.start) for placed in media[first:last]]
    return found


def replay(steps: Sequence[Step], contexts: Mapping[str, ContextLog]) -> Iterator[ReplayedStep]:
    """Yield the steps in order, each checked against the log of its context and the steps before it.

    Raises:
        UndeclaredBreak: If a step drops tokens and no break declares it.
        InvalidRecord: If a step is in no context, points outside its log, keeps tokens that do not exist, or has
            another `extends` than it must; or if a context's parent does not come before it.
    """
    known: set[str] = set()
    for name, log in contexts.items():
        if log.parent is not None and log.parent not in known:  # so that no context is its own ancestor
            why = "is not in the record"
            if log.parent in contexts:
                why = "is itself" if log.parent == name else "comes after it"
            raise InvalidRecord(
                f"context {name!r} has the parent {log.parent!r}, which {why}; expected one before it, or None"
            )
        known.add(name)
    lengths: dict[str, int] = {}
    ends = dict.fromkeys(contexts, 0)
    for index, step in enumerate(steps):
        is_new, length = step.context not in lengths, lengths.get(step.context, 0)
        try:
            _check_range(index, step, ends, contexts)
            _check_delta(index, step, is_new, length, lengths.get(step.base, 0))
        except (TypeError, AttributeError) as error:
            raise InvalidRecord(f"step {index + 1} is damaged: {type(error).__name__}: {error}") from error
        ends[step.context] = step.stop
        lengths[step.context] = step.keep + step.stop - step.start
        yield ReplayedStep(index, step, is_new, is_new or step.keep < length)


def _check_range(index: int, step: Step, ends: dict[str, int], contexts: Mapping[str, ContextLog]) -> None:
    """Check that the range of a step follows that of the step before it in its context, and is in the log."""
    if step.context not in ends or step.base not in ends:
        name = step.base if step.context in ends else step.context
        raise InvalidRecord(f"step {index + 1} is in the context {name!r}, which is not in the record")
    log = contexts[step.context]
    stops = [step.start, step.action_start, *[part.stop for part in step.parts]]
    if {*map(type, (step.keep, *stops))} != {int}:  # a slice would take what an index refuses
        raise InvalidRecord(
            f"step {index + 1} keeps {step.keep!r} tokens and has the bounds {stops}; expected integers"
        )
    if step.start != ends[step.context] or stops != sorted(stops) or stops[-1] > len(log.tokens):
        raise InvalidRecord(
            f"step {index + 1} points outside the log of its context {step.context!r}: it has the tokens "
            f"{step.start} to {stops[-1]}; expected them from {ends[step.context]} on, of {len(log.tokens)}"
        )
    if len(log.tokens) != len(log.logprobs):
        raise InvalidRecord(f"context {step.context!r} has {len(log.tokens)} tokens and {len(log.logprobs)} logprobs")


def _check_delta(index: int, step: Step, is_new: bool, length: int, base_length: int) -> None:
    """Check that a step keeps tokens that exist, and has the break and `extends` that fit what it keeps."""
    drops = step.base == step.context and step.keep < length
    if drops and (step.break_ is None or step.break_.kind != "rewrite"):
        raise UndeclaredBreak(
            f"step {index + 1} keeps {step.keep} of the {length} tokens of {step.context!r}, and no break declares "
            "it. A history policy declares what it drops; if you changed the record, record a Break with it"
        )
    if step.base != step.context and not is_new:
        raise InvalidRecord(f"step {index + 1} starts {step.context!r} from {step.base!r}, but it has begun before")
    if not 0 <= step.keep <= base_length:
        raise InvalidRecord(f"step {index + 1} keeps {step.keep} tokens of {step.base!r}, which has {base_length}")
    if step.extends != (not is_new and step.break_ is None):
        raise InvalidRecord(f"step {index + 1} has extends={step.extends}, with the break {step.break_}")
    if step.break_ is not None:
        before = length if drops else step.keep  # the tokens there were of what it drops
        kind = "rewrite" if step.keep < before else "switch"
        expected = (kind, step.context, step.base, step.keep, before - step.keep)
        given = step.break_
        found = (given.kind, given.context, given.base, given.kept, given.dropped)
        if found != expected:
            raise InvalidRecord(f"step {index + 1} has the break {found}; expected {expected}, which is what it does")
        check_break(given)
