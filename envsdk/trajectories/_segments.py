"""The segments of a trajectory in which a token is trained: the source of its samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from ..contexts._protocol import Break
from ..contexts._side_data import Aligned, PerToken, joined, per_token, placed
from ..errors import ConfigError, InvalidSample, unknown_name
from ..images import PlacedImage
from ._context_log import ContextLog
from ._replay import OBSERVATION, LogPiece, Path, Paths, ReplayedStep, placed_images, replay
from ._roles import Roles
from ._steps import Origin, Part, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

LossRule: TypeAlias = Literal["all", "last_step", "without_errors"] | Callable[[Step], bool]
_LOSSES: tuple[str, ...] = get_args(get_args(LossRule)[0])
_NONE = -1


@dataclass(slots=True)
class TrainedSegment:
    """A context between two rewrites, with the steps that were taken in it."""

    context: str
    steps: list[ReplayedStep]
    breaks: list[Break]
    """The breaks of the context up to the segment's end."""
    tokens: "NDArray[np.int32]"
    """Shape (L,): what the context holds at the segment's end, up to the last trained token."""
    mask: "NDArray[np.bool_]"
    """Shape (L,): True on tokens that are trained."""
    trained: int
    """The number of trained tokens."""
    logprobs: "NDArray[np.float32]"
    """Shape (L,): 0.0 where mask is False, NaN where the policy gave none."""
    has_logprobs: bool
    """Whether the policy gave any."""
    step_ids: "NDArray[np.int32]"
    """Shape (L,): the index in `steps`; -1 on tokens that were not sampled in this segment."""
    part_ids: "NDArray[np.int32]"
    """Shape (L,): the index in `parts`; -1 on tokens that were not sampled in this segment."""
    parts: list[Part]
    """The parts of the replies, in order."""
    spans: list[tuple[int, int]]
    """The position of the first token of each part, and how many tokens it has."""
    pieces: list[LogPiece]
    """The ranges of logs that its tokens are, in order; the last one may reach beyond the last trained token."""
    roles: Roles | None
    """The role of each token, if it was recorded."""
    media: list[PlacedImage] = field(default_factory=list[PlacedImage])
    """The images in its tokens, with their positions in it."""
    past: "list[PlacedStep]" = field(default_factory=list["PlacedStep"])
    """The steps whose tokens are in this segment; empty if no side data is over all tokens."""

    @property
    def first(self) -> int:
        """The index in the trajectory of the segment's first step."""
        return self.steps[0].step_index

    def extra(self, key: str) -> "list[Any] | NDArray[Any] | PerToken":
        """Return the values of `Action.extra[key]`: a row for each token, or a list with one value for each part.

        Raises:
            InvalidSample: If there are rows for some actions and not for others, or rows of different kinds.
        """
        values: list[Any] = [part.extra.get(key) for part in self.parts]
        first = next((value for value in values if per_token(value) is not None and len(value)), None)
        if first is None:
            return values
        data = _rows_of(first)
        try:
            data.check()
        except ValueError as error:
            raise InvalidSample(f"extra[{key!r}]: {error}; give signed integers, such as .astype(np.int32)") from error
        own = [(position, count, value) for (position, count), value in zip(self.spans, values, strict=True)]
        for value in (value for _, count, value in own if count):
            if not data.is_like(per_token(value)):
                shape = f" with rows of shape {data.values.shape[1:]}" if isinstance(data, Aligned) else ""
                kind = "an array" if isinstance(data, Aligned) else "lists"
                raise InvalidSample(
                    f"extra[{key!r}] is {kind} of {data.values.dtype}{shape} for one action, and {value!r:.80} for "
                    "another: a policy gives it for all actions of an episode alike, or for none"
                )
        if isinstance(data, Aligned) and data.over == "all":
            found = _over_all(key, data, self.past, len(self.tokens))
        else:
            found = _over_sampled([(at, _rows_of(value)) for at, count, value in own if count], len(self.tokens))
        return cast("Aligned", found).values if isinstance(first, np.ndarray) else found


class PlacedStep(NamedTuple):
    """A step of which a context holds tokens."""

    step: Step
    position: int
    """The position of its first token."""
    stop: int
    """The position after its last token that the context holds."""


