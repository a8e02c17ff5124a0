"""What diagnostics are given: samples and token ids, checked."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import InvalidSample
from ..trajectories.samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sound_samples(samples: Iterable[Sample]) -> list[Sample]:
    """The samples as a list.

    Raises:
        InvalidSample: If they are something else, or one is not sound (`Sample.validate`); it names which.
    """
    if isinstance(samples, Sample) or not isinstance(samples, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSample(f"expected a list of samples, got a {type(samples).__name__}")
    listed: list[Any] = list(samples)
    for index, sample in enumerate(listed):
        if not isinstance(sample, Sample):
            raise InvalidSample(f"sample {index} is a {type(sample).__name__}; expected a Sample")
        try:
            sample.validate()
        except InvalidSample as error:
            raise InvalidSample(f"sample {index}: {error}") from error
    return cast("list[Sample]", listed)


def token_ids(name: str, tokens: Any) -> "NDArray[np.int64]":
    """Token ids: int64, shape (n,).

    Args:
        name: What they are, for errors.
        tokens: The ids.

    Raises:
        InvalidSample: If they are no ids.
    """
    try:
        ids = np.asarray(tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"{name} is no flat array of ids: {error}") from error
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidSample(f"{name} is an array of {ids.dtype} of shape {ids.shape}; expected ids, shape (n,)")
    wrong = (ids < 0) | (ids > np.iinfo(np.int32).max)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InvalidSample(f"{name} has {ids[at]} at position {at}, which is no id")
    return ids.astype(np.int64)
