"""What an environment says next."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, cast

from pydantic import ValidationError

from ..contexts.arrays import LARGEST
from ..errors import TurnError, what_is_invalid
from ..limits import plain_integer
from ..messages import Message, ToolSchema, check_text, to_messages


class FunctionTool(Protocol):
    """A tool that is a function: what `envsdk.tool` makes."""

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        ...

    @property
    def schema(self) -> ToolSchema:
        """The JSON schema, in the OpenAI form."""
        ...


class Turn:
    """What an environment says next: messages, reward, and whether the episode is over.

    Args:
        messages: A text (a user message), a `Message`, or a list of messages; an OpenAI-style mapping is one, too.
        system: The system message that opens the conversation. In a later turn: what it is from then on.
        tools: The tools that the model may call: JSON schemas, or what `envsdk.tool` makes. In a later turn: what they
            are from then on. A later `system` or `tools` that is another than before is a declared `edit`.
        reward: What the reply earned: a number, or named rewards, which add up. None: it was not scored.
        metrics: Named numbers to report; they are no rewards.
        terminated: The task is over.
        truncated: The episode is cut off, though the task is not over.
        info: Entries for the `info` of the step; they may not take the names that envsdk uses.
        prefill: What the next reply begins with, without having been sampled: a text, which stands as it is behind the
            generation prompt; or an assistant's `Message`, whose reasoning goes on if it has no `content`, and whose
            content goes on if it has (`content=""` closes the reasoning).
        continues: The reply that this turn answers goes on, with `messages` inside it: a text as it is, or an
            assistant's `Message`, whose reasoning goes on with an open think block, and whose content comes behind it.
            A stop token that ended the reply is dropped, a declared `edit`. If a limit ends the episode, the reply does
            not go on.
        stop: Strings at which the policy should stop sampling; what it sampled behind them stays.
        max_tokens: How many tokens the policy should sample next. A policy that samples more is not refused. A reply
            that ends there without a stop token does not end the episode, as one that a limit or the policy cuts does:
            `respond` gets it, with `errors` (it has no end) and `open_block` (where it was cut). The next turn lets it
            go on (`continues=True`: a thinking budget), or answers it, and then it is closed first, which
            `info["truncated_reply"]` reports.
        sampling: Sampling parameters for the next reply (temperature and so on), passed on to the policy.
        context: Whom it speaks to, such as `player1`; by default whoever spoke last. A new name opens a new context.
        context_rewards: What contexts earned, by name: one's own, or those of sub-agents (`HandoffResult.context`). A
            context that earned something has that as its reward, in place of the episode's.

    Raises:
        TurnError: For messages that cannot be read, and for a reward that is no finite number.
    """

    __slots__ = (
        "context",
        "context_rewards",
        "continuation",
        "functions",
        "info",
        "max_tokens",
        "messages",
        "metrics",
        "prefill",
        "reward",
        "rewards",
        "sampling",
        "stop",
        "system",
        "terminated",
        "tools",
        "truncated",
    )

    def __init__(
        self,
        messages: str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]] = (),
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
    ) -> None:
        _refuse_awaitables(messages=messages, reward=reward, prefill=prefill)
        self.continuation = _start_of_reply("the message of a Turn(continues=True)", messages) if continues else None
        self.prefill = None if prefill is None else _start_of_reply("prefill", prefill)
        try:
            self.messages = [] if continues else to_messages(messages)
        except ValidationError as error:
            raise TurnError(f"a message of a Turn cannot be read: {what_is_invalid(error)}") from error
        except (TypeError, KeyError, ValueError) as error:
            raise TurnError(f"the messages of a Turn cannot be read: {error}") from error
        max_tokens = plain_integer(max_tokens)
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise TurnError(f"max_tokens is {max_tokens!r}; expected None or an integer of at least 1")
        if system is not None:
            _check_system(system)
        if terminated and truncated:
            raise TurnError("a Turn is terminated (the task is over) or truncated (it is cut off), not both")
        if continues and (prefill is not None or system is not None or tools is not None or terminated or truncated):
            raise TurnError(
                "a reply that continues has no prefill, no new system or tools, and does not end the episode"
            )
        if prefill is not None and (terminated or truncated):
            raise TurnError("the episode ends, so there is no next reply that a prefill could begin")
        self.system = system
        self.functions: dict[str, FunctionTool] = {tool.name: tool for tool in tools or () if _is_tool(tool)}
        self.tools = None if tools is None else _schemas(tools)
        self.rewards = {} if reward is None else _numbers("reward", reward)
        self.reward = sum(self.rewards.values(), 0.0) if reward is not None else None
        self.metrics = _numbers("metrics", metrics) if metrics else {}
        if context_rewards is not None and not isinstance(context_rewards, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TurnError(f"context_rewards is {context_rewards!r}; expected a number for each name of a context")
        self.context_rewards = _numbers("context_rewards", context_rewards) if context_rewards else {}
        if context is not None and (not isinstance(context, str) or not context or not context.isprintable()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TurnError(f"context is {context!r}; expected a name without control characters")
        if continues and context is not None:
            raise TurnError("a reply that continues is in the context that it is in: give no context")
        self.context = context
        self.terminated = bool(terminated)
        self.truncated = bool(truncated)
        self.max_tokens = max_tokens
        try:
            self.info = dict(info or {})
            self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
            self.sampling = dict(sampling or {})
        except (TypeError, ValueError) as error:
            raise TurnError(f"info and sampling are mappings, stop is a list of strings: {error}") from error
        if self.stop and not all(isinstance(text, str) and text for text in self.stop):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TurnError(f"stop is a list of strings that are not empty, got {stop!r:.80}")

    def __repr__(self) -> str:
        end = " terminated" if self.terminated else " truncated" if self.truncated else ""
        return f"<Turn of {len(self.messages)} messages, reward {self.reward}{end}>"


def _refuse_awaitables(**given: object) -> None:
    for name, value in given.items():
        parts = cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else (value,)
        for part in parts:
            if inspect.isawaitable(part):
                if inspect.iscoroutine(part):
                    part.close()
                raise TurnError(f"{name} of a Turn is something to wait for: an `await` is missing before it")


def _check_system(system: object) -> None:
    if not isinstance(system, str):
        raise TurnError(f"system is a {type(system).__name__}; expected a text")
    try:
        Message(role="system", content=system)
    except ValidationError as error:
        raise TurnError(f"system cannot be read: {what_is_invalid(error)}") from error


def _numbers(field: str, value: float | Mapping[str, float]) -> dict[str, float]:
    """Named finite numbers; one number is named like the field."""
    if type(value) is float and abs(value) <= LARGEST:
        return {field: value}
    named: Mapping[str, Any] = value if isinstance(value, Mapping) else {field: value}
    try:
        if any(isinstance(number, (str, bytes)) for number in named.values()):
            raise TypeError("a text is no number")
        numbers = {check_text(str(name)): float(number) for name, number in named.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise TurnError(f"{field} {value!r:.80} is no number and no mapping of names to numbers: {error}") from error
    if not all(abs(number) <= LARGEST for number in (*numbers.values(), sum(numbers.values()))):
        raise TurnError(f"{field} {value!r:.80} is not finite in float32, as trainers have it")
    return numbers


def _start_of_reply(what: str, value: Any) -> str | Message:
    """A text, or an assistant's message of reasoning and content."""
    try:
        message = value if isinstance(value, Message) else Message.from_openai(_as_mapping(value))
    except ValidationError as error:
        raise TurnError(f"{what} cannot be read: {what_is_invalid(error)}") from error
    except KeyError as error:
        raise TurnError(f"{what} cannot be read: it has no {error}") from error
    except TypeError:
        raise TurnError(f"{what} is a {type(value).__name__}; expected a text or an assistant's Message") from None
    if message.role != "assistant" or message.tool_calls or message.parts is not None:
        raise TurnError(
            f"{what} is {message!r:.80}; expected a text, or an assistant's reasoning and content, no calls"
        )
    return value if isinstance(value, str) else message


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return {"role": "assistant", "content": value} if isinstance(value, str) else {**value}


def _is_tool(tool: object) -> TypeGuard[FunctionTool]:
    return not isinstance(tool, Mapping) and hasattr(tool, "schema")


def _schemas(tools: Sequence[ToolSchema | FunctionTool]) -> list[ToolSchema]:
    """The schemas of tools, copies of the author's own."""
    return [tool.schema if _is_tool(tool) else copy.deepcopy(_checked_schema(tool)) for tool in tools]


def _checked_schema(tool: Any) -> ToolSchema:
    function: Any = cast("Any", tool).get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(cast("Any", function).get("name"), str):
        raise TurnError(
            "a tool is what `envsdk.tool` makes, or a JSON schema in the OpenAI form, "
            f"{{'type': 'function', 'function': {{'name': ...}}}}; got {tool!r:.80}"
        )
    parameters: Any = cast("Any", function).get("parameters") or {}
    required: Any = cast("Any", parameters).get("required") or () if isinstance(parameters, Mapping) else None
    if not isinstance(required, (list, tuple)):
        raise TurnError(f"the parameters of a tool are the JSON schema of an object, got {parameters!r:.80}")
    return cast("ToolSchema", tool)
