"""What the environment returns next: a `Turn`, which is checked where an author makes it."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeGuard, cast

from pydantic import ValidationError

from .._arrays import LARGEST
from ..contexts._edits import Edit
from ..errors import TurnError, what_is_invalid
from ..limits import plain_integer
from ..messages import Message, ToolSchema, check_text, to_messages

Messages: TypeAlias = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""Messages as an author may give them."""


class FunctionTool(Protocol):
    """A tool that is a function, such as `envsdk.tool` makes."""

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        ...

    @property
    def schema(self) -> ToolSchema:
        """The tool's JSON schema in the OpenAI form."""
        ...


class Opening(NamedTuple):
    """How a turn opens a new context.

    Attributes:
        role: The role of the context.
        base: The name of the context whose first messages it begins with, which is its parent; None for a conversation
            of its own.
        keep: How many messages of that conversation it begins with, the system message included.
        detail: Why it is opened, for people.
        is_trainable: Whether the context gives samples.
        start: How many messages of that conversation are left out at its start; `keep` counts them.
    """

    role: str
    base: str | None = None
    keep: int = 0
    detail: str = ""
    is_trainable: bool = True
    start: int = 0


class Mask(NamedTuple):
    """Which parts of a sampled reply are not trained.

    Attributes:
        characters: Spans of `reply.new_text`: pairs of the first character and the one after the last, or None for the
            end. Every token that has a part of these characters is left out.
        tokens: Spans of the reply's sampled tokens, in the same form. The stop token is among them.
    """

    characters: Sequence[tuple[int, int | None]] = ()
    tokens: Sequence[tuple[int, int | None]] = ()


