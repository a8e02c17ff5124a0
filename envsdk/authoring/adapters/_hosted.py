"""The server's side of a `RemoteEnv`: an environment whose author's methods are called one by one.

The client runs the episode: it renders, counts and ends. Here is only what the methods read: the task, the random
state, the limits and the messages of the agent that acts.
"""

from collections.abc import Callable, Generator
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from ..._describing import message_of, what_is_invalid
from ..._visible import brief
from ...contexts._context import Context
from ...contexts._history import get_history, is_named
from ...episodes._agent import Agent
from ...episodes._episode import CallMethod, Request
from ...episodes._handoff import Handoff, is_handoff
from ...episodes._recording import task_as_json
from ...episodes._turn import Turn
from ...errors import ConfigError, HandoffError, RemoteEnvError
from ...limits import StopReason
from ...messages import Message
from .._driver import driver_of
from .._env import Env
from ._wire import (
    PROTOCOL,
    Answer,
    Call,
    Description,
    HandoffData,
    MessageTable,
    TurnData,
    message_as_json,
    schemas_as_json,
)

_AUTHORS = ("start", "respond", "resume")
_REPLIES = ("reference_reply", "null_reply")
_OPTIONS = frozenset({"task", "episode_id", "group_id"})
MakeEnv = Callable[..., Env]
"""Makes an environment, with the options that are given in addition to its own."""


def why_not_remote(env: Env) -> str | None:
    """Return why an environment's methods cannot be called from another machine, or None."""
    if driver_of(env).program is not None:
        return "a program plays it, not its methods"
    if type(env).renderer_of is not Env.renderer_of:
        return "its renderer_of() chooses renderers, which are on the other side"
    if getattr(env.config, "context_tools", ()):
        return "its context_tools change the context, which is on the other side"
    return None


def describe(env: Env) -> Description:
    """Return what a `RemoteEnv` has to know of an environment."""
    return Description(
        protocol=PROTOCOL,
        envsdk=version("envsdk"),
        name=env.name,
        limits=env.limits,
        reward_range=env.reward_range,
        n_tasks=env.n_tasks,
        n_rows=0 if env.tasks is None else len(env.tasks),
        shows_images=env.shows_images,
        tools=schemas_as_json(env.default_tools()),
        refused=why_not_remote(env),
    )


class EnvsBySplit(dict[str | None, Env]):
    """Environments by the split of their tasks, each made when it is first used; None for what `make` chooses.

    Args:
        make: Makes an environment, with the options that are given in addition to its own.
    """

    def __init__(self, make: MakeEnv) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, split: str | None) -> Env:
        self[split] = made = self._make() if split is None else self._make(split=split)
        return made


