"""Reward functions of TRL's GRPOTrainer: that of the environment, and wrappers for others."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def reward_func(
    *,
    reward: Sequence[float | None],
    dropped_share: Sequence[float] = (),
    failed: Sequence[float] = (),
    steps: Sequence[float] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return the rewards of the environment, as a reward function of GRPOTrainer; None for a row that does not count.

    The function also logs the means of `envsdk/dropped_share`, `envsdk/failed` and `envsdk/steps`.
    """
    for name, values in {"dropped_share": dropped_share, "failed": failed, "steps": steps}.items():
        if log_metric is not None and len(values):
            log_metric(f"envsdk/{name}", float(np.mean(values)))
    return list(reward)


def scored(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function so that it returns None for a row that does not count.

    GRPOTrainer leaves a row out of the baseline of its group only if every reward function returns None for it. So wrap
    each reward function that is used together with `reward_func`.

    Args:
        function: A reward function of GRPOTrainer; it may be `async`.
    """

    def before(columns: dict[str, Any]) -> dict[str, Any]:
        return columns

    def after(values: Any, columns: dict[str, Any]) -> list[Any]:
        return [None if own is None else value for own, value in zip(columns["reward"], values, strict=True)]

    wrapped = _wrapped(function, before, after)
    wrapped.is_scored = True
    return wrapped


def conversational(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function so that `prompts` and `completions` are lists of messages, as in TRL's own tool calling.

    By default, GRPOTrainer decodes a whole rollout as one text. The messages are those of the main context in the
    OpenAI format, with `reasoning_content` and `tool_calls`: a prompt has those before the first reply, a completion
    the first reply and all later messages. They include what the model no longer sees after a break.

    Args:
        function: A reward function of GRPOTrainer; it may be `async`, or wrapped in `scored`.
    """

    def before(columns: dict[str, Any]) -> dict[str, Any]:
        prompts, completions = columns["prompt_messages"], columns["completion_messages"]
        return {**columns, "prompts": prompts, "completions": completions}

    return _wrapped(function, before, lambda values, _: values)


def _wrapped(
    function: Callable[..., Any],
    before: Callable[[dict[str, Any]], dict[str, Any]],
    after: Callable[[Any, dict[str, Any]], Any],
) -> Any:
    """Wrap a reward function, which may be `async`, so that its columns and its values are converted."""

    @functools.wraps(function)
    def score(**columns: Any) -> Any:
        return after(function(**before(columns)), columns)

    @functools.wraps(function)
    async def ascore(**columns: Any) -> Any:
        return after(await function(**before(columns)), columns)

    return ascore if inspect.iscoroutinefunction(function) else score
