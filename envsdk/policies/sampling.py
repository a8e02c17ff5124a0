"""How a token is drawn from a model's logits. Needs no torch until it gets a tensor."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import ConfigError, unknown_name

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: 0 <= value < math.inf, "a finite number of at least 0"),
    "top_k": (lambda value: value is None or operator.index(value) >= 1, "None or an integer of at least 1"),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The temperature comes first, then `top_k`, then `top_p`."""

    temperature: float = 1.0
    """0 takes the likeliest token, whose log-probability is then 0."""
    top_k: int | None = None
    """Only so many of the likeliest tokens; those as likely as the last one stay, too."""
    top_p: float = 1.0
    """Only the fewest of the likeliest tokens that have this probability together."""

    def __post_init__(self) -> None:
        for name, (holds, expected) in _RULES.items():
            value: Any = getattr(self, name)
            try:
                is_sound = holds(value)
            except TypeError:
                is_sound = False
            if not is_sound:
                raise ConfigError(f"{name} is {value!r}; expected {expected}")

    def updated(self, changes: Mapping[str, Any]) -> "Sampling":
        """With what an environment asks for in the place of one's own.

        Raises:
            UnknownName: If it asks for something else.
            ConfigError: If a value is not valid.
        """
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise unknown_name("sampling parameter of TransformersPolicy", name, known)
        return replace(self, **changes)


def draw(logits: Any, sampling: Sampling, uniform: float) -> tuple[int, float]:
    """Choose a token.

    Args:
        logits: A tensor of float32, shape (vocabulary,).
        sampling: How.
        uniform: A number from 0 up to, and without, 1.

    Returns:
        The token, and its log-probability under the distribution that it was drawn from.
    """
    if sampling.temperature == 0:
        return int(logits.argmax()), 0.0
    logprobs = _restricted(logits / sampling.temperature, sampling).log_softmax(-1)
    cumulated = logprobs.exp().double().cumsum(-1)
    # The first token whose sum reaches a number above 0: never one of probability 0.
    token = int((cumulated < (1.0 - uniform) * cumulated[-1]).sum())
    return token, float(logprobs[token])


def _restricted(scores: Any, sampling: Sampling) -> Any:
    if sampling.top_k is not None and sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -float("inf"))
    if sampling.top_p < 1:
        ordered, order = scores.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        scores = scores.index_fill(0, order[before >= sampling.top_p], -float("inf"))
    return scores
