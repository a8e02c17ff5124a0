"""Environments in which the model calls tools until it replies without a call."""

import copy
import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from pydantic import Field
from typing_extensions import override

from ..episodes._driver import driver_of
from ..episodes._functions import is_async
from ..episodes._handoff import Handoff, HandoffResult, is_handoff
from ..episodes._method_errors import wrong_turn
from ..episodes._turn import Turn
from ..errors import ConfigError
from ..messages import Message, ToolCall, ToolSchema
from ._env import Env, Returned
from ._machinery import DRIVERS, EnvConfig, EnvDriver
from ._mistakes import refuse_without_tools
from ._tool_runner import Answer, ToolRunner
from ._tools import Tool, as_tool

_MAX_REPORTED = 8
_MAX_ERROR_CHARS = 1000


class ToolEnvConfig(EnvConfig):
    """The options of every `ToolEnv`. A subclass declares its own options in a subclass of this, named `Config`.

    Attributes:
        max_bad_replies: How many unusable replies in a row are answered with a correction; one more ends the episode.
        max_result_chars: The length in characters above which a result is cut, with a note to the model.
        tool_timeout_s: The time limit in seconds of a call of a tool without a limit of its own; see `Tool`.
        raise_tool_errors: Whether an exception of a tool, other than a `ToolError`, ends the episode instead of being
            reported to the model. Use it to debug tools.
        concurrent_tools: Whether the calls of one reply run concurrently, plain functions in threads. The results are
            in the order of the calls in any case.
    """

    max_bad_replies: int = Field(default=3, ge=0)
    max_result_chars: int = Field(default=20_000, ge=1)
    tool_timeout_s: float | None = Field(default=None, gt=0)
    raise_tool_errors: bool = False
    concurrent_tools: bool = False


