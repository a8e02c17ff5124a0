"""Environments of verifiers: their tasks, tools, control flow and rewards, with the policy as their agents' model.

The environment's own `run` plays an episode, and the task's own rewards score it. There are three differences to
verifiers itself. Tools run in this process, not in a server. An agent talks to the model directly, as with the harness
`null`, so it has the tools of the tasks and no shell. The global random generators have a state that depends on the
seed alone.
"""

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import re
import statistics
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, JsonValue
from pydantic_core import to_json

from ...episodes._turn import Turn
from ...errors import ConfigError
from ...messages import Message
from .._env import EnvConfig
from .._tools import Tool, tool
from .._trust import NeedsTrust
from ._coroutines import Ask, CoroutineEnv, ReplyRequest, Source, names_of
from ._random_state import GlobalRandom

_INFINITE = 1000


class VerifiersConfig(EnvConfig):
    """The environment, its options, and how many of its tasks are used."""

    env: Annotated[str, NeedsTrust("imports")] = Field(min_length=1)
    """The id of an installed environment, such as `"wordle"`."""
    options: Annotated[dict[str, JsonValue], NeedsTrust("paths")] = Field(default_factory=dict[str, JsonValue])
    """Its configuration, as in the `[env]` block of verifiers: `{"taskset": {...}, "agent": {"max_turns": 8}}`."""
    n_tasks_used: int | None = Field(default=None, ge=1)
    """How many tasks are used, from the first on. None uses all; of an infinite taskset, the first 1,000."""


class Verifiers(CoroutineEnv):
    """Play the tasks of an environment of verifiers: `Verifiers(env="wordle")`.

    Exercises: the skills that the environment tests. Reward: its rewards by name, each times its weight. If it has
    several agents, each is a context with its own reward, and the episode has the mean.
    """

    Config: ClassVar[type[EnvConfig]] = VerifiersConfig

    def _load(self) -> Source:
        config: VerifiersConfig = self.config
        return _loaded(config.env, json.dumps(config.options, sort_keys=True), config.n_tasks_used)

    def reference_reply(self) -> str:
        """Return the `answer` of the task's data."""
        answer = getattr(self._envsdk_source.items[self.task["task"]].data, "answer", None)
        if not isinstance(answer, str):
            raise NotImplementedError("the task's data has no answer: write reference_reply() in a subclass")
        return answer

    async def _play(self, ask: Ask) -> Turn:
        package, env = _verifiers(), self._envsdk_source.owner
        task = self._envsdk_source.items[self.task["task"]].with_data()
        specs, limit = package.agent_config_fields(env.config), env.config.max_concurrent_agents
        shared = env.taskset, ask, list[Any](), asyncio.Semaphore(limit) if limit else contextlib.nullcontext()
        has_several = len(specs) > 1
        agents = {name: _Agent(name if has_several else None, spec, *shared) for name, spec in specs.items()}
        given = SimpleNamespace(**agents)
        await env.setup(given)
        await env.run(task, given)
        record = package.TraceTask(type=type(task).__name__, data=task.data)
        episode = package.Episode(env=package.EnvInfo(id=env.config.env_id), task=record, traces=shared[2])
        if not episode.traces:
            raise ConfigError(f"{type(env).__name__}.run() of {self.config.env!r} ran no agent")
        await env.finalize(task, episode)
        counted = [trace for trace in episode.traces if trace.agent.trainable] or episode.traces
        is_cut = any(trace.is_truncated for trace in counted)
        own = {trace.info["envsdk_context"]: sum(_rewards(trace).values()) for trace in episode.traces}
        return Turn(
            reward=_means(map(_rewards, counted)) or None,
            metrics=_means(trace.metrics for trace in counted),
            context_rewards=own if has_several else {},
            terminated=not is_cut,
            truncated=is_cut,
        )


def _rewards(trace: Any) -> dict[str, float]:
    return {name: found.value for name, found in trace.rewards.items() if found is not None}


def _means(values: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each name over the mappings that have a number for it."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in itertools.chain.from_iterable(one.items() for one in values):
        if value is not None:
            found[name].append(value)
    return {name: statistics.fmean(numbers) for name, numbers in found.items()}


@dataclass
class _Agent:
    """An agent of an episode: the part of `verifiers.v1.Agent` that an environment calls."""

    name: str | None
    config: Any
    taskset: Any
    ask: Ask
    traces: list[Any]
    gate: Any
    trainable: bool = True
    n_runs: int = 0

    async def run(self, task: Any, **borrowed: Any) -> Any:
        """Let the agent work on a task, and return its trace."""
        async with self.interaction(task, **borrowed) as interaction:
            await interaction.turn()
        return interaction.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any, **borrowed: Any) -> "AsyncGenerator[_Interaction]":
        """Begin a conversation, which is scored at its end."""
        lent = [f"{name} for the agent {self.name!r}" for name, value in borrowed.items() if value is not None]
        _refuse(type(task).__name__, [*lent, *_needs(task, self.taskset)])
        self.n_runs += 1
        interaction = _Interaction(
            self, task, self.name if self.n_runs == 1 else self.name and f"{self.name}-{self.n_runs}"
        )
        await interaction.open()
        yield interaction
        await interaction.close()

    def provision(self, task: Any = None) -> Any:
        """Refuse to start a runtime."""
        _refuse(f"the agent {self.name!r}", ["a runtime"])


