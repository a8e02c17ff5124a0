"""The conversation that is trained: read, checked, and which of its messages are chosen."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from pydantic import ValidationError

from ..errors import ConfigError, RenderError, what_is_invalid
from ..messages import Message, Role, to_messages

TrainOn: TypeAlias = Role | Literal["last"] | int | Collection[Role | int] | Callable[[int, Message], bool]
"""Which messages are trained: those of a role; the reply of a step, counted from 0, or from the end with -1; several of
these; `"last"`, the last reply; or those for whose index and message a function is true."""


def read_conversation(messages: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """Read a conversation in which replies of the assistant and what others say take turns.

    Raises:
        RenderError: If it is none.
    """
    try:
        conversation = to_messages(messages)
    except ValidationError as error:
        raise RenderError(f"a message cannot be read: {what_is_invalid(error)}") from error
    except (TypeError, KeyError, ValueError) as error:
        raise RenderError(f"the messages cannot be read: {error}") from error
    _check_turns(conversation)
    _check_results(conversation)
    return conversation


def replies_of(messages: Sequence[Message]) -> list[int]:
    """The indices of the replies; each is a step."""
    return [index for index, message in enumerate(messages) if message.role == "assistant"]


def chosen(train_on: TrainOn, messages: Sequence[Message]) -> set[int]:
    """The indices of the messages that are trained.

    Raises:
        ConfigError: If `train_on` is not valid, or chooses none.
    """
    if callable(train_on):
        indices = {index for index, message in enumerate(messages) if train_on(index, message)}
    else:
        indices = {index for one in _listed(train_on) for index in _of_one(one, messages)}
    if not indices:
        raise ConfigError(f"train_on={train_on!r:.80} chooses no message of this conversation")
    return indices


def _check_turns(messages: Sequence[Message]) -> None:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise RenderError(f"the conversation of {len(roles)} messages has no assistant message: nothing can be trained")
    if roles[0] == "assistant":
        raise RenderError("the conversation begins with an assistant message: there is nothing that it answers")
    for index in range(1, len(roles)):
        if roles[index] == roles[index - 1] == "assistant":
            raise RenderError(
                f"messages {index - 1} and {index} are both the assistant's: a reply ends its turn. Join them, or put "
                "what was said between them"
            )


def _check_results(messages: Sequence[Message]) -> None:
    """Each tool's result answers a call of the reply before it: that of its id, where both have ids, else the next."""
    unanswered: list[str | None] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            unanswered = [call.id for call in message.tool_calls]
        if message.role != "tool":
            continue
        wanted = message.tool_call_id
        fitting = [call for call in unanswered if call == wanted] or [
            call for call in unanswered if call is None or wanted is None
        ]
        if not fitting:
            raise RenderError(
                f"message {index} is a tool's result (of the call {wanted!r}), but the reply before it left no such "
                f"call unanswered: {unanswered}"
            )
        unanswered.remove(fitting[0])


def _listed(train_on: object) -> list[Any]:
    if isinstance(train_on, (str, int)):
        return [train_on]
    if isinstance(train_on, (list, tuple, set, frozenset, range)):
        return list(cast("Collection[Any]", train_on))
    raise _no_choice(train_on)


def _of_one(one: Any, messages: Sequence[Message]) -> list[int]:
    """The messages of one role or of one step."""
    replies = replies_of(messages)
    if one == "last":
        return replies[-1:]
    if type(one) is int:
        if not -len(replies) <= one < len(replies):
            raise ConfigError(f"train_on chooses the step {one}, but the conversation has {len(replies)} replies")
        return [replies[one]]
    if isinstance(one, str) and one in get_args(Role):
        return [index for index, message in enumerate(messages) if message.role == one]
    raise _no_choice(one)


def _no_choice(given: object) -> ConfigError:
    return ConfigError(
        f"train_on has {given!r:.80}; expected one or more of the roles {', '.join(get_args(Role))}, 'last' and the "
        "indices of steps, or a function of an index and a message"
    )
