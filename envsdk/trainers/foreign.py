"""The conversion of another system's log, with the full prompt and the reply of each step, to a `Trajectory`.

Such a log specifies neither the contexts nor the breaks. A prompt that begins with an earlier prompt and its reply
continues the context of that prompt, even if other prompts came between. Every other prompt is an `undeclared` break.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, cast, get_args

import numpy as np

from .._arrays import LARGEST, GrowableArray
from ..contexts._protocol import Action, Break
from ..contexts._side_data import Aligned, part_of, per_token
from ..episodes._actions import CheckedAction, PromptSize, check_action
from ..errors import ActionError, ConfigError, ImageError, InvalidRecord
from ..images import Image, ImageSource, PlacedImage
from ..messages import Message
from ..trajectories._context_log import ContextLog
from ..trajectories._steps import Part, Step
from ..trajectories._trajectory import Status, Trajectory
from ._differences import with_image_numbers
from ._open_prompts import Match, OpenPrompts

__all__ = ["LoggedStep", "from_steps"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAIN = "main"
UNDECLARED: Literal["undeclared"] = "undeclared"
_LARGEST_ID = np.iinfo(np.int32).max


class LoggedStep(NamedTuple):
    """A step as another system logged it. A tuple of the first two or more fields is accepted, too.

    Attributes:
        prompt_tokens: The token ids of the full prompt: shape (n,), at least one token.
        action_tokens: The sampled token ids: shape (m,).
        logprobs: The log-probabilities of the sampled tokens, in nats: shape (m,). None if they were not logged.
        reward: The reward of the step; None if it was not scored.
        temperature: The sampling temperature.
        policy_version: The version of the weights; None if it is unknown.
        extra: Side data, as in `Action.extra`: rows for the action's tokens, rows for the prompt and the action
            (`Aligned(over="all")`), lists (`Ragged`), or what belongs to the action as a whole, such as its images.
        mask: Which of the action's tokens were sampled and are trained: shape (m,), bool or 0 and 1; None for all. The
            others are observed, such as results of tools inside a response. Log-probabilities at them are ignored.
        rewards: Named rewards that add up to `reward`, which they replace if it is None.
        errors: What was wrong with the reply, such as a call that could not be parsed: texts. `loss="without_errors"`
            leaves out such a step.
        images: The images in the prompt and the action, in order, each with the range of its placeholder tokens in the
            prompt and the action after it: `PlacedImage`, or tuples of an image (what `ImagePart` takes) and the range.
            Prompts with the same tokens and other images are different.
    """

    prompt_tokens: "Sequence[int] | NDArray[np.integer[Any]]"
    action_tokens: "Sequence[int] | NDArray[np.integer[Any]]"
    logprobs: "Sequence[float] | NDArray[np.floating[Any]] | None" = None
    reward: float | None = None
    temperature: float = 1.0
    policy_version: int | None = None
    extra: Mapping[str, Any] = {}
    mask: "Sequence[int] | NDArray[np.bool_] | None" = None
    rewards: Mapping[str, float] = {}
    errors: Sequence[str] = ()
    images: "Sequence[PlacedImage | tuple[ImageSource, int, int]]" = ()


class _MatchedStep(NamedTuple):
    """A validated step, and the chain of prompts that it belongs to."""

    observed: "NDArray[np.int32]"
    """The tokens of the prompt that the nearest chain does not have."""
    action: CheckedAction
    outcome: "_Outcome"
    match: Match
    media: tuple[PlacedImage, ...]
    """The images in `observed`, with their places in it."""


class _Outcome(NamedTuple):
    """What the log says about a step besides its tokens."""

    reward: float | None = None
    rewards: Mapping[str, float] = {}
    errors: tuple[str, ...] = ()


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
    """Build a trajectory from the full prompts of a log. The cost is linear in the number of tokens of all prompts.

    A prompt continues the context whose tokens it begins with: the longest one, if there are several. Every other
    prompt except the first is a break with the reason `undeclared`. If it shares a prefix with a context, and no later
    prompt continues or shares that context, it is a rewrite of that context. Otherwise it begins a new context. The
    shared prefix is kept, with mask False.

    Args:
        steps: For each step in order, `(prompt_tokens, action_tokens, logprobs, reward)` or a mapping with these names;
            see `LoggedStep`. Without steps, the trajectory has no contexts.
        id: The id of the trajectory.
        env: The name of the system or environment that the log comes from.
        status: How the episode ended. A trajectory with the status `"error"` gives no samples.
        error: A description of the error, if the episode failed. The status is then `"error"`.
        tokenizer: The fingerprint of the tokenizer, if it is known. A tree takes samples of one tokenizer only.
        vocab_size: The size of the vocabulary, at most 2**31 - 1. Token ids must be smaller. 0 if it is unknown.
        group_id: The id that rollouts of the same task share.

    Raises:
        InvalidRecord: If a step is invalid. The error names the step and the problem.
        ConfigError: If another argument is invalid.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral) or not 0 <= vocab_size <= _LARGEST_ID:
        raise ConfigError(f"vocab_size is {vocab_size!r:.80}; expected an integer from 0 to 2**31 - 1, 0 if unknown")
    for name, value, kinds in (
        ("id", id, str),
        ("env", env, str),
        ("status", status, str),
        ("tokenizer", tokenizer, str),
        ("group_id", group_id, (str, type(None))),
        ("error", error, (str, type(None))),
    ):
        if not isinstance(value, kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name} is {value!r:.80}; expected a string{'' if kinds is str else ' or None'}")
    if status not in get_args(Status):
        raise ConfigError(f"status is {status!r:.80}; expected one of {get_args(Status)}")
    writer = _Writer(_read(steps, vocab_size or _LARGEST_ID))
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


