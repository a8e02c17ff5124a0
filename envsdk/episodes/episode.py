"""The state machine of one episode: an action in, a message out; a turn in, an observation out.

It does no I/O and reads no clock, and knows nothing about gymnasium and event loops: what an author's method has to say
is asked for with a `Call`, and whoever drives the machine gives the answer, awaited or not.
"""

import hashlib
import warnings
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..contexts.context import Context, Delta
from ..contexts.protocol import Break, Observation
from ..errors import ConfigError, EpisodeError, HandoffError, NoEndWarning, RenderError, TurnError, UndeclaredBreak
from ..limits import STEPS_WITHOUT_LIMIT, Limits, StopReason
from ..messages import Message, ToolSchema
from ..trajectories.steps import Origin, Step
from ..trajectories.trajectory import Status, Trajectory
from .agent import MAIN, Agent
from .handoff import Handoff, HandoffResult, Waiting, is_handoff
from .recording import record, told
from .turn import Turn

if TYPE_CHECKING:
    from ..authoring.env import Env
    from ..history import SummaryRequest

SUMMARY = "summary"
FORK = "/fork-"
"""What stands in a fork's id between its original's and its number."""
_FOR_THE_POLICY = ("stop_token_ids", "stop", "max_tokens", "sampling", "context", "role")
_ABOUT_THE_STEP = ("rewards", "metrics", "truncated_reply", "break", "stop_reason")
RESERVED_INFO = frozenset((*_FOR_THE_POLICY, *_ABOUT_THE_STEP))


class Result(NamedTuple):
    """What `step` returns, in gymnasium's order."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


Method: TypeAlias = Literal["start", "respond", "resume"] | Callable[[Any], Any]


class Call(NamedTuple):
    """A question to an author: what `method` of an environment says, or a function of the history policy's."""

    agent: Agent
    method: Method
    argument: Any = None


class Children(NamedTuple):
    """Sub-agents that may go on side by side; the answer is the list of their results."""

    agents: list[Agent]


Play: TypeAlias = "Generator[Call | Children, Any, Result | HandoffResult]"
"""Goes on until somebody has to sample, or the agent has ended."""
_Take: TypeAlias = Callable[[Agent, Turn], Result | HandoffResult | None]
"""Takes a turn; None if it waits for something."""


