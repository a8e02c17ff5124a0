"""The turn that an environment returns. Its arguments are checked when an author makes it."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from pydantic import BaseModel, ValidationError

from .._describing import what_is_invalid
from .._visible import brief, type_of
from ..contexts._edits import Edit
from ..errors import TurnError
from ..limits import LARGEST, plain_integer
from ..messages import Message, ToolSchema, check_text, to_messages

Messages: TypeAlias = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""The forms in which authors may give messages."""


@runtime_checkable
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
    """The new context that a turn opens.

    Attributes:
        role: The role of the context.
        base: The name of the context whose first messages it begins with, which is its parent; None for a new
            conversation.
        keep: The number of messages of that conversation that it begins with, the system message included.
        detail: The reason why it is opened, for people.
        is_trainable: Whether the context gives samples.
        start: The number of messages that are left out at the start of that conversation; `keep` counts them.
        parent: The name of the context that opened it, if it has no `base`; None for the context that opened the agent.
    """

    role: str
    base: str | None = None
    keep: int = 0
    detail: str = ""
    is_trainable: bool = True
    start: int = 0
    parent: str | None = None


class Mask(NamedTuple):
    """The parts of a sampled reply that are not trained.

    Attributes:
        characters: Spans of `reply.new_text`: pairs of the index of the first character and the one after the last, or
            None for the end. Every token that overlaps such a span is masked.
        tokens: Spans of the reply's sampled tokens, in the same form. The stop token is among them.
    """

    characters: Sequence[tuple[int, int | None]] = ()
    tokens: Sequence[tuple[int, int | None]] = ()


