"""Logs of other systems: full prompts and what was sampled, step by step, as a `Trajectory`.

They say neither who spoke nor what was dropped. A prompt that begins with all of an earlier prompt and its answer goes
on in that one's context, however many others came between; every other prompt is a break, marked `undeclared`.
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from ..contexts.arrays import LARGEST, GrowableArray
from ..contexts.protocol import Action, Break
from ..episodes.actions import CheckedAction, check_action
from ..errors import ActionError, ConfigError, InvalidRecord
from ..trajectories.steps import ContextLog, Part, Step
from ..trajectories.trajectory import Status, Trajectory
from .open_prompts import OpenPrompts, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAIN = "main"
UNDECLARED: Literal["undeclared"] = "undeclared"
_ANY_ID = np.iinfo(np.int32).max


class LoggedStep(NamedTuple):
    """A step as another system logged it; a tuple of its first few fields will do."""

    prompt_tokens: "Sequence[int] | NDArray[np.integer[Any]]"
    """The whole prompt: shape (n,), at least one token."""
    action_tokens: "Sequence[int] | NDArray[np.integer[Any]]"
    """What was sampled: shape (m,)."""
    logprobs: "Sequence[float] | NDArray[np.floating[Any]] | None" = None
    """Of the sampled tokens: shape (m,)."""
    reward: float | None = None
    """None if the step was not scored."""
    temperature: float = 1.0
    policy_version: int | None = None


class _Logged(NamedTuple):
    """A step whose arrays are sound, and where it belongs."""

    observed: "NDArray[np.int32]"
    """What of its prompt the chain that it is nearest to has not."""
    action: CheckedAction
    reward: float | None
    place: Place


def from_steps(
    steps: "Iterable[LoggedStep | tuple[Any, ...] | Mapping[str, Any]]",
    *,
    id: str = "foreign",
    env: str = "foreign",
    status: Status = "terminated",
    error: str | None = None,
    tokenizer: str = "",
    vocab_size: int = 0,
    group_id: str | None = None,
) -> Trajectory:
    """Build a trajectory from full prompts. T steps cost O(all their tokens).

    A prompt goes on in the context whose whole text it begins with: the longest such text, whoever spoke in between.
    Every other prompt is a break with the reason `undeclared`, but the first. It is a rewrite of the context that it
    has most tokens in common with, if that one is not gone on with later, and no later prompt begins in it, too; else,
    or if it has none in common with any, it begins a context of its own. What it has in common is kept, with mask 0.

    Args:
        steps: `(prompt_tokens, action_tokens, logprobs, reward)` of each step, in order, or a mapping with these names;
            see `LoggedStep`. No steps give a trajectory without contexts.
        id: The trajectory's id.
        env: Where it comes from.
        status: How it ended; a trajectory with the status `"error"` gives no samples.
        error: What went wrong, if something did; its status is then `"error"`.
        tokenizer: The tokenizer's fingerprint, if known: trees refuse samples of different ones.
        vocab_size: Ids must be below it: at most 2**31 - 1; 0 if it is not known.
        group_id: What rollouts of the same task share.

    Raises:
        InvalidRecord: If a step is not sound: it names the step and what is wrong.
        ConfigError: If another argument is not valid.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral) or not 0 <= vocab_size <= _ANY_ID:
        raise ConfigError(f"vocab_size is {vocab_size!r:.80}; expected an integer from 0 to 2**31 - 1")
    for name, value, kinds in (
        ("id", id, str),
        ("env", env, str),
        ("status", status, str),
        ("tokenizer", tokenizer, str),
        ("group_id", group_id, (str, type(None))),
        ("error", error, (str, type(None))),
    ):
        if not isinstance(value, kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name} is {value!r:.80}; expected a text{'' if kinds is str else ' or None'}")
    if status not in get_args(Status):
        raise ConfigError(f"status is {status!r:.80}; expected one of {get_args(Status)}")
    writer = _Writer(_read(steps, vocab_size or _ANY_ID))
    status = status if error is None else "error"
    return Trajectory(
        id=id,
        env=env,
        seed=None,
        status=status,
        stop_reason=status,
        contexts=writer.contexts(),
        steps=writer.steps,
        tokenizer=tokenizer,
        vocab_size=int(vocab_size),
        group_id=group_id,
        error=error,
    )