class Episode:
    """One episode of one environment, with all its sub-agents.

    Args:
        id: What the trajectory will be called.
        env: The environment.
        seed: What it was reset with.
    """

    def __init__(self, id: str, env: "Env", seed: int | None) -> None:
        self.id = id
        self.seed = seed
        self.config: dict[str, Any] = {}
        self.group_id: str | None = None
        self.trajectory: Trajectory | None = None
        self.contexts: dict[str, Context] = {}
        self.root = Agent(self, env, MAIN, MAIN, env.limits)
        self.agent = self.root
        """Whose action is due; where sub-agents go on side by side, `owners` tells."""
        self.owners: dict[str, Agent] = {}
        """Whose each context is, by its name."""
        self.side_by_side = False
        """Whether the driver runs sub-agents itself (`Children`); else they go on one after the other."""
        self.origins: list[Origin] = []
        self._forks = 0
        self._at_once = 0  # how many agents wait for sub-agents that the driver runs
        self.interrupted = False
        """Whether the driver left such sub-agents before they had ended."""
        self.abandoned = False
        """Whether its environment began another one."""
        self._reward = 0.0

    # What a driver does.

    def open(self, agent: Agent) -> Play:
        """Ask for the first turn and hand out its observation.

        Raises:
            TurnError: If the turn holds a reward, an end, no message, or goes on with a reply.
        """
        said = yield from self._ask(agent, "start")
        return (yield from self._settle(agent, said, self._open))

    def step(self, action: object) -> Play:
        """Take an action for whoever it is due to, and go on until somebody has to sample or the episode is over."""
        self._check_interrupted()
        self._reward = 0.0
        agent = self.agent
        outcome = yield from self.play(agent, action)
        return (yield from self.take_back(agent, outcome)) if isinstance(outcome, HandoffResult) else outcome

    def begin(self) -> Play:
        """Open the episode."""
        self._reward = 0.0
        return (yield from self.open(self.root))

    def play(self, agent: Agent, action: object) -> Play:
        """Take an agent's action.

        Raises:
            EpisodeError: If no action is due.
            ActionError: If the action is not legal; the episode is then as it was.
        """
        reply = agent.receive(action)
        if reply is None:
            return self._go_on(agent)
        said = yield from self._ask(agent, "respond", reply)
        return (yield from self._settle(agent, said, self._answer))

    def take_back(self, child: Agent, result: HandoffResult) -> Play:
        """Give a sub-agent's result to who handed over to it, which goes on; and so on, if that ends it."""
        outcome: Result | HandoffResult = result
        while isinstance(outcome, HandoffResult):
            agent = child.parent
            assert agent is not None and agent.waiting is not None
            agent.waiting.results.append(outcome)
            outcome = yield from self._proceed(agent)
            child = agent
        return outcome

    def enter(self, child: Agent) -> Play:
        """Begin with a sub-agent."""
        from ..authoring.env import driver_of

        assert child.handoff is not None
        self.agent = child
        try:
            driver_of(child.env).join(child, seed_of(self.seed, child.name), child.handoff.task)
        except Exception as error:
            return self._close(child, StopReason.ERROR, error)
        return (yield from self.open(child))

    def give_up(self, child: Agent, error: Exception) -> HandoffResult:
        """End a sub-agent from outside, with all below it."""
        for item in child.agents():
            if item is not child and item.stop_reason is None:
                self._close(item, StopReason.ERROR, error)
        return self._close(child, StopReason.ERROR, error)

    def fail(self, error: BaseException) -> Trajectory:
        """End the episode because something failed; what was sampled so far is kept.

        Raises:
            EpisodeError: If it has ended already.
        """
        if self.trajectory is not None:
            raise EpisodeError(f"the episode {self.id!r} has ended already: {self.trajectory.stop_reason}")
        return self._end("error", StopReason.ERROR, told(error))

    def pending(self) -> Result:
        """The observation that waits for its action.

        Raises:
            EpisodeError: If none does.
        """
        self._check_interrupted()
        agent = self.agent
        if self.trajectory is not None or agent.due is None or agent.handed_out is None:
            raise EpisodeError("no action is due: the episode is over, or a method of its environment is running")
        result, start = agent.handed_out, len(agent.context.log_tokens) - len(agent.handed_out.observation.tokens)
        observation = result.observation._replace(tokens=agent.context.log_tokens.copy(start))
        return result._replace(observation=observation, info=dict(result.info))

    def check_fork(self) -> None:
        """Refuse what cannot be forked.

        Raises:
            EpisodeError: If no action is due, or only the rest of one, or sub-agents go on side by side.
        """
        self.pending()
        if self._at_once:
            raise EpisodeError(
                "a rollout is running sub-agents, each on its own, so there is no one state to fork: fork before they "
                "begin, or play the episode with step(), which lets them go on one after the other"
            )
        if self.agent.due is not None and self.agent.due.parts:
            raise EpisodeError("the action that is due was interrupted: finish it, then fork")

    def _check_interrupted(self) -> None:
        if self.interrupted:
            raise EpisodeError("sub-agents were interrupted before they had ended: call env.fail(error), or reset()")

    def become_fork(self, of: "Episode") -> None:
        """Be an episode of its own, whose steps so far are another's."""
        of._forks += 1
        self.id, self._forks, self.side_by_side = f"{of.id}{FORK}{of._forks}", 0, False
        tokens = {name: len(context.log_tokens) for name, context in self.contexts.items()}
        self.origins = [*of.origins, Origin(of.id, tokens)]

    # What is said.

    def _ask(self, agent: Agent, method: Method, argument: Any = None) -> Generator[Call | Children, Any, Any]:
        """What an author's method says; the exception, if it is a sub-agent's, which then has failed."""
        try:
            return (yield Call(agent, method, argument))
        except UndeclaredBreak:
            raise
        except Exception as error:
            if agent.parent is None:
                raise
            return error

    def _settle(self, agent: Agent, said: Any, take: "_Take") -> Play:
        """Take what an agent said, and go on until somebody has to sample or the agent has ended."""
        outcome = self._take(agent, said, take)
        return (yield from self._proceed(agent)) if outcome is None else outcome

    def _take(self, agent: Agent, said: Any, take: "_Take") -> Result | HandoffResult | None:
        """Take what an agent said: a turn, handoffs, or an exception. None if it waits for sub-agents."""
        if isinstance(said, Exception):
            return self._close(agent, StopReason.ERROR, said)
        try:
            if not is_handoff(said):
                return take(agent, _checked(said))
            if agent.refused:  # it hands over again and again, though a limit holds
                return take(agent, Turn(reward=None))
            self._hand_over(agent, said)
            return None
        except UndeclaredBreak:
            raise
        except Exception as error:
            if agent.parent is None:
                raise
            return self._close(agent, StopReason.ERROR, error)

    def _proceed(self, agent: Agent) -> Play:
        """Go on with the next sub-agent; with the agent itself, when none is left."""
        outcome: Result | HandoffResult | None = None
        while outcome is None:
            outcome = yield from self._next_child(agent)
            if outcome is None:
                said, take = yield from self._come_back(agent)
                outcome = self._take(agent, said, take)
        return outcome

    def _next_child(self, agent: Agent) -> Generator[Call | Children, Any, Result | None]:
        """Let the sub-agents that an agent waits for go on; None once each has a result."""
        waiting = agent.waiting
        assert waiting is not None
        if self.side_by_side and not agent.limit_now():
            yield from self._run_children(agent, waiting)
        while len(waiting.results) < len(waiting.handoffs):
            reason = agent.limit_now()
            if reason is not None:
                agent.refused = True
                waiting.results.append(HandoffResult([], "", None, str(reason)))
                continue
            outcome = yield from self.enter(self._child(agent, waiting.handoffs[len(waiting.results)]))
            if isinstance(outcome, Result):
                return outcome
            waiting.results.append(outcome)
        return None

    def _come_back(self, agent: Agent) -> Generator[Call | Children, Any, tuple[Any, "_Take"]]:
        """Return what an agent says once its sub-agents have ended, and what takes that."""
        waiting = agent.waiting
        assert waiting is not None
        agent.waiting, self.agent = None, agent
        agent.returns = agent.returns or bool(waiting.results)
        if waiting.request is not None:
            return (yield from self._take_summary(agent, waiting))
        try:
            results = [one.come_back(result) for one, result in zip(waiting.handoffs, waiting.results, strict=True)]
        except Exception as error:
            return error, self._answer
        said = yield from self._ask(agent, "resume", results if waiting.is_list else results[0])
        return said, self._answer if agent.contexts else self._open

    def _run_children(self, agent: Agent, waiting: Waiting) -> Generator[Call | Children, Any, None]:
        """Let the driver run the sub-agents that are left, each on its own."""
        left = waiting.handoffs[len(waiting.results) :]
        if not left:
            return
        self._at_once += 1
        have_ended = False
        try:
            waiting.results += yield Children([self._child(agent, handoff) for handoff in left])
            have_ended = True
        finally:
            self._at_once -= 1
            self.interrupted = self.interrupted or not have_ended

    def _take_summary(self, agent: Agent, waiting: Waiting) -> Generator[Call | Children, Any, tuple[Any, "_Take"]]:
        """Return the turn that waited for a summary, whatever came of it, and what takes that."""
        request, child = waiting.request, agent.record[-1]
        assert request is not None
        if request.writer is not None:
            text = yield from self._ask(agent, request.writer, request.messages)
            return (text if isinstance(text, Exception) else waiting.turn), partial(self._say_with, text=text)
        assert isinstance(child, Agent)
        return waiting.turn, partial(self._say_written, child=child, result=waiting.results[0])

    def _say_written(self, agent: Agent, turn: Turn, *, child: Agent, result: HandoffResult) -> Result | HandoffResult:
        """Hand out a turn with what the model wrote as a summary, if it is one."""
        child.error = self._why_rejected(agent.context, child, result)
        return self._say(agent, turn, result.content if child.error is None else None)

    def _say_with(self, agent: Agent, turn: Turn, *, text: Any) -> Result | HandoffResult:
        """Hand out a turn with what a function wrote as a summary, if it is of use."""
        if text is not None and not isinstance(text, str):
            raise TurnError(f"a summarizer returns a text, or None for no summary, got {text!r:.80}")
        summary = None if text is None or agent.context.rejects(text) else text
        step = agent.last_step
        step.metrics = {**step.metrics, "summaries": float(summary is not None)}
        return self._say(agent, turn, summary)

    def _why_rejected(self, context: Context, child: Agent, result: HandoffResult) -> str | None:
        """Why what the model wrote is no summary, if it is none."""
        if result.error is not None:
            return result.error
        if result.stop_reason != StopReason.TERMINATED:
            reason = f"it ended with {result.stop_reason}"
        else:
            is_cut = child.last_step.finish_reason == "length"
            reason = "it was cut" if is_cut else context.rejects(result.content)
        return reason and f"the summary was rejected: {reason}"

    # Turns.

    def _open(self, agent: Agent, turn: Turn) -> Result | HandoffResult:
        """Take the first turn, which follows `start`, or the sub-agents that it handed over to."""
        has_delegated = bool(agent.record)
        if any(turn.rewards.values()) or turn.continuation is not None:
            raise TurnError("the first turn has a reward or continues, but nobody has replied to it yet")
        if not has_delegated and (turn.terminated or turn.truncated):
            raise TurnError("the first turn ends the episode, but nobody has replied yet")
        reason = agent.reason_to_stop(turn) if has_delegated else None
        self._earn(agent, turn)
        if reason == StopReason.NO_END:
            _warn_of_no_end(agent)
        if reason is not None and (agent.parent is not None or not (turn.messages or turn.system)):
            return self._end_unopened(agent, reason)
        if not turn.messages and turn.system is None:
            raise TurnError("the first turn has no message; start() must say something")
        delta, base = self._open_context(agent, turn, is_final=reason is not None)
        return self._hand_out(agent, turn, delta, reason or delta.full, base=base, is_new=True)

    def _end_unopened(self, agent: Agent, reason: StopReason) -> Result | HandoffResult:
        """End an agent that never said anything itself, since only its sub-agents did."""
        if agent.parent is not None:
            return self._close(agent, reason)
        agent.unasked = True
        self._end("terminated" if reason == StopReason.TERMINATED else "truncated", reason)
        return self._go_on(agent)

    def _earn(self, agent: Agent, turn: Turn) -> None:
        """Give contexts what a turn says that they earned."""
        earned = {self._context_of(agent, name): reward for name, reward in turn.context_rewards.items()}
        for name, reward in earned.items():
            self.contexts[name].earn(reward)

    def _answer(self, agent: Agent, turn: Turn) -> Result | HandoffResult | None:
        """Take what the environment says after a reply; None if a summary has to be written first."""
        step = agent.last_step
        self._earn(agent, turn)
        step.metrics = {**step.metrics, **turn.metrics}
        if not agent.keeps_reward:
            step.reward, step.rewards = _sum(step, turn)
            self._reward += turn.reward or 0.0
        elif turn.reward is not None:
            self.contexts[step.context].earn(turn.reward)
            agent.kept_reward = (agent.kept_reward or 0.0) + turn.reward
        context = agent.contexts.get(agent.name_of(turn))
        if context is not None and turn.continuation is None and agent.reason_to_stop(turn) is None:
            request = context.request()
            if request is not None:
                agent.current = context
                self._wait_for_summary(agent, request, turn)
                return None
        return self._say(agent, turn)

    def _wait_for_summary(self, agent: Agent, request: "SummaryRequest", turn: Turn) -> None:
        """Let a summary be written, by the model if the request names no other writer."""
        from ..authoring.summarizer import Summarizer

        agent.waiting = waiting = Waiting(False, [], turn=turn, request=request)
        if request.writer is None:
            calls = agent.context.messages[-1].tool_calls
            before = turn.messages if calls else ()  # a call is answered before anything else is said
            env = Summarizer(request, before, agent.context.renderer)
            limits = Limits(max_context_tokens=agent.limits.max_context_tokens)
            waiting.handoffs.append(Handoff(env, role=SUMMARY, history="full", limits=limits))

    def _say(self, agent: Agent, turn: Turn, summary: str | None = None) -> Result | HandoffResult:
        """Hand out what the environment says after a reply."""
        step = agent.last_step
        replied = self.contexts[step.context]
        reason = agent.reason_to_stop(turn)
        if reason == StopReason.NO_END:
            _warn_of_no_end(agent)
        limit = agent.limits.max_context_tokens
        if reason is not None and agent.parent is not None:
            replied.messages.extend(turn.messages)
            return self._close(agent, reason)
        is_new, base = False, None
        if turn.continuation is not None and reason is None:
            calls = len(replied.messages[-1].tool_calls)
            agent.count(tool_calls=-calls)  # they are counted when the reply is whole
            delta = replied.go_on(turn.continuation, max_tokens=limit)
        elif agent.name_of(turn) not in agent.contexts and reason is None:
            is_new = True
            delta, base = self._open_context(agent, turn)
        else:
            agent.current = context = agent.contexts.get(agent.name_of(turn), replied)
            delta = context.observe(
                turn.messages,
                is_final=reason is not None,
                max_tokens=limit,
                prefill=turn.prefill,
                system=turn.system,
                tools=turn.tools,
                summary=summary,
            )
        return self._hand_out(agent, turn, delta, reason or delta.full, base=base, is_new=is_new)

    def _open_context(self, agent: Agent, turn: Turn, *, is_final: bool = False) -> tuple[Delta, str | None]:
        """Open the context that a turn speaks to; also the context that it starts from, if it does.

        With `is_final`, nobody will be asked, so it is as full as it may be.
        """
        name, is_first = agent.name_of(turn), agent.current is None
        if name in self.contexts:
            raise HandoffError(f"the context name {name!r} is taken by the role {self.contexts[name].role!r}")
        role = agent.role if turn.context is None else turn.context
        parent = agent.parent.current.name if agent.parent is not None and agent.parent.current else None
        renderer, history = agent.env.renderer_of(role), agent.env.history
        context = Context(name, role, renderer, history, parent=parent)
        system = [] if turn.system is None else [Message(role="system", content=turn.system)]
        tools = agent.env.default_tools() if turn.tools is None else turn.tools
        limit = 0 if is_final else agent.limits.max_context_tokens
        handoff = agent.handoff if is_first else None
        before: Sequence[Message] = ()
        base: str | None = None
        if handoff is not None and handoff.history == "full":
            base = parent
            delta = self._open_on(agent, context, [*system, *turn.messages], tools, limit, turn)
        else:
            if handoff is not None and agent.parent is not None:
                said = agent.parent.current.messages if agent.parent.current is not None else ()
                before = handoff.choose(list(said))
            messages = [*system, *before, *turn.messages]
            if not messages:
                raise TurnError(f"the first turn for {name!r} has no message")
            delta = context.open(messages, tools, max_tokens=limit, prefill=turn.prefill)
        self.contexts[name] = agent.contexts[name] = agent.current = context
        self.owners[name] = agent
        return delta, base

    def _open_on(
        self,
        agent: Agent,
        context: Context,
        messages: list[Message],
        tools: Sequence[ToolSchema],
        limit: int | None,
        turn: Turn,
    ) -> Delta:
        """Open a context on all of its parent's."""
        assert agent.parent is not None
        base = agent.parent.context
        if context.renderer is not base.renderer:
            raise ConfigError(
                "a handoff with full history needs the renderer of its parent: make the sub-agent without renderer and "
                "tokenizer"
            )
        if tools and list(tools) != list(base.tools):
            raise ConfigError(
                "a handoff with full history begins with its parent's prompt, so it has its parent's tools; give the "
                "sub-agent the same tools or none, or the handoff a fresh history"
            )
        return context.open_on(base, messages, max_tokens=limit, prefill=turn.prefill)

    def _context_of(self, agent: Agent, name: str) -> str:
        """The context that an author means: one of the agent's own, or of those that it handed over to."""
        below = [known for item in agent.agents() for known in item.contexts]
        for known in (agent.full_name(name), name):
            if known in below:
                return known
        raise TurnError(f"context_rewards names {name!r}; the contexts are {below}")

    # Handing over.

    def _hand_over(self, agent: Agent, said: Handoff | Sequence[Handoff]) -> None:
        """Take a handoff or a list of them."""
        handoffs = [said] if isinstance(said, Handoff) else list(said)
        depth = sum(1 for _ in agent.lineage())
        allowed = self.root.limits.max_handoff_depth
        if depth > allowed:
            raise HandoffError(
                f"{agent.name!r} hands over at depth {depth}, and {allowed} is allowed: Limits(max_handoff_depth=...)"
            )
        if agent.hands_over_for_nothing():
            raise HandoffError(
                f"{agent.name!r} handed over {STEPS_WITHOUT_LIMIT:,} times in a row without a reply of anybody: let "
                "resume() return a Turn once a result has an error"
            )
        running = {id(item.env) for item in agent.lineage()}
        for handoff in handoffs:
            if handoff.history == "full" and not agent.contexts:
                raise HandoffError(
                    f"{agent.name!r} hands over before its first turn, so there is no conversation yet that a handoff "
                    'with history="full" could begin with: give it history="fresh"'
                )
            if id(handoff.env) in running:
                raise HandoffError(
                    f"{agent.name!r} hands over to {handoff.env!r}, which runs already: make another object of it"
                )
            running.add(id(handoff.env))
        agent.waiting = Waiting(not isinstance(said, Handoff), handoffs)

    def _child(self, parent: Agent, handoff: Handoff) -> Agent:
        """The agent of a handoff."""
        is_summary = parent.waiting is not None and parent.waiting.request is not None
        role = parent.context.role if is_summary else handoff.role  # who writes a summary is who needs it
        name = parent.child_name(handoff.role)
        child = Agent(self, handoff.env, name, role, handoff.limits or handoff.env.limits, parent)
        child.handoff, child.is_summary = handoff, is_summary
        parent.record.append(child)
        return child

    def _close(self, agent: Agent, reason: StopReason, error: Exception | None = None) -> HandoffResult:
        """End a sub-agent; for the one that was reset, raise what failed."""
        if agent.parent is None:
            raise error if error is not None else EpisodeError(str(reason))
        if error is None:
            try:
                for one in agent.contexts.values():
                    one.check_end()
            except RenderError as failed:
                reason, error = StopReason.ERROR, failed
        agent.stop_reason, agent.due = reason, None
        agent.error = None if error is None else told(error)
        self.agent = agent.parent
        context = next(iter(agent.contexts.values()), None)
        messages = [] if context is None else list(context.messages)
        own = messages[0 if context is None else context.inherited :]
        said = next((message.content for message in reversed(own) if message.role == "assistant"), "")
        rewards = list(agent.rewards())
        return HandoffResult(
            messages,
            said,
            sum(rewards) if rewards else None,
            str(reason),
            None if error is None else told(error, with_notes=False),
            "" if context is None else context.name,
        )

    # Observations.

    def _go_on(self, agent: Agent) -> Result:
        """The empty observation after a part of a reply, or after an episode that ended before anybody was asked."""
        is_open = agent.current is not None
        name, length = (agent.context.name, len(agent.context)) if is_open else (agent.name, 0)
        observation = Observation(np.empty(0, dtype=np.int32), length, is_open, name, name)
        info = self._info(agent, None, closed_reply=False)
        info.update(rewards={}, metrics={})
        if self.trajectory is not None:
            info["stop_reason"] = self.trajectory.stop_reason
        is_terminated = self.trajectory is not None and self.trajectory.status == "terminated"
        is_truncated = self.trajectory is not None and not is_terminated
        reward = 0.0 if is_open else self._reward
        agent.handed_out = Result(observation, reward, is_terminated, is_truncated, info)
        return agent.handed_out

    def _hand_out(
        self,
        agent: Agent,
        turn: Turn,
        delta: Delta,
        reason: StopReason | None,
        *,
        base: str | None = None,
        is_new: bool = False,
    ) -> Result | HandoffResult:
        context = agent.context
        switch = self._switch(agent, base, delta, is_new=is_new)
        break_ = (
            switch if is_new else delta.break_ or switch
        )  # what a new context leaves out of its base is not dropped
        agent.returns = False
        extends = not is_new and break_ is None and not delta.is_first
        agent.turn = turn
        if reason is None:
            stop = len(context.log_tokens)
            start = stop - len(delta.tokens)
            agent.due = Step(context.name, base or context.name, delta.keep, extends, start, stop, break_=break_)
            self.agent = agent
        elif agent.parent is not None:
            return self._close(agent, reason)
        else:
            agent.unasked = is_new
            for one in agent.contexts.values():
                one.check_end()
            trajectory = self._end("terminated" if reason == StopReason.TERMINATED else "truncated", reason)
            trajectory.final_break = break_
        info = self._info(agent, break_, closed_reply=delta.closed_reply)
        if reason is not None:
            info["stop_reason"] = str(reason)
        observation = Observation(delta.tokens, delta.keep, extends, context.name, base or context.name)
        is_terminated = reason == StopReason.TERMINATED
        result = Result(observation, self._reward, is_terminated, bool(reason) and not is_terminated, info)
        agent.handed_out = result
        return result

    def _switch(self, agent: Agent, base: str | None, delta: Delta, *, is_new: bool) -> Break | None:
        """The switch that an observation is, if it is one: to a sub-agent, or back from it."""
        name = agent.context.name
        if is_new and agent.parent is not None and len(agent.contexts) == 1:
            above = agent.parent.current or agent.parent
            return Break("switch", "handoff", name, base or name, delta.keep, 0, f"from {above.name}")
        if agent.returns and not is_new and not delta.is_first:
            return Break("switch", "return", name, name, delta.keep, 0)
        return None

    def _info(self, agent: Agent, break_: Break | None, *, closed_reply: bool) -> dict[str, Any]:
        turn, context = agent.turn, agent.current
        renderer = agent.env.renderer if context is None else context.renderer
        info = {
            "stop_token_ids": renderer.stop_token_ids,
            "stop": () if context is None else agent.stops(),
            "max_tokens": None if context is None else agent.max_tokens(),
            "sampling": dict(turn.sampling),
            "context": (context or agent).name,
            "role": (context or agent).role,
            "truncated_reply": closed_reply,
            "rewards": dict(turn.rewards),
            "metrics": dict(turn.metrics),
            **turn.info,
        }
        if break_ is not None:
            info["break"] = break_
        return info

    def _end(self, status: Status, reason: StopReason, error: str | None = None) -> Trajectory:
        self.trajectory = record(self, status, str(reason), error)
        for agent in self.root.agents():
            agent.due = None
        return self.trajectory