class HostedEnv:
    """An environment with its sub-agents, of one session.

    Args:
        make: Makes the environment.
    """

    def __init__(self, make: MakeEnv) -> None:
        self._made = EnvsBySplit(make)
        self._envs: list[Env] = []
        self._agents: dict[int, Agent] = {}
        self._offered: dict[int, Handoff] = {}  # the last handoff to each environment
        self._pending: dict[int, list[Handoff]] = {}  # of each environment that waits for them
        self._messages = MessageTable()
        self._tools: dict[int, list[dict[str, Any]]] = {}  # as they were sent last
        self._last: tuple[int, str] = (0, "")

    def call(self, text: str) -> str:
        """Run a call, which is JSON text, and return the answer as JSON text.

        Raises:
            RemoteEnvError: If the call cannot be read, or is not the next one.
        """
        try:
            call = Call.model_validate_json(text)
        except ValidationError as error:
            raise RemoteEnvError(f"the call cannot be read: {what_is_invalid(error)}") from error
        if call.protocol != PROTOCOL:
            raise RemoteEnvError(f"the client's protocol is version {call.protocol}, this server's is {PROTOCOL}")
        number, answered = self._last
        if call.number == number:  # the answer was lost on its way
            return answered
        if call.number != number + 1:
            raise RemoteEnvError(f"the call has the number {call.number}; expected {number + 1}")
        try:
            answer = self._run(call)
        except RemoteEnvError:
            raise
        except BaseException as error:  # authors' code may raise anything, and the client gets it
            answer = Answer(error=(type(error).__name__, message_of(error)))
        self._last = call.number, answer.model_dump_json(exclude_defaults=True)
        return self._last[1]

    def close(self) -> None:
        """Close the environments."""
        for env in {id(env): env for env in (*self._envs[1:], *self._made.values())}.values():
            env.close()

    def _run(self, call: Call) -> Answer:
        if call.method == "start" and call.env == 0:
            self._begin(call)
        if not 0 <= call.env < len(self._envs):
            raise RemoteEnvError(f"the call names the environment {call.env}; the episode has {len(self._envs)}")
        env = self._envs[call.env]
        if call.method == "start" and call.env:
            self._join(call, env)
        if call.env not in self._agents:
            raise RemoteEnvError(f"the environment {call.env} has not joined the episode")
        agent = self._agents[call.env]
        self._synchronize(call, agent)
        if call.method in _REPLIES:
            reply = getattr(env, call.method)()
            return Answer(reply=message_as_json(reply) if isinstance(reply, Message) else reply)
        if call.method not in _AUTHORS:
            raise RemoteEnvError(f"the call names the method {brief(call.method)}; expected one of {_AUTHORS}")
        argument: Any = None
        if call.method == "respond":
            if agent.current is None or not agent.current.messages:
                raise RemoteEnvError("the call of respond() has no reply")
            message = agent.current.messages[-1]
            argument = message.as_reply(message.content if call.new_text is None else call.new_text)
        elif call.method == "resume":
            argument = self._results(call)
        return self._answer(call, driver_of(env).drive(_calling(agent, call.method, argument)))

    def _begin(self, call: Call) -> None:
        """Begin an episode."""
        env = self._made[call.split]
        if unknown := call.options.keys() - _OPTIONS:
            raise ConfigError(f"a remote episode does not have the options {sorted(unknown)}")
        driver = driver_of(env)
        if call.agents:
            driver.limits = call.agents[0].limits
        if call.history is not None:
            driver.history = get_history(call.history)
        for child in self._envs[1:]:
            child.close()
        self._messages.forget()
        self._envs = [env]
        self._offered, self._pending, self._tools = {}, {}, {}
        driver.begin(call.seed, call.options)
        self._agents = {0: driver.running}

    def _join(self, call: Call, env: Env) -> None:
        """Let a sub-agent's environment join the episode."""
        if call.env not in self._offered:
            raise RemoteEnvError(f"there is no handoff to the environment {call.env}")
        handoff = self._offered[call.env]
        above = next(number for number, handoffs in self._pending.items() if handoff in handoffs)
        parent = self._agents[above]
        agent = Agent(env, call.name, handoff.role, env.limits, parent, handoff)
        driver_of(env).join(driver_of(self._envs[0]).running_episode, agent, call.seed, handoff.task)
        self._agents[call.env] = agent

    def _synchronize(self, call: Call, agent: Agent) -> None:
        """Let the agent have the counts, limits and messages that it has on the other side."""
        agents = (agent, *agent.ancestors)
        if len(agents) != len(call.agents):
            raise RemoteEnvError(f"the call has the counts of {len(call.agents)} agents; expected {len(agents)}")
        for one, data in zip(agents, call.agents, strict=True):
            one.steps, one.sampled, one.tool_calls = data.steps, data.sampled, data.tool_calls
            one.limits = data.limits
        if call.context is None:
            return
        if call.context not in agent.contexts:
            env = agent.env
            agent.contexts[call.context] = Context(call.context, agent.role, env.renderer, env.history)
        agent.current = context = agent.contexts[call.context]
        if call.keep > len(context.messages):
            raise RemoteEnvError(f"{call.context!r} has {len(context.messages)} messages; the call keeps {call.keep}")
        context.messages[call.keep :] = [self._messages.read(message) for message in call.messages]

    def _results(self, call: Call) -> Any:
        handoffs = self._pending.pop(call.env, [])
        if len(handoffs) != len(call.results):
            raise RemoteEnvError(f"the call has {len(call.results)} results of {len(handoffs)} handoffs")
        results: list[Any] = []
        for handoff, data in zip(handoffs, call.results, strict=True):
            if (agent := self._agents.get(self._number(handoff.env))) is not None:
                agent.stop_reason = StopReason(data.stop_reason)
            results.append(handoff.filter_result(data.result(self._messages)))
        return results if call.is_list else results[0]

    def _answer(self, call: Call, returned: Any) -> Answer:
        env, length = self._envs[call.env], len(self._messages)
        answer = Answer(is_list=isinstance(returned, (list, tuple)))
        try:
            if isinstance(returned, Turn):
                answer.turn = TurnData.of(returned, self._messages)
            else:
                handoffs = [returned] if isinstance(returned, Handoff) else list(returned)
                answer.handoffs = [self._offer(handoff) for handoff in handoffs]
                self._pending[call.env] = handoffs
        except BaseException:
            self._messages.forget(length)
            raise
        if call.method != "respond" or (answer.turn is not None and answer.turn.context is not None):  # may be read
            tools = schemas_as_json(env.default_tools())
            if tools != self._tools.get(call.env):
                answer.tools = self._tools[call.env] = tools
        if call.method == "start":
            answer.task = task_as_json(self._agents[call.env].task)
            answer.config = None if call.env else env.config.model_dump(mode="json")
        return answer

    def _offer(self, handoff: Handoff) -> HandoffData:
        """Return a handoff as JSON, and give its environment a number."""
        env: Any = handoff.env
        if callable(handoff.history):
            raise HandoffError(
                f"{handoff!r} has a function as history=, which cannot run on another machine: use 'fresh' or 'full'"
            )
        if not driver_of(env).inherits_renderer:
            raise HandoffError(f"{handoff!r} has its own renderer; a remote sub-agent has its parent's")
        if why := why_not_remote(env):
            raise HandoffError(f"{handoff!r} goes to an environment that cannot be remote: {why}")
        number = self._number(env)
        if number == len(self._envs):
            self._envs.append(env)
        self._offered[number] = handoff
        is_shared = env.history is self._envs[0].history
        if not is_shared and not is_named(env.history):
            raise HandoffError(f"{handoff!r} has the history policy {brief(env.history)}, which has no registered name")
        return HandoffData(
            env=number,
            role=handoff.role,
            full_history=handoff.history == "full",
            adds_reward=handoff.adds_reward,
            timeout_s=handoff.timeout_s,
            limits=handoff.limits or env.limits,
            history=None if is_shared else env.history.specification(),
            tools=schemas_as_json(env.default_tools()),
        )

    def _number(self, env: Any) -> int:
        return next((number for number, known in enumerate(self._envs) if known is env), len(self._envs))


def _calling(agent: Agent, method: str, argument: Any) -> Generator[Request, Any, Any]:
    returned = yield CallMethod(agent, method, argument)
    assert isinstance(returned, Turn) or is_handoff(returned)
    return returned
