"""Logged steps of made-up tokens: what all that makes samples or batches starts from.

A step samples 200 tokens after an observation of 200. The lists of later prompts share the integers of earlier ones:
the least memory that a list of Python's integers can take, and the fastest to compare.
"""

from typing import Any, NamedTuple

import numpy as np

OBSERVED = SAMPLED = 200
STEPS = 512
VOCABULARY = 150_000
WINDOW = 8
"""How many steps are visible where every step breaks: the older ones are dropped."""
SIZES = {"1 agent": 1, "8 agents": 8, "every step breaks": 1}


class LoggedStep(NamedTuple):
    """One call of the model.

    Attributes:
        agent: Which agent called.
        turns: The indices of the steps whose observations and actions the prompt holds; the last is its own.
        prompt: The full prompt.
        action: The sampled tokens.
        logprobs: Their log-probabilities.
    """

    agent: int
    turns: list[int]
    prompt: list[int]
    action: list[int]
    logprobs: list[float]


def logged_steps(size: str, steps: int = STEPS, tokens: int = OBSERVED) -> list[LoggedStep]:
    """Return an episode; with 8 agents, they take turns.

    Args:
        size: A key of `SIZES`.
        steps: Its length.
        tokens: The number of tokens of an observation, and of an action.
    """
    rng = np.random.default_rng(0)
    visible: list[list[int]] = [[] for _ in range(SIZES[size])]
    observed: list[list[int]] = []
    made: list[LoggedStep] = []
    for step in range(steps):
        agent = step % len(visible)
        observed.append(rng.integers(0, VOCABULARY, tokens).tolist())
        turns = [*visible[agent], step]
        if size == "every step breaks":
            turns = turns[-WINDOW:]
        past = [token for turn in turns[:-1] for token in (*observed[turn], *made[turn].action)]
        action = rng.integers(0, VOCABULARY, tokens).tolist()
        logprobs = (-rng.exponential(size=tokens)).astype(np.float32).tolist()
        made.append(LoggedStep(agent, turns, past + observed[step], action, logprobs))
        visible[agent] = turns
    return made


def is_sound(size: str, tokens: int, trained: int) -> None:
    """Check what was made of an episode of `STEPS` steps.

    Args:
        size: A key of `SIZES`.
        tokens: How many tokens the samples have together.
        trained: How many of them are trained.

    Raises:
        ValueError: If a sampled token is not trained exactly once, or tokens are missing.
    """
    least = STEPS * (OBSERVED + SAMPLED) if size != "every step breaks" else (STEPS - WINDOW) * WINDOW * 2 * OBSERVED
    if trained != STEPS * SAMPLED or tokens < least:
        raise ValueError(f"{trained:,} of {tokens:,} tokens are trained; expected {STEPS * SAMPLED:,} of {least:,}")


def fields(step: LoggedStep) -> dict[str, Any]:
    """Return a step in the names of `envsdk.trainers.foreign.LoggedStep`."""
    return {"prompt_tokens": step.prompt, "action_tokens": step.action, "logprobs": step.logprobs, "reward": 0.0}
