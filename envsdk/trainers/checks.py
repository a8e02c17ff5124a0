"""What every adapter asks first: are the samples sound, and can the trainer compute what the sampler did?"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import ConfigError, InvalidSample
from ..policies.vocabularies import Layer
from ..rendering.tokenizers import Tokenizer
from ..trajectories.samples import Sample

if TYPE_CHECKING:
    from ..policies.builtin import PolicyLike

_HARMLESS = {"seed"}
"""What an environment may ask of the sampler without changing the distribution that it samples from."""


def checked(
    samples: Iterable[Sample],
    *,
    logprobs: bool = True,
    advantage: bool = False,
    scored: bool = False,
    temperature: float | None = None,
    first: int = 0,
) -> list[Sample]:
    """Refuse samples that are not sound, or that the trainer would train wrongly without a word.

    Args:
        samples: The samples.
        logprobs: Whether the trainer needs the sampler's log-probabilities.
        advantage: Whether it needs an advantage.
        scored: Whether it needs a reward that somebody gave.
        temperature: What it divides logits by; None if it takes each token's own.
        first: The number of the first sample, for messages.

    Raises:
        InvalidSample: It names the sample, the field and the position.
    """
    if isinstance(samples, Sample) or not isinstance(samples, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSample(f"samples is a {type(samples).__name__}; expected a list of samples: trajectory.samples()")
    found: list[Sample] = []
    for index, sample in enumerate(samples, start=first):
        if not isinstance(sample, Sample):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSample(f"sample {index} is a {type(sample).__name__}; expected a Sample: trajectory.samples()")
        try:
            sample.validate()
            if logprobs and sample.logprobs is None:
                raise InvalidSample("it has no log-probabilities: the policy has to give them in its actions")
            if advantage and sample.advantage is None:
                raise InvalidSample("it has no advantage: see envsdk.credit.group_advantages")
            if scored and not sample.is_scored:
                raise InvalidSample(
                    "no turn gave a reward, so it was not scored: leave it out, or give a turn that earns nothing "
                    "reward=0.0"
                )
            if temperature is not None:
                _check_temperature(sample, temperature)
        except InvalidSample as error:
            raise InvalidSample(f"sample {index}, of trajectory {sample.trajectory_id!r}: {error}") from error
        found.append(sample)
    return found


def check_sampling(asked: Mapping[str, Any], temperature: float | None) -> None:
    """Refuse what an environment asks of the sampler that the trainer does not know of: every ratio would be wrong.

    Args:
        asked: What it asks for: `info["sampling"]`.
        temperature: The trainer's.

    Raises:
        ConfigError: It names what is asked for.
    """
    for name, value in asked.items():
        if name not in _HARMLESS and not (name == "temperature" and value == temperature):
            raise ConfigError(
                f"the environment asks for {name}={value!r} by Turn(sampling=), but the trainer computes its "
                f"log-probabilities at temperature {temperature} without it, so every ratio would be wrong"
            )


def guarded(policy: "PolicyLike", temperature: float | None, tokenizer: "Tokenizer | None" = None) -> "PolicyLike":
    """A policy that refuses what `check_sampling` refuses; a named one samples nothing, and stays as it is.

    Args:
        policy: The policy, or one for each role.
        temperature: The trainer's.
        tokenizer: The trainer's, if it is known: that of a policy which declares none.
    """
    if isinstance(policy, Mapping):
        by_role = cast("Mapping[str, PolicyLike]", policy)
        return {role: guarded(one, temperature, tokenizer) for role, one in by_role.items()}
    if isinstance(policy, str):
        return policy

    def ask(prompt: Any, *, sampling: Mapping[str, Any], **request: Any) -> Any:
        check_sampling(sampling, temperature)
        return policy(prompt, sampling=sampling, **request)

    return Layer(ask, policy, tokenizer)


def _check_temperature(sample: Sample, temperature: float) -> None:
    used = np.unique(sample.temperature[sample.part_ids[sample.mask]])
    if (used != np.float32(temperature)).any():
        named = " and ".join(f"{value:g}" for value in used)
        raise InvalidSample(
            f"it was sampled at temperature {named}, but the trainer's is {temperature:g}, so every ratio would be "
            "wrong: give both the same"
        )