class Turn:
    """What the environment returns next: messages, a reward, and whether the episode is over.

    Args:
        messages: The messages to append: a text (a user message), a `Message`, a mapping in the OpenAI chat format, or
            a list of these.
        system: The system message that opens the conversation. In a later turn, it replaces the system message.
        tools: The tools that the model may call: JSON schemas, or what `envsdk.tool` makes. In a later turn, they
            replace the tools. A later `system` or `tools` that differs from the current one is a declared `edit`.
        reward: The reward of the reply: a number, or a mapping of names to numbers, which add up. None means that the
            reply was not scored.
        metrics: Named numbers to report. They do not count as rewards.
        terminated: Whether the task is over.
        truncated: Whether the episode is cut off although the task is not over.
        info: Entries for the `info` of the step. Keys that envsdk uses itself are refused.
        prefill: The beginning of the next reply, which the policy does not sample: a text, which follows the generation
            prompt verbatim, or an assistant `Message`. The model continues the message's content if `content` is
            given (`content=""` closes the reasoning), and its reasoning otherwise.
        continues: Let the model continue the reply that this turn answers, with `messages` appended to that reply: a
            text verbatim, or an assistant `Message`, whose reasoning continues an open think block and whose content
            follows it. A stop token that ended the reply is dropped, which is a declared `edit`. If a limit ends the
            episode, the reply is not continued.
        stop: Strings at which the policy should stop sampling. Tokens that it sampled after such a string stay.
        max_tokens: At most how many tokens the policy should sample for the next reply. A policy that samples more is
            not refused. A reply that reaches this number without a stop token does not end the episode, unlike one that
            a limit or the policy cut. `respond` receives it with `errors` (it has no end) and `open_block` (where it
            was cut). The turn that follows continues the reply (`continues=True`, a thinking budget) or answers it; an
            answered reply is closed first, which `info["truncated_reply"]` reports.
        sampling: Sampling parameters for the next reply, such as the temperature. They are passed on to the policy.
        context: The name of the context that the turn addresses, such as `player1`; by default the context of the last
            reply. A new name opens a new context.
        opening: The role of the new context that `context` names, and which part of another context it begins with.
        edit: How many messages of the conversation stay, `Edit(keep, detail)`: `messages` replace those after them, a
            declared `edit`. Messages that are in the conversation already may be among `messages`, before the first
            new one, and keep their tokens. None appends the messages.
        mask: Which parts of the reply that this turn answers are not trained: a `Mask`. Their tokens stay in the
            context; no sample trains them.
        keep_reply: How many of the reply's sampled tokens stay in the context, from the first one on; the others are
            dropped, which is a declared `edit`. A reply without its end is closed, or continues (`continues=True`). A
            stop token is not dropped alone. If a limit ends the episode, nothing is dropped.
        up_to: As `keep_reply`: the reply stays up to the end of this text, where that first occurs in
            `reply.new_text`, and up to the end of the token that it ends in. Without it, the whole reply stays.
        train_dropped: Whether the tokens that `keep_reply` or `up_to` drops are trained, as all sampled tokens are: in
            the sample that ends with the reply.
        context_rewards: Rewards of single contexts by name: the environment's own contexts, or those of its sub-agents
            (`HandoffResult.context`). A context with such a reward is trained on it instead of the episode's reward.

    Attributes:
        messages: The messages, as a list of `Message`; empty if the reply continues.
        continuation: What is appended to the reply: a text or an assistant `Message`; None unless `continues=True`.
        prefill: The beginning of the next reply: a text, an assistant `Message`, or None.
        tools: The tools' JSON schemas, or None if the turn does not set them.
        functions: The tools that are functions, by name.
        reward: The sum of `rewards`, or None if the reply was not scored.
        rewards: The rewards by name. A plain number is named `reward`.
        stop: The stop strings, as a tuple.

    The other arguments are attributes of the same name; mappings are copied.

    Raises:
        TurnError: If an argument cannot be read, a number is not finite in float32, or two arguments exclude each
            other.
    """

    __slots__ = (
        "context",
        "context_rewards",
        "continuation",
        "edit",
        "functions",
        "info",
        "keep_reply",
        "mask",
        "max_tokens",
        "messages",
        "metrics",
        "opening",
        "prefill",
        "reward",
        "rewards",
        "sampling",
        "stop",
        "system",
        "terminated",
        "tools",
        "train_dropped",
        "truncated",
        "up_to",
    )

    def __init__(
        self,
        messages: Messages = (),
        *,
        system: str | None = None,
        tools: Sequence[ToolSchema | FunctionTool] | None = None,
        reward: float | Mapping[str, float] | None = 0.0,
        metrics: Mapping[str, float] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        prefill: str | Message | Mapping[str, Any] | None = None,
        continues: bool = False,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        context: str | None = None,
        context_rewards: Mapping[str, float] | None = None,
        edit: Edit | None = None,
        opening: Opening | None = None,
        mask: Mask | None = None,
        keep_reply: int | None = None,
        up_to: str | None = None,
        train_dropped: bool = True,
    ) -> None:
        _refuse_awaitables(messages=messages, reward=reward, prefill=prefill)
        if terminated or truncated:
            _check_end(prefill, keep_reply if up_to is None else up_to, terminated, truncated)
        if continues:
            _check_continues(prefill, system, tools, context, edit, terminated or truncated)
        self.continuation = (
            _read_start_of_reply("the message of a Turn(continues=True)", messages) if continues else None
        )
        self.messages = [] if continues else _read_messages(messages)
        self.prefill = None if prefill is None else _read_start_of_reply("prefill", prefill)
        self.system = None if system is None else _read_system(system)
        self.functions: dict[str, FunctionTool] = {t.name: t for t in tools if _is_tool(t)} if tools else {}
        self.tools = None if tools is None else _read_schemas(tools)
        self.rewards = {} if reward is None else _read_numbers("reward", reward)
        self.reward = None if reward is None else sum(self.rewards.values(), 0.0)
        self.metrics = _read_numbers("metrics", metrics) if metrics else {}
        self.context_rewards = {} if context_rewards is None else _read_context_rewards(context_rewards)
        self.context = None if context is None else _read_context(context)
        self.edit = None if edit is None else _read_edit(edit)
        self.opening = None if opening is None else _read_opening(opening, context, edit)
        self.mask = None if mask is None else _read_mask(mask)
        if keep_reply is not None or up_to is not None:
            _check_cut(keep_reply, up_to)
        self.keep_reply = keep_reply
        self.up_to = up_to
        self.train_dropped = bool(train_dropped)
        self.terminated = bool(terminated)
        self.truncated = bool(truncated)
        self.max_tokens = None if max_tokens is None else _read_max_tokens(max_tokens)
        self.info = {} if info is None else _read_mapping("info", info)
        self.stop = _read_stop(stop)
        self.sampling = {} if sampling is None else _read_mapping("sampling", sampling)

    @property
    def shortens(self) -> bool:
        """Whether the end of the reply may be dropped."""
        return self.keep_reply is not None or self.up_to is not None

    def __repr__(self) -> str:
        end = " terminated" if self.terminated else " truncated" if self.truncated else ""
        return f"<Turn of {len(self.messages)} messages, reward {self.reward}{end}>"