class ToolEnv(Env):
    """An environment in which the model calls tools until it replies without a call. Write `start` and `finish`.

    Tools are the methods that `envsdk.tool` decorates, and the contents of `tools`. If a call fails (invalid JSON, an
    unknown tool, wrong arguments, an exception in the tool, a time limit), the model receives the error as the answer,
    so that it can correct the call.

    A tool raises a `ToolError` if the model made a mistake. Any other exception is a crash. The model receives its text
    as well, but it counts as a bug in the tool unless `reported_exceptions` contains its class. The first crash at each
    place in the code is logged with its traceback, all of them are counted, and `raise_tool_errors=True` raises them.

    Each step has the metrics `tool_calls`, `tool_errors` (calls that failed), `tool_crashes` and `bad_replies`.
    """

    Config: ClassVar[type[EnvConfig]] = ToolEnvConfig
    tools: "Sequence[Tool | Callable[..., Any]]" = ()
    """Tools that are not methods; functions become tools. It may be set in `__init__`."""
    reported_exceptions: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """The exceptions of tools that are reported to the model. Any other exception ends the episode with an error, and
    so do envsdk's own errors except `ToolError`. A class that is named here, other than `Exception` itself, is expected
    and does not count as a crash."""

    def finish(self, reply: Message) -> Turn | Awaitable[Turn]:
        """Answer a reply without a call, usually with its score and the end of the episode. It may be `async def`."""
        raise NotImplementedError(f"{type(self).__name__} has no finish(): it answers a reply without a call")

    def after_tools(self, reply: Message, results: list[Message]) -> Turn | Awaitable[Turn]:
        """Answer a reply whose calls were run: with the results, and optionally a reward or the end of the episode.

        It may be `async def`.

        Args:
            reply: The reply.
            results: A tool message for each of its calls, in order.
        """
        return Turn(results)

    def on_bad_reply(self, reply: Message, corrections: list[Message], in_a_row: int) -> Turn | Awaitable[Turn]:
        """Answer an unusable reply: none of its calls could be run, or it could not be read and has no content.

        It may be `async def`.

        Args:
            reply: The reply; `reply.errors` lists what could not be read.
            corrections: Messages that explain it to the model: one for each call, or a user message.
            in_a_row: How many unusable replies there were in a row, including this one.
        """
        return Turn(corrections, terminated=in_a_row > self.config.max_bad_replies)

    async def respond(self, reply: Message) -> Returned:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the calls of a reply, or call `finish`. Of a reply that was continued, only new calls are run.

        If tools return handoffs, those run first, and their results answer the calls.
        """
        return await tool_driver_of(self).respond(reply)

    async def resume(self, result: list[HandoffResult]) -> Returned:
        """Answer the calls that handed over with their results, and continue as after any tool."""
        return await tool_driver_of(self).resume(result)

    def after_handoff(self, result: Any) -> Turn | Awaitable[Turn]:
        """Return the turn after a handoff by `finish`, `after_tools` or `on_bad_reply`, such as to a judge.

        It may be `async def`.

        Args:
            result: The `HandoffResult`; for a list of handoffs, a list of results.
        """
        raise NotImplementedError(f"{type(self).__name__} has no after_handoff(): it returns the Turn after a Handoff")

    def default_tools(self) -> list[ToolSchema]:
        """Return the tools of a first turn that names none: the schemas of all tools."""
        return [tool.schema for tool in tool_driver_of(self).tools().values()]


class ToolDriver(EnvDriver):
    """The driver of a `ToolEnv`: it runs the calls of each reply and calls the author's hooks."""

    env: ToolEnv
    config_base: ClassVar[type[EnvConfig]] = ToolEnvConfig
    runs_tools: ClassVar[bool] = True
    may_be_async: ClassVar[tuple[str, ...]] = ("start", "finish", "after_tools", "on_bad_reply", "after_handoff")

    async def respond(self, reply: Message) -> Returned:
        """Run the calls of a reply, or call `finish`; see `ToolEnv.respond`."""
        calls = reply.tool_calls[self._answered :]
        answers = await self._runner().run(calls, self.running.tool_calls_left(len(calls))) if calls else []
        handoffs = [handoff for answer in answers for handoff in answer.handoffs]
        if handoffs:
            self._handed_over = reply, calls, answers
            return handoffs
        return await self._conclude(reply, calls, answers)

    async def resume(self, result: list[HandoffResult]) -> Returned:
        """Continue after a handoff; see `ToolEnv.resume`."""
        if self._handed_over is None:
            turn = await self._call_hook("after_handoff", result)
            self._learn_tools(turn)
            return turn
        (reply, calls, answers), self._handed_over = self._handed_over, None
        left, runner = iter(result), self._runner()
        answers = [runner.with_results(answer, [next(left) for _ in answer.handoffs]) for answer in answers]
        return await self._conclude(reply, calls, answers)

    async def _conclude(self, reply: Message, calls: Sequence[ToolCall], answers: Sequence[Answer]) -> Returned:
        """Return what the author's hook returns for a reply whose calls are all answered."""
        messages = [
            Message(role="tool", content=answer.content, name=call.name or None, tool_call_id=call.id)
            for call, answer in zip(calls, answers, strict=True)
        ]
        is_unreadable = bool(reply.errors) and not reply.content.strip() and not self._answered
        is_bad = not any(answer.was_run for answer in answers) if answers else is_unreadable
        self._bad_replies = self._bad_replies + 1 if is_bad else 0
        if is_bad:
            turn = await self._call_hook("on_bad_reply", reply, messages or [_correction(reply)], self._bad_replies)
        elif messages:
            turn = await self._call_hook("after_tools", reply, messages)
        else:
            turn = await self._call_hook("finish", reply)
        if not isinstance(turn, Turn):
            return turn
        self._learn_tools(turn)
        self._answered = len(reply.tool_calls) if turn.continuation is not None else 0
        metrics = {
            "tool_calls": len(answers),
            "tool_errors": sum(answer.is_error for answer in answers),
            "tool_crashes": sum(answer.is_crash for answer in answers),
            "bad_replies": int(is_bad),
        }
        return _with_metrics(turn, metrics)

    async def _call_hook(self, method: str, *arguments: Any) -> Returned:
        """Return what an author's method returns, awaited if it is async."""
        returned: object = getattr(self.env, method)(*arguments)
        returned = await returned if inspect.isawaitable(returned) else returned
        if isinstance(returned, Turn) or is_handoff(returned):
            return cast("Returned", returned)
        raise wrong_turn(self.env, method, returned)

    # Episodes.

    @override
    def _read_config(self, config: Mapping[str, Any]) -> EnvConfig:
        _tool_methods(type(self.env))
        self._functions: dict[str, Tool] | None = None  # the tools of the current episode
        return super()._read_config(config)

    @override
    def _prepare(self, seed: int | None, chosen: list[Any]) -> None:
        super()._prepare(seed, chosen)
        self._functions = None
        self._handed_over: tuple[Message, Sequence[ToolCall], list[Answer]] | None = None
        self._bad_replies = 0
        self._answered = 0  # how many calls of a reply that continues were answered

    @override
    def started(self, turn: Turn | Handoff) -> None:
        """Take over the tools of the first turn; refuse an environment without a tool."""
        self._functions = {**self.tools(), **getattr(turn, "functions", {})}
        if not self._functions and getattr(turn, "tools", ()) is None:  # a handoff has no tools
            refuse_without_tools(self.env)

    @override
    def waits(self) -> bool:
        """Return whether a step may have to wait; if not, `step` needs no event loop."""
        hooks = (getattr(self.env, name) for name in self.may_be_async)
        overrides_respond = type(self.env).respond is not ToolEnv.respond
        if overrides_respond or self.config.concurrent_tools or any(map(is_async, hooks)):
            return True
        tools = self.tools() if self._functions is None else self._functions
        limit_s = self.config.tool_timeout_s
        return any(tool.is_async or tool.timeout_s is not None or limit_s is not None for tool in tools.values())

    # Tools.

    def tools(self) -> dict[str, Tool]:
        """Return the environment's tools by name.

        Raises:
            ConfigError: If `tools` contains something else, or two tools have the same name.
        """
        cls = type(self.env).__name__
        try:
            given = [as_tool(tool) for tool in self.env.tools]
        except TypeError as error:
            raise ConfigError(
                f"`tools` of {cls} is {self.env.tools!r:.80}; expected a list of tools and functions ({error})"
            ) from error
        tools = [*map(self._bound, _tool_methods(type(self.env))), *given]
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) < len(tools):
            name = Counter(tool.name for tool in tools).most_common(1)[0][0]
            raise ConfigError(f"{cls} has several tools named {name!r}; give each its own name, @tool(name=...)")
        return by_name

    def _bound(self, name: str) -> Tool:
        tool = getattr(self.env, name)
        if not isinstance(tool, Tool):
            raise ConfigError(
                f"the tool {name!r} of {type(self.env).__name__} is hidden by an attribute of that name; rename the "
                "attribute"
            )
        return tool

    def _runner(self) -> ToolRunner:
        if self._functions is None:  # the environment was unpickled
            self._functions = self.tools()
        return ToolRunner(self.env, self._functions)

    def _learn_tools(self, turn: Returned) -> None:
        """Replace the tools of the episode if a turn sets tools."""
        if isinstance(turn, Turn) and turn.tools is not None:
            self._functions = {**self.tools(), **cast("Mapping[str, Tool]", turn.functions)}

    # Python's own protocols.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_functions": None}  # tools that are methods are bound to this environment