def _read(steps: Iterable[LoggedStep | tuple[Any, ...] | Mapping[str, Any]], vocab_size: int) -> list[_MatchedStep]:
    if not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"steps is a {type(steps).__name__}; expected the steps of one rollout, in order")
    prompts, matched, numbers = OpenPrompts(), list[_MatchedStep](), dict[tuple[str, int], int]()
    for index, given in enumerate(steps):
        try:
            step = LoggedStep(**given) if isinstance(given, Mapping) else LoggedStep(*cast("tuple[Any, ...]", given))
            runs = _checked(step, vocab_size)
            media = _media(step, runs)
        except (ActionError, ImageError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(f"step {index + 1}: {error}") from error
        for prompt, action, outcome in runs:
            own = [placed for placed in media if placed.stop <= len(prompt)]
            match = prompts.add(with_image_numbers(prompt, own, numbers), action.tokens)
            new = tuple(placed.moved(-match.shared) for placed in own if placed.start >= match.shared)
            matched.append(_MatchedStep(prompt[match.shared :].copy(), action, outcome, match, new))
    return matched


def _media(step: LoggedStep, runs: "Sequence[tuple[NDArray[np.int32], CheckedAction, _Outcome]]") -> list[PlacedImage]:
    """Return the images of a step. Their tokens are observed, in the prompt of a run."""
    found: list[PlacedImage] = []
    sampled = [(len(prompt), len(prompt) + len(action.tokens)) for prompt, action, _ in runs]
    for given in step.images:
        image, start, stop = given
        placed, end = PlacedImage(Image.read(image), start, stop), found[-1].stop if found else 0
        is_sampled = any(start < last and first < stop for first, last in sampled)
        if not end <= start < stop <= sampled[-1][0] or is_sampled:
            raise ActionError(
                f"an image has the tokens {start} to {stop}; expected observed tokens of the prompt or the action, "
                f"after those of the image before it ({end}), and before the last sampled tokens ({sampled[-1][0]})"
            )
        found.append(placed)
    return found


def _checked(step: LoggedStep, vocab_size: int) -> "list[tuple[NDArray[np.int32], CheckedAction, _Outcome]]":
    """Return the runs of sampled tokens of a step: for each its full prompt, its action, and what it led to."""
    try:
        prompt = check_action(Action(step.prompt_tokens), vocab_size).tokens
    except ActionError as error:
        raise ActionError(f"in the prompt: {error}") from error
    if not len(prompt):
        raise ActionError("the prompt is empty; expected the full prompt that was sampled from")
    sampling: dict[str, Any] = {"temperature": step.temperature, "policy_version": step.policy_version}
    tokens = check_action(Action(step.action_tokens), vocab_size).tokens
    mask = _mask(step.mask, len(tokens))
    logprobs = step.logprobs
    if logprobs is not None and not mask.all() and len(logprobs) == len(mask):
        logprobs = np.where(mask, np.asarray(logprobs, dtype=np.float64), 0.0)
    given = Action(tokens, logprobs, extra=step.extra, **sampling)
    action = check_action(given, vocab_size, lambda: PromptSize(len(prompt), len(prompt)))
    outcome = _outcome(step)
    if mask.all():
        return [(prompt, action, outcome)]
    whole = np.concatenate([prompt, tokens])
    runs = _runs(mask) or [(0, 0)]
    return [
        (whole[: len(prompt) + start], _part(action, start, stop), outcome if stop == runs[-1][1] else _Outcome())
        for start, stop in runs
    ]


def _mask(mask: Any, length: int) -> "NDArray[np.bool_]":
    if mask is None:
        return np.ones(length, dtype=np.bool_)
    array = np.asarray(mask)
    if array.shape != (length,) or array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise ActionError(f"the mask is {mask!r:.80}; expected True or False for each of the {length} action tokens")
    return array.astype(np.bool_)


def _runs(mask: "NDArray[np.bool_]") -> list[tuple[int, int]]:
    """Return where the runs of True begin and end."""
    bounds = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    return [(int(start), int(stop)) for start, stop in bounds]


def _part(action: CheckedAction, start: int, stop: int) -> CheckedAction:
    """Return the tokens of an action from `start` to `stop`, with their log-probabilities and side data."""
    is_first = not action.tokens[:start].size
    extra = {
        key: part_of(value, start, stop, len(action.tokens))
        for key, value in action.extra.items()
        if is_first or per_token(value) is not None
    }
    logprobs = None if action.logprobs is None else action.logprobs[start:stop]
    return action._replace(tokens=action.tokens[start:stop], logprobs=logprobs, extra=extra)


def _outcome(step: LoggedStep) -> _Outcome:
    rewards = {str(name): _reward(reward) for name, reward in step.rewards.items()}
    reward = None if step.reward is None else _reward(step.reward)
    total = math.fsum(rewards.values())
    if rewards and reward is not None and not math.isclose(total, reward, rel_tol=1e-6, abs_tol=1e-6):
        raise ActionError(f"the rewards {rewards} add up to {total}, but the reward is {reward}")
    given: Any = step.errors
    if isinstance(given, str) or not all(isinstance(error, str) for error in given):
        raise ActionError(f"the errors are {given!r:.80}; expected a list of texts")
    return _Outcome(total if rewards and reward is None else reward, rewards, tuple(step.errors))


def _reward(reward: Any) -> float:
    if isinstance(reward, bool) or not isinstance(reward, Real) or not abs(float(reward)) <= LARGEST:
        raise ActionError(
            f"the reward is {reward!r:.80}; expected a finite number that fits in float32, or None if the step was not "
            "scored"
        )
    return float(reward)


class _Writer:
    """The writer of the steps and contexts of the trajectory. Each chain of prompts is a segment of a context."""

    def __init__(self, matched: Sequence[_MatchedStep]) -> None:
        self.steps: list[Step] = []
        self._logs: dict[str, tuple[GrowableArray[np.int32], GrowableArray[np.float32]]] = {}
        self._media: dict[str, list[PlacedImage]] = {}
        self._messages: dict[str, list[Message]] = {}  # those whose errors the log has
        self._names: list[str] = []  # the context of each chain
        self._lengths: dict[str, int] = {}
        # For each chain, the last step that continues it or shares a prefix with it.
        self._last_use = {step.match.nearest: index for index, step in enumerate(matched)}
        for index, step in enumerate(matched):
            self._add(step, self._begin(index, step.match) if step.match.is_new else None)

    def contexts(self) -> dict[str, ContextLog]:
        """Return the contexts by name. All have the same role, because a log does not specify roles."""
        return {
            name: ContextLog(
                role=MAIN,
                parent=None,
                tokens=tokens.copy(),
                logprobs=logprobs.copy(),
                messages=self._messages.get(name, []),
                media=self._media.get(name, []),
            )
            for name, (tokens, logprobs) in self._logs.items()
        }

    def _begin(self, index: int, match: Match) -> Break:
        """Choose the context of a new chain, and return the break that begins it."""
        base = "" if match.nearest is None else self._names[match.nearest]
        detail = f"step {index + 1} of the log, which does not specify the reason"
        if base and self._last_use[match.nearest] == index:
            self._names.append(base)
            return Break("rewrite", UNDECLARED, base, base, match.shared, self._lengths[base] - match.shared, detail)
        name = MAIN if not index else f"{MAIN}-{len(self._logs) + 1}"
        self._names.append(name)
        return Break("switch", UNDECLARED, name, base or name, match.shared, 0, detail)

    def _add(self, matched: _MatchedStep, break_: Break | None) -> None:
        match, action, name = matched.match, matched.action, self._names[matched.match.chain]
        tokens, logprobs = self._logs.setdefault(name, (GrowableArray(np.int32), GrowableArray(np.float32)))
        start = len(tokens)
        self._media.setdefault(name, []).extend(placed.moved(start) for placed in matched.media)
        for array, its_logprobs in ((matched.observed, 0.0), (action.tokens, _logprobs(action))):
            tokens.append(array)
            logprobs.extend(len(array), its_logprobs)
        self._lengths[name] = match.shared + len(matched.observed) + len(action.tokens)
        self.steps.append(
            Step(
                context=name,
                base=name if break_ is None else break_.base,
                keep=match.shared,
                extends=not match.is_new,
                start=start,
                action_start=start + len(matched.observed),
                parts=(Part(len(tokens), action.temperature, action.policy_version, _recorded(matched, start)),),
                reply=self._reply(name, matched.outcome),
                reward=matched.outcome.reward,
                rewards=dict(matched.outcome.rewards),
                break_=break_ if self.steps else None,
            )
        )

    def _reply(self, name: str, outcome: _Outcome) -> int | None:
        """Return the index of a message that holds the errors of a reply; None if it has none."""
        if not outcome.errors:
            return None
        messages = self._messages.setdefault(name, [])
        messages.append(Message(role="assistant", errors=outcome.errors))
        return len(messages) - 1


def _recorded(matched: _MatchedStep, start: int) -> dict[str, Any]:
    """Return the side data of a step, without the rows that earlier steps of the context have."""
    count = len(matched.observed) + len(matched.action.tokens) + 1
    return {
        key: value.take(slice(max(0, len(value) - count), None)) if start and _is_over_all(value) else value
        for key, value in matched.action.extra.items()
    }


def _is_over_all(value: Any) -> TypeGuard[Aligned]:
    return isinstance(value, Aligned) and value.over == "all"


def _logprobs(action: CheckedAction) -> "NDArray[np.float32] | float":
    return np.nan if action.logprobs is None else action.logprobs