# Rules about several arguments.


def _refuse_awaitables(**given: object) -> None:
    for name, value in given.items():
        if value is None or type(value) in (str, float, Message):  # the common case
            continue
        parts = cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else (value,)
        for part in parts:
            if inspect.isawaitable(part):
                if inspect.iscoroutine(part):
                    part.close()
                raise TurnError(f"{name} of a Turn is an awaitable: an `await` is missing before it")


def _check_end(prefill: object, cut: object, terminated: bool, truncated: bool) -> None:
    if terminated and truncated:
        raise TurnError(
            "a Turn cannot be both terminated and truncated: set terminated if the task is over, truncated if the "
            "episode is cut off before that"
        )
    if prefill is not None:
        raise TurnError("this Turn ends the episode, so there is no next reply that a prefill could begin")
    if cut is not None:
        raise TurnError(
            "this Turn ends the episode, so no later prompt could have a shorter reply. To leave the end of the reply "
            "out of training, give mask="
        )


def _check_continues(prefill: object, system: object, tools: object, context: object, edit: object, ends: bool) -> None:
    others = {"prefill": prefill, "system": system, "tools": tools, "context": context, "edit": edit}
    others["an end"] = ends or None
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise TurnError(
            f"continues=True is given together with {' and '.join(given)}: a reply that continues has no prefill, "
            "keeps its system message, tools and context, and does not end the episode"
        )


# Rules about one argument: each function returns what the Turn holds.


def _read_messages(value: Any) -> list[Message]:
    try:
        return to_messages(value)
    except ValidationError as error:
        raise TurnError(f"a message of a Turn cannot be read: {what_is_invalid(error)}") from error
    except (TypeError, KeyError, ValueError) as error:
        raise TurnError(f"the messages of a Turn cannot be read: {error}") from error


def _read_start_of_reply(what: str, value: Any) -> str | Message:
    """Return a text as it is, and an assistant's reasoning and content as a `Message`."""
    try:
        message = value if isinstance(value, Message) else Message.from_openai(_as_assistant(value))
    except ValidationError as error:
        raise TurnError(f"{what} cannot be read: {what_is_invalid(error)}") from error
    except TypeError:
        raise TurnError(f"{what} is a {type(value).__name__}; expected a text or an assistant Message") from None
    if message.role != "assistant" or message.tool_calls or message.parts is not None:
        raise TurnError(
            f"{what} is {message!r:.80}; expected a text, or an assistant Message with reasoning and content only"
        )
    return value if isinstance(value, str) else message


def _as_assistant(value: Any) -> Mapping[str, Any]:
    return {"role": "assistant", "content": value} if isinstance(value, str) else {**value}


def _read_system(system: object) -> str:
    if not isinstance(system, str):
        raise TurnError(f"system is a {type(system).__name__}; expected a text")
    try:
        Message(role="system", content=system)
    except ValidationError as error:
        raise TurnError(f"system cannot be read: {what_is_invalid(error)}") from error
    return system