class _Interaction:
    """A conversation of an agent: the part of `verifiers.v1.Interaction` that an environment calls."""

    def __init__(self, agent: _Agent, task: Any, context: str | None) -> None:
        package = self._package = _verifiers()
        self._agent, self._task, self._context = agent, task, context
        record = package.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        info = package.AgentInfo(config=agent.config, name=agent.name or "agent", trainable=agent.trainable)
        self.trace = package.Trace(task=record, state=package.state_cls(type(task))(), agent=info)
        self.trace.info["envsdk_context"] = context or "main"
        limits = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
        self._limits = package.RolloutLimits(**{name: getattr(agent.config, name) for name in limits})
        self._tools: dict[str, Tool] = {}
        self._messages: list[Any] = []
        self._shown: list[Message] = []

    async def open(self) -> None:
        """Prepare the task and its tools."""
        package: Any = self._package
        task, taskset = self._task, self._agent.taskset
        await package.invoke(task.setup, {"trace": self.trace, "runtime": None})
        is_own = isinstance(task, cast("Any", type(taskset)).task_type())
        shared: list[Any] = taskset.toolsets(taskset.config) if is_own else []
        toolsets: list[Any] = [*shared, *task.toolsets(task.config)]
        for number, toolset in enumerate(toolsets):
            await toolset.setup()
            if number >= len(shared):
                await toolset.setup_task(task.data)
            prefix = toolset.server_name and f"{toolset.server_name}_"
            for function in package.discover_decorated(toolset, "tool"):
                name = f"{prefix}{getattr(function, 'tool_name', None) or function.__name__}"
                self._tools[name] = tool(name=name)(function)
        data = task.data
        if data.system_prompt is not None:
            self._add(package.SystemMessage(content=data.system_prompt))
        if data.prompt is not None:
            self._hear(data.prompt)

    async def turn(self, message: Any = None) -> Any:
        """Send the agent a message, and return the segment of messages up to its next reply without calls."""
        package = self._package
        if (message is None) != (not self.trace.num_turns and self._task.data.prompt is not None):
            raise ConfigError("turn() takes no message for the task's prompt, and otherwise the user's message")
        if message is not None:
            self._hear(message)
        start = len(self._messages)
        schemas = [tool.schema for tool in self._tools.values()]
        declared = [package.Tool(**schema["function"]) for schema in schemas]
        async with self._agent.gate:
            while await self._may_go_on():
                request = ReplyRequest(self._shown, schemas, self._context, self._agent.trainable)
                reply = await self._agent.ask(request)
                calls = [  # the arguments may be a string that is not JSON
                    package.ToolCall(id=call.id or f"call_{n}", name=call.name, arguments=json.dumps(call.arguments))
                    for n, call in enumerate(reply.tool_calls, len(self._messages))
                ]
                said = {"content": reply.content, "reasoning_content": reply.reasoning, "tool_calls": calls or None}
                answer, finish = package.AssistantMessage(**said), "tool_calls" if calls else "stop"
                response = package.Response(id="", created=0, model="envsdk", message=answer, finish_reason=finish)
                package.prepare_turn(self.trace, self._messages, declared).commit(response)
                self._add(answer, reply)
                for call, given in zip(calls, reply.tool_calls, strict=True):
                    text = await self._result(given)
                    self._add(package.ToolMessage(tool_call_id=call.id, content=text, name=call.name))
                if not calls:
                    break
        segment = self._messages[start:]
        return package.Segment(messages=segment, terminated=not segment)

    async def close(self) -> None:
        """End the conversation and score it."""
        if self.trace.stop_condition is None:
            self.trace.stop("user_closed")
        await self._package.invoke(self._task.finalize, {"trace": self.trace, "runtime": None})
        await self._task.score(self.trace)
        self._agent.traces.append(self.trace)

    async def _may_go_on(self) -> bool:
        """Check the limits and the `@stop` functions before a request."""
        if (limit := self._limits.reached(self.trace)) is not None:
            self.trace.stop(limit)
            return False
        for stop in self._task.hooks("stop"):
            found = self._package.call_hook(stop, {self._package.Trace: self.trace})
            if await found:
                self.trace.stop(stop.__name__)
                return False
        return True

    async def _result(self, call: Any) -> str:
        """Run a tool; an error is its result."""
        known = self._tools.get(call.name)
        try:
            if known is None or call.error is not None:
                raise ValueError(call.error or f"there is no tool {call.name!r}")
            token = self._package.call_state.set(self.trace.state)
            try:
                result = known.function(**known.read(call.arguments))
                result = await result if inspect.isawaitable(result) else result
            finally:
                self._package.call_state.reset(token)
            return result if isinstance(result, str) else to_json(result).decode()
        except Exception as error:  # a tool may raise anything; its server answers with the text, too
            return f"Error: {error}"

    def _hear(self, messages: Any) -> None:
        """Add the messages of the user."""
        given = [self._package.UserMessage(content=messages)] if isinstance(messages, str) else messages
        for message in given:
            self._add(self._package.parse_message(message) if isinstance(message, dict) else message)

    def _add(self, message: Any, shown: Message | None = None) -> None:
        self._messages.append(message)
        self._shown.append(shown or Message.from_openai(message.model_dump(exclude_none=True)))


