"""OpenEnv's environments, on a server or in this process, for a model that writes text or calls tools."""

import asyncio
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from pydantic import BaseModel

from ..._describing import message_of
from ..._packages import load
from ..._visible import brief
from ...episodes._turn import Messages, Turn
from ...errors import ConfigError, RemoteEnvError, ToolError
from ...messages import Message, ToolCall, ToolSchema
from .._env import Env
from ._remote import Observed, Session

ActionOf = Callable[[Message], Mapping[str, Any]]
"""Returns the fields of an action for a reply."""
MessagesOf = Callable[[Mapping[str, Any]], Messages]
"""Returns messages for the fields of an observation."""
_OWN_FIELDS = frozenset({"metadata", "done", "reward"})


class OpenEnv(Env):
    """An environment of OpenEnv (`openenv`), whose actions are text or calls of tools.

    Each episode has a new session of the server, or a new object of the class. Its seed is drawn from the episode's
    seed. If the environment has tools (MCP), the model receives their schemas, each call is an action, and a reply
    without a call ends the episode. An action that the environment refuses is answered with the error.

    Args:
        source: The URL of a server, or a class or function that makes an `openenv.core.env_server.Environment`.
        action: The action of a reply: a function that returns its fields, or the name of the field that receives the
            reply's content. None for the only field with text.
        observation: The messages of an observation: a function of its fields, or the name of a field. None for the only
            field with text, or else all fields as JSON.
        prompt: A message before the first observation.
        system: The system message.
        reset: Further arguments of the environment's `reset`. A task (`tasks=`) is a mapping of such arguments.
        token: The bearer token of the server.
        timeout_s: The time limit of each call to the server, in seconds.
        **options: See `Env`.

    Raises:
        MissingPackage: If openenv (for a class) or websockets (for a URL) is not installed.
        RemoteEnvError: If the server cannot be reached.
        ConfigError: If an argument is not valid, or no field of the action is the only one with text.
    """

    _envsdk_why_no_fork: ClassVar[str | None] = "OpenEnv runs it; play the episode again with the same seed"

    def __init__(
        self,
        source: str | Callable[[], Any],
        *,
        action: str | ActionOf | None = None,
        observation: str | MessagesOf | None = None,
        prompt: str | None = None,
        system: str | None = None,
        reset: Mapping[str, Any] | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        self._source: _Server | _Object
        if isinstance(source, str):
            self._source = _Server(Session(source, token, timeout_s, 0.0 if timeout_s < 1 else 5.0, False))
        else:
            self._source = _Object(source)
        self._reset, self._prompt, self._system, self._observation = dict(reset or {}), prompt, system, observation
        schema = self._source.schema
        named = schema.get("$defs", {})  # such as the members of an Enum
        fields = {
            name: {**named.get(str(field.get("$ref", "")).rpartition("/")[2], {}), **field}
            for name, field in schema.get("properties", {}).items()
        }
        names = fields.keys() - _OWN_FIELDS
        self._has_tools = action is None and (not names or {"tool_name", "arguments"} <= names)
        self._action = action
        if not self._has_tools and not callable(action):
            self._action = _text_field(fields, schema.get("required", ()), action)
        super().__init__(**options)

    async def start(self) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reset the environment."""
        given = {"seed": int(self.np_random.integers(2**31)), **self._reset}
        task: object = self.task
        if isinstance(task, Mapping):
            given |= cast("Mapping[str, Any]", task)
        data = await self._source.reset(given)
        tools: list[ToolSchema] | None = None
        if self._has_tools:
            listed = await self._source.step({"type": "list_tools"})
            try:
                tools = [_schema(one) for one in listed.observation.get("tools", ())]
            except (KeyError, TypeError) as error:
                raise RemoteEnvError(f"the list of tools cannot be read: {type(error).__name__}: {error}") from error
        first = Turn(self._shown(data))
        messages = [] if self._prompt is None else [Message(role="user", content=self._prompt)]
        return Turn([*messages, *first.messages], system=self._system, tools=tools)

    async def respond(self, reply: Message) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take the action of the reply."""
        if self._has_tools:
            return await self._run(reply)
        try:
            action = self._action(reply) if callable(self._action) else {str(self._action): reply.content}
            data = await self._source.step(action)
        except ToolError as error:
            return Turn(f"Error: {message_of(error)}", metrics={"refused_actions": 1})
        return Turn(self._shown(data), reward=data.reward, terminated=data.done)

    def close(self) -> None:
        """End the session."""
        super().close()
        self._source.close()

    async def _run(self, reply: Message) -> Turn:
        """Take the calls of a reply as actions."""
        messages, rewards, is_over, refused = list[Message](), list[float](), not reply.tool_calls, 0
        for call in reply.tool_calls:
            text = "it was not run: the episode is over"
            if not is_over:
                try:
                    data = await self._source.step(_called(call))
                    text, is_over = _result(data.observation), data.done
                    rewards += [] if data.reward is None else [data.reward]
                except ToolError as error:
                    text, refused = f"Error: {message_of(error)}", refused + 1
            messages.append(Message(role="tool", content=text, name=call.name or None, tool_call_id=call.id))
        metrics = {"tool_calls": len(messages), "refused_actions": refused}
        return Turn(messages, reward=sum(rewards) if rewards else None, metrics=metrics, terminated=is_over)

    def _shown(self, data: Observed) -> Any:
        """Return the messages of an observation."""
        fields = data.observation
        if callable(self._observation):
            return self._observation({**fields, "reward": data.reward, "done": data.done})
        if self._observation is not None:
            if self._observation not in fields:
                raise ConfigError(f"the observation has no field {self._observation!r}; it has {sorted(fields)}")
            value = fields[self._observation]
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        own = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
        strings = [value for value in own.values() if isinstance(value, str) and value]
        return strings[0] if len(strings) == 1 else json.dumps(own or fields.get("metadata") or {}, ensure_ascii=False)


def _text_field(fields: Mapping[str, Any], required: Sequence[str], named: str | None) -> str:
    """Return the name of the action's field that receives the reply's content."""
    if named is not None:
        if named not in fields:
            raise ConfigError(f"the action has no field {named!r}; it has {sorted(fields.keys() - _OWN_FIELDS)}")
        return named
    strings = [
        name
        for name, field in fields.items()
        if name not in _OWN_FIELDS and any(one.get("type") == "string" for one in (field, *field.get("anyOf", ())))
    ]
    strings = [name for name in strings if name in required] or strings
    if len(strings) != 1 or {*required} - {*strings}:
        raise ConfigError(
            f"the action has the fields {sorted(fields.keys() - _OWN_FIELDS)}, {len(strings)} of them with text; give "
            "action=, the name of the field for the reply's content, or a function of the reply that returns the fields"
        )
    return strings[0]


def _schema(tool: Mapping[str, Any]) -> ToolSchema:
    parameters: dict[str, Any] = {"type": "object", "properties": {}, **(tool.get("input_schema") or {})}
    function: dict[str, Any] = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _called(call: ToolCall) -> dict[str, Any]:
    if call.error is not None or not isinstance(call.arguments, dict):
        raise ToolError(call.error or "the arguments are not a JSON object")
    return {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}


def _result(fields: Mapping[str, Any]) -> str:
    """Return the text of a tool's result.

    Raises:
        ToolError: If the tool failed.
    """
    error, given = fields.get("error"), fields.get("result")
    if error:
        raise ToolError(str(cast("Any", error).get("message", error)) if isinstance(error, Mapping) else str(error))
    if not isinstance(given, Mapping):
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    result = cast("Mapping[str, Any]", given)
    parts: list[Any] = result.get("content") or []
    text = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts)
    if result.get("is_error"):
        raise ToolError(text)
    return text if parts else json.dumps(result.get("data", result), ensure_ascii=False)


