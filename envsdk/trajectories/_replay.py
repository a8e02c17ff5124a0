"""The replay of deltas: which tokens each context holds before and after a step.

`contexts[context] = contexts[base][:keep] + tokens`. Prompts, samples, the tree of an episode and its size are all
derived from what this module yields. It finds no tokens: a step says which ranges of which log it adds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._arrays import GrowableArray
from ..contexts._protocol import Break
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
    """What a policy saw at one step, and what it answered."""

    step: Step
    prompt: "NDArray[np.int32]"
    """The whole prompt: int32, shape (n,)."""
    action: "NDArray[np.int32]"
    """The sampled tokens: int32, shape (m,)."""


class Piece(NamedTuple):
    """Consecutive tokens of a log: `contexts[context].tokens[start:stop]`."""

    context: str
    start: int
    stop: int
    step: int
    """The index of the step that added them."""
    part: int
    """The index of the reply's part that they were sampled in, or `OBSERVATION`."""


class Path:
    """The tokens that a context holds, as the pieces of logs that they are. A path only truncates and appends.

    Args:
        contexts: The logs of the contexts, by name.
    """

    def __init__(self, contexts: Mapping[str, ContextLog]) -> None:
        self.pieces: list[Piece] = []
        self.starts: list[int] = []
        """The position of the first token of each piece."""
        self._contexts = contexts
        self._length = 0
        self._tokens: GrowableArray[np.int32] | None = None  # what was read so far; None before the second time
        self._gathered = 0  # how many of the pieces `_tokens` has: all, once the tokens are read
        self._is_read = False

    def __len__(self) -> int:
        return self._length

    def append(self, piece: Piece) -> None:
        """Add a piece of a log at the end."""
        self.pieces.append(piece)
        self.starts.append(self._length)
        self._length += piece.stop - piece.start

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` tokens."""
        if keep == self._length:
            return
        count = bisect_right(self.starts, keep - 1)
        del self.pieces[count:], self.starts[count:]
        if count:
            last = self.pieces[-1]
            self.pieces[-1] = last._replace(stop=last.start + keep - self.starts[-1])
        self._length = keep
        if self._tokens is not None:
            self._tokens.truncate(min(keep, len(self._tokens)))
            self._gathered = min(count, self._gathered)

    def branch(self, keep: int) -> "Path":
        """Return a path of its own that begins with the first `keep` tokens."""
        other = Path(self._contexts)
        other.pieces, other.starts = list(self.pieces), list(self.starts)
        other._length, other._is_read = self._length, self._is_read
        if self._tokens is not None:
            other._tokens, other._gathered = GrowableArray(np.int32), self._gathered
            other._tokens.append(self._tokens.view)
        other.truncate(keep)
        return other

    def tokens(self, stop: int | None = None) -> "NDArray[np.int32]":
        """Return the tokens of the path up to position `stop`: int32, a copy.

        Most paths are read once. From the second time on, a path remembers what it has read.
        """
        if not self._is_read:
            self._is_read = True
            return _joined(self._slices(0), stop)
        if self._tokens is None:
            self._tokens = GrowableArray(np.int32)
        for tokens in self._slices(self._gathered):
            self._tokens.append(tokens)
        self._gathered = len(self.pieces)
        return self._tokens.copy(0, stop)

    def _slices(self, first: int) -> "list[NDArray[np.int32]]":
        """Return views of the logs: the tokens of all pieces from number `first` on."""
        return [self._contexts[context].tokens[start:stop] for context, start, stop in merged(self.pieces[first:])]


def _joined(parts: "list[NDArray[np.int32]]", stop: int | None) -> "NDArray[np.int32]":
    """Return a copy of arrays, one after the other, up to position `stop`."""
    whole = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int32), *parts])
    return whole[:stop].copy() if len(parts) == 1 or (stop is not None and stop < len(whole)) else whole


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


class Paths:
    """The paths of all contexts, step by step.

    Args:
        contexts: The logs of the contexts, by name.
    """

    def __init__(self, contexts: Mapping[str, ContextLog]) -> None:
        self._contexts = contexts
        self._paths: dict[str, Path] = {}

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
        path.append(Piece(step.context, step.start, step.action_start, index, OBSERVATION))
        return path

    def act(self, replayed: ReplayedStep) -> None:
        """Apply a step's action: one piece for each of its parts."""
        step, start = replayed.step, replayed.step.action_start
        path = self._paths[step.context]
        for number, part in enumerate(step.parts):
            path.append(Piece(step.context, start, part.stop, replayed.step_index, number))
            start = part.stop


def placed_images(path: Path, contexts: Mapping[str, ContextLog]) -> list[PlacedImage]:
    """Return the images in the tokens of a path, with their positions in it. A path has all tokens of one, or none."""
    found: list[PlacedImage] = []
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
    _check_lineage(contexts)
    lengths: dict[str, int] = {}
    ends = dict.fromkeys(contexts, 0)
    for index, step in enumerate(steps):
        try:
            _check_range(index, step, ends, contexts)
            is_new, length = step.context not in lengths, lengths.get(step.context, 0)
            _check_step(index, step, is_new, length, lengths.get(step.base, 0))
        except (TypeError, AttributeError) as error:
            raise InvalidRecord(f"step {index + 1} is damaged: {type(error).__name__}: {error}") from error
        lengths[step.context] = step.keep + step.stop - step.start
        yield ReplayedStep(index, step, is_new, is_new or step.keep < length)


def prompts(steps: Sequence[Step], contexts: Mapping[str, ContextLog]) -> Iterator[Prompt]:
    """Yield for each step the prompt that the policy saw, and its action; see `replay`. O(context) a step."""
    paths = Paths(contexts)
    for replayed in replay(steps, contexts):
        step, log = replayed.step, contexts[replayed.step.context].tokens
        prompt = paths.observe(replayed).tokens()
        paths.act(replayed)
        yield Prompt(step, prompt, log[step.action_start : step.stop])


def prompt_images(steps: Sequence[Step], contexts: Mapping[str, ContextLog]) -> Iterator[tuple[PlacedImage, ...]]:
    """Yield for each step the images of its prompt, with their positions in it; see `replay`."""
    paths, has_images = Paths(contexts), any(log.media for log in contexts.values())
    for replayed in replay(steps, contexts):
        path = paths.observe(replayed)
        yield tuple(placed_images(path, contexts)) if has_images else ()
        paths.act(replayed)


def _check_lineage(contexts: Mapping[str, ContextLog]) -> None:
    """Refuse a context whose parent does not come before it, so that none is its own ancestor."""
    known: set[str] = set()
    for name, log in contexts.items():
        if log.parent is not None and log.parent not in known:
            why = "is not in the record"
            if log.parent in contexts:
                why = "is itself" if log.parent == name else "comes after it"
            raise InvalidRecord(
                f"context {name!r} has the parent {log.parent!r}, which {why}; expected one before it, or None"
            )
        known.add(name)


def _check_range(index: int, step: Step, ends: dict[str, int], contexts: Mapping[str, ContextLog]) -> None:
    """A step's range follows that of the step before it in its context, and lies in the log; `ends` goes on."""
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
    ends[step.context] = stops[-1]


def _check_step(index: int, step: Step, is_new: bool, length: int, base_length: int) -> None:
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
        raise InvalidRecord(f"step {index + 1} says extends={step.extends}, with the break {step.break_}")
    if step.break_ is not None:
        _check_break(index, step, step.break_, length if drops else step.keep)


def _check_break(index: int, step: Step, break_: Break, length: int) -> None:
    """A break is what its step does: `length` is how many tokens there were of what it drops."""
    kind = "rewrite" if step.keep < length else "switch"
    expected = (kind, step.context, step.base, step.keep, length - step.keep)
    found = (break_.kind, break_.context, break_.base, break_.kept, break_.dropped)
    if found != expected:
        raise InvalidRecord(f"step {index + 1} has the break {found}; expected {expected}, which is what it does")
    check_break(break_)
