"""The front end of token ids: `from_steps` makes a trajectory from the full prompt and the reply of each step.

Such a log specifies neither the contexts nor the breaks. A prompt that begins with an earlier prompt and its reply
continues the context of that prompt, even if other prompts came between. Every other prompt is an `undeclared` break.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import numpy as np

from ..._visible import brief, type_of
from ...contexts._protocol import Action, Break
from ...contexts._side_data import part_of, per_token
from ...episodes._actions import CheckedAction, PromptSize, check_action
from ...errors import ActionError, ConfigError, ImageError, InvalidRecord
from ...images import Image, ImageSource, PlacedImage
from ...limits import LARGEST
from ...messages import Message
from ...trajectories._trajectory import Status, Trajectory
from ._chains import ChainMatch, OpenPrompts
from ._writer import LogWriter, with_image_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAIN = "main"
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
        errors: What was wrong with the reply, such as a call that could not be parsed: strings. `loss="without_errors"`
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


class _StepOutcome(NamedTuple):
    """The fields of a step besides its tokens."""

    reward: float | None = None
    rewards: Mapping[str, float] = {}
    errors: tuple[str, ...] = ()


class _MatchedStep(NamedTuple):
    """A validated step, and the chain of prompts that it belongs to."""

    observed: "NDArray[np.int32]"
    """The tokens of the prompt that the nearest chain does not have."""
    action: CheckedAction
    outcome: _StepOutcome
    match: ChainMatch
    media: tuple[PlacedImage, ...]
    """The images in `observed`, with their positions in it."""


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
        raise ConfigError(f"vocab_size is {brief(vocab_size)}; expected an integer from 0 to 2**31 - 1, 0 if unknown")
    for name, value, kinds in (
        ("id", id, str),
        ("env", env, str),
        ("status", status, str),
        ("tokenizer", tokenizer, str),
        ("group_id", group_id, (str, type(None))),
        ("error", error, (str, type(None))),
    ):
        if not isinstance(value, kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name} is {brief(value)}; expected a string{'' if kinds is str else ' or None'}")
    if status not in get_args(Status):
        raise ConfigError(f"status is {brief(status)}; expected one of {get_args(Status)}")
    writer = _written(_matched(steps, vocab_size or _LARGEST_ID))
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


def _matched(steps: Iterable[LoggedStep | tuple[Any, ...] | Mapping[str, Any]], vocab_size: int) -> list[_MatchedStep]:
    if not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"steps is {type_of(steps)}; expected the steps of one rollout, in order")
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


def _media(
    step: LoggedStep, runs: "Sequence[tuple[NDArray[np.int32], CheckedAction, _StepOutcome]]"
) -> list[PlacedImage]:
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


def _checked(step: LoggedStep, vocab_size: int) -> "list[tuple[NDArray[np.int32], CheckedAction, _StepOutcome]]":
    """Return the runs of sampled tokens of a step: for each its full prompt, its action, and its outcome."""
    try:
        prompt = check_action(Action(step.prompt_tokens), vocab_size).tokens
    except ActionError as error:
        raise ActionError(f"in the prompt: {error}") from error
    if not len(prompt):
        raise ActionError("the prompt is empty; expected the full prompt that was sampled from")
    sampling: dict[str, Any] = {"temperature": step.temperature, "policy_version": step.policy_version}
    tokens = check_action(Action(step.action_tokens), vocab_size).tokens
    mask = np.ones(len(tokens), np.bool_) if step.mask is None else np.asarray(step.mask)
    if mask.shape != tokens.shape or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
        raise ActionError(
            f"the mask is {brief(step.mask)}; expected True or False for each of the {len(tokens)} action tokens"
        )
    logprobs = step.logprobs
    if logprobs is not None and not mask.all() and len(logprobs) == len(mask):
        logprobs = np.where(mask, np.asarray(logprobs, dtype=np.float64), 0.0)
    given = Action(tokens, logprobs, extra=step.extra, **sampling)
    action = check_action(given, vocab_size, PromptSize(len(prompt), len(prompt)))
    outcome = _outcome(step)
    if mask.all():
        return [(prompt, action, outcome)]
    whole = np.concatenate([prompt, tokens])
    bounds = np.flatnonzero(np.diff(mask.astype(np.bool_), prepend=False, append=False)).reshape(-1, 2).tolist()
    *earlier, (last_start, last_stop) = bounds or [(0, 0)]
    runs = [(whole[: len(prompt) + start], _part(action, start, stop), _StepOutcome()) for start, stop in earlier]
    return [*runs, (whole[: len(prompt) + last_start], _part(action, last_start, last_stop), outcome)]


def _part(action: CheckedAction, start: int, stop: int) -> CheckedAction:
    """Return the tokens of an action from `start` to `stop`, with their log-probabilities and side data."""
    extra = {
        key: part_of(value, start, stop, len(action.tokens))
        for key, value in action.extra.items()
        if not start or per_token(value) is not None
    }
    logprobs = None if action.logprobs is None else action.logprobs[start:stop]
    return action._replace(tokens=action.tokens[start:stop], logprobs=logprobs, extra=extra)


def _outcome(step: LoggedStep) -> _StepOutcome:
    rewards = {str(name): _reward(reward) for name, reward in step.rewards.items()}
    reward = None if step.reward is None else _reward(step.reward)
    total = math.fsum(rewards.values())
    if rewards and reward is not None and not math.isclose(total, reward, rel_tol=1e-6, abs_tol=1e-6):
        raise ActionError(f"the rewards {rewards} add up to {total}, but the reward is {reward}")
    given: Any = step.errors
    if isinstance(given, str) or not all(isinstance(error, str) for error in given):
        raise ActionError(f"the errors are {brief(given)}; expected a list of strings")
    return _StepOutcome(total if rewards and reward is None else reward, rewards, tuple(step.errors))


def _reward(reward: Any) -> float:
    if isinstance(reward, bool) or not isinstance(reward, Real) or not abs(float(reward)) <= LARGEST:
        raise ActionError(
            f"the reward is {brief(reward)}; expected a finite number that fits in float32, or None if the step "
            "was not scored"
        )
    return float(reward)


def _written(matched: Sequence[_MatchedStep]) -> LogWriter:
    """Write steps. Each chain of prompts is a segment of a context; all contexts have the same role."""
    writer, names, lengths = LogWriter(), list[str](), dict[str, int]()
    # For each chain, the last step that continues it or shares a prefix with it.
    last_use = {step.match.nearest: index for index, step in enumerate(matched)}
    for index, (observed, action, outcome, match, media) in enumerate(matched):
        break_ = None
        if match.is_new:
            base = "" if match.nearest is None else names[match.nearest]
            detail = f"step {index + 1} of the log, which does not specify the reason"
            if base and last_use[match.nearest] == index:
                dropped = lengths[base] - match.shared
                break_ = Break("rewrite", "undeclared", base, base, match.shared, dropped, detail)
            else:
                name = f"{MAIN}-{len(lengths) + 1}" if index else MAIN
                writer.open(name, MAIN)
                break_ = Break("switch", "undeclared", name, base or name, match.shared, 0, detail)
            names.append(break_.context)
        name = names[match.chain]
        lengths[name] = match.shared + len(observed) + len(action.tokens)
        step = writer.add(
            name,
            observed,
            action,
            keep=match.shared,
            base=None if break_ is None else break_.base,
            break_=break_ if index else None,
            media=media,
        )
        step.reward, step.rewards = outcome.reward, dict(outcome.rewards)
        if outcome.errors:  # a message holds the errors of a reply
            messages = writer.log(name).messages
            step.reply = len(messages)
            messages.append(Message(role="assistant", errors=outcome.errors))
    return writer
