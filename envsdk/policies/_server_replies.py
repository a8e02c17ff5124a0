"""Requests to model servers, their replies, and the checks that turn a reply into an action.

Nothing is repaired: an answer that is not exactly what the request allows raises `ServerReplyError`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from .._describing import around_difference, what_is_invalid
from .._visible import brief
from ..contexts._protocol import Action, FinishReason
from ..contexts._side_data import Aligned, part_of, per_token
from ..errors import ServerReplyError
from ..images import PlacedImage
from ._sampling import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

M = TypeVar("M", bound=BaseModel)
TokenId: TypeAlias = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""The id of a token, which `actions_of` compares with the vocabulary."""
UNKNOWN_LOGPROB = -9999.0
"""The value that vLLM returns in place of a log-probability that is NaN, infinite or missing."""
_UNNAMED_WEIGHTS = "default"
"""The name that vLLM and SGLang give to the weights that they were started with."""
_FINISH_REASONS = get_args(FinishReason)


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request for a reply."""

    id: str
    """The id of the request, the same for all attempts."""
    prompt: "NDArray[np.int32]"
    """The whole prompt, shape (n,)."""
    sampling: Sampling
    max_tokens: int | None = None
    """The maximum number of tokens in the reply; None for all that fit into the server's context."""
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    priority: int | None = None
    cache_key: str | None = None
    """A key that requests share if they may read each other's prefixes in the server's cache; None: all may."""
    top_logprobs: int = 0
    """The number of most likely tokens to return at each position, with their log-probabilities."""
    media: Sequence[PlacedImage] = ()
    """The images of the prompt, in order, each with the range of its placeholder tokens."""


OnTokens: TypeAlias = Callable[[Sequence[int]], "bool | None"]
"""Called with tokens while they are sampled; it returns True to end the reply after them. See `Policy`."""


class Weights(NamedTuple):
    """Tokens of a reply that the same weights sampled."""

    version: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A reply that a server sampled, not checked yet."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
    stop_string: str | None = None
    """The stop string that ended the reply, if the server returns it."""
    stop_token: int | None = None
    """The token at which the reply ended, if the server returns it; it may be the model's own end token."""
    weights: Sequence[Weights] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Data for `Action.extra`."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """The server's counts, if it reports its cache hits: `cached_tokens`, and usually `prompt_tokens`."""
    top_logprobs: Sequence[Sequence[float]] = ()
    """At each position, the log-probabilities of the most likely tokens, and of the sampled one."""


class WeightSpan(BaseModel):
    """Tokens of a reply that the same weights sampled, as vLLM and SGLang write them."""

    version: str
    start: int
    end: int


class _PromptTokensDetails(BaseModel):
    cached_tokens: Annotated[int, Field(ge=0)] | None = None


class ServerUsage(BaseModel):
    """The counts of a request, as a server with OpenAI's protocol reports them."""

    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    prompt_tokens_details: _PromptTokensDetails | None = None

    def cache_counts(self) -> dict[str, int]:
        """Return the cache hits for `Action.extra`, without the counts that the server did not report."""
        details = self.prompt_tokens_details
        return cache_counts(None if details is None else details.cached_tokens, self.prompt_tokens)


def cache_counts(cached_tokens: int | None, prompt_tokens: int | None) -> dict[str, int]:
    """Return a server's cache hits for `Action.extra`, without the counts that it did not report."""
    if cached_tokens is None:
        return {}
    counts = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
    return {name: count for name, count in counts.items() if count is not None}


def read_response(model: type[M], response: Any) -> M:
    """Return a response as a pydantic model.

    Raises:
        ServerReplyError: If it does not have the model's fields.
    """
    try:
        return model.model_validate(response)
    except ValidationError as error:
        raise ServerReplyError(f"the response does not have the expected fields: {what_is_invalid(error)}") from error


def check_named(named: Sequence[int], tokens: Sequence[int]) -> None:
    """Check that log-probabilities belong to the tokens of a reply; `actions_of` compares their numbers.

    Raises:
        ServerReplyError: If one belongs to another token.
    """
    if len(named) == len(tokens) and named != tokens:
        found, expected = around_difference(str(named), str(tokens), 80)
        raise ServerReplyError(
            f"the log-probabilities belong to the tokens {found}; expected those of the reply, {expected}"
        )


