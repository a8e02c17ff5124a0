"""The advantages of the tokens that caused a break, from the break's value."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from .._visible import brief
from ..diagnostics._inputs import valid_samples
from ..errors import ConfigError, InvalidSample
from ..rollouts._break_values import BreakValue
from ..trajectories._samples import Sample
from ._baselines import leave_one_out
from ._values import finite_array


def add_break_advantages(
    samples: Sequence[Sample],
    values: Iterable[BreakValue],
    baseline: Literal["none", "leave_one_out"] = "none",
    *,
    scale: float = 1.0,
) -> list[Sample]:
    """Give the tokens that caused a break an advantage of their own, in which the luck of one episode is averaged out.

    With `D = reward_dropped - reward_kept`, n pairs of plays, and the episode's own reward R, the tokens get:

    - If the plays without the break do not have these tokens, which is so where the model wrote a summary in a context
      of its own: `A = scale * D`. It takes the place of the advantage that they had.
    - Otherwise (a `fold`, or the reply before any other break): `A += scale * n / (n + 1) * (reward_dropped - R)`. So
      R, one outcome of what they caused, becomes the mean of n + 1 outcomes. It is D plus the credit of the plays
      without the break, `(n * D + n * reward_kept + R) / (n + 1) - b`, with the baseline b that A has.

    Both leave the expected gradient as it is. Write Q(s, a) for the expected reward of an episode in which the tokens a
    were sampled in the state s; the gradient is `E[grad log p(a | s) * (Q(s, a) - b)]` for any b that does not depend
    on a. In the first case b is the value of the plays without the summary. It does not depend on a, nor on whether the
    summary was accepted: a rejected one changes nothing, so its D would be 0, and it is rightly not trained. In the
    second case D alone would be biased, for two reasons: what the plays without the break earn depends on a, which they
    still have; and only some replies cause a break, so b would be one thing for these and another for the others. What
    is added has the expectation 0 for each a, as all n + 1 outcomes have the same distribution given s and a.

    This holds for plays by the policy that is trained, and breaks that were chosen without regard to the reply, as
    `share` does. The advantages that the samples have must be linear in R: those of the baselines `leave_one_out` and
    `none` with `scale=1.0`, and of `mean` with (n - 1) / n for groups of n episodes. A baseline that divides by a
    standard deviation needs its inverse as `scale`.

    Args:
        samples: Samples with an advantage, such as those of `group_advantages`.
        values: What `rollouts.break_values` returned for their trajectories. One without a pair of plays changes
            nothing, nor does one whose cause is in none of the samples.
        baseline: What is subtracted from the differences of summaries. `leave_one_out`: the mean difference of the
            other episodes of the group, if there is one. It lowers the variance where forgetting usually costs
            something. But what is rejected would then need an advantage, so it is exact only if no summary is rejected.
        scale: The advantage of one unit of reward; at least 0.

    Returns:
        New samples in the same order. Their `advantage` is float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If the baseline is unknown, `scale` is negative or not finite, two values are of the same break, or
            a sample has no `group_id` although there is a baseline.
        InvalidSample: If a sample is invalid, or has no advantage or no `metadata["steps"]`; or a reward is not finite.
    """
    if not isinstance(scale, Real) or not 0 <= scale < np.inf:
        raise ConfigError(f"scale is {scale!r}; expected a finite number of at least 0")
    if baseline not in ("none", "leave_one_out"):
        raise ConfigError(f"baseline is {brief(baseline)}; expected 'none' or 'leave_one_out'")
    given_values: list[Any] = list(values) if isinstance(values, Iterable) else [values]  # pyright: ignore[reportUnnecessaryIsInstance]
    wrong = [type(value).__name__ for value in given_values if not isinstance(value, BreakValue)]
    if wrong:
        raise ConfigError(f"values has a {wrong[0]}; expected what rollouts.break_values returned")
    by_cause: dict[tuple[str, int], BreakValue] = {}
    for value in given_values:
        if by_cause.setdefault((value.trajectory_id, value.cause_step), value) is not value:
            raise ConfigError(
                f"values has two values of the break at step {value.step + 1} of {value.trajectory_id!r}: give the "
                "values of one call of break_values, for trajectories with unique ids"
            )
    checked = valid_samples(samples)
    groups: dict[str | None, dict[tuple[str, int], float]] = {}
    for index, sample in enumerate(checked):
        for step in sample.metadata["steps"]:
            value = by_cause.get((sample.trajectory_id, step))
            if value is not None and value.pairs and value.cause[0] != value.break_.context:
                if baseline != "none" and sample.group_id is None:
                    raise ConfigError(f"sample {index} has no group_id, so its summary cannot be compared with others")
                groups.setdefault(sample.group_id, {})[sample.trajectory_id, step] = value.difference
    differences: dict[tuple[str, int], float] = {}
    for group in groups.values():
        owners, given = [owner for owner, _ in group], list(group.values())
        is_compared = baseline == "leave_one_out" and len(set(owners)) > 1
        differences |= zip(group, leave_one_out(given, owners).tolist() if is_compared else given, strict=True)
    added: list[Sample] = []
    for index, sample in enumerate(checked):
        if sample.advantage is None:
            raise InvalidSample(f"sample {index} has no advantage: compute it first, for example with group_advantages")
        advantage = np.where(sample.mask, sample.advantage, 0.0).astype(np.float64)
        for number, step in enumerate(sample.metadata["steps"]):
            key, tokens = (sample.trajectory_id, step), sample.mask & (sample.step_ids == number)
            if key in differences:
                advantage[tokens] = scale * differences[key]
            elif (value := by_cause.get(key)) is not None and value.pairs:
                weight = scale * value.pairs / (value.pairs + 1)
                advantage[tokens] += weight * (value.reward_dropped - sample.reward)
        finite_array(f"the advantages of sample {index}", advantage, np.float32)
        added.append(replace(sample, advantage=advantage.astype(np.float32)))
    return added
