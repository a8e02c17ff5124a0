"""Turns, handoffs and messages as JSON, between a `RemoteEnv` and the server that runs its author's methods.

Nothing is lost on the way: what JSON cannot represent is refused with its name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..._describing import what_is_invalid
from ...contexts._edits import Edit
from ...episodes._handoff import HandoffResult
from ...episodes._turn import Mask, Opening, Turn
from ...errors import RemoteEnvError, TurnError
from ...limits import Limits
from ...messages import Message, ToolSchema, check_json

PROTOCOL = 1
"""The version of what a `RemoteEnv` and its server exchange."""


class Data(BaseModel):
    """What is sent as JSON. Numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class MessageTable:
    """The messages that both sides of a session have. A message that was sent once is sent as its number after that.

    So each side has one object for each message, as an `Edit` needs it, and no image is sent twice.
    """

    def __init__(self) -> None:
        self._known: list[Message] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, message: Message) -> None:
        """Give a message the next number."""
        self._numbers[id(message)] = len(self._known)
        self._known.append(message)

    def forget(self, length: int = 0) -> None:
        """Forget all messages but the first ones."""
        while len(self._known) > length:
            self._numbers.pop(id(self._known.pop()), None)

    def write(self, message: Message) -> int | dict[str, Any]:
        """Return a message as JSON, or its number."""
        if (number := self._numbers.get(id(message))) is not None:
            return number
        self.add(message)
        return message_as_json(message)

    def read(self, data: int | Mapping[str, Any]) -> Message:
        """Return the message that the other side wrote.

        Raises:
            RemoteEnvError: If it cannot be read, or no message has the number.
        """
        if isinstance(data, int):
            if not 0 <= data < len(self._known):
                raise RemoteEnvError(f"the message {data} is unknown: the session has {len(self._known)} messages")
            return self._known[data]
        try:
            self.add(Message.model_validate(data))
        except ValidationError as error:
            raise RemoteEnvError(f"a message cannot be read: {what_is_invalid(error)}") from error
        return self._known[-1]


def message_as_json(message: Message) -> dict[str, Any]:
    """Return all fields of a message as JSON, images as `data:` URLs; `Message.model_validate` reads it."""
    data = message.model_dump(exclude_defaults=True, exclude={"parts"})
    if message.parts is not None:
        data["content"] = [part.to_openai() for part in message.parts]
    return data


def text_of_json(value: Any) -> str:
    """Return JSON text; OpenEnv passes it on as a string, so that it arrives as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class TurnData(Data):
    """A `Turn` as JSON; its fields are the arguments of `Turn`, with `content_schema` for `schema`.

    Messages are numbers or mappings.
    """

    messages: list[int | dict[str, Any]]
    continuation: str | dict[str, Any] | None = None
    prefill: str | dict[str, Any] | None = None
    system: str | None = None
    tools: list[dict[str, Any]] | None = None
    reward: dict[str, float] | None = None
    metrics: dict[str, int | float] = Field(default_factory=dict[str, int | float])
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict[str, Any])
    stop: list[str] = Field(default_factory=list[str])
    max_tokens: int | None = None
    sampling: dict[str, Any] = Field(default_factory=dict[str, Any])
    content_schema: dict[str, Any] | None = None
    tool_choice: str = "auto"
    context: str | None = None
    context_rewards: dict[str, float] = Field(default_factory=dict[str, float])
    edit: Edit | None = None
    opening: Opening | None = None
    mask: Mask | None = None
    keep_reply: int | None = None
    up_to: str | None = None
    train_dropped: bool = True

    @classmethod
    def of(cls, turn: Turn, table: MessageTable) -> "TurnData":
        """Return a turn as JSON.

        Raises:
            TurnError: If its `info`, `sampling` or `schema` is not JSON.
        """
        for name in ("info", "sampling", "schema"):
            try:
                check_json(getattr(turn, name))
            except ValueError as error:
                raise TurnError(f"Turn({name}=...) cannot be sent to another machine: {error}") from error
        given: dict[str, Any] = {
            **{name: getattr(turn, name) for name in cls.model_fields if name != "content_schema"},
            "content_schema": turn.schema,
            "stop": list(turn.stop),
            "messages": [table.write(message) for message in turn.messages],
            "reward": None if turn.reward is None else turn.rewards,
            "tools": None if turn.tools is None else schemas_as_json(turn.tools),
        }
        for name in ("continuation", "prefill"):
            given[name] = message_as_json(given[name]) if isinstance(given[name], Message) else given[name]
        if turn.mask is not None:
            given["mask"] = tuple([tuple(span) for span in spans] for spans in turn.mask)
        return cls.model_validate(given)

    def turn(self, table: MessageTable) -> Turn:
        """Return the turn.

        Raises:
            TurnError: If it is not valid.
            RemoteEnvError: If a message is unknown.
        """
        given = dict(self)
        continuation, messages = given.pop("continuation"), [table.read(message) for message in given.pop("messages")]
        given["schema"] = given.pop("content_schema")
        turn = Turn(messages if continuation is None else continuation, continues=continuation is not None, **given)
        turn.metrics = dict(self.metrics)  # counts of a `ToolEnv` are integers
        return turn


def schemas_as_json(tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    """Return the schemas of tools as JSON.

    Raises:
        TurnError: If one is not JSON.
    """
    try:
        return json.loads(json.dumps([dict(tool) for tool in tools], allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TurnError(f"the schema of a tool cannot be sent to another machine: {error}") from error


class ResultData(Data):
    """A `HandoffResult` as JSON."""

    messages: list[int | dict[str, Any]]
    content: str
    reward: float | None
    stop_reason: str
    error: str | None
    context: str

    @classmethod
    def of(cls, result: HandoffResult, table: MessageTable) -> "ResultData":
        """Return a result as JSON."""
        given = {name: getattr(result, name) for name in cls.model_fields}
        return cls.model_validate({**given, "messages": [table.write(message) for message in result.messages]})

    def result(self, table: MessageTable) -> HandoffResult:
        """Return the result."""
        given = dict(self)
        return HandoffResult([table.read(message) for message in given.pop("messages")], **given)


class AgentData(Data):
    """What an author's method may read of the agent that acts, or of one above it."""

    steps: int
    sampled: int
    tool_calls: int
    limits: Limits