def _read(steps: Iterable[LoggedStep | tuple[Any, ...] | Mapping[str, Any]], vocab_size: int) -> list[_Logged]:
    if not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"steps is a {type(steps).__name__}; expected the steps of one rollout, in order")
    prompts, logged = OpenPrompts(), list[_Logged]()
    for index, given in enumerate(steps):
        try:
            step = LoggedStep(**given) if isinstance(given, Mapping) else LoggedStep(*cast("tuple[Any, ...]", given))
            prompt, action, reward = _checked(step, vocab_size)
        except (ActionError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(f"step {index}: {error}") from error
        place = prompts.add(prompt, action.tokens)
        logged.append(_Logged(prompt[place.shared :].copy(), action, reward, place))
    return logged


def _checked(step: LoggedStep, vocab_size: int) -> "tuple[NDArray[np.int32], CheckedAction, float | None]":
    try:
        prompt = check_action(Action(step.prompt_tokens), vocab_size).tokens
    except ActionError as error:
        raise ActionError(f"of the prompt, {error}") from error
    if not len(prompt):
        raise ActionError("the prompt is empty; expected the whole prompt that was sampled from")
    sampling: dict[str, Any] = {"temperature": step.temperature, "policy_version": step.policy_version}
    action = check_action(Action(step.action_tokens, step.logprobs, **sampling), vocab_size)
    return prompt, action, None if step.reward is None else _reward(step.reward)


def _reward(reward: Any) -> float:
    if isinstance(reward, bool) or not isinstance(reward, Real) or not abs(float(reward)) <= LARGEST:
        raise ActionError(f"the reward is {reward!r:.80}; expected a finite number of float32, or None: not scored")
    return float(reward)


class _Writer:
    """Writes steps into contexts: each chain of prompts is a segment of one."""

    def __init__(self, logged: Sequence[_Logged]) -> None:
        self.steps: list[Step] = []
        self._logs: dict[str, tuple[GrowableArray[np.int32], GrowableArray[np.float32]]] = {}
        self._names: list[str] = []  # of the contexts, by chain
        self._lengths: dict[str, int] = {}
        # Of each chain, the last step that goes on with it or begins in it.
        self._last_use = {step.place.nearest: index for index, step in enumerate(logged)}
        for index, step in enumerate(logged):
            self._add(step, self._begin(index, step.place) if step.place.is_new else None)

    def contexts(self) -> dict[str, ContextLog]:
        """The contexts; nothing tells their roles apart."""
        return {
            name: ContextLog(role=MAIN, parent=None, tokens=tokens.copy(), logprobs=logprobs.copy(), messages=[])
            for name, (tokens, logprobs) in self._logs.items()
        }

    def _begin(self, index: int, place: Place) -> Break:
        """Decide in which context a chain is."""
        base = "" if place.nearest is None else self._names[place.nearest]
        detail = f"step {index} of the log, which does not say why"
        if base and self._last_use[place.nearest] == index:
            self._names.append(base)
            return Break("rewrite", UNDECLARED, base, base, place.shared, self._lengths[base] - place.shared, detail)
        name = MAIN if not index else f"{MAIN}-{len(self._logs) + 1}"
        self._names.append(name)
        return Break("switch", UNDECLARED, name, base or name, place.shared, 0, detail)

    def _add(self, logged: _Logged, break_: Break | None) -> None:
        place, action, name = logged.place, logged.action, self._names[logged.place.chain]
        tokens, logprobs = self._logs.setdefault(name, (GrowableArray(np.int32), GrowableArray(np.float32)))
        start = len(tokens)
        for array, its_logprobs in ((logged.observed, 0.0), (action.tokens, _logprobs(action))):
            tokens.append(array)
            logprobs.extend(len(array), its_logprobs)
        self._lengths[name] = place.shared + len(logged.observed) + len(action.tokens)
        self.steps.append(
            Step(
                context=name,
                base=name if break_ is None else break_.base,
                keep=place.shared,
                extends=not place.is_new,
                start=start,
                action_start=start + len(logged.observed),
                parts=(Part(len(tokens), action.temperature, action.policy_version),),
                reward=logged.reward,
                break_=break_ if self.steps else None,
            )
        )


def _logprobs(action: CheckedAction) -> "NDArray[np.float32] | float":
    return np.nan if action.logprobs is None else action.logprobs