def seed_of(seed: int | None, name: str) -> int | None:
    """The seed of a sub-agent: the hash of the episode's and of its context's name. None stays None."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def _warn_of_no_end(agent: Agent) -> None:
    name = type(agent.env).__name__
    warnings.warn(
        f"{name}: an episode had {STEPS_WITHOUT_LIMIT:,} steps and nothing limits it, so it ends here. Return "
        f"Turn(terminated=True) where the task is over, and set a limit: {name}(limits={{'max_steps': ...}}), or "
        "default_limits = Limits(max_steps=...) in the class",
        NoEndWarning,
        stacklevel=2,
    )


def _checked(turn: object) -> Turn:
    if not isinstance(turn, Turn):
        raise TurnError(
            "start(), respond() and resume() return a Turn, a Handoff, or a list of Handoffs that is not empty; "
            f"got a {type(turn).__name__}: {turn!r:.80}"
        )
    taken = turn.info and RESERVED_INFO & turn.info.keys()
    if taken:
        raise TurnError(f"Turn(info=...) uses names that envsdk uses: {', '.join(sorted(taken))}. Take others")
    return turn


def _sum(step: Step, turn: Turn) -> tuple[float | None, dict[str, float]]:
    """The reward of a step that a turn settles, too, after those before it."""
    if step.reward is None or not turn.rewards:
        return (turn.reward if step.reward is None else step.reward), {**step.rewards, **turn.rewards}
    rewards = dict(step.rewards)
    for name, value in turn.rewards.items():
        rewards[name] = rewards.get(name, 0.0) + value
    return step.reward + (turn.reward or 0.0), rewards