class Turn:
    """The environment's next move: messages, a reward, and whether the episode is over.

    Args:
        messages: The messages to append: a string (a user message), a `Message`, a mapping in the OpenAI chat format,
            or a list of these.
        system: The system message that opens the conversation. In a later turn, it replaces the system message.
        tools: The tools that the model may call: JSON schemas, or what `envsdk.tool` makes. In a later turn, they
            replace the tools. A change of `system` or `tools` is a declared `edit`.
        reward: The reward of the reply: a number, or a mapping of names to numbers, which add up. None means that the
            reply was not scored.
        metrics: Named numbers to report. They do not count as rewards.
        terminated: Whether the task is over.
        truncated: Whether the episode is cut off although the task is not over.
        info: Entries for the `info` of the step. Keys that envsdk uses itself are refused.
        prefill: The beginning of the next reply, which the policy does not sample: a string, which follows the
            generation prompt verbatim, or an assistant `Message`. The model continues the message's content if
            `content` is given (`content=""` closes the reasoning), and its reasoning otherwise.
        continues: Let the model continue the reply that this turn answers, with `messages` appended to that reply: a
            string verbatim, or an assistant `Message`, whose reasoning continues an open think block and whose content
            follows it. A stop token that ended the reply is dropped, which is a declared `edit`. If a limit ends the
            episode, the reply is not continued.
        stop: Strings at which the policy should stop sampling. Tokens that it sampled after such a string stay.
        max_tokens: The most tokens that the policy should sample for the next reply. A longer reply is not refused. A
            reply that reaches this number without a stop token does not end the episode, unlike one that a limit or the
            policy cut. `respond` receives it with `errors` (its end is missing) and `open_block` (where it was cut).
            The next turn continues the reply (`continues=True`, a thinking budget) or answers it. A reply that is
            answered is closed first, which `info["truncated_reply"]` reports.
        sampling: Sampling parameters for the next reply, such as the temperature. They are passed on to the policy.
        schema: The JSON schema of the next reply's content, or a pydantic model. The policy samples only tokens with
            which the content follows it, after any reasoning; with tools, a reply may have calls instead. A policy that
            cannot do so refuses. A reply that a limit cuts does not follow it. It needs the extra `grammar`.
        tool_choice: Whether the next reply calls a tool: `"auto"`, `"none"`, `"required"`, or the name of the tool. The
            policy enforces each of them but `"auto"`, and the tools' schemas, as it does `schema`.
        context: The name of the context that the turn addresses, such as `player1`; by default the context of the last
            reply. A new name opens a new context.
        opening: The role of the new context that `context` names, and which part of another context it begins with.
        edit: An `Edit(keep, detail)`: the first `keep` messages of the conversation stay, and `messages` replace those
            after them, a declared `edit`. `messages` may begin with messages of the conversation, which keep their
            tokens. None appends the messages.
        mask: The parts of the reply that are not trained, a `Mask`. Their tokens stay in the context; no sample trains
            them.
        keep_reply: The number of the reply's sampled tokens that stay in the context, from the first one on; the others
            are dropped, which is a declared `edit`. The shortened reply is closed, or continues (`continues=True`). A
            stop token is not dropped alone. If a limit ends the episode, nothing is dropped.
        up_to: The same as `keep_reply`, by text: the reply stays up to the end of the first occurrence of this string
            in `reply.new_text`, and of the token that contains this end. If it does not occur, the whole reply stays.
        train_dropped: Whether the tokens that `keep_reply` or `up_to` drops are trained, as all sampled tokens are: in
            the sample that ends with the reply.
        context_rewards: Rewards of single contexts by name: the environment's own contexts, or those of its sub-agents
            (`HandoffResult.context`). A context with such a reward is trained on it instead of the episode's reward.

    Attributes:
        messages: The messages, as a list of `Message`; empty if the reply continues.
        continuation: The string or assistant `Message` to append to the reply; None unless `continues=True`.
        prefill: The beginning of the next reply: a string, an assistant `Message`, or None.
        tools: The tools' JSON schemas, or None if the turn does not set them.
        functions: The tools that are functions, by name.
        reward: The sum of `rewards`, or None if the reply was not scored.
        rewards: The rewards by name. A plain number is named `reward`.
        schema: The JSON schema as a dict, or None.
        stop: The stop strings, as a tuple.

    The other arguments are attributes of the same name; mappings are copied.

    Raises:
        TurnError: If an argument is not valid, a number is not finite in float32, or two arguments exclude each other.
    """

    __slots__ = (
        *("context", "context_rewards", "continuation", "edit", "functions", "info", "keep_reply", "mask"),
        *("max_tokens", "messages", "metrics", "opening", "prefill", "reward", "rewards", "sampling"),
        *("schema", "stop", "system", "terminated", "tool_choice", "tools", "train_dropped", "truncated", "up_to"),
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
        schema: Mapping[str, Any] | type[BaseModel] | None = None,
        tool_choice: str = "auto",
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
        max_tokens = None if max_tokens is None else plain_integer(max_tokens)
        given: dict[str, Any] = {
            "system": system,
            "info": info,
            "max_tokens": max_tokens,
            "sampling": sampling,
            "schema": schema,
            "tool_choice": tool_choice,
            "context": context,
            "context_rewards": context_rewards,
            "edit": edit,
            "opening": opening,
            "mask": mask,
            "keep_reply": keep_reply,
            "up_to": up_to,
            "metrics": metrics,
            "terminated": terminated,
            "truncated": truncated,
            "continues": continues,
            "train_dropped": train_dropped,
        }
        for name, value in given.items():
            if value is not None and not _RULES[name][0](value):
                raise TurnError(f"{name} is {brief(value)}; expected {_RULES[name][1]}")
        try:
            self.stop: tuple[str, ...] = (stop,) if isinstance(stop, str) else tuple(stop)
        except TypeError:
            self.stop = ("",)
        if self.stop and not all(map(_is_string, self.stop)):
            raise TurnError(f"stop is {brief(stop)}; expected a list of strings that are not empty")
        if terminated or truncated:
            _check_end(prefill, keep_reply if up_to is None else up_to, terminated and truncated)
            if schema is not None or tool_choice != "auto":
                raise TurnError(
                    "this Turn ends the episode, but schema= or tool_choice= is for a next reply: leave it out"
                )
        if (schema is not None or tool_choice != "auto") and "grammar" in (sampling or ()):
            raise TurnError(
                "schema= or tool_choice= is given together with sampling={'grammar': ...}: give one of them"
            )
        if continues:
            others: dict[str, Any] = {
                "prefill": prefill,
                "system": system,
                "tools": tools,
                "context": context,
                "edit": edit,
            }
            others["an end"] = terminated or truncated or None
            if together := [name for name, value in others.items() if value is not None]:
                raise TurnError(
                    f"continues=True is given together with {' and '.join(together)}: a reply that continues has no "
                    "prefill, keeps its system message, tools and context, and does not end the episode"
                )
        if opening is not None and (context is None or edit is not None):
            raise TurnError("opening= describes the new context that context= names: give context=, and not edit=")
        if keep_reply is not None and up_to is not None:
            raise TurnError("keep_reply and up_to both specify where the reply ends: give only one of them")
        self.continuation = (
            _read_start_of_reply("the message of a Turn(continues=True)", messages) if continues else None
        )
        try:
            self.messages = [] if continues else to_messages(messages)
            self.system = None if system is None else check_text(system)
        except ValidationError as error:
            why = what_is_invalid(error, Message.model_fields)
            raise TurnError(f"a message of a Turn cannot be read: {why}") from error
        except (TypeError, KeyError, ValueError) as error:
            raise TurnError(f"the messages of a Turn cannot be read: {error}") from error
        self.prefill = None if prefill is None else _read_start_of_reply("prefill", prefill)
        self.functions: dict[str, FunctionTool] = {}
        self.tools: list[ToolSchema] | None = None
        if isinstance(tools, (str, Mapping)):
            raise TurnError(f"tools is {brief(tools)}; expected a list of tools")
        if tools is not None:
            self.functions = {tool.name: tool for tool in tools if isinstance(tool, FunctionTool)}
            self.tools = [_read_schema(tool) for tool in tools]
        self.rewards = {} if reward is None else _read_numbers("reward", reward)
        self.reward = None if reward is None else sum(self.rewards.values(), 0.0)
        self.metrics = _read_numbers("metrics", metrics) if metrics else {}
        self.context_rewards = _read_numbers("context_rewards", context_rewards) if context_rewards else {}
        self.context = context
        self.edit = edit
        self.opening = opening
        self.mask = mask
        self.keep_reply = keep_reply
        self.up_to = up_to
        self.train_dropped = bool(train_dropped)
        self.terminated = bool(terminated)
        self.truncated = bool(truncated)
        self.max_tokens: int | None = max_tokens
        self.info: dict[str, Any] = dict(info or {})
        self.sampling: dict[str, Any] = dict(sampling or {})
        self.schema: dict[str, Any] | None = None
        if schema is not None:
            given_schema: Any = schema.model_json_schema() if isinstance(schema, type) else schema
            self.schema = copy.deepcopy(dict(given_schema))
        self.tool_choice = tool_choice

    @property
    def shortens(self) -> bool:
        """True if the turn may drop the end of the reply."""
        return self.keep_reply is not None or self.up_to is not None

    def __repr__(self) -> str:
        end = " terminated" if self.terminated else " truncated" if self.truncated else ""
        return f"<Turn of {len(self.messages)} messages, reward {self.reward}{end}>"


def _is_bool(value: object) -> bool:
    return isinstance(value, (bool, np.bool_))


def _are_counts(first: object, second: object) -> bool:
    return type(first) is int and type(second) is int and 0 <= first <= second


def _is_string(text: object) -> bool:
    return isinstance(text, str) and text != ""


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and name.isprintable()


def _is_span(span: Any) -> bool:
    if not isinstance(span, (tuple, list)) or len(cast("Any", span)) != 2:
        return False
    start, stop = cast("tuple[Any, Any]", span)
    return _are_counts(start, start if stop is None else stop)


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "system": (lambda system: isinstance(system, str), "a string"),
    "info": (lambda info: isinstance(info, Mapping), "a mapping"),
    "max_tokens": (lambda count: _are_counts(1, count), "None or an integer of at least 1"),
    "sampling": (lambda sampling: isinstance(sampling, Mapping), "a mapping"),
    "schema": (
        lambda schema: isinstance(schema, Mapping) or (isinstance(schema, type) and issubclass(schema, BaseModel)),
        "a JSON schema as a mapping, or a pydantic model",
    ),
    "tool_choice": (_is_string, "'auto', 'none', 'required' or the name of a tool"),
    "context": (_is_name, "a name without control characters"),
    "context_rewards": (lambda rewards: isinstance(rewards, Mapping), "a mapping of context names to numbers"),
    "edit": (
        lambda edit: (
            isinstance(edit, Edit)
            and _are_counts(edit.start, edit.keep)
            and type(edit.detail) is str
            and edit.reason in ("edit", "fold")
        ),
        "an Edit(keep, detail) with an integer of at least 0 and a string; its reason is 'edit' or 'fold'",
    ),
    "opening": (
        lambda opening: (
            isinstance(opening, Opening)
            and _are_counts(opening.start, opening.keep)
            and _is_name(opening.role)
            and (opening.base is not None or not opening.keep)
        ),
        "an Opening(role, base, keep) with a name as its role, and keep at least 0, which counts messages of its base",
    ),
    "mask": (
        lambda mask: isinstance(mask, Mask) and all(map(_is_span, (*mask.characters, *mask.tokens))),
        "a Mask of spans (start, stop): integers of at least 0, or None for the end",
    ),
    "keep_reply": (lambda count: _are_counts(0, count), "how many tokens stay, an integer of at least 0"),
    "up_to": (_is_string, "a string that is not empty"),
    "metrics": (lambda metrics: isinstance(metrics, Mapping), "a mapping of names to numbers"),
    **dict.fromkeys(("terminated", "truncated", "continues", "train_dropped"), (_is_bool, "True or False")),
}
"""For each argument that is not None: a check, and a description of the valid values."""