class _Schemas(BaseModel):
    action: dict[str, Any]


class _Server:
    """An environment behind a server."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.schema = session.read(_Schemas, session.get("/schema")).action

    async def reset(self, arguments: Mapping[str, Any]) -> Observed:
        await self._in_thread(self._session.begin())
        return await self._in_thread(self._session.exchange({"type": "reset", "data": arguments}))

    async def step(self, action: Mapping[str, Any]) -> Observed:
        return await self._in_thread(self._session.exchange({"type": "step", "data": action}))

    def close(self) -> None:
        self._session.thread.run(self._session.close())

    async def _in_thread(self, exchange: Any) -> Any:
        return await asyncio.wrap_future(self._session.thread.submit(exchange))


class _Object:
    """An environment in this process: a new object for each episode."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._codec: Any = load(
            "openenv.core.env_server.serialization", "an OpenEnv class needs", "pip install 'envsdk[serve]'"
        )
        self._make, self._env = make, None
        made: Any = make if isinstance(make, type) else type(make())
        hints = typing.get_type_hints(made.step)
        self._action: Any = hints.get("action")
        if not hasattr(self._action, "model_json_schema"):
            raise ConfigError(
                f"step() of {brief(make, 60)} does not declare the class of its action; serve it, and give a URL"
            )
        self.schema: dict[str, Any] = self._action.model_json_schema()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Object, (self._make,)

    async def reset(self, arguments: Mapping[str, Any]) -> Observed:
        self.close()
        self._env = self._make()
        return await self._called("reset", **arguments)

    async def step(self, action: Mapping[str, Any]) -> Observed:
        try:
            read = self._codec.deserialize_action(dict(action), self._action)
        except ValueError as error:  # pydantic's, too
            raise ToolError(f"the action is not valid: {error}") from error
        try:
            return await self._called("step", read)
        except Exception as error:  # as OpenEnv's server answers it
            raise ToolError(message_of(error)) from error

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    async def _called(self, name: str, *positional: Any, **arguments: Any) -> Observed:
        """Call the async method if the environment has its own, like OpenEnv's server, with the arguments it takes."""
        env: Any = self._env
        kind = cast("Any", type(env))
        base = next(one for one in kind.__mro__ if one.__module__ == "openenv.core.env_server.interfaces")
        is_async = getattr(kind, f"{name}_async") is not getattr(base, f"{name}_async")
        method = getattr(env, f"{name}_async" if is_async else name)
        parameters = inspect.signature(method).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        known = {key: value for key, value in arguments.items() if takes_all or key in parameters}
        result = method(*positional, **known)
        given = self._codec.serialize_observation(await result if inspect.isawaitable(result) else result)
        return Observed.model_validate(given)