def tool_driver_of(env: ToolEnv) -> ToolDriver:
    """Return the driver of an environment with tools."""
    return cast("ToolDriver", driver_of(env))


DRIVERS[ToolEnv] = ToolDriver


@functools.cache
def _tool_methods(env: type) -> list[str]:
    """Return the names of the methods that are tools, in the order in which the classes define them.

    Raises:
        ConfigError: If a subclass replaces a tool by something else, or a tool hides a member of every environment.
    """
    defined = [(name, value) for cls in reversed(env.__mro__) for name, value in vars(cls).items()]
    names = dict.fromkeys(name for name, value in defined if isinstance(_unwrapped(value), Tool))
    methods: list[str] = []
    for name in names:
        value = inspect.getattr_static(env, name)
        if value is None:
            continue  # a subclass removes the tool
        if hasattr(ToolEnv, name):
            raise ConfigError(
                f"the tool {name!r} of {env.__name__} hides a member that every environment has; give the function "
                f"another name, and keep the tool's name: @tool(name={name!r})"
            )
        if not isinstance(value, Tool) and not isinstance(value, staticmethod):
            raise ConfigError(
                f"{env.__name__}.{name} replaces a tool but is not a tool itself: decorate the method directly with "
                f"@tool, or set {name} = None to remove the tool"
            )
        methods.append(name)
    return methods


def _unwrapped(value: Any) -> Any:
    """Return the function of a static method, class method or property, and any other value unchanged."""
    return getattr(value, "__func__", getattr(value, "fget", value))


def _correction(reply: Message) -> Message:
    more = [f"and {len(reply.errors) - _MAX_REPORTED} more"] if len(reply.errors) > _MAX_REPORTED else []
    wrong = "; ".join([*(error[:_MAX_ERROR_CHARS] for error in reply.errors[:_MAX_REPORTED]), *more])
    return Message(role="user", content=f"Your reply could not be read: {wrong}. Please reply again.")


def _with_metrics(turn: Turn, metrics: Mapping[str, float]) -> Turn:
    turn = copy.copy(turn)
    turn.metrics = {**metrics, **turn.metrics}
    return turn