def actions_of(reply: ServerReply, request: ServerRequest, vocab_size: int | None) -> list[Action]:
    """Split a server's reply into actions: one for each version of the weights, in order.

    All but the last have the finish reason `abort`, because the next action continues the reply.

    Args:
        reply: The reply.
        request: The request that it answers.
        vocab_size: The size of the vocabulary, if it is known.

    Raises:
        ServerReplyError: If the request does not allow the reply.
    """
    if request.max_tokens is not None and len(reply.tokens) > request.max_tokens:
        raise ServerReplyError(f"it has {len(reply.tokens)} tokens; expected at most max_tokens={request.max_tokens}")
    tokens = checked_tokens(reply.tokens, vocab_size)
    length = len(tokens)
    logprobs = np.asarray(reply.logprobs, dtype=np.float64)
    if len(logprobs) != length:
        raise ServerReplyError(
            f"it has {length} token ids and {len(logprobs)} log-probabilities; expected equal numbers"
        )
    is_known = np.isfinite(logprobs) & (logprobs <= 0) & (logprobs > UNKNOWN_LOGPROB)
    if not is_known.all():
        position = int(np.argmin(is_known))
        raise ServerReplyError(
            f"the log-probability of token {position} is {logprobs[position]}; expected a finite number of at most 0 "
            f"(vLLM writes {UNKNOWN_LOGPROB:g} for one that it does not know)"
        )
    reason = _finish_reason(reply, request, tokens)
    weights = [part for part in reply.weights if part.start != part.stop] or [
        Weights(reply.weights[-1].version if reply.weights else "", 0, length)
    ]
    ends = [0, *(part.stop for part in weights)]
    if [part.start for part in weights] != ends[:-1] or ends[-1] != length or ends != sorted(ends):
        raise ServerReplyError(
            f"the weight versions {list(map(tuple, reply.weights))} do not cover its {length} tokens"
        )
    for name, value in reply.extra.items():
        data = per_token(value)
        if data is not None and len(data) != length and not (isinstance(data, Aligned) and data.over == "all"):
            raise ServerReplyError(f"{name} has {len(data)} rows, but there are {length} tokens")
    if request.sampling.temperature == 0:
        logprobs = np.zeros_like(logprobs)  # greedy: the most likely token has probability 1
    constraint = {} if request.sampling.grammar is None else {"grammar": request.sampling.grammar}
    actions: list[Action] = []
    for part in weights:
        is_number = part.version.isdecimal() and len(part.version) <= len(str(2**31)) and int(part.version) < 2**31
        extra = {name: part_of(value, part.start, part.stop, length) for name, value in reply.extra.items()}
        if not is_number and part.version not in ("", _UNNAMED_WEIGHTS):  # not a version that `Action` can hold
            extra["weight_version"] = part.version
        actions.append(
            Action(
                tokens[part.start : part.stop],
                logprobs[part.start : part.stop].astype(np.float32),
                reason if part is weights[-1] else "abort",
                request.sampling.temperature,
                int(part.version) if is_number else None,
                {**extra, **constraint, **(reply.counts if part is weights[0] else {})},
            )
        )
    return actions


def _finish_reason(reply: ServerReply, request: ServerRequest, tokens: "NDArray[np.int32]") -> FinishReason:
    """Return the reply's finish reason; check that its tokens and its stop string agree with it."""
    reason = next((one for one in _FINISH_REASONS if one == reply.finish_reason), None)
    if reason is None:
        raise ServerReplyError(f"the finish reason is {reply.finish_reason!r}; expected one of {_FINISH_REASONS}")
    if not len(tokens) and reason != "abort":
        raise ServerReplyError(f"it has no tokens, and the finish reason is {reason!r}")
    is_stop = np.isin(tokens, request.stop_token_ids)
    if is_stop[:-1].any():
        position = int(np.argmax(is_stop))
        raise ServerReplyError(f"token {position} is the stop token {tokens[position]}, but other tokens follow it")
    if reply.stop_string is not None and reply.stop_string not in request.stop:  # SGLang: "NaN happened"
        raise ServerReplyError(f"it ended because of {brief(reply.stop_string)}, which is not a stop string")
    ends = len(tokens) and (is_stop[-1] or tokens[-1] == reply.stop_token)
    if reason == "stop" and not ends and not request.stop:
        raise ServerReplyError(
            f"the finish reason is 'stop', but the last token, {tokens[-1]}, is not a stop token; expected one of "
            f"{request.stop_token_ids}, or one of the stop strings {brief(request.stop, 200)}"
        )
    return reason


def cut_reply(reply: ServerReply, length: int) -> ServerReply:
    """Return the first tokens of a reply that the caller ended early: at least one token."""
    size = len(reply.tokens)
    return replace(
        reply,
        tokens=reply.tokens[:length],
        logprobs=reply.logprobs[:length],
        finish_reason="stop",
        stop_string=None,
        stop_token=reply.tokens[length - 1],
        weights=[Weights(w.version, w.start, min(w.stop, length)) for w in reply.weights if w.start < length],
        extra={name: part_of(value, 0, length, size) for name, value in reply.extra.items()},
        top_logprobs=reply.top_logprobs[:length],
    )


def checked_tokens(tokens: Sequence[int], vocab_size: int | None) -> "NDArray[np.int32]":
    """Return tokens as int32 of shape (n,).

    Args:
        tokens: The tokens.
        vocab_size: The size of the vocabulary, if it is known.

    Raises:
        ServerReplyError: If one is not in the vocabulary.
    """
    ids = np.asarray(tokens, dtype=np.int64)
    wrong = (ids < 0) | (ids >= (2**31 if vocab_size is None else vocab_size))
    if wrong.any():
        position = int(np.argmax(wrong))
        expected = "an id of at least 0" if vocab_size is None else f"an id from 0 to {vocab_size - 1}"
        raise ServerReplyError(f"token {position} is {ids[position]}; expected {expected}, as the tokenizer has them")
    return ids.astype(np.int32)


def routed_experts(values: "NDArray[Any]", prompt_length: int, length: int) -> Aligned:
    """Return the experts of a reply, over all tokens: int32 of shape (n, layers, experts), -1 for the last token.

    Args:
        values: The experts of each token that the model has processed: with or without those of the prompt, and
            without those of the last token, which was sampled but not processed.
        prompt_length: The number of tokens in the prompt.
        length: The number of tokens in the reply.

    Raises:
        ServerReplyError: If the array has a different length.
    """
    if len(values) not in (prompt_length + length - 1, length - 1):
        raise ServerReplyError(
            f"routed_experts has {len(values)} rows; expected {prompt_length + length - 1}: one for each token of the "
            "prompt and the reply except the last"
        )
    last = np.full((1, *values.shape[1:]), -1, dtype=np.int32)
    return Aligned(np.concatenate([values.astype(np.int32), last]), "all", -1)
