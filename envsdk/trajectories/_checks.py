"""Checks that the parts of a record fit together, after their types were checked."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from .._visible import brief, type_of
from ..contexts._protocol import Break, RewriteReason
from ..contexts._side_data import Aligned, per_token
from ..errors import InvalidRecord
from ._context_log import ContextLog
from ._steps import Step

_REASONS: Mapping[str, frozenset[str]] = {
    "rewrite": frozenset((*get_args(RewriteReason), "undeclared")),
    "switch": frozenset(("handoff", "return", "undeclared")),
}


def check_break(break_: Any) -> None:
    """Check that a value is a `Break` that does not contradict itself.

    Raises:
        InvalidRecord: If it is not.
    """
    if not isinstance(break_, Break):
        raise InvalidRecord(f"is {type_of(break_)}: {brief(break_)}; expected a Break")
    counts: tuple[Any, ...] = (break_.kept, break_.dropped)
    texts: tuple[Any, ...] = (break_.context, break_.base, break_.detail)
    wrong = [count for count in counts if type(count) is not int or count < 0]
    if wrong or [text for text in texts if not isinstance(text, str)]:
        raise InvalidRecord(f"is {brief(break_, 200)}; expected counts of tokens, and names of contexts")
    if break_.reason not in _REASONS.get(break_.kind, ()) or (break_.kind == "rewrite") != (break_.dropped > 0):
        raise InvalidRecord(
            f"is a {break_.kind!r} for the reason {break_.reason!r} that drops {break_.dropped} tokens; expected a "
            f"rewrite that drops tokens, for one of {sorted(_REASONS['rewrite'])}, or a switch that drops nothing, for "
            f"one of {sorted(_REASONS['switch'])}"
        )


def check_parts(index: int, step: Step, log: ContextLog) -> None:
    """Check that the log-probabilities, the side data and the reply of a step fit its tokens.

    Raises:
        InvalidRecord: If they do not.
    """
    start = step.action_start
    for part in step.parts:
        logprobs = log.logprobs[start : part.stop]
        unknown = np.isnan(logprobs)
        if unknown.any() and not unknown.all():
            raise InvalidRecord(
                f"step {index + 1} has log-probabilities for some tokens of an action but not for others"
            )
        for key, value in part.extra.items():
            data, count = per_token(value), part.stop - start
            if data is None:
                continue
            is_over_all = isinstance(data, Aligned) and data.over == "all"
            longest = step.keep + part.stop - step.start if is_over_all else count
            if not count <= len(data) <= longest:
                raise InvalidRecord(f"step {index + 1} has {len(data)} rows of {key!r} for {count} tokens")
        start = part.stop
    bounds = [step.action_start, *(bound for masked in step.masked for bound in masked), step.stop]
    if bounds != sorted(bounds):
        raise InvalidRecord(
            f"step {index + 1} has the masked ranges {step.masked}; expected some of its sampled tokens"
        )
    if step.reply is not None and (step.reply >= len(log.messages) or log.messages[step.reply].role != "assistant"):
        raise InvalidRecord(f"step {index + 1} has the reply {step.reply}, which is not a message of the assistant")
    if (log.logprobs[step.start : step.action_start] != 0).any():
        raise InvalidRecord(f"step {index + 1} has log-probabilities on its observation; expected 0.0")


def check_log(name: str, log: ContextLog, end: int, vocab_size: int) -> None:
    """Check that a log holds the tokens of its steps, all of them in the vocabulary.

    Raises:
        InvalidRecord: If it does not.
    """
    if not end == len(log.tokens) == len(log.logprobs):
        raise InvalidRecord(
            f"context {name!r} has {len(log.tokens)} tokens and {len(log.logprobs)} logprobs, and steps up to {end}"
        )
    size = vocab_size or np.iinfo(np.int32).max
    for field, array, wrong, expected in (
        ("tokens", log.tokens, (log.tokens < 0) | (log.tokens >= size), f"an id below {size}"),
        ("logprobs", log.logprobs, log.logprobs > 0, "a log-probability, at most 0"),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InvalidRecord(f"contexts.{name}.{field}.{at} is {array[at]}; expected {expected}")
    if log.media and log.media[-1].stop > end:
        raise InvalidRecord(f"contexts.{name}.media has an image up to token {log.media[-1].stop} of {end}")
    if log.roles is not None:
        try:
            log.roles.check(len(log.tokens))
        except ValueError as error:
            raise InvalidRecord(f"contexts.{name}.roles is not valid: {error}") from error