@dataclass(slots=True)
class _OpenSegment:
    steps: list[ReplayedStep] = field(default_factory=list[ReplayedStep])
    breaks: list[Break] = field(default_factory=list[Break])


def segments(
    steps: Sequence[Step], contexts: Mapping[str, ContextLog], is_trained: Callable[[Step], bool]
) -> list[TrainedSegment]:
    """Return the segments in which a token is trained, in the order in which they began; see `replay`.

    Args:
        steps: The steps of a trajectory.
        contexts: Its contexts, by name.
        is_trained: Whether the reply of a step is trained.
    """
    paths, opened, found = Paths(contexts), dict[str, _OpenSegment](), list[TrainedSegment]()
    has_past = any(_is_over_all(value) for step in steps for part in step.parts for value in part.extra.values())
    has_images = any(log.media for log in contexts.values())

    def close(name: str) -> None:
        path = paths[name]
        segment = _close(name, opened[name], path, contexts, is_trained)
        if segment is None:
            return
        if has_past:
            firsts = {piece.step: at for at, piece in reversed(list(enumerate(path.pieces))) if piece.context == name}
            ordered = sorted(firsts.items(), key=lambda first: first[1])
            stops = [*(path.starts[at] for _, at in ordered[1:]), len(path)]
            segment.past = [
                PlacedStep(steps[index], path.starts[at], stop)
                for (index, at), stop in zip(ordered, stops, strict=True)
            ]
        if has_images:
            segment.media = [placed for placed in placed_images(path, contexts) if placed.stop <= len(segment.tokens)]
        found.append(segment)

    for replayed in replay(steps, contexts):
        name = replayed.step.context
        if replayed.is_new:
            opened[name] = _OpenSegment()
        elif replayed.starts_segment:
            close(name)
            opened[name].steps = []
        paths.observe(replayed)
        paths.act(replayed)
        opened[name].steps.append(replayed)
        if replayed.step.break_ is not None:
            opened[name].breaks.append(replayed.step.break_)
    for name in opened:
        close(name)
    return sorted(found, key=lambda segment: segment.first)


def _close(
    name: str,
    opened: _OpenSegment,
    path: Path,
    contexts: Mapping[str, ContextLog],
    is_trained: Callable[[Step], bool],
) -> TrainedSegment | None:
    """Write the arrays of a segment; None if no token is trained in it."""
    log, numbers = contexts[name], {replayed.step_index: number for number, replayed in enumerate(opened.steps)}
    first = len(path.pieces)
    while first and path.pieces[first - 1].step in numbers:  # what was kept of earlier segments comes before
        first -= 1
    sampled = [
        (position, piece)
        for position, piece in zip(path.starts[first:], path.pieces[first:], strict=True)
        if piece.part != OBSERVATION
    ]
    trained = list(_trained_runs(sampled, opened.steps, numbers, is_trained))
    if not trained:
        return None
    position, start, stop = trained[-1]
    length = position + stop - start  # no token after the last trained one is needed
    step_ids, part_ids = np.full((2, length), _NONE, np.int32)
    for number, (position, piece) in enumerate(sampled):
        own = slice(position, position + piece.stop - piece.start)
        step_ids[own], part_ids[own] = numbers[piece.step], number
    mask, logprobs = np.zeros(length, np.bool_), np.zeros(length, np.float32)
    for position, start, stop in trained:
        own = slice(position, position + stop - start)
        mask[own], logprobs[own] = True, log.logprobs[start:stop]
    return TrainedSegment(
        context=name,
        steps=opened.steps,
        breaks=list(opened.breaks),
        tokens=path.tokens(length),
        mask=mask,
        trained=sum(stop - start for _, start, stop in trained),
        logprobs=logprobs,
        has_logprobs=any(not np.isnan(log.logprobs[start:stop]).all() for _, start, stop in trained),
        step_ids=step_ids,
        part_ids=part_ids,
        parts=[part for replayed in opened.steps for part in replayed.step.parts],
        spans=[(position, piece.stop - piece.start) for position, piece in sampled],
        pieces=list(path.pieces),
        roles=_roles(path, contexts, length),
    )


