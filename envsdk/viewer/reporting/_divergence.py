"""How far the sampler of a run is from its trainer or reference, from the samples that were stored with it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..._untrusted import open_file, read_lines
from ...diagnostics._divergence import Estimate
from ...errors import InvalidRecord
from ...trajectories._samples import Sample
from ._figures import Damage, Divergence

SAMPLES = "samples.jsonl"
_MARK = b'"reference_logprobs"'


@dataclass(slots=True)
class StoredDivergence:
    """What the samples of a run say about the divergence.

    Attributes:
        divergence: The estimates; None if no sample has both log-probabilities.
        missing: Why there are none; empty otherwise.
        damaged: The lines that could not be read.
    """

    divergence: Divergence | None = None
    missing: str = ""
    damaged: list[Damage] = field(default_factory=list[Damage])


def stored_divergence(folder: Path) -> StoredDivergence:
    """Read the samples next to the trajectories, one at a time.

    Args:
        folder: The folder of the file of trajectories.

    Raises:
        OSError: If the file is there and cannot be read.
    """
    found = StoredDivergence()
    file = folder / SAMPLES
    if not file.is_file():
        found.missing = f"there is no {SAMPLES}"
        return found
    estimates = [(Estimate.of(difference), len(difference)) for difference in _differences(file, found.damaged)]
    tokens = sum(count for _, count in estimates)
    if not tokens:
        found.missing = (
            f"no sample in {SAMPLES} has the log-probabilities of both the sampler and a trainer or reference; "
            "credit.add_reference adds the latter"
        )
        return found
    k1, k2, k3 = (sum(getattr(one, name) * count for one, count in estimates) / tokens for name in ("k1", "k2", "k3"))
    outliers = sum(one.outliers for one, _ in estimates)
    found.divergence = Divergence(len(estimates), tokens, k1, k2, k3, outliers)
    return found


def _differences(file: Path, damaged: list[Damage]) -> "Iterator[np.ndarray]":
    """Yield `lp_reference - lp_sampler` of the trained tokens of each sample that has both: float64, shape (m,)."""
    number = 0
    try:
        with open_file(file, inside=file.parent) as lines:
            for number, line in enumerate(read_lines(lines), start=1):
                if _MARK in line and line.endswith(b"\n"):  # most samples have none, and need no check
                    yield from _difference(file.name, number, line, damaged)
    except InvalidRecord as error:
        damaged.append(Damage(file.name, number + 1, str(error)))


def _difference(name: str, number: int, line: bytes, damaged: list[Damage]) -> "Iterator[np.ndarray]":
    try:
        sample = Sample.from_json(line).validate()
    except ValueError as error:
        damaged.append(Damage(name, number, str(error)))
        return
    if sample.logprobs is not None and sample.reference_logprobs is not None and sample.mask.any():
        yield (sample.reference_logprobs.astype(np.float64) - sample.logprobs)[sample.mask]