def _refuse(what: str, needs: Sequence[str]) -> None:
    """Refuse what needs a server, a sandbox, a judge or a program.

    Raises:
        ConfigError: If it does. The error names it.
    """
    if needs:
        raise ConfigError(f"{what} needs {', '.join(needs)}, which this adapter does not have")


def _needs(task: Any, taskset: Any) -> Iterator[str]:
    """Name what a task needs that this adapter does not have."""
    package, data, cls = _verifiers(), task.data, cast("Any", type(task))
    if task.NEEDS_CONTAINER or data.image is not None:
        yield f"a container{f' of {data.image}' if data.image else ''}"
    own = [name for name in ("setup", "finalize") if getattr(cls, name) is not getattr(package.Task, name)]
    for hook in (*(getattr(task, name) for name in own), *task.hooks("reward"), *task.hooks("metric")):
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is runtime.empty:
            yield f"a runtime for {hook.__name__}()"
    yield from (f"the judge {judge.id!r}" for judge in task.config.judges)
    yield from (name for name in ("agent_user", "skills", "artifacts") if getattr(data, name))
    stops = [one for one in task.hooks("stop") if package.hook_boundary(one, allow_trace=True) is not package.Trace]
    for hook in (*package.discover_decorated(task, "intercept"), *stops):
        yield f"interception by {hook.__name__}()"
    for toolset in (*task.toolsets(task.config), *taskset.toolsets(taskset.config)):
        placed = toolset.config
        if getattr(placed, "url", None) or getattr(placed, "colocated", False) or placed.runtime.type != "subprocess":
            yield f"the server of its tools {type(toolset).__name__}"


@functools.lru_cache(maxsize=32)
def _loaded(env_id: str, options: str, n_tasks: int | None) -> Source:
    """Load an environment and its tasks.

    Raises:
        ConfigError: If it is not installed, its options are wrong, or it needs what an episode does not have.
    """
    package, given, subject = _verifiers(), json.loads(options), f"the environment {env_id!r}"
    with GlobalRandom(0).active(may_print=True):
        try:
            config = package.resolve_env_config({**given, "taskset": {**given.get("taskset", {}), "id": env_id}})
            harness = package.default_harness_id(env_id)
        except (ImportError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"verifiers cannot load {subject} with {options}: {error}") from error
        specs, needs = package.agent_config_fields(config), list[str]()
        for name, spec in specs.items():
            program, known = (harness, ("null", "bash")) if spec.harness is None else (spec.harness.id, ("null",))
            has = {"a model": spec.model, "a client": spec.client, "sampling parameters": spec.sampling}
            has[f"the program {program!r}"] = program not in known
            needs += [f"{what} of the agent {name!r}" for what, value in has.items() if value]
        cls = package.environment_class(env_id, config.id)
        own = (hook for hook in ("start", "stop") if getattr(cls, hook) is not getattr(package.Env, hook))
        _refuse(subject, [*needs, *(f"services of its {hook}()" for hook in own)])
        null = {"harness": package.NullHarnessConfig(id="null")}
        agents = {name: spec.model_copy(update=null) for name, spec in specs.items()}
        env = cls(config.model_copy(update=agents))
        taskset = env.taskset if env.taskset.bounded else env.taskset.take(n_tasks or _INFINITE)
        tasks = list(taskset if n_tasks is None else taskset.take(n_tasks))
    if not tasks:
        raise ConfigError(f"{subject} has no tasks with {options}")
    _refuse(subject, [*_needs(tasks[0], env.taskset)])
    rows = [{"task": index, "id": task.data.id, "name": task.data.name} for index, task in enumerate(tasks)]
    return Source(env, tasks, rows, (_loaded, (env_id, options, n_tasks)))


_NAMES = """
    :AgentInfo :AssistantMessage :Env :EnvInfo :Episode :Response :Segment :SystemMessage :Task :Tool :ToolCall
    :ToolMessage :Trace :TraceTask :UserMessage :default_harness_id :environment_class :resolve_env_config
    .configs.agent:agent_config_fields .dialects.chat:parse_message .graph:prepare_turn
    .harnesses.null:NullHarnessConfig .state:state_cls .mcp.server:_call_state .session:RolloutLimits .session:call_hook
    .session:hook_boundary .utils.decorators:discover_decorated .utils.decorators:invoke
"""


@functools.cache
def _verifiers() -> Any:
    return names_of("verifiers", "0.4.0", re.sub(r"(?<=\s)(?=\S)", "verifiers.v1", _NAMES))
