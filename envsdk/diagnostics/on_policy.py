"""The on-policy check: how far the trainer's probabilities are from the sampler's, on the tokens that were sampled."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..trajectories.samples import Sample
from .logprobs import Pair, paired

if TYPE_CHECKING:
    from numpy.typing import NDArray

Verdict: TypeAlias = Literal["healthy", "warning", "critical"]

WARNING, CRITICAL = 0.01, 0.1
FORCED_ABOVE = -0.01


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates of KL(sampler || trainer) in nats per token, from `d = lp_trainer - lp_sampler` of sampled tokens.

    Source: J. Schulman, "Approximating KL divergence", 2020.
    """

    tokens: int
    """How many tokens they are the mean of; with none, all are 0.0."""
    k1: float
    """`mean(-d)`: unbiased, may be negative."""
    k2: float
    """`mean(d**2) / 2`: biased, of low variance; a difference that cancels in k1 shows here."""
    k3: float
    """`mean(exp(d) - 1 - d)`: unbiased, never negative."""

    @classmethod
    def of(cls, difference: "NDArray[np.float64]") -> "Estimate":
        """Estimate.

        Args:
            difference: `lp_trainer - lp_sampler` of each token: float64, shape (m,).
        """
        d = difference
        if not d.size:
            return cls(0, 0.0, 0.0, 0.0)
        with np.errstate(over="ignore"):  # it is infinite then, which says enough
            k3 = np.mean(np.expm1(d) - d)
        return cls(len(d), float(0.0 - d.mean()), float(0.5 * np.mean(d * d)), float(k3))

    @property
    def verdict(self) -> Verdict:
        """By the largest of `|k1|`, k2 and k3: up to 0.01 healthy, up to 0.1 a warning, above it critical."""
        worst = max(abs(self.k1), self.k2, self.k3)
        return "healthy" if worst <= WARNING else "warning" if worst <= CRITICAL else "critical"

    def __str__(self) -> str:
        return f"{self.verdict}: k1 {self.k1:.4g}, k2 {self.k2:.4g}, k3 {self.k3:.4g} over {self.tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class KL:
    """How far the trainer is from the sampler."""

    all: Estimate
    """Over all tokens with mask True."""
    free: Estimate
    """Over those that were not forced."""
    forced: Estimate
    """Over those that were: there was next to no choice, so that they dilute the mean."""
    forced_share: float
    """Forced tokens / all tokens."""
    by_step: dict[int, Estimate]
    """By the index of the step in its trajectory (`Sample.metadata["steps"]`, else `step_ids`)."""
    by_position: dict[int, Estimate]
    """By the position in the sample, in bins: the key is a bin's first position."""
    by_offset: dict[int, Estimate]
    """By the position in the reply, in bins that double: 0, 1, 2 to 3, 4 to 7, ... Log-probabilities that are one place
    off, or the last tokens missing, show here."""
    bin_size: int
    """How many positions a bin of `by_position` has."""

    @property
    def verdict(self) -> Verdict:
        """That over all tokens; the published thresholds are for it. Look at that of `free` as well."""
        return self.all.verdict

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; keys of bins are texts."""
        record = {name: _with_text_keys(value) for name, value in asdict(self).items()}
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

    Before the first update both have the same weights, so what differs is a fault: tokens that were sampled as others,
    log-probabilities at other positions, another temperature, or another numeric path.

    Args:
        samples: Samples with log-probabilities; only tokens with mask True are read.
        trainer_logprobs: For each sample an array of shape (L,), natural logarithms: the value at i is that of token i.
            They are to be taken at the sample's temperature.
        bin_size: How many positions a bin of `KL.by_position` has.

    Raises:
        InvalidSample: For what does not fit, NaN, infinite and positive values; see `logprobs.paired`.
        ConfigError: If `bin_size` is not positive.
    """
    if not isinstance(bin_size, Integral) or bin_size < 1:
        raise ConfigError(f"bin_size is {bin_size!r}; expected an integer of at least 1")
    pairs = paired(samples, trainer_logprobs)
    difference = _joined([pair.trainer - pair.sampler for pair in pairs])
    is_forced = _joined([pair.sampler for pair in pairs]) > FORCED_ABOVE

    def by(key: "Callable[[Pair], NDArray[Any]]") -> dict[int, Estimate]:
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
    return {int(key): Estimate.of(part) for key, part in zip(found, parts, strict=False)}  # of no key there is one part


def _steps(pair: Pair) -> "NDArray[Any]":
    ids = pair.sample.step_ids[pair.positions]
    steps: list[int] | None = pair.sample.metadata.get("steps")
    return ids if steps is None or len(steps) <= ids.max() else np.asarray(steps, dtype=np.int64)[ids]


def _offsets(pair: Pair) -> "NDArray[np.float64]":
    """For each token how many stand before it in its reply, rounded down to a power of two."""
    ids = pair.sample.step_ids[pair.positions]
    begins = np.append(True, ids[1:] != ids[:-1])
    first = pair.positions[begins][np.cumsum(begins) - 1]
    offset = pair.positions - first
    return np.where(offset > 0, 2.0 ** np.floor(np.log2(np.maximum(offset, 1))), 0.0)


def _with_text_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