def _trained_runs(
    sampled: Iterable[tuple[int, LogPiece]],
    steps: Sequence[ReplayedStep],
    numbers: Mapping[int, int],
    is_trained: Callable[[Step], bool],
) -> Iterator[tuple[int, int, int]]:
    """Yield the position of each run of trained tokens, and its bounds in the log.

    Args:
        sampled: The sampled pieces of a segment, each with the position of its first token.
        steps: The steps of the segment.
        numbers: The index in `steps` of each step, by its index in the trajectory.
        is_trained: Whether the reply of a step is trained.
    """
    trained = [is_trained(replayed.step) for replayed in steps]
    for position, piece in sampled:
        number = numbers[piece.step]
        for start, stop, is_masked in steps[number].step.runs(piece.start, piece.stop) if trained[number] else ():
            if not is_masked:
                yield position + start - piece.start, start, stop


def trained_steps(
    steps: Sequence[Step],
    contexts: Mapping[str, ContextLog],
    origins: Sequence[Origin],
    loss: LossRule,
    *,
    include_failed: bool = False,
) -> Callable[[Step], bool]:
    """Return a function that returns whether a step is trained.

    It is if it was answered in this episode, not before a fork, by a policy that returns what it sampled; if its
    sub-agent did not fail; and if `loss` chooses it.

    Raises:
        ConfigError: If `loss` is neither a rule's name nor a function.
        UnknownName: If no rule has that name.
    """
    if not isinstance(loss, str) and not callable(loss):  # pyright: ignore[reportUnnecessaryComparison]
        raise ConfigError(f"loss is {loss!r:.80}; expected {_LOSSES} or a function of a Step")
    if isinstance(loss, str) and loss not in _LOSSES:
        raise unknown_name("loss rule", loss, _LOSSES, "A function of a Step is accepted, too.")
    last = {step.context: id(step) for step in steps}
    left_out = {
        name for name, log in contexts.items() if not log.is_trainable or (log.error is not None and not include_failed)
    }

    def is_trained(step: Step) -> bool:
        if is_copied(step, origins) or step.context in left_out:
            return False
        if callable(loss):
            return loss(step)
        if loss == "without_errors":
            return step.reply is None or not contexts[step.context].messages[step.reply].errors
        return loss == "all" or last[step.context] == id(step)

    return is_trained


def is_copied(step: Step, origins: Sequence[Origin]) -> bool:
    """Return whether a step was answered before the episode was forked: it is trained in the original's samples."""
    return bool(origins and step.parts) and step.stop <= origins[-1].tokens.get(step.context, 0)


def _roles(path: Path, contexts: Mapping[str, ContextLog], length: int) -> Roles | None:
    """Return the roles of the first `length` tokens of a path; None if they were not recorded for all of them."""
    parts: list[tuple[Roles, slice]] = []
    for start, piece in zip(path.starts, path.pieces, strict=True):
        own = contexts[piece.context].roles
        if own is None:
            return None
        parts.append((own, slice(piece.start, min(piece.stop, piece.start + max(0, length - start)))))
    return Roles.joined(parts)


def _is_over_all(value: Any) -> bool:
    return isinstance(value, Aligned) and value.over == "all"


def _rows_of(value: Any) -> PerToken:
    return cast("PerToken", per_token(value))


def _over_sampled(parts: "list[tuple[int, PerToken]]", length: int) -> PerToken:
    """Return the rows of the parts at the positions of their tokens; parts begin at the positions given."""
    rows, count = np.full(length, _NONE, dtype=np.int64), 0
    for position, part in parts:
        own = rows[position : position + len(part)]
        own[:] = np.arange(count, count + len(own))
        count += len(part)
    return placed(joined([part for _, part in parts]), rows)


def _over_all(key: str, first: Aligned, past: list[PlacedStep], length: int) -> Aligned:
    """Return the rows of all steps at the positions of their tokens, also of the prompts.

    The row of a reply's last token is known from the next step, which processes that token.
    """
    values = first.empty(length)
    for step, position, stop in past:
        for part in step.parts:
            data: Any = part.extra.get(key)
            if not (isinstance(data, Aligned) and len(data) and first.is_like(data)):
                continue
            start = position + part.stop - step.start - len(data)
            own = values[max(start, 0) : min(stop, length)]
            given = data.values[max(-start, 0) :][: len(own)]
            own[: len(given)] = given
    return Aligned(values, first.over, first.fill)
