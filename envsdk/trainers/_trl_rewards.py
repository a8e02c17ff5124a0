"""Reward functions of TRL's GRPOTrainer: that of the environment, and wrappers for others."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
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
    wrapped = _wrapped(function, {}, is_scored=True)
    wrapped.is_scored = True
    return wrapped


def conversational(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function so that `prompts` and `completions` are lists of messages, as in TRL's own tool calling.

    By default, GRPOTrainer decodes a whole rollout as one string. The messages are those of the main context in the
    OpenAI format, with `reasoning_content` and `tool_calls`: a prompt has those before the first reply, a completion
    the first reply and all later messages. They include what the model no longer sees after a break.

    Args:
        function: A reward function of GRPOTrainer; it may be `async`, or wrapped in `scored`.
    """
    return _wrapped(function, {"prompts": "prompt_messages", "completions": "completion_messages"}, is_scored=False)


def _wrapped(function: Callable[..., Any], sources: Mapping[str, str], *, is_scored: bool) -> Any:
    """Wrap a reward function, which may be `async`.

    Args:
        function: The function.
        sources: For each column that it gets from another one, the name of that one.
        is_scored: Whether a row that does not count gets None instead of its value.
    """

    def given(columns: dict[str, Any]) -> dict[str, Any]:
        return {**columns, **{name: columns[source] for name, source in sources.items()}}

    def counted(values: Any, columns: dict[str, Any]) -> Any:
        if not is_scored:
            return values
        return [None if own is None else value for own, value in zip(columns["reward"], values, strict=True)]

    @functools.wraps(function)
    def score(**columns: Any) -> Any:
        return counted(function(**given(columns)), columns)

    @functools.wraps(function)
    async def ascore(**columns: Any) -> Any:
        return counted(await function(**given(columns)), columns)

    return ascore if inspect.iscoroutinefunction(function) else score
