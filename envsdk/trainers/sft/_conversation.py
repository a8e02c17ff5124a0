"""The conversation of supervised samples: how it is read and checked, and which messages are trained."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from pydantic import ValidationError

from ..._describing import what_is_invalid
from ..._visible import brief
from ...errors import ConfigError, RenderError
from ...messages import Message, Role, to_messages

TrainOn: TypeAlias = Role | Literal["last"] | int | Collection[Role | int] | Callable[[int, Message], bool]
"""The messages that are trained: the messages of a role; the reply with an index among the replies (-1 is the last);
`"last"`, the last reply; a collection of these; or a function of an index and a message that returns a bool."""


def read_conversation(messages: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """Read a conversation and check that assistant messages and other messages alternate.

    Raises:
        RenderError: If a message cannot be read, the conversation does not alternate, or a tool result answers no call.
    """
    try:
        conversation = to_messages(messages)
    except ValidationError as error:
        raise RenderError(f"a message cannot be read: {what_is_invalid(error, Message.model_fields)}") from error
    except (TypeError, KeyError, ValueError) as error:
        raise RenderError(f"the messages cannot be read: {error}") from error
    roles = [message.role for message in conversation]
    if "assistant" not in roles:
        raise RenderError(
            f"the conversation of {len(roles)} messages has no assistant message, so there is no reply to train; "
            "expected at least one"
        )
    if roles[0] == "assistant":
        raise RenderError(
            "the conversation begins with an assistant message, which has no prompt; expected a system or user message"
        )
    for index in range(1, len(roles)):
        if roles[index] == roles[index - 1] == "assistant":
            raise RenderError(
                f"messages {index - 1} and {index} are both assistant messages, but a reply ends the turn: join them, "
                "or insert the message that comes between them"
            )
    _check_results(conversation)
    return conversation


def reply_indices(messages: Sequence[Message]) -> list[int]:
    """Return the indices of the assistant messages. Each one is the action of a step."""
    return [index for index, message in enumerate(messages) if message.role == "assistant"]


def select_messages(train_on: TrainOn, messages: Sequence[Message]) -> set[int]:
    """Return the indices of the messages that are trained.

    Raises:
        ConfigError: If `train_on` is invalid or selects no message.
    """
    if callable(train_on):
        indices = {index for index, message in enumerate(messages) if train_on(index, message)}
    else:
        if isinstance(train_on, (list, tuple, set, frozenset, range)):
            items = list(cast("Collection[Any]", train_on))
        else:
            items = [train_on]
        indices = {index for item in items for index in _select(item, messages)}
    if not indices:
        raise ConfigError(f"train_on={brief(train_on)} selects no message of the conversation of {len(messages)}")
    return indices


def _check_results(messages: Sequence[Message]) -> None:
    """Check that each tool result answers a call of the last reply: the one with its id, or else the next one."""
    unanswered: list[str | None] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            unanswered = [call.id for call in message.tool_calls]
        if message.role != "tool":
            continue
        wanted = message.tool_call_id
        matching = [call for call in unanswered if call == wanted] or [
            call for call in unanswered if call is None or wanted is None
        ]
        if not matching:
            raise RenderError(
                f"message {index} is a tool result for the call {wanted!r}, but the reply before it has no such "
                f"unanswered call; the ids of its unanswered calls are {unanswered}"
            )
        unanswered.remove(matching[0])


def _select(item: Any, messages: Sequence[Message]) -> list[int]:
    """Return the indices of the messages of one role, or of one reply."""
    replies = reply_indices(messages)
    if item == "last":
        return replies[-1:]
    if type(item) is int:
        if not -len(replies) <= item < len(replies):
            raise ConfigError(f"train_on selects reply {item}, but the conversation has {len(replies)} replies")
        return [replies[item]]
    if isinstance(item, str) and item in get_args(Role):
        return [index for index, message in enumerate(messages) if message.role == item]
    raise ConfigError(
        f"train_on has {brief(item)}; expected a role ({', '.join(get_args(Role))}), 'last', the index of a reply, a "
        "collection of these, or a function of an index and a message"
    )
