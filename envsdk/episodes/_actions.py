"""Make actions of replies, and validate the actions of policies."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import numpy as np

from .._visible import brief, type_of
from ..contexts._protocol import Action, FinishReason
from ..contexts._side_data import Aligned, Ragged
from ..errors import ActionError
from ..limits import LARGEST
from ..messages import Message, check_text
from ..rendering.renderer import Renderer
from ..trajectories._fragments import fragment

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CheckedAction(NamedTuple):
    """A validated action that owns its arrays.

    Attributes:
        tokens: The sampled ids: int32, shape (n,).
        logprobs: Their log-probabilities: float32, shape (n,), or None.
        finish_reason: The reason why the policy stopped sampling.
        temperature: The sampling temperature, finite in float32.
        policy_version: The version of the policy's weights, or None.
        extra: Aligned side data and other values by name, a copy.
    """

    tokens: "NDArray[np.int32]"
    logprobs: "NDArray[np.float32] | None"
    finish_reason: FinishReason
    temperature: float
    policy_version: int | None
    extra: Mapping[str, Any]


_FINISH_REASONS = get_args(FinishReason)


class PromptSize(NamedTuple):
    """The length of a prompt, which side data over all tokens covers.

    Attributes:
        length: The number of tokens.
        new: The number of tokens at the end without recorded side data. Only their rows are copied, so that a step
            costs O(new tokens).
    """

    length: int
    new: int


def action_of(
    message: Message, renderer: Renderer, *, stop: Sequence[str] = (), max_tokens: int | None = None
) -> Action:
    """Return a reply as tokens with probability 1, cut after the first stop string in it and after `max_tokens`.

    Raises:
        RenderError: If the model family cannot express the message.
    """
    tokens = renderer.reply(message)
    pieces = renderer.tokenizer.token_bytes(tokens)
    text = b"".join(pieces)
    ends = [text.index(name) + len(name) for name in map(str.encode, stop) if name in text]
    if ends:  # up to the token that completes the first stop string
        tokens = tokens[: int(np.searchsorted(np.cumsum([len(piece) for piece in pieces]), min(ends))) + 1]
    is_cut = max_tokens is not None and len(tokens) > max_tokens
    tokens = tokens[:max_tokens]
    return Action(tokens, np.zeros(len(tokens), dtype=np.float32), "length" if is_cut else "stop")


def check_action(action: object, vocab_size: int, prompt: PromptSize | None = None) -> CheckedAction:
    """Validate an action and return a copy of it.

    Args:
        action: An `Action`, or its tokens alone: an integer array of shape (n,) or a sequence of int.
        vocab_size: The size of the vocabulary. Every id must be below it.
        prompt: The size of the prompt that it answers; None if it is not known.

    Raises:
        ActionError: If ids are not integers or are out of range; if log-probabilities have another length, are
            positive, or are not finite; or if side data has another length or type. The message names the position.
    """
    if not isinstance(action, Action):
        action = Action(action)  # pyright: ignore[reportArgumentType]
    if action.finish_reason not in _FINISH_REASONS:
        raise ActionError(f"finish_reason is {action.finish_reason!r}; expected one of {_FINISH_REASONS}")
    temperature: Any = action.temperature
    if not isinstance(temperature, (int, float, np.floating, np.integer)) or not 0 <= temperature <= LARGEST:
        raise ActionError(
            f"temperature is {brief(temperature)}; expected a number of at least 0 that is finite in float32"
        )
    version: Any = action.policy_version
    if version is not None and not (isinstance(version, (int, np.integer)) and 0 <= version < 2**31):
        raise ActionError(f"policy_version is {brief(version)}; expected None or an integer from 0 to 2**31 - 1")
    extra: Any = action.extra
    if not isinstance(extra, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", extra)):
        raise ActionError(f"extra is {brief(extra)}; expected a mapping with strings as keys")
    tokens = _check_tokens(action.tokens, vocab_size)
    checked = {key: _check_extra(key, value, len(tokens), prompt) for key, value in action.extra.items()}
    logprobs = None if action.logprobs is None else _check_logprobs(action.logprobs, len(tokens))
    version = None if action.policy_version is None else int(action.policy_version)
    return CheckedAction(tokens, logprobs, action.finish_reason, float(action.temperature), version, checked)


def _check_extra(key: str, value: Any, length: int, prompt: PromptSize | None) -> Any:
    """Return a copy of one entry of `Action.extra`."""
    is_array = isinstance(value, np.ndarray)
    if is_array:
        _check_array(key, cast("NDArray[Any]", value), length)
    elif isinstance(value, (Aligned, Ragged)):
        value = _check_side_data(key, value, length, prompt)
    try:
        check_text(key)
        if not is_array and not isinstance(value, (Aligned, Ragged)):
            fragment(value)
    except ValueError as error:
        raise ActionError(f"extra[{brief(key)}] cannot be recorded: {error}") from error
    return copy.deepcopy(cast("Any", value))


def _check_side_data(key: str, given: Aligned | Ragged, length: int, prompt: PromptSize | None) -> Aligned | Ragged:
    """Validate the side data of an action, and return it without the rows that are recorded already."""
    try:
        given.check()
    except ValueError as error:
        raise ActionError(f"extra[{brief(key)}] is not valid: {error}") from error
    if isinstance(given, Ragged) or given.over == "sampled":
        if len(given) != length:
            raise ActionError(f"extra[{brief(key)}] has {len(given)} rows, but there are {length} sampled tokens")
        return given
    longest = len(given) if prompt is None else length + prompt.length
    if not length <= len(given) <= longest:
        raise ActionError(
            f"extra[{brief(key)}] is over all tokens and has {len(given)} rows; expected {longest}, one for each token "
            f"of the prompt and the reply, or at least the last {length}"
        )
    unrecorded = len(given) if prompt is None else length + prompt.new
    return given.take(slice(max(0, len(given) - unrecorded), None))


def _check_array(key: str, array: "NDArray[Any]", length: int) -> None:
    if array.shape[:1] != (length,):
        raise ActionError(
            f"extra[{key!r}] is an array of shape {array.shape}, but there are {length} tokens; expected one row for "
            "each token. Give what belongs to the action as a whole as a list or another value"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise ActionError(
            f"extra[{key!r}] is a masked array; expected a plain array, with -1 or NaN for missing values"
        )
    if array.dtype.kind not in "if" or array.dtype.itemsize > 8:
        raise ActionError(
            f"extra[{key!r}] is an array of {array.dtype}; expected signed integers or floats of at most 64 bits. "
            "Samples hold -1 or NaN at all other tokens, which booleans and unsigned integers cannot represent: "
            f"give extra[{key!r}].astype(np.int32), or Aligned(extra[{key!r}], fill=...)"
        )


def _check_tokens(values: object, vocab_size: int) -> "NDArray[np.int32]":
    try:
        array: NDArray[Any] = np.asarray(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ActionError(f"tokens must be an integer array of shape (n,) or a list of int: {error}") from error
    if array.ndim != 1:
        raise ActionError(
            f"tokens must have shape (n,), got {array.shape} from {type_of(values)}: give an Action, an int32 "
            "array or a list of int, such as env.renderer.reply(message) returns"
        )
    if not array.size:
        return np.empty(0, dtype=np.int32)
    if array.dtype == np.int32:  # the common case; read as unsigned, negative ids are too large as well
        tokens = array.astype(np.int32)
        if np.maximum.reduce(tokens.view(np.uint32)) < vocab_size:
            return tokens
    if array.dtype.kind not in "iu":
        raise ActionError(f"tokens must be integers, got dtype {array.dtype}, such as {array[0]!r}")
    if array.min() < 0 or array.max() >= vocab_size:
        position = int(np.argmax((array < 0) | (array >= vocab_size)))
        raise ActionError(
            f"token {array[position]} at position {position} is out of range: the tokenizer has the ids 0 to "
            f"{vocab_size - 1}. If the model has more, load the tokenizer with load_tokenizer(..., vocab_size=...)"
        )
    return array.astype(np.int32)


def _check_logprobs(values: object, length: int) -> "NDArray[np.float32]":
    try:
        array = np.array(values, dtype=np.float32)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ActionError(f"logprobs must be a float array of shape (n,) or a list of float: {error}") from error
    if array.shape != (length,):
        raise ActionError(
            f"logprobs have shape {array.shape}, but there are {length} tokens; expected one for each token"
        )
    # NaN fails the first comparison. The methods `max` and `min` do the same, each with two more calls.
    if array.size and not (np.maximum.reduce(array) <= 0 and np.minimum.reduce(array) > -np.inf):
        position = int(np.argmin((array <= 0) & (array > -np.inf)))
        raise ActionError(
            f"logprob {array[position]} at position {position} is not valid; expected a finite number of at most 0: "
            "the token's log-probability under the distribution from which it was sampled"
        )
    return array
