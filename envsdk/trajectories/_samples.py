"""Training samples: for each segment, one append-only token sequence with mask and log-probabilities.

A segment is a context between two rewrites. It starts with what was kept of the segment before, with mask 0, so every
sampled token is trained in exactly one sample.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np

from .._cards import card, mask_bar, named
from .._visible import brief, type_of
from ..contexts._protocol import Break, Count
from ..contexts._side_data import Aligned, Ragged
from ..errors import InvalidRecord, InvalidSample
from ..images import PlacedImage
from ..limits import LARGEST
from ._checks import check_break
from ._fragments import fragment
from ._media import embedded, read_embedded
from ._roles import Roles
from ._stored import (
    Bools,
    Float32s,
    Int32s,
    JsonObject,
    Number,
    Packed,
    StoredBreak,
    StoredMedia,
    StoredRecord,
    dump_media,
    pack,
    record_of,
)
from .records import build, dump, load

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ARRAYS: Mapping[str, Any] = {
    "tokens": np.int32,
    "mask": np.bool_,
    "logprobs": np.float32,
    "step_ids": np.int32,
    "step_rewards": np.float32,
    "advantage": np.float32,
    "reference_logprobs": np.float32,
    "temperature": np.float32,
    "policy_version": np.int32,
    "part_ids": np.int32,
}
_OPTIONAL = ("logprobs", "advantage", "reference_logprobs")  # of the arrays
_ANY_ID = int(np.iinfo(np.int32).max)
_METADATA: Mapping[str, tuple[Any, str]] = {
    "vocab_size": (Integral, "an integer"),
    "tokenizer": (str, "a string"),
    "steps": (list, "a list of indices"),
    "is_scored": (bool, "True or False"),
}
_SCALARS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("context", "role", "trajectory_id", "stop_reason"), (str, "a string")),
    **dict.fromkeys(("parent", "group_id"), ((str, type(None)), "a string or None")),
    **dict.fromkeys(("segment_index", "n_segments"), (int, "an integer")),
    "truncated": (bool, "True or False"),
    "breaks": (list, "a list"),
    "stream_weights": (dict, "a dict"),
    "extra": (Mapping, "a mapping"),
    "metadata": (Mapping, "a mapping"),
}


@dataclass(slots=True)
class Sample(StoredRecord):
    """A training record: one append-only sequence of L tokens, made from one segment of a context.

    Attributes:
        tokens: int32, shape (L,): the token ids.
        mask: bool, shape (L,): True on the tokens that are trained. The tokens before token i predict it.
        logprobs: float32, shape (L,): the sampler's log-probabilities, 0.0 where mask is False; None if the policy gave
            none at all.
        step_ids: int32, shape (L,): the step that a token was sampled in, as an index of `step_rewards`; -1 on tokens
            that were not sampled in this segment.
        reward: The context's own reward; where it has none, the trajectory's.
        step_rewards: float32, shape (n_steps,): the reward of each step of the segment; 0.0 if it was not scored.
        temperature: float32, shape (n_parts,): the sampling temperature of each part of the replies.
        policy_version: int32, shape (n_parts,): the version of the weights that sampled each part; -1 if unknown.
        part_ids: int32, shape (L,): the part that a token was sampled in, as an index of `temperature`; -1 elsewhere.
        context: The name of the context.
        role: Its role.
        parent: The context that opened it, or None.
        trajectory_id: The id of the trajectory.
        segment_index: Which of the context's samples this is, counted from 0.
        n_segments: How many samples the context has.
        loss_weight: Trained tokens of this sample / trained tokens of the trajectory, for trainers that average per
            sample.
        stop_reason: Why the episode ended: a `StopReason`.
        truncated: Whether a limit ended it.
        breaks: The breaks of the context up to the end of this sample.
        group_id: What episodes of the same task share, or None.
        advantage: A float, or float32 of shape (L,); None until a function of `envsdk.credit` sets it.
        extra: For each key of `Action.extra`: an array, `Aligned` or `Ragged` with L rows, or, for what belongs to
            whole actions, a list with one value for each part, None for a part without. Rows of which nothing is known
            hold the fill value (-1, or NaN for floats), or an empty list. Nothing is known where no token was sampled
            in this segment; side data over all tokens is also known at observations and at what was kept.
        roles: What each token belongs to (`Roles.labels()`), if the environment recorded it (`Env.records_roles`).
        reference_logprobs: float32, shape (L,): the log-probabilities of a teacher or a reference, 0.0 where mask is
            False; None until `credit.add_reference` sets them.
        stream_weights: For each loss of several (such as `rl`, `ce`, `kl`), the weight of each token in it: float32,
            shape (L,). Trainers multiply the loss of a token by it, and add the losses. Empty if there is one loss.
        media: The images in the tokens, in order, each with the range of its placeholder tokens.
        metadata: `env`, `seed`, `tokenizer` (its fingerprint), `vocab_size`, `steps` (their indices in the trajectory)
            and `is_scored`.
    """

    tokens: Int32s
    mask: Bools
    logprobs: Float32s | None
    step_ids: Int32s
    reward: Number
    step_rewards: Float32s
    temperature: Float32s
    policy_version: Int32s
    part_ids: Int32s
    context: str
    role: str
    parent: str | None
    trajectory_id: str
    segment_index: Count
    n_segments: Count
    loss_weight: Number
    stop_reason: str
    truncated: bool
    breaks: list[StoredBreak] = field(default_factory=list[Break])
    group_id: str | None = None
    advantage: Number | Float32s | None = None
    extra: Annotated[dict[str, Any], Packed] = field(default_factory=dict[str, Any])
    metadata: JsonObject = field(default_factory=dict[str, Any])
    roles: Roles | None = field(default=None, metadata={"optional": True})
    reference_logprobs: Float32s | None = field(default=None, metadata={"optional": True})
    stream_weights: dict[str, Float32s] = field(default_factory=dict, metadata={"optional": True})  # pyright: ignore[reportUnknownVariableType]
    media: StoredMedia = field(default_factory=list[PlacedImage], metadata={"optional": True})

    def __len__(self) -> int:
        return len(self.tokens)

    def _repr_html_(self) -> str:
        """Return a card for notebooks, with a bar that shows which tokens are trained."""
        trained = int(np.count_nonzero(self.mask))
        known = np.empty(0) if self.logprobs is None else self.logprobs[self.mask & ~np.isnan(self.logprobs)]
        advantage = np.mean(self.advantage[self.mask]) if isinstance(self.advantage, np.ndarray) else self.advantage
        facts = {
            "context": self.context,
            "segment": f"{self.segment_index + 1} of {self.n_segments}",
            "tokens": f"{len(self):,}",
            "trained": f"{trained:,}",
            "images": ", ".join(repr(placed.image) for placed in self.media),
            "reward": f"{self.reward:g}",
            "advantage": None if advantage is None else f"{advantage:.4g}",
            "mean log-probability": f"{np.mean(known):.4f}" if len(known) else None,
            "breaks": named(Counter(break_.reason for break_ in self.breaks)),
            "ended": self.stop_reason,
        }
        return card(f"Sample of {self.trajectory_id}", facts, bar=mask_bar(self.mask))

    @property
    def is_scored(self) -> bool:
        """Whether its context earned a reward, according to its metadata; see `Trajectory.is_scored`."""
        return bool(self.metadata.get("is_scored", True))

    def validate(self) -> "Sample":
        """Check that the sample is sound. Nothing is padded or repaired.

        Returns:
            The sample itself.

        Raises:
            InvalidSample: If it is not; the message names the field and the position.
        """
        self._check_fields()
        self._check_arrays()
        size = int(self.metadata.get("vocab_size") or 0) or _ANY_ID
        if not self.mask.any():
            raise InvalidSample("mask is False everywhere: no token is trained")
        if self.mask[0]:
            raise InvalidSample("mask[0] is True, but nothing comes before that token to predict it")
        self._refuse("tokens", (self.tokens < 0) | (self.tokens >= size), f"is outside 0 to {size - 1}")
        for name, kind, entries in (("step_ids", "step", "step_rewards"), ("part_ids", "part", "temperature")):
            ids: NDArray[np.int32] = getattr(self, name)
            self._refuse(name, self.mask > (ids >= 0), f"is not a {kind}, but mask is True")
            self._refuse(name, ids < -1, f"is below -1, which means no {kind}")
            self._refuse(name, ids >= len(getattr(self, entries)), f"has no entry in {entries}")
        self._refuse("part_ids", (self.part_ids < 0) != (self.step_ids < 0), "does not fit step_ids: one of them is -1")
        for name in ("logprobs", "reference_logprobs"):
            logprobs: NDArray[np.float32] | None = getattr(self, name)
            if logprobs is not None:
                self._refuse(name, self.mask & np.isnan(logprobs), "is missing (NaN), but mask is True")
                self._refuse(name, ~(logprobs <= 0) | np.isinf(logprobs), "is not a log-probability")
                self._refuse(name, (logprobs != 0) > self.mask, "is not 0.0, but mask is False")
        for name in ("step_rewards", "temperature"):
            self._refuse(name, ~np.isfinite(getattr(self, name)), "is not finite")
        self._refuse("temperature", self.temperature < 0, "is negative")
        self._refuse("policy_version", self.policy_version < -1, "is below -1, which is an unknown version")
        if self.loss_weight < 0:
            raise InvalidSample(f"loss_weight is {self.loss_weight}; expected at least 0")
        if isinstance(self.advantage, np.ndarray):
            self._refuse("advantage", ~np.isfinite(self.advantage), "is not finite")
        return self

    def _check_fields(self) -> None:
        """Check the fields that are not arrays, and the known entries of the metadata."""
        for name, (kind, expected) in _SCALARS.items():
            value: Any = getattr(self, name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise InvalidSample(f"{name} is {brief(value)}; expected {expected}")
        advantage: Any = self.advantage
        numbers: dict[str, Any] = {"reward": self.reward, "loss_weight": self.loss_weight}
        if isinstance(advantage, (float, Real)):
            numbers["advantage"] = advantage
        for name, value in numbers.items():
            # An integer may be beyond all floats, so it is compared as it is.
            if isinstance(value, bool) or not isinstance(value, Real) or not abs(cast("Any", value)) <= LARGEST:
                raise InvalidSample(f"{name} is {brief(value)}; expected a finite number of float32")
        if not 0 <= self.segment_index < self.n_segments:
            raise InvalidSample(
                f"segment_index is {self.segment_index} of n_segments {self.n_segments}; expected one of 0 to "
                "n_segments - 1"
            )
        for index, break_ in enumerate(self.breaks):
            try:
                check_break(break_)
            except InvalidRecord as error:
                raise InvalidSample(f"breaks[{index}] {error}") from error
        for name, (kind, expected) in _METADATA.items():
            value = self.metadata.get(name)
            if value is not None and (not isinstance(value, kind) or (kind is Integral and isinstance(value, bool))):
                raise InvalidSample(f"metadata[{name!r}] is {brief(value)}; expected {expected}")
        steps: Any = self.metadata.get("steps")
        if steps is not None and any(type(step) is not int or step < 0 for step in steps):
            raise InvalidSample(f"metadata['steps'] is {brief(steps)}; expected indices of steps")
        size = int(self.metadata.get("vocab_size") or 0)
        if not 0 <= size <= _ANY_ID:
            raise InvalidSample(f"metadata['vocab_size'] is {brief(size)}; expected 0 to 2**31 - 1")

    def _check_arrays(self) -> None:
        """Check the types and shapes of arrays, and what has a value for each token: side data, streams and images."""
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
                raise InvalidSample(f"{name} has shape {array.shape}, expected {expected}, which fits the others")
        for name, value in self.extra.items():
            self._check_extra(name, value)
        if self.roles is not None:
            try:
                self.roles.check(len(self))
            except ValueError as error:
                raise InvalidSample(f"roles is not valid: {error}") from error
        for name, given in cast("dict[Any, Any]", self.stream_weights).items():
            if not isinstance(name, str) or type(given) is not np.ndarray or given.dtype != np.float32:
                raise InvalidSample(f"stream_weights[{brief(name)}] is {brief(given)}; expected an array of float32")
            if given.shape != self.tokens.shape or not np.isfinite(given).all() or given[0] != 0:
                raise InvalidSample(
                    f"stream_weights[{name!r}] has shape {given.shape}; expected {self.tokens.shape}, with finite "
                    "numbers, and 0.0 at the first token, which nothing predicts"
                )
        end = 0
        for index, placed in enumerate(self.media):
            if not isinstance(placed, PlacedImage) or not end <= placed.start < placed.stop <= len(self):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidSample(
                    f"media[{index}] is {brief(placed, 120)}; expected a PlacedImage whose tokens are among the "
                    f"{len(self)} of the sample, after those of the image before it"
                )
            if self.mask[placed.start : placed.stop].any():
                raise InvalidSample(f"media[{index}] has a placeholder that is trained, which no policy samples")
            end = placed.stop

    def _check_extra(self, name: Any, value: Any) -> None:
        if not isinstance(name, str):
            raise InvalidSample(f"extra has the key {brief(name)}; expected strings")
        if isinstance(value, np.ndarray):
            array = cast("NDArray[Any]", value)
            if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise InvalidSample(f"extra[{name!r}] is {type_of(array)} of {array.dtype}; expected numbers")
            if array.shape[:1] != self.tokens.shape:
                raise InvalidSample(f"extra[{name!r}] has shape {array.shape}, but there are {len(self)} tokens")
        elif isinstance(value, (Aligned, Ragged)):
            try:
                value.check()
            except ValueError as error:
                raise InvalidSample(f"extra[{name!r}] is not valid: {error}") from error
            if len(value) != len(self):
                raise InvalidSample(f"extra[{name!r}] has {len(value)} rows, but there are {len(self)} tokens")
        elif not isinstance(value, list):
            raise InvalidSample(f"extra[{name!r}] is {brief(value)}; expected an array, or a list of the parts' values")
        elif len(cast("list[Any]", value)) != len(self.temperature):
            count = len(cast("list[Any]", value))
            raise InvalidSample(f"extra[{name!r}] has {count} values, but there are {len(self.temperature)} parts")

    def _refuse(self, name: str, wrong: "NDArray[np.bool_]", why: str) -> None:
        if wrong.any():
            position = int(np.argmax(wrong))
            raise InvalidSample(f"{name}[{position}] = {getattr(self, name)[position]} {why}")

    def to_json(self) -> bytes:
        """Write the sample as one line of JSON, without the line end. The same sample gives the same bytes."""
        record = record_of(self)
        if self.media:
            record |= {"media": dump_media(self.media), "images": embedded(placed.image for placed in self.media)}
        return dump("sample", {**record, "extra": fragment(pack(self.extra)), "metadata": fragment(self.metadata)})

    @classmethod
    def from_json(cls, line: bytes | str) -> "Sample":
        """Read what `to_json` wrote. No missing field is filled in, and no value is converted to another type.

        Raises:
            InvalidRecord: If the line is not a sample, has another schema version, is damaged, or is not sound; the
                message names the field.
        """
        try:
            fields = load(line, "sample")
            images = read_embedded(fields.pop("images", {}))
            sample = build(cls, fields).validate()
        except InvalidSample as error:
            raise InvalidRecord(f"the sample is not sound: {error}") from error
        for placed in sample.media:
            placed.image.find_in(None, images)
        return sample


def loss_weights(trained: Sequence[int]) -> list[float]:
    """Return the loss weight of each sample of a rollout, given how many tokens each of them trains."""
    total = sum(trained)
    return [count / total for count in trained]