class Call(Data):
    """A call of an author's method.

    Attributes:
        number: The number of the call in the session, from 1 on. A call that is sent again is not run again.
        method: The method.
        env: The number of the environment: 0, or that of a sub-agent's.
        name: The name of the agent's first context.
        agents: The agent and those above it, from it upward.
        context: The current context.
        keep: The number of messages of the context that the server has already.
        messages: The messages after them.
        new_text: For `respond`, the text that the model sampled since the last turn.
        results: For `resume`, the results; `is_list` reports whether the author returned a list of handoffs.
        seed: For `start`, the seed; likewise `options` (of `reset`), `split` and `history`.
    """

    protocol: int = PROTOCOL
    number: int = Field(ge=1)
    method: str
    env: int = 0
    name: str = "main"
    agents: list[AgentData] = Field(default_factory=list[AgentData])
    context: str | None = None
    keep: int = Field(default=0, ge=0)
    messages: list[int | dict[str, Any]] = Field(default_factory=list[int | dict[str, Any]])
    new_text: str | None = None
    results: list[ResultData] = Field(default_factory=list[ResultData])
    is_list: bool = False
    seed: int | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    split: str | None = None
    history: dict[str, Any] | str | None = None


class HandoffData(Data):
    """A `Handoff` whose environment stays on the server."""

    env: int = Field(ge=1)
    role: str
    full_history: bool
    adds_reward: bool
    timeout_s: float | None
    limits: Limits
    history: dict[str, Any] | str | None
    """The history policy of the environment; None for that of the environment that was reset."""
    tools: list[dict[str, Any]]


class Answer(Data):
    """What an author's method returned."""

    turn: TurnData | None = None
    handoffs: list[HandoffData] | None = None
    is_list: bool = False
    reply: str | dict[str, Any] | None = None
    task: Any = None
    tools: list[dict[str, Any]] | None = None
    """The tools of a first turn that does not set any, if they have changed."""
    config: dict[str, Any] | None = None
    error: tuple[str, str] | None = None
    """The class and the message of an exception."""


class Versions(BaseModel):
    """The versions of a server."""

    protocol: int
    envsdk: str


class Description(Versions):
    """What a `RemoteEnv` has to know of its environment before the first episode."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    name: str
    limits: Limits
    reward_range: tuple[float, float]
    n_tasks: int | None
    n_rows: int = Field(ge=0, lt=2**63)
    """The number of rows of task data."""
    shows_images: bool
    tools: list[dict[str, Any]]
    refused: str | None = None
    """Why the environment cannot be remote, or None."""
