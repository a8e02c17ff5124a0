"""Sampling of one token from a model's logits: temperature, top-k and top-p. This module does not import torch."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import ConfigError, UnknownName

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (-1, 0, None),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "grammar": (None,),
}
"""The neutral values of sampling parameters, as the APIs of model servers define them."""
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: 0 <= value < math.inf, "a finite number of at least 0"),
    "top_k": (lambda value: value is None or operator.index(value) >= 1, "None or an integer of at least 1"),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
    "grammar": (lambda value: value is None or (isinstance(value, str) and value != ""), "None or a grammar"),
    "grammar_sampled": (lambda value: operator.index(value) >= 0, "a number of tokens"),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. The temperature is applied first, then `top_k`, then `top_p`."""

    temperature: float = 1.0
    """0 means greedy: the most likely token is chosen, with log-probability 0."""
    top_k: int | None = None
    """The number of most likely tokens to sample from; None for all. Tokens tied with the last of them are kept."""
    top_p: float = 1.0
    """Sample from the smallest set of most likely tokens whose total probability is at least this number."""
    grammar: str | None = None
    """The grammar of the whole reply, in a language of llguidance. It is applied before the temperature."""
    grammar_sampled: int = 0
    """The number of tokens at the end of the prompt that were sampled under the grammar already."""

    def __post_init__(self) -> None:
        for name, (holds, expected) in _RULES.items():
            value: Any = getattr(self, name)
            try:
                is_valid = holds(value)
            except TypeError:
                is_valid = False
            if not is_valid:
                raise ConfigError(f"{name} is {value!r}; expected {expected}")

    def updated(self, changes: Mapping[str, Any], policy: str) -> "Sampling":
        """Return a copy with the parameters that an environment requests.

        Args:
            changes: The parameters by name.
            policy: The name of the policy, for the error.

        Raises:
            UnknownName: If a name is not a sampling parameter, and its value is not neutral.
            ConfigError: If a value is not valid.
        """
        known = [field.name for field in fields(self)]
        wanted: dict[str, Any] = {}
        for name, value in changes.items():
            if name in known:
                wanted[name] = None if is_neutral(name, value) else value
            elif not is_neutral(name, value):
                raise UnknownName.of(f"sampling parameter of {policy}", name, known)
        return replace(self, **wanted)


def is_neutral(name: str, value: Any) -> bool:
    """Return whether a sampling parameter with this value changes nothing, so that a policy may ignore it."""
    return not isinstance(value, bool) and value in _NEUTRAL.get(name, ())


def why_refused(check: Callable[[Mapping[str, Any]], object], name: str, value: Any) -> str | None:
    """Return why a policy does not honor a sampling parameter; None if it does.

    Args:
        check: Raises `UnknownName` or `ConfigError` for parameters that the policy does not honor.
        name: The parameter.
        value: Its value.
    """
    try:
        check({name: value})
    except (ConfigError, UnknownName) as error:
        return str(error)
    return None


def draw(logits: Any, sampling: Sampling, uniform: float) -> tuple[int, float]:
    """Sample a token.

    Args:
        logits: A float32 tensor of shape (vocab_size,).
        sampling: The sampling parameters.
        uniform: A random number in [0, 1).

    Returns:
        The token id, and its log-probability under the distribution that it was sampled from.
    """
    if sampling.temperature == 0:
        return int(logits.argmax()), 0.0
    scores = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -float("inf"))
    if sampling.top_p < 1:
        ordered, order = scores.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        scores = scores.index_fill(0, order[before >= sampling.top_p], -float("inf"))
    logprobs = scores.log_softmax(-1)
    cumulated = logprobs.exp().double().cumsum(-1)
    # 1 - uniform is above 0, so this never chooses a token of probability 0.
    token = int((cumulated < (1.0 - uniform) * cumulated[-1]).sum())
    return token, float(logprobs[token])