def _refuse_awaitables(**given: object) -> None:
    for name, value in given.items():
        parts = cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else (value,)
        for part in parts:
            if inspect.isawaitable(part):
                if inspect.iscoroutine(part):
                    part.close()
                raise TurnError(f"{name} of a Turn is an awaitable: an `await` is missing before it")


def _check_end(prefill: object, cut: object, is_both: bool) -> None:
    if is_both:
        raise TurnError(
            "a Turn cannot be both terminated and truncated: set terminated if the task is over, truncated if the "
            "episode is cut off before that"
        )
    if prefill is not None:
        raise TurnError("this Turn ends the episode, but prefill= is the beginning of a next reply: leave it out")
    if cut is not None:
        raise TurnError(
            "this Turn ends the episode, so no later prompt shows the shortened reply. To leave the end of the reply "
            "out of training, give mask="
        )


def _read_start_of_reply(what: str, value: Any) -> str | Message:
    """Return a string as it is, and an assistant's reasoning and content as a `Message`."""
    try:
        given = {"role": "assistant", "content": value} if isinstance(value, str) else value
        message = given if isinstance(given, Message) else Message.from_openai({**given})
    except ValidationError as error:
        raise TurnError(f"{what} cannot be read: {what_is_invalid(error, Message.model_fields)}") from error
    except TypeError:
        raise TurnError(f"{what} is {type_of(value)}; expected a string or an assistant Message") from None
    if message.role != "assistant" or message.tool_calls or message.parts is not None:
        raise TurnError(
            f"{what} is {brief(message)}; expected a string, or an assistant Message with reasoning and content only"
        )
    return value if isinstance(value, str) else message


