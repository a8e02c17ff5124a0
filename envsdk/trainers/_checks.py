"""The checks of every adapter: are the samples valid, and does the trainer compute the probabilities of the sampler?"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._visible import brief
from ..diagnostics._inputs import valid_samples
from ..errors import ConfigError, InvalidSample, PolicyError
from ..policies._sampling import is_neutral, why_refused
from ..policies._vocabularies import PolicyWrapper
from ..rendering.tokenizers import Tokenizer
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from ..policies._policy import PolicyLike

TEXT_ONLY = "the adapter passes tokens only, whose placeholders would stand for nothing"
"""The default reason why an adapter refuses images."""
_HARMLESS = {"seed"}
"""The sampling options of an environment that do not change the distribution that the policy samples from."""


def check_samples(
    samples: Iterable[Sample],
    *,
    logprobs: bool = True,
    advantage: bool = False,
    scored: bool = False,
    temperature: float | None = None,
    first: int = 0,
    no_images: str | None = TEXT_ONLY,
) -> list[Sample]:
    """Return the samples as a list, after checking that the trainer would train them correctly.

    Args:
        samples: The samples.
        logprobs: Whether the trainer needs the sampler's log-probabilities.
        advantage: Whether the trainer needs an advantage.
        scored: Whether the trainer needs the reward of an episode that was scored.
        temperature: The temperature by which the trainer divides logits; None if it uses that of each token.
        first: The index of the first sample, for error messages.
        no_images: Why a sample with images is refused, for the error message; None if the adapter passes the images on
            (`Sample.media`). By default, they are refused.

    Raises:
        InvalidSample: If a sample is invalid (`Sample.validate`), lacks what the trainer needs, or has images that the
            trainer would not get. The error names the sample and the field.
    """
    valid = valid_samples(samples, first=first)
    for index, sample in enumerate(valid, start=first):
        problem = None
        used = np.unique(sample.temperature[sample.part_ids[sample.mask]])
        if no_images is not None and sample.media:
            image = sample.media[0]
            problem = (
                f"it has images ({len(sample.media)}, the first at tokens {image.start} to {image.stop}), but "
                f"{no_images}. docs/images.md#trainers lists the trainers that take images"
            )
        elif logprobs and sample.logprobs is None:
            problem = "it has no log-probabilities: the policy must return Action(..., logprobs=...)"
        elif advantage and sample.advantage is None:
            problem = "it has no advantage: compute one with envsdk.credit.group_advantages"
        elif scored and not sample.is_scored:
            problem = (
                "it was not scored, because no turn had a reward: leave it out, or return Turn(..., reward=0.0) where "
                "a turn earns nothing"
            )
        elif temperature is not None and (used != np.float32(temperature)).any():
            problem = (
                f"it was sampled at temperature {' and '.join(f'{value:g}' for value in used)}, but the trainer's is "
                f"{temperature:g}, so every importance ratio would be wrong: use the same temperature for both"
            )
        if problem is not None:
            raise InvalidSample(f"sample {index}, of trajectory {sample.trajectory_id!r}: {problem}")
    return valid


def check_sampling(sampling: Mapping[str, Any], temperature: float | None) -> None:
    """Check that the sampling options of an environment do not change the probabilities that the trainer computes.

    Args:
        sampling: The options that the environment requests, `info["sampling"]`.
        temperature: The trainer's temperature; None if the environment may not request one.

    Raises:
        ConfigError: If an option would make every importance ratio wrong. The error names it.
    """
    for name, value in sampling.items():
        is_harmless = name in _HARMLESS or is_neutral(name, value)
        if not is_harmless and not (name == "temperature" and value == temperature):
            off = '{"grammar": None}' if name == "grammar" else "{}"
            raise ConfigError(
                f"the environment requests {name}={brief(value)} with Turn(sampling=), but the trainer computes "
                f"log-probabilities at temperature {temperature} without it, so every importance ratio would be wrong: "
                "remove the option from the environment, or set it in the trainer; if an agent program requests it, "
                f"set `sampling = {off}` in its ProgramEnv"
            )


def refusal_of(temperature: float | None) -> "Callable[[str, Any], str | None]":
    """Return the `refuses_sampling` of a policy (see `Policy`) by the rule of `check_sampling`."""
    return partial(why_refused, partial(check_sampling, temperature=temperature))


def guard_policy(policy: "PolicyLike", temperature: float | None, tokenizer: "Tokenizer | None" = None) -> "PolicyLike":
    """Wrap a policy so that it calls `check_sampling` for each request. A built-in policy name is returned as it is.

    A request that is refused is a `PolicyError`, which fails its episode and not the run.

    Args:
        policy: The policy, or a mapping with one for each role.
        temperature: The trainer's temperature.
        tokenizer: The trainer's tokenizer, if known, for a policy that declares no tokenizer.
    """
    if isinstance(policy, Mapping):
        by_role = cast("Mapping[str, PolicyLike]", policy)
        return {role: guard_policy(own, temperature, tokenizer) for role, own in by_role.items()}
    if isinstance(policy, str):
        return policy

    def sample(inner: Any, prompt: Any, *, sampling: Mapping[str, Any], **request: Any) -> Any:
        try:
            check_sampling(sampling, temperature)
        except ConfigError as error:  # of this episode's environment, and not of the policy
            raise PolicyError(str(error)) from error
        return inner(prompt, sampling=sampling, **request)

    return PolicyWrapper(sample, policy, tokenizer, refusal_of(temperature))
