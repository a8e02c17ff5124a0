"""The segments of a trajectory in which a token is trained: the source of its samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .._visible import brief
from ..contexts._protocol import Break
from ..contexts._side_data import Aligned, PerToken, joined, per_token, placed
from ..errors import ConfigError, InvalidSample, UnknownName
from ..images import PlacedImage
from ._context_log import ContextLog
from ._replay import OBSERVATION, LogPiece, Path, Paths, ReplayedStep, placed_images, replay
from ._roles import Roles
from ._steps import Part, Step

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
    media: list[PlacedImage]
    """The images in its tokens, with their positions in it."""
    all_steps: Sequence[Step] = ()
    """The steps of the trajectory."""

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
        rows = [per_token(value) for value in values]
        first = next((at for at, own in enumerate(rows) if own is not None and len(own)), None)
        if first is None:
            return values
        data = cast("PerToken", rows[first])
        try:
            data.check()
        except ValueError as error:
            raise InvalidSample(f"extra[{key!r}]: {error}; give signed integers, such as .astype(np.int32)") from error
        sampled: list[tuple[int, PerToken]] = []
        for (position, count), value, own in zip(self.spans, values, rows, strict=True):
            if count and not data.is_like(own):
                shape = f" with rows of shape {data.values.shape[1:]}" if isinstance(data, Aligned) else ""
                kind = "an array" if isinstance(data, Aligned) else "lists"
                raise InvalidSample(
                    f"extra[{key!r}] is {kind} of {data.values.dtype}{shape} for one action, and {brief(value)} for "
                    "another: a policy gives it for all actions of an episode alike, or for none"
                )
            if count:
                sampled.append((position, cast("PerToken", own)))
        if isinstance(data, Aligned) and data.over == "all":
            found: PerToken = self._over_all(key, data)
        else:
            places, count = np.full(len(self.tokens), _NONE, dtype=np.int64), 0
            for position, own in sampled:
                own_places = places[position : position + len(own)]
                own_places[:] = np.arange(count, count + len(own_places))
                count += len(own)
            found = placed(joined([own for _, own in sampled]), places)
        return cast("Aligned", found).values if isinstance(values[first], np.ndarray) else found

    def _over_all(self, key: str, first: Aligned) -> Aligned:
        """Return the rows of all steps of the context at the positions of their tokens, also of the prompts.

        The row of a reply's last token is known from the next step, which processes that token.
        """
        values, begins, position = first.empty(len(self.tokens)), dict[int, int](), 0
        for piece in self.pieces:
            if piece.context == self.context:
                begins.setdefault(piece.step, position)
            position += piece.stop - piece.start
        for (index, begin), end in zip(begins.items(), [*list(begins.values())[1:], position], strict=True):
            for part in self.all_steps[index].parts:
                data: Any = part.extra.get(key)
                if not (isinstance(data, Aligned) and len(data) and first.is_like(data)):
                    continue
                start = begin + part.stop - self.all_steps[index].start - len(data)
                own = values[max(start, 0) : min(end, len(values))]
                given = data.values[max(-start, 0) :][: len(own)]
                own[: len(given)] = given
        return Aligned(values, first.over, first.fill)


def segments(
    steps: Sequence[Step], contexts: Mapping[str, ContextLog], is_trained: Callable[[Step], bool]
) -> list[TrainedSegment]:
    """Return the segments in which a token is trained, in the order in which they began; see `replay`.

    Args:
        steps: The steps of a trajectory.
        contexts: Its contexts, by name.
        is_trained: Whether the reply of a step is trained.
    """
    paths, found = Paths(contexts), list[TrainedSegment]()
    opened: dict[str, list[ReplayedStep]] = {}  # the steps of the current segment of each context
    breaks: dict[str, list[Break]] = {name: [] for name in contexts}

    def close(name: str) -> None:
        trained = [is_trained(replayed.step) for replayed in opened[name]]
        segment = _close(paths[name], opened[name], trained, contexts)
        if segment is not None:
            segment.breaks, segment.all_steps = list(breaks[name]), steps
            found.append(segment)

    for replayed in replay(steps, contexts):
        name = replayed.step.context
        if replayed.starts_segment:
            if not replayed.is_new:
                close(name)
            opened[name] = []
        paths.observe(replayed)
        paths.act(replayed)
        opened[name].append(replayed)
        if replayed.step.break_ is not None:
            breaks[name].append(replayed.step.break_)
    for name in opened:
        close(name)
    return sorted(found, key=lambda segment: segment.first)


def _close(
    path: Path, steps: list[ReplayedStep], trained: Sequence[bool], contexts: Mapping[str, ContextLog]
) -> TrainedSegment | None:
    """Write the arrays of a segment with these steps, some of them trained; None if no token is trained in it."""
    name, numbers = steps[0].step.context, {replayed.step_index: number for number, replayed in enumerate(steps)}
    log, first = contexts[name], len(path.pieces)
    while first and path.pieces[first - 1].step in numbers:  # what was kept of earlier segments comes before
        first -= 1
    placed_pieces = zip(path.starts[first:], path.pieces[first:], strict=True)
    sampled = [(position, piece) for position, piece in placed_pieces if piece.part != OBSERVATION]
    step_ids, part_ids = np.full((2, len(path)), _NONE, np.int32)
    mask, logprobs = np.zeros(len(path), np.bool_), np.zeros(len(path), np.float32)
    for part, (position, piece) in enumerate(sampled):
        number, offset = numbers[piece.step], position - piece.start
        own = slice(position, offset + piece.stop)
        step_ids[own], part_ids[own] = number, part
        for start, stop, is_masked in steps[number].step.runs(piece.start, piece.stop) if trained[number] else ():
            if not is_masked:
                run = slice(offset + start, offset + stop)
                mask[run], logprobs[run] = True, log.logprobs[start:stop]
    if not mask.any():
        return None
    length = int(np.flatnonzero(mask)[-1]) + 1  # no token after the last trained one is needed
    roles = [
        (contexts[piece.context].roles, slice(piece.start, min(piece.stop, piece.start + max(0, length - start))))
        for start, piece in zip(path.starts, path.pieces, strict=True)
    ]
    known = [(own, where) for own, where in roles if own is not None]
    return TrainedSegment(
        context=name,
        steps=steps,
        breaks=[],
        tokens=path.tokens(length),
        mask=mask[:length],
        trained=int(np.count_nonzero(mask)),
        logprobs=logprobs[:length],
        has_logprobs=not np.isnan(logprobs[mask]).all(),
        step_ids=step_ids[:length],
        part_ids=part_ids[:length],
        parts=[part for replayed in steps for part in replayed.step.parts],
        spans=[(position, piece.stop - piece.start) for position, piece in sampled],
        pieces=list(path.pieces),
        roles=Roles.joined(known) if len(known) == len(roles) else None,
        media=[image for image in placed_images(path, contexts) if image.stop <= length],
    )


def trained_steps(
    steps: Sequence[Step],
    contexts: Mapping[str, ContextLog],
    is_copied: Callable[[Step], bool],
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
        raise ConfigError(f"loss is {brief(loss)}; expected {_LOSSES} or a function of a Step")
    if isinstance(loss, str) and loss not in _LOSSES:
        raise UnknownName.of("loss rule", loss, _LOSSES, "A function of a Step is accepted, too.")
    last = {step.context: id(step) for step in steps}
    left_out = {
        name for name, log in contexts.items() if not log.is_trainable or (log.error is not None and not include_failed)
    }

    def is_trained(step: Step) -> bool:
        if is_copied(step) or step.context in left_out:
            return False
        if callable(loss):
            return loss(step)
        if loss == "without_errors":
            return step.reply is None or not contexts[step.context].messages[step.reply].errors
        return loss == "all" or last[step.context] == id(step)

    return is_trained