def _read_numbers(field: str, value: float | Mapping[str, float]) -> dict[str, float]:
    """Return named finite numbers; a single number gets the field's name."""
    named: Mapping[str, Any] = value if isinstance(value, Mapping) else {field: value}
    numbers: dict[str, float] = {}
    try:
        for name, number in named.items():
            if isinstance(number, (str, bytes)):  # float() would read them
                raise TypeError("a string is not a number")
            numbers[name if name is field else check_text(str(name))] = float(number)
    except (TypeError, ValueError, OverflowError) as error:
        raise TurnError(
            f"{field} is {brief(value)}; expected a number or a mapping of names to numbers ({error})"
        ) from error
    if not all(abs(number) <= LARGEST for number in (*numbers.values(), sum(numbers.values()))):
        raise TurnError(f"{field} is {brief(value)}; expected numbers that are finite in float32, which trainers use")
    return numbers


def _read_schema(tool: Any) -> ToolSchema:
    """Return the schema of a tool. A mapping is copied, so that the author's own is never changed."""
    if isinstance(tool, FunctionTool):
        return tool.schema
    function: Any = cast("Any", tool).get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(cast("Any", function).get("name"), str):
        raise TurnError(
            f"a tool is {brief(tool)}; expected what `envsdk.tool` makes, or a JSON schema in the OpenAI form, "
            "{'type': 'function', 'function': {'name': ...}}"
        )
    parameters: Any = cast("Any", function).get("parameters") or {}
    required: Any = cast("Any", parameters).get("required") or () if isinstance(parameters, Mapping) else None
    if not isinstance(required, (list, tuple)):
        raise TurnError(f"the parameters of a tool are {brief(parameters)}; expected the JSON schema of an object")
    return copy.deepcopy(cast("ToolSchema", tool))
