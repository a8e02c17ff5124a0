"""The on-policy check: the divergence between sampler and trainer on the tokens that were sampled."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..trajectories.samples import Sample
from .logprobs import LogprobPair, pair_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

Verdict: TypeAlias = Literal["healthy", "warning", "critical"]

WARNING, CRITICAL = 0.01, 0.1
"""The divergence, in nats per token, above which the verdict is a warning, or critical."""
FORCED_ABOVE = -0.01
"""A token is forced if the sampler's log-probability of it, in nats, is larger than this."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates of KL(sampler || trainer) in nats per token, from `d = lp_trainer - lp_sampler` of sampled tokens.

    Source: J. Schulman, "Approximating KL divergence", 2020.

    Attributes:
        tokens: The number of tokens in the means. If it is 0, all estimates are 0.0.
        k1: `mean(-d)`: unbiased; it may be negative.
        k2: `mean(d**2) / 2`: biased, with low variance. Differences that cancel out in k1 are visible here.
        k3: `mean(exp(d) - 1 - d)`: unbiased and never negative.
        verdict: `"healthy"`, `"warning"` or `"critical"`.
    """

    tokens: int
    k1: float
    k2: float
    k3: float

    @classmethod
    def of(cls, difference: "NDArray[np.float64]") -> "Estimate":
        """Compute the estimates.

        Args:
            difference: `lp_trainer - lp_sampler` of each token, in nats: float64, shape (m,).
        """
        d = difference
        if not d.size:
            return cls(0, 0.0, 0.0, 0.0)
        with np.errstate(over="ignore"):  # k3 is infinite then, which is the right answer
            k3 = np.mean(np.expm1(d) - d)
        return cls(len(d), float(0.0 - d.mean()), float(0.5 * np.mean(d * d)), float(k3))

    @property
    def verdict(self) -> Verdict:
        """The verdict on the largest of `|k1|`, k2 and k3: healthy up to 0.01, a warning up to 0.1, else critical."""
        worst = max(abs(self.k1), self.k2, self.k3)
        return "healthy" if worst <= WARNING else "warning" if worst <= CRITICAL else "critical"

    def __str__(self) -> str:
        return f"{self.verdict}: k1 {self.k1:.4g}, k2 {self.k2:.4g}, k3 {self.k3:.4g} over {self.tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class KL:
    """The divergence between sampler and trainer.

    Attributes:
        all: The estimate over all tokens with mask True.
        free: The estimate over the tokens that were not forced.
        forced: The estimate over the forced tokens. The sampler was almost certain of them (its log-probability is
            above -0.01), so they hide a divergence of the other tokens in the mean.
        forced_share: The share of forced tokens, from 0 to 1.
        by_step: Estimates by the index of the step in its trajectory (`Sample.metadata["steps"]`, else `step_ids`).
        by_position: Estimates by the position in the sample, in bins. The key is the first position of the bin.
        by_offset: Estimates by the position in the reply, in bins that double: 0, 1, 2 to 3, 4 to 7, ... They show
            log-probabilities that are shifted by one position, and last tokens that are missing.
        bin_size: The number of positions in a bin of `by_position`.
        verdict: The verdict over all tokens: `"healthy"`, `"warning"` or `"critical"`.
    """

    all: Estimate
    free: Estimate
    forced: Estimate
    forced_share: float
    by_step: dict[int, Estimate]
    by_position: dict[int, Estimate]
    by_offset: dict[int, Estimate]
    bin_size: int

    @property
    def verdict(self) -> Verdict:
        """The verdict over all tokens, for which the thresholds were published. Check `free.verdict` as well."""
        return self.all.verdict

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict and the fields as plain values for JSON. The keys of bins are strings."""
        record = {name: _with_string_keys(value) for name, value in asdict(self).items()}
        return {"verdict": self.verdict, **record}

    def __str__(self) -> str:
        lines = [
            str(self.all),
            f"not forced: {self.free}",
            f"forced (above {FORCED_ABOVE} for the sampler), {self.forced_share:.1%} of the tokens: {self.forced}",
        ]
        for name, part in (("step", self.by_step), ("position", self.by_position), ("token of reply", self.by_offset)):
            if part:
                key = max(part, key=lambda key: part[key].k2)
                lines.append(f"worst {name}, {key}: {part[key]}")
        return "\n".join(lines)


def kl(
    samples: Sequence[Sample],
    trainer_logprobs: Sequence[Any],
    *,
    bin_size: int = 256,
) -> KL:
    """Compare the trainer's log-probabilities of the sampled tokens with those of the sampler.

    Before the first update, both have the same weights. Then a difference is a fault: tokens that are not the sampled
    ones, shifted log-probabilities, a different temperature, or different numerics.

    Args:
        samples: Samples with log-probabilities. Only tokens with mask True are compared.
        trainer_logprobs: For each sample, the trainer's log-probabilities in nats, shape (L,), computed at the sample's
            temperature. The value at i is that of token i, given the tokens before it.
        bin_size: The number of positions in a bin of `KL.by_position`.

    Raises:
        InvalidSample: If lengths or shapes differ, a sample is invalid or has no log-probabilities, or a value of the
            trainer is positive, NaN or infinite where mask is True.
        ConfigError: If `bin_size` is not a positive integer.
    """
    if not isinstance(bin_size, Integral) or bin_size < 1:
        raise ConfigError(f"bin_size is {bin_size!r}; expected an integer of at least 1")
    pairs = pair_logprobs(samples, trainer_logprobs)
    difference = _joined([pair.trainer - pair.sampler for pair in pairs])
    is_forced = _joined([pair.sampler for pair in pairs]) > FORCED_ABOVE

    def by(key: "Callable[[LogprobPair], NDArray[Any]]") -> dict[int, Estimate]:
        return _grouped(_joined([key(pair) for pair in pairs]), difference)

    return KL(
        all=Estimate.of(difference),
        free=Estimate.of(difference[~is_forced]),
        forced=Estimate.of(difference[is_forced]),
        forced_share=float(is_forced.mean()) if len(is_forced) else 0.0,
        by_step=by(_steps),
        by_position=by(lambda pair: pair.positions // bin_size * bin_size),
        by_offset=by(_offsets),
        bin_size=bin_size,
    )


def _joined(arrays: "Sequence[NDArray[Any]]") -> "NDArray[np.float64]":
    return np.concatenate([np.empty(0), *arrays])


def _grouped(keys: "NDArray[np.float64]", difference: "NDArray[np.float64]") -> dict[int, Estimate]:
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    parts = np.split(difference[order], starts[1:])
    # Without keys, np.split still returns one (empty) part.
    return {int(key): Estimate.of(part) for key, part in zip(found, parts, strict=False)}


def _steps(pair: LogprobPair) -> "NDArray[Any]":
    ids = pair.sample.step_ids[pair.positions]
    steps: list[int] | None = pair.sample.metadata.get("steps")
    return ids if steps is None or len(steps) <= ids.max() else np.asarray(steps, dtype=np.int64)[ids]


def _offsets(pair: LogprobPair) -> "NDArray[np.float64]":
    """Return the number of tokens before each token in its reply, rounded down to a power of two: shape (m,)."""
    ids = pair.sample.step_ids[pair.positions]
    begins = np.append(True, ids[1:] != ids[:-1])
    first = pair.positions[begins][np.cumsum(begins) - 1]
    offset = pair.positions - first
    return np.where(offset > 0, 2.0 ** np.floor(np.log2(np.maximum(offset, 1))), 0.0)


def _with_string_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
