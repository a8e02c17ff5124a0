"""Training samples: one append-only token sequence with mask and log-probabilities for each segment.

A segment is a context between two rewrites. What it kept of the segment before is its prefix, with mask 0: so every
sampled token is trained in exactly one sample.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from ..contexts.arrays import LARGEST, Growing, fill_value
from ..contexts.protocol import Break
from ..errors import ConfigError, InvalidRecord, InvalidSample, unknown_name
from .records import build, dump, fragment, load
from .stored import Bools, Count, Float32s, Int32s, JsonObject, Number, Packed, Stored, pack
from .trajectory import Part, Step, Trajectory, check_break

if TYPE_CHECKING:
    from numpy.typing import NDArray

LossRule: TypeAlias = Literal["all", "last_step", "without_errors"] | Callable[[Step], bool]

_ARRAYS: Mapping[str, Any] = {
    "tokens": np.int32,
    "mask": np.bool_,
    "logprobs": np.float32,
    "step_ids": np.int32,
    "step_rewards": np.float32,
    "advantage": np.float32,
    "temperature": np.float32,
    "policy_version": np.int32,
    "part_ids": np.int32,
}
_LOSSES: tuple[str, ...] = get_args(get_args(LossRule)[0])
_OPTIONAL = ("logprobs", "advantage")  # of the arrays
_ANY_ID = int(np.iinfo(np.int32).max)
_METADATA: Mapping[str, tuple[Any, str]] = {
    "vocab_size": (Integral, "an integer"),
    "tokenizer": (str, "a text"),
    "steps": (list, "a list of indices"),
    "is_scored": (bool, "True or False"),
}
_SCALARS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("context", "role", "trajectory_id", "stop_reason"), (str, "a text")),
    **dict.fromkeys(("parent", "group_id"), ((str, type(None)), "a text or None")),
    **dict.fromkeys(("segment_index", "n_segments"), (int, "an integer")),
    "truncated": (bool, "True or False"),
    "breaks": (list, "a list"),
    "extra": ((dict, Mapping), "a mapping"),  # the first is the faster one
    "metadata": ((dict, Mapping), "a mapping"),
}


@dataclass(slots=True)
class Sample(Stored):
    """A training record: one append-only token sequence."""

    tokens: Int32s
    """Shape (L,)."""
    mask: Bools
    """Shape (L,): True on the tokens that are trained. The loss of token i is predicted from the tokens before it."""
    logprobs: Float32s | None
    """Shape (L,): the sampler's log-probabilities; 0.0 where mask is False. None if the policy gave none at all."""
    step_ids: Int32s
    """Shape (L,): the sample's step that a token was sampled in, as an index of `step_rewards`; -1 elsewhere."""
    reward: Number
    """The context's own reward; where it has none, the trajectory's."""
    step_rewards: Float32s
    """Shape (n_steps,): the reward of each step in this sample; 0.0 for one that was not scored."""
    temperature: Float32s
    """Shape (n_parts,): the sampling temperature of each part."""
    policy_version: Int32s
    """Shape (n_parts,): which weights sampled each part; -1 if unknown."""
    part_ids: Int32s
    """Shape (L,): the part that a token was sampled in, as an index of `temperature`; -1 elsewhere."""
    context: str
    role: str
    parent: str | None
    trajectory_id: str
    segment_index: Count
    """Which of the context's samples this is, counted from 0."""
    n_segments: Count
    """How many samples the context has."""
    loss_weight: Number
    """Trained tokens of this sample / trained tokens of the trajectory: for trainers that average per sample."""
    stop_reason: str
    truncated: bool
    breaks: list[Break] = field(default_factory=list[Break])
    """The breaks of the context up to this sample's end."""
    group_id: str | None = None
    advantage: Number | Float32s | None = None
    extra: "Annotated[dict[str, list[Any] | NDArray[Any]], Packed]" = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    """For each key of `Action.extra`: an array of shape (L, ...), with `fill_value(dtype)` (-1, or NaN for floats)
    where nothing was sampled in this sample; or, for what belongs to actions as a whole, a list of the parts' values,
    None for a part without."""
    metadata: JsonObject = field(default_factory=dict[str, Any])
    """`env`, `seed`, `tokenizer` (its fingerprint), `vocab_size`, `steps` (indices in the trajectory), `is_scored`."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_scored(self) -> bool:
        """Whether anybody said what it earned, by its metadata; see `Trajectory.is_scored`."""
        return bool(self.metadata.get("is_scored", True))

    def validate(self) -> "Sample":
        """Refuse a sample that is not sound. Nothing is padded or repaired.

        Returns:
            The sample itself.

        Raises:
            InvalidSample: It names the field and the position.
        """
        self._check_scalars()
        self._check_arrays()
        if not self.mask.any():
            raise InvalidSample("mask is False everywhere: no token is trained")
        if self.mask[0]:
            raise InvalidSample("mask[0] is True, but nothing comes before that token to predict it")
        vocab_size = self._vocab_size()
        self._refuse("tokens", (self.tokens < 0) | (self.tokens >= vocab_size), f"is outside 0 to {vocab_size - 1}")
        self._check_ids()
        if self.logprobs is not None:
            unknown = np.isnan(self.logprobs)
            self._refuse("logprobs", self.mask & unknown, "is missing (NaN), but mask is True")
            self._refuse("logprobs", ~(self.logprobs <= 0) | np.isinf(self.logprobs), "is no log-probability")
            self._refuse("logprobs", ~self.mask & (self.logprobs != 0), "is not 0.0, but mask is False")
        for name in ("step_rewards", "temperature"):
            self._refuse(name, ~np.isfinite(getattr(self, name)), "is not finite")
        self._refuse("temperature", self.temperature < 0, "is negative")
        self._refuse("policy_version", self.policy_version < -1, "is below -1, which is an unknown version")
        if self.loss_weight < 0:
            raise InvalidSample(f"loss_weight is {self.loss_weight}; expected at least 0")
        if isinstance(self.advantage, np.ndarray):
            self._refuse("advantage", ~np.isfinite(self.advantage), "is not finite")
        return self

    def _check_ids(self) -> None:
        """Which step and which part each token belongs to."""
        for name, count, of in (
            ("step_ids", len(self.step_rewards), "step_rewards"),
            ("part_ids", len(self.temperature), "temperature"),
        ):
            ids: NDArray[np.int32] = getattr(self, name)
            self._refuse(name, self.mask & (ids < 0), f"is no {name[:4]}, but mask is True")
            self._refuse(name, ids < -1, f"is below -1, which is no {name[:4]}")
            self._refuse(name, ids >= count, f"has no entry in {of}")
        self._refuse("part_ids", (self.part_ids < 0) != (self.step_ids < 0), "does not fit step_ids: one of them is -1")

    def _check_scalars(self) -> None:
        for name, (kind, expected) in _SCALARS.items():
            value: Any = getattr(self, name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise InvalidSample(f"{name} is {value!r:.80}; expected {expected}")
        for name in ("reward", "loss_weight"):
            if not _is_finite(getattr(self, name)):
                raise InvalidSample(f"{name} is {getattr(self, name)!r:.80}; expected a finite number of float32")
        advantage: Any = self.advantage
        if isinstance(advantage, (float, Real)) and not _is_finite(advantage):
            raise InvalidSample(f"advantage is {advantage!r:.80}; expected a finite number of float32")
        if not 0 <= self.segment_index < self.n_segments:
            raise InvalidSample(
                f"segment_index is {self.segment_index} of n_segments {self.n_segments}; expected one of 0 to "
                "n_segments - 1"
            )
        for index, broken in enumerate(self.breaks):
            try:
                check_break(broken)
            except InvalidRecord as error:
                raise InvalidSample(f"breaks[{index}] {error}") from error

    def _vocab_size(self) -> int:
        """The size of the vocabulary, from the metadata, whose entries are checked as far as something reads them."""
        for name, (kind, expected) in _METADATA.items():
            value: Any = self.metadata.get(name)
            if value is not None and (not isinstance(value, kind) or (kind is Integral and isinstance(value, bool))):
                raise InvalidSample(f"metadata[{name!r}] is {value!r:.80}; expected {expected}")
        steps: Any = self.metadata.get("steps")
        if steps is not None and any(type(step) is not int or step < 0 for step in steps):
            raise InvalidSample(f"metadata['steps'] is {steps!r:.80}; expected indices of steps")
        size = int(self.metadata.get("vocab_size") or 0)
        if not 0 <= size <= _ANY_ID:
            raise InvalidSample(f"metadata['vocab_size'] is {size!r:.80}; expected 0 to 2**31 - 1")
        return size or _ANY_ID

    def _check_arrays(self) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for name, dtype in _ARRAYS.items():
            array: Any = getattr(self, name)
            if name in _OPTIONAL and (array is None or (name == "advantage" and isinstance(array, (float, Real)))):
                continue
            kind: Any = getattr(array, "dtype", type(array).__name__)
            if isinstance(array, np.ma.MaskedArray):
                raise InvalidSample(f"{name} is a masked array, whose mask would be lost; expected a plain one")
            if not isinstance(array, np.ndarray) or kind != dtype:
                raise InvalidSample(f"{name} is {kind}; expected an array of {np.dtype(dtype)}")
            arrays[name] = array
        parts, tokens = arrays["temperature"].shape[:1], arrays["tokens"].shape[:1]
        shapes = {"step_rewards": arrays["step_rewards"].shape[:1], "temperature": parts, "policy_version": parts}
        for name, array in arrays.items():
            expected = shapes.get(name, tokens)
            if array.shape != expected or array.ndim != 1:
                raise InvalidSample(f"{name} has shape {array.shape}, but {expected} is what fits the others")
        for name, value in self.extra.items():
            self._check_extra(name, value)

    def _check_extra(self, name: Any, value: Any) -> None:
        if not isinstance(name, str):
            raise InvalidSample(f"extra has the key {name!r:.80}; expected texts")
        if isinstance(value, np.ndarray):
            array = cast("NDArray[Any]", value)
            if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise InvalidSample(f"extra[{name!r}] is a {type(array).__name__} of {array.dtype}; expected numbers")
            if array.shape[:1] != self.tokens.shape:
                raise InvalidSample(f"extra[{name!r}] has shape {array.shape}, but there are {len(self)} tokens")
        elif not isinstance(value, list):
            raise InvalidSample(f"extra[{name!r}] is {value!r:.80}; expected an array, or a list of the parts' values")
        elif len(cast("list[Any]", value)) != len(self.temperature):
            count = len(cast("list[Any]", value))
            raise InvalidSample(f"extra[{name!r}] has {count} values, but there are {len(self.temperature)} parts")

    def _refuse(self, name: str, wrong: "NDArray[np.bool_]", why: str) -> None:
        if wrong.any():
            position = int(np.argmax(wrong))
            raise InvalidSample(f"{name}[{position}] = {getattr(self, name)[position]} {why}")

    def to_json(self) -> bytes:
        """The sample as one line of JSON, without the line end. The same sample gives the same bytes."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        return dump("sample", {**record, "extra": fragment(pack(self.extra)), "metadata": fragment(self.metadata)})

    @classmethod
    def from_json(cls, line: bytes | str) -> "Sample":
        """Read what `to_json` wrote. Nothing is filled in, and nothing is read as another type than it is.

        Raises:
            InvalidRecord: If it is no sample, of another schema version, damaged, or not sound; it names the field.
        """
        try:
            return cls.from_fields(load(line, "sample")).validate()
        except InvalidSample as error:
            raise InvalidRecord(f"the sample is not sound: {error}") from error

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Sample":
        """Make a sample of its stored fields: lists where it has arrays, `breaks` and `extra` as JSON has them.

        Raises:
            InvalidRecord: If they are not those of a sample, or damaged; it names the fields.
        """
        return build(cls, fields)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that float32 holds, as which trainers take it."""
    if not isinstance(value, (float, int, Real)) or isinstance(value, bool):
        return False
    try:
        return abs(float(value)) <= LARGEST
    except OverflowError:  # an integer beyond all floats
        return False


def samples_of(trajectory: Trajectory, loss: LossRule = "all", *, include_failed: bool = False) -> list[Sample]:
    """Make the samples of a trajectory; see `Trajectory.samples`."""
    trains = trained_steps(trajectory, loss, include_failed=include_failed)
    tracks: dict[str, _Track] = {}
    segments: list[tuple[int, Sample]] = []
    for index, step in trajectory.walk():
        track = tracks.get(step.context)
        if track is None:
            track = tracks[step.context] = _Track(trajectory, step.context)
            if step.base != step.context:
                track.start_from(tracks[step.base], step.keep)
        elif step.keep < len(track):
            segments.extend(track.close())
        track.add(index, step, trains(step))
    for track in tracks.values():
        segments.extend(track.close())
    segments.sort(key=lambda segment: segment[0])
    samples = [sample for _, sample in segments]
    trained = sum(int(np.count_nonzero(sample.mask)) for sample in samples)
    counts: dict[str, int] = {}
    for sample in samples:
        sample.loss_weight = int(np.count_nonzero(sample.mask)) / trained
        sample.segment_index = counts.get(sample.context, 0)
        counts[sample.context] = sample.segment_index + 1
    for sample in samples:
        sample.n_segments = counts[sample.context]
    return samples


def trained_steps(trajectory: Trajectory, loss: LossRule, *, include_failed: bool = False) -> Callable[[Step], bool]:
    """Whether a step is trained: it was answered in this episode, its sub-agent did not fail, and `loss` chooses it."""
    chosen, failed = _rule(trajectory, loss), {name for name, log in trajectory.contexts.items() if log.error}

    def trains(step: Step) -> bool:
        is_own = not trajectory.is_copied(step)
        return is_own and (include_failed or step.context not in failed) and chosen(step)

    return trains


def _rule(trajectory: Trajectory, loss: LossRule) -> Callable[[Step], bool]:
    if callable(loss):
        return loss
    if not isinstance(loss, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"loss is {loss!r:.80}; expected {_LOSSES} or a function of a Step")
    if loss == "all":
        return lambda step: True
    if loss == "last_step":
        last = {step.context: id(step) for step in trajectory.steps}
        return lambda step: last[step.context] == id(step)
    if loss == "without_errors":
        return lambda step: not _reply_errors(trajectory, step)
    raise unknown_name("loss rule", loss, _LOSSES, "A function of a Step will do, too.")


def _reply_errors(trajectory: Trajectory, step: Step) -> tuple[str, ...]:
    return () if step.reply is None else trajectory.contexts[step.context].messages[step.reply].errors


class _Track:
    """A context that is being replayed: its arrays as they are now, and the steps of its current segment."""

    def __init__(self, trajectory: Trajectory, name: str) -> None:
        self._trajectory = trajectory
        self._name = name
        self._log = trajectory.contexts[name]
        self._tokens = Growing(np.int32)
        self._mask = Growing(np.bool_)
        self._logprobs = Growing(np.float32)
        self._step_ids = Growing(np.int32)
        self._part_ids = Growing(np.int32)
        # With what they hold where nothing is trained.
        self._other_arrays: tuple[tuple[Growing[Any], Any], ...] = (
            (self._mask, False),
            (self._logprobs, 0.0),
            (self._step_ids, -1),
            (self._part_ids, -1),
        )
        self._steps: list[tuple[int, Step]] = []
        self._parts: list[tuple[int, int, Part]] = []  # with the position of its first token, and their number
        self._breaks: list[Break] = []
        self._old = 0  # up to here the arrays hold what an earlier segment trained

    def __len__(self) -> int:
        return len(self._tokens)

    def start_from(self, base: "_Track", keep: int) -> None:
        """Begin with a prefix of another context; what is trained of it is trained there."""
        self._tokens.append(base._tokens.view[:keep])
        for array, value in self._other_arrays:
            array.extend(keep, value)

    def add(self, index: int, step: Step, is_trained: bool) -> None:
        """Replay a step."""
        self._tokens.truncate(step.keep)
        for array, _ in self._other_arrays:
            array.truncate(step.keep)
        if not self._steps:
            self._forget(step.keep)
        if step.broken is not None:
            self._breaks.append(step.broken)
        self._extend(step.start, step.action_start, False, -1, -1)
        start = step.action_start
        for part in step.parts:
            self._parts.append((len(self), part.stop - start, part))
            self._extend(start, part.stop, is_trained, len(self._steps), len(self._parts) - 1)
            start = part.stop
        self._steps.append((index, step))

    def _extend(self, start: int, stop: int, is_trained: bool, step: int, part: int) -> None:
        count = stop - start
        self._tokens.append(self._log.tokens[start:stop])
        self._mask.extend(count, is_trained)
        self._logprobs.extend(count, self._log.logprobs[start:stop] if is_trained else 0.0)
        self._step_ids.extend(count, step)
        self._part_ids.extend(count, part)

    def _forget(self, stop: int) -> None:
        """What a segment kept of the one before was trained there."""
        for array, value in self._other_arrays:
            array.view[self._old : stop] = value
        self._old = stop

    def close(self) -> list[tuple[int, Sample]]:
        """End the segment: its sample with the index of its first step, if a token is trained in it."""
        steps, self._steps = self._steps, []
        parts, self._parts = self._parts, []
        self._old = min(self._old, len(self))
        if not self._mask.view[self._old :].any():
            return []
        return [(steps[0][0], self._sample(steps, parts))]

    def _sample(self, steps: list[tuple[int, Step]], located: list[tuple[int, int, Part]]) -> Sample:
        trajectory = self._trajectory
        parts = [part for _, _, part in located]
        length = int(self._mask.view.nonzero()[0][-1]) + 1  # nothing behind the last trained token is needed
        mask = self._mask.copy(0, length)
        logprobs = self._logprobs.copy(0, length)
        keys = dict.fromkeys(key for part in parts for key in part.extra)
        return Sample(
            tokens=self._tokens.copy(0, length),
            mask=mask,
            logprobs=None if np.isnan(logprobs[mask]).all() else logprobs,
            step_ids=self._step_ids.copy(0, length),
            reward=trajectory.reward_of(self._name),
            step_rewards=np.array([step.reward or 0.0 for _, step in steps], dtype=np.float32),
            temperature=np.array([part.temperature for part in parts], dtype=np.float32),
            policy_version=np.array([_version(part.policy_version) for part in parts], dtype=np.int32),
            part_ids=self._part_ids.copy(0, length),
            context=self._name,
            role=self._log.role,
            parent=self._log.parent,
            trajectory_id=trajectory.id,
            segment_index=0,
            n_segments=0,
            loss_weight=0.0,
            stop_reason=trajectory.stop_reason,
            truncated=trajectory.status == "truncated",
            breaks=list(self._breaks),
            group_id=trajectory.group_id,
            extra={key: _extra(key, located, length) for key in keys},
            metadata={
                "env": trajectory.env,
                "seed": trajectory.seed,
                "tokenizer": self._log.tokenizer or trajectory.tokenizer,
                "vocab_size": self._log.vocab_size or trajectory.vocab_size,
                "steps": [index for index, _ in steps],
                "is_scored": trajectory.is_scored(self._name),
            },
        )


def _extra(key: str, parts: list[tuple[int, int, Part]], length: int) -> "list[Any] | NDArray[Any]":
    """The values of `Action.extra[key]`: at the positions of the tokens if they are arrays, else for each part."""
    values: list[Any] = [part.extra.get(key) for _, _, part in parts]
    arrays: list[NDArray[Any]] = [v for v in values if isinstance(v, np.ndarray) and np.size(cast("Any", v))]
    if not arrays:
        return values
    first = arrays[0]
    try:
        aligned = np.full((length, *first.shape[1:]), fill_value(first.dtype), dtype=first.dtype)
    except ValueError as error:
        raise InvalidSample(f"extra[{key!r}]: {error}; give signed integers, such as .astype(np.int32)") from error
    for (position, count, _), value in zip(parts, values, strict=True):
        if not count:
            continue
        if not _is_like(value, first):
            raise InvalidSample(
                f"extra[{key!r}] is an array of {first.dtype} with rows of shape {first.shape[1:]} for one action, and "
                f"{value!r:.80} for another: a "
                "policy gives it for all actions of an episode alike, or for none"
            )
        aligned[position : position + count] = value[: max(0, length - position)]
    return aligned


def _is_like(value: Any, first: "NDArray[Any]") -> bool:
    if not isinstance(value, np.ndarray):
        return False
    array = cast("NDArray[Any]", value)
    return array.shape[1:] == first.shape[1:] and array.dtype == first.dtype


def _version(policy_version: int | None) -> int:
    return -1 if policy_version is None else policy_version
