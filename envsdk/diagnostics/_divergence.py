"""Estimates of the divergence between sampler and trainer, and the part that a numeric format explains."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Verdict: TypeAlias = Literal["healthy", "warning", "critical"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The best one first."""
NumericFormat: TypeAlias = Literal["bfloat16", "float16", "float32"]


class Thresholds(NamedTuple):
    """The largest healthy values; up to ten times as much is a warning, and more is critical."""

    k1: float
    """The largest `|k1|`, in nats per token."""
    k2: float
    """The largest k2 and k3, which are equal for small differences."""
    outlier: float
    """The largest difference of a token, in nats, that is not an outlier."""


PUBLISHED = Thresholds(0.01, 0.001, math.log(2))
"""The thresholds of practice in half precision. An outlier is a token that is twice as likely for one of the two."""
THRESHOLDS: Mapping[NumericFormat, Thresholds] = {
    "bfloat16": PUBLISHED,
    # Rounding errors are 2**-3 of those of bfloat16: 10 bits of a mantissa instead of 7.
    "float16": Thresholds(PUBLISHED.k1 / 8, PUBLISHED.k2 / 64, PUBLISHED.outlier / 8),
    # A hundred times what was measured between vLLM and transformers: k1 6.5e-8 and k2 3.1e-11 over 3,211 tokens.
    "float32": Thresholds(1e-5, 1e-8, 1e-3),
}
"""By the format of the less precise of the two. Rounding alone stays below them if both have the same weights."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates of KL(sampler || trainer) in nats per token, from `d = lp_trainer - lp_sampler` of sampled tokens.

    Source: J. Schulman, "Approximating KL divergence", 2020.

    Attributes:
        tokens: The number of tokens in the means. If it is 0, all estimates are 0.0.
        k1: `mean(-d)`: unbiased; it may be negative.
        k2: `mean(d**2) / 2`: biased, with low variance. Differences that cancel out in k1 are visible here.
        k3: `mean(exp(d) - 1 - d)`: unbiased and never negative.
        outliers: The number of tokens whose `|d|` is above the threshold for outliers.
        dtype: The numeric format whose thresholds apply; None for the published ones.
        verdict: `"healthy"`, `"warning"` or `"critical"`.
    """

    tokens: int
    k1: float
    k2: float
    k3: float
    outliers: int = 0
    dtype: NumericFormat | None = None

    @classmethod
    def of(cls, difference: "NDArray[np.float64]", dtype: NumericFormat | None = None) -> "Estimate":
        """Compute the estimates.

        Args:
            difference: `lp_trainer - lp_sampler` of each token, in nats: float64, shape (m,).
            dtype: The numeric format whose thresholds apply; None for the published ones.
        """
        d = difference
        if not d.size:
            return cls(0, 0.0, 0.0, 0.0, 0, dtype)
        with np.errstate(over="ignore"):  # k3 is infinite then, which is the right answer
            k3 = np.mean(np.expm1(d) - d)
        outliers = int(np.count_nonzero(np.abs(d) > thresholds_of(dtype).outlier))
        return cls(len(d), float(0.0 - d.mean()), float(0.5 * np.mean(d * d)), float(k3), outliers, dtype)

    @property
    def verdict(self) -> Verdict:
        """The worst of the verdicts on `|k1|`, k2 and k3, each with its own threshold (`THRESHOLDS`)."""
        limits = thresholds_of(self.dtype)
        worst = max(abs(self.k1) / limits.k1, self.k2 / limits.k2, self.k3 / limits.k2)
        return "healthy" if worst <= 1 else "warning" if worst <= 10 else "critical"

    def __str__(self) -> str:
        return f"{self.verdict}: k1 {self.k1:.4g}, k2 {self.k2:.4g}, k3 {self.k3:.4g} over {self.tokens:,} tokens"


def thresholds_of(dtype: NumericFormat | None) -> Thresholds:
    """Return the thresholds of a numeric format; the published ones for None."""
    return PUBLISHED if dtype is None else THRESHOLDS[dtype]