def _read_numbers(field: str, value: float | Mapping[str, float]) -> dict[str, float]:
    """Return named finite numbers; a single number gets the field's name."""
    if type(value) is float and abs(value) <= LARGEST:
        return {field: value}
    named: Mapping[str, Any] = value if isinstance(value, Mapping) else {field: value}
    try:
        numbers = {check_text(str(name)): _as_float(number) for name, number in named.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise TurnError(
            f"{field} is {value!r:.80}; expected a number or a mapping of names to numbers ({error})"
        ) from error
    if not all(abs(number) <= LARGEST for number in (*numbers.values(), sum(numbers.values()))):
        raise TurnError(f"{field} is {value!r:.80}; expected numbers that are finite in float32, which trainers use")
    return numbers


def _as_float(number: Any) -> float:
    if isinstance(number, (str, bytes)):  # float() would read them
        raise TypeError("a text is not a number")
    return float(number)


def _read_context_rewards(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise TurnError(f"context_rewards is {value!r:.80}; expected a mapping of context names to numbers")
    return _read_numbers("context_rewards", cast("Mapping[str, float]", value)) if value else {}


def _read_context(name: object) -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise TurnError(f"context is {name!r:.80}; expected a name without control characters")
    return name


def _read_edit(edit: Any) -> Edit:
    if not isinstance(edit, Edit) or not _are_counts(edit.start, edit.keep) or not isinstance(edit.detail, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TurnError(
            f"edit is {edit!r:.80}; expected an Edit(keep, detail) with an integer of at least 0 and a text"
        )
    return edit


def _read_opening(opening: Any, context: object, edit: object) -> Opening:
    if context is None or edit is not None:
        raise TurnError("opening= describes the new context that context= names; it goes without edit=")
    if not isinstance(opening, Opening) or not _are_counts(opening.start, opening.keep):
        raise TurnError(f"opening is {opening!r:.80}; expected an Opening(role, base, keep) with keep at least 0")
    _read_context(opening.role)
    if opening.keep and opening.base is None:
        raise TurnError(f"opening is {opening!r:.80}: keep counts messages of its base, which is None")
    return opening


def _read_mask(mask: Any) -> Mask:
    if not isinstance(mask, Mask) or not all(_is_span(span) for span in (*mask.characters, *mask.tokens)):
        raise TurnError(
            f"mask is {mask!r:.80}; expected a Mask of spans (start, stop): integers of at least 0, or None for the end"
        )
    return mask


def _is_span(span: Any) -> bool:
    if not isinstance(span, (tuple, list)) or len(cast("Any", span)) != 2:
        return False
    start, stop = cast("tuple[Any, Any]", span)
    return _are_counts(start, start if stop is None else stop)


def _check_cut(keep_reply: object, up_to: object) -> None:
    if keep_reply is not None and up_to is not None:
        raise TurnError("keep_reply and up_to both say where the reply ends: give one of them")
    if keep_reply is not None and not _are_counts(0, keep_reply):
        raise TurnError(f"keep_reply is {keep_reply!r:.80}; expected how many tokens stay, an integer of at least 0")
    if up_to is not None and (not isinstance(up_to, str) or not up_to):
        raise TurnError(f"up_to is {up_to!r:.80}; expected a text that is not empty")


def _are_counts(start: object, keep: object) -> bool:
    return type(start) is int and type(keep) is int and 0 <= start <= keep


def _read_max_tokens(value: object) -> int:
    number = plain_integer(value)
    if type(number) is not int or number < 1:
        raise TurnError(f"max_tokens is {number!r:.80}; expected None or an integer of at least 1")
    return number


def _read_mapping(field: str, value: Any) -> dict[str, Any]:
    try:
        return dict(value or {})
    except (TypeError, ValueError) as error:
        raise TurnError(f"{field} is {value!r:.80}; expected a mapping ({error})") from error


def _read_stop(stop: Any) -> tuple[str, ...]:
    try:
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
    except TypeError:
        _refuse_stop(stop)
    if texts and not all(isinstance(text, str) and text for text in texts):
        _refuse_stop(stop)
    return texts


def _refuse_stop(stop: object) -> NoReturn:
    raise TurnError(f"stop is {stop!r:.80}; expected a list of strings that are not empty")


def _is_tool(tool: object) -> TypeGuard[FunctionTool]:
    return not isinstance(tool, Mapping) and hasattr(tool, "schema")


def _read_schemas(tools: Sequence[ToolSchema | FunctionTool]) -> list[ToolSchema]:
    """Return the tools' schemas. Mappings are copied, so that the author's own stay as they are."""
    return [tool.schema if _is_tool(tool) else copy.deepcopy(_checked_schema(tool)) for tool in tools]


def _checked_schema(tool: Any) -> ToolSchema:
    function: Any = cast("Any", tool).get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(cast("Any", function).get("name"), str):
        raise TurnError(
            f"a tool is {tool!r:.80}; expected what `envsdk.tool` makes, or a JSON schema in the OpenAI form, "
            "{'type': 'function', 'function': {'name': ...}}"
        )
    _check_parameters(cast("Any", function).get("parameters") or {})
    return cast("ToolSchema", tool)


def _check_parameters(parameters: Any) -> None:
    required: Any = cast("Any", parameters).get("required") or () if isinstance(parameters, Mapping) else None
    if not isinstance(required, (list, tuple)):
        raise TurnError(f"the parameters of a tool are {parameters!r:.80}; expected the JSON schema of an object")
