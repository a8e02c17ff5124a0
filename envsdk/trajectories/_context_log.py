"""The log of a context in a trajectory's record: the tokens whose ranges the steps hold."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator

from ..contexts._protocol import Count
from ..images import PlacedImage
from ..limits import StopReason
from ._roles import Roles
from ._stored import Float32s, Int32s, Json, JsonObject, Number, StoredMedia, StoredMessage, StoredRecord

if TYPE_CHECKING:
    from ..contexts._context import Context

KnownStopReason: TypeAlias = Annotated[str, AfterValidator(lambda reason: str(StopReason(reason)))]
"""The value of a `StopReason`."""


@dataclass(slots=True)
class ContextLog(StoredRecord):
    """The observed and sampled tokens of one context, and its messages.

    Attributes:
        role: The role of the context's agent.
        parent: The context that opened it, or None.
        tokens: Every token that was observed or sampled, in order: int32, shape (n,).
        logprobs: float32, shape (n,): 0.0 on observations, NaN where the policy gave none.
        messages: All messages, in order.
        tools: The JSON schemas of its tools.
        reward: The context's own reward; None if it shares the episode's.
        stop_reason: Why it ended, if it is a sub-agent's; an empty string otherwise.
        error: What failed, if it is a sub-agent's that failed. It gives no samples then, unless they are requested.
        task: The task, if it is a sub-agent's; a value that is not JSON is stored as its `repr`.
        tokenizer: The fingerprint of its tokenizer, if that is not the episode's; an empty string otherwise.
        vocab_size: The size of its vocabulary, if that is not the episode's; 0 otherwise.
        history: Its history policy, if it is a sub-agent's that is not the episode's. A record leaves it out otherwise.
        is_trainable: Whether its actions are the tokens that a policy sampled. It is False if the policy exchanges text
            (`Policy.trainable`); the context then gives no samples.
        roles: What each token belongs to, with n codes; None unless the environment recorded it
            (`Env.records_roles`). It is stored as `{"legend": [labels], "starts": [positions], "run_codes": [indices of
            the legend], "length": n}`: each run of equal labels once. A record without it has no such field.
        media: The images in the log, in order, each with the range of its placeholder tokens in it. It is stored as
            `{"image": reference, "start": position, "stop": position}`. A record without images has no such field.
    """

    role: str
    parent: str | None
    tokens: Int32s
    logprobs: Float32s
    messages: list[StoredMessage]
    tools: list[JsonObject] = field(default_factory=list[dict[str, Any]])
    reward: Number | None = None
    stop_reason: Literal[""] | KnownStopReason = ""
    error: str | None = None
    task: Json = None
    tokenizer: str = ""
    vocab_size: Count = 0
    history: JsonObject = field(default_factory=dict[str, Any], metadata={"optional": True})
    is_trainable: bool = True
    roles: Roles | None = field(default=None, metadata={"optional": True})
    media: StoredMedia = field(default_factory=list[PlacedImage], metadata={"optional": True})


def logged(context: "Context", length: int) -> dict[str, Any]:
    """Return the fields of a log that are the same for each context: its first `length` tokens, and its tools."""
    roles = context.roles
    return {
        "tokens": np.asarray(context.log_tokens[:length]),
        "logprobs": np.asarray(context.log_logprobs[:length]),
        "tools": [dict(tool) for tool in context.tools],
        "roles": None if roles is None else Roles.of(roles.legend, np.asarray(roles.codes[:length])),
        "media": [placed for placed in context.log_media if placed.stop <= length],
    }
