"""The state machine of one episode: it turns actions into messages, and turns into observations.

It does no I/O, reads no clock, and knows nothing about gymnasium and event loops. To call an author's method, it yields
a request, which the driver answers, with or without an event loop.
"""

import hashlib
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .._describing import describe_error
from .._visible import brief, type_of
from ..contexts._context import Context, Delta
from ..contexts._history import SUMMARY, SummaryRequest
from ..contexts._protocol import Observation
from ..errors import EpisodeError, NoEndWarning, TurnError, UndeclaredBreak
from ..limits import STEPS_WITHOUT_LIMIT, Limits, StopReason
from ..messages import Message
from ..rendering.renderer import Renderer
from ..trajectories._steps import Origin, Step
from ._agent import MAIN, Agent, EpisodeHeader, Phase, StepResult, for_policy
from ._handoff import AgentEnvironment, Handoff, HandoffResult, PendingHandoffs, is_handoff
from ._turn import Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..trajectories._trajectory import Trajectory

FORK = "/fork-"
"""The separator between the id of the original episode and the fork's number in a fork's id."""
RESERVED_INFO = frozenset(
    {
        *("stop_token_ids", "stop", "max_tokens", "sampling", "context", "role", "media"),
        *("rewards", "metrics", "truncated_reply", "break", "stop_reason"),
    }
)
"""The keys of a step's `info` that an author's `Turn(info=)` may not have."""
SummarizerFactory: TypeAlias = Callable[[SummaryRequest, Sequence[Message], Renderer], AgentEnvironment]
_Take: TypeAlias = Callable[[Agent, Turn], StepResult | HandoffResult | None]
"""A function that takes a turn. It returns None if a summary has to be written first."""


# Requests of an episode to its driver.


class CallMethod(NamedTuple):
    """Call a method of an agent's environment, such as `start`, or a function, and send what it returns."""

    agent: Agent
    method: str | Callable[[Any], Any]
    argument: Any = None


class Join(NamedTuple):
    """Prepare a sub-agent's environment to join the episode."""

    agent: Agent
    seed: int | None


class RunChildren(NamedTuple):
    """Run sub-agents concurrently, and send the list of their results."""

    agents: list[Agent]


Request: TypeAlias = CallMethod | Join | RunChildren
EpisodeGenerator: TypeAlias = Generator[Request, Any, StepResult | HandoffResult]
"""A generator of requests that returns the next observation, or the result of a sub-agent that has ended."""


class PendingReply(NamedTuple):
    """The part of an episode that a policy may read while it samples a reply."""

    env: AgentEnvironment
    """The environment of the agent that acts."""
    context: Context
    """The context of the prompt, which includes the turn."""
    turn: Turn
    """The turn that the reply answers."""


class Episode:
    """One episode of one environment, with all its sub-agents.

    Args:
        header: The episode's id, seed and group.
        env: The environment that was reset.
        summarizer: Makes the environment in which the model writes a summary.
    """

    def __init__(self, header: EpisodeHeader, env: AgentEnvironment, summarizer: SummarizerFactory) -> None:
        self.header = header
        self.trajectory: Trajectory | None = None
        self.contexts: dict[str, Context] = {}
        self.root = Agent(env, MAIN, MAIN, env.limits)
        self.agent = self.root
        """The agent whose action is due. While sub-agents run concurrently, use `pending_reply` instead."""
        self.side_by_side = False
        """True if the driver runs sub-agents concurrently (`RunChildren`); otherwise they act one after the other."""
        self.interrupted = False
        """True if concurrent sub-agents were interrupted before they had ended."""
        self.abandoned = False
        """True if its environment has begun a new episode."""
        self._owners: dict[str, Agent] = {}  # the agent of each context
        self._upcoming: dict[str, PendingReply] = {}  # by the context's name, until the turn is taken
        self._summarizer = summarizer
        self._forks = 0
        self._running_children = 0  # how many agents wait for sub-agents that the driver runs
        self._reward = 0.0

    @property
    def id(self) -> str:
        """The id of the episode and of its trajectory."""
        return self.header.id

    @property
    def seed(self) -> int | None:
        """The seed with which the environment was reset."""
        return self.header.seed

    @property
    def is_over(self) -> bool:
        """True if the episode has ended or was abandoned."""
        return self.trajectory is not None or self.abandoned

    # Methods that a driver calls.

    def begin(self) -> EpisodeGenerator:
        """Open the episode."""
        self._reward = 0.0
        return (yield from self._call_and_take(self.root, "start", None, self._open))

    def step(self, action: object) -> EpisodeGenerator:
        """Take the action that is due, and run until another action is due or the episode is over."""
        self._check_interrupted()
        self._reward = 0.0
        agent = self.agent
        outcome = yield from self.act(agent, action)
        return (yield from self.resume_parent(agent, outcome)) if isinstance(outcome, HandoffResult) else outcome

    def act(self, agent: Agent, action: object) -> EpisodeGenerator:
        """Take an agent's action.

        Raises:
            EpisodeError: If no action is due.
            ActionError: If the action is not legal. The episode is unchanged then.
        """
        if agent.due is None:
            if agent.phase is Phase.ENDED_UNASKED:
                agent.phase = Phase.ACTIVE
                return self._emit_nothing(agent)
            if self.trajectory is not None:
                raise EpisodeError("step() after the end of the episode: call reset()")
            raise EpisodeError(
                "step() while no action is due: call reset() first, and step() once for each observation"
            )
        reply = agent.receive(agent.due, action)
        if reply is None:
            return self._emit_nothing(agent)
        return (yield from self._call_and_take(agent, "respond", reply, self._answer))

    def enter(self, child: Agent) -> EpisodeGenerator:
        """Start a sub-agent."""
        self.agent, seed = child, None
        if self.header.seed is not None:
            digest = hashlib.blake2b(f"{self.header.seed}/{child.name}".encode(), digest_size=4).digest()
            seed = int.from_bytes(digest, "big")
        try:
            yield Join(child, seed)
        except Exception as error:
            return self._end_child(child, StopReason.ERROR, error)
        return (yield from self._call_and_take(child, "start", None, self._open))

    def resume_parent(self, child: Agent, result: HandoffResult) -> EpisodeGenerator:
        """Pass a sub-agent's result to its parent, which continues. If the parent ends as well, repeat this for it."""
        outcome: StepResult | HandoffResult = result
        while isinstance(outcome, HandoffResult):
            agent = child.parent
            assert agent is not None and agent.pending is not None
            agent.pending.results.append(outcome)
            outcome = yield from self._delegate(agent)
            child = agent
        return outcome

    def give_up(self, child: Agent, error: Exception) -> HandoffResult:
        """End a sub-agent and all agents below it because of an error outside of them."""
        for item in child.agents():
            if item is not child and item.stop_reason is None:
                self._end_child(item, StopReason.ERROR, error)
        return self._end_child(child, StopReason.ERROR, error)

    def fail(self, error: BaseException) -> "Trajectory":
        """End the episode because something failed. The sampled tokens are kept.

        Raises:
            EpisodeError: If the episode has ended already.
        """
        if self.trajectory is not None:
            raise EpisodeError(f"the episode {self.id!r} has ended already: {self.trajectory.stop_reason}")
        return self._end(StopReason.ERROR, error=describe_error(error))

    def pending(self) -> StepResult:
        """Return the last result, whose observation the action that is due answers.

        Raises:
            EpisodeError: If no action is due.
        """
        self._check_interrupted()
        agent = self.agent
        if self.trajectory is not None or agent.due is None or agent.emitted is None:
            raise EpisodeError("no action is due: the episode is over, or a method of its environment is running")
        result, log = agent.emitted, agent.context.log_tokens
        tokens = np.asarray(log[len(log) - len(result.observation.tokens) :])
        return result._replace(observation=result.observation._replace(tokens=tokens), info=dict(result.info))

    def pending_reply(self, context: str) -> PendingReply:
        """Return the state that a policy may read while it samples a reply in a context."""
        if context in self._upcoming:
            return self._upcoming[context]
        agent = self._owners[context]
        return PendingReply(agent.env, agent.contexts[context], agent.turn)

    # Forks.

    def check_fork(self) -> None:
        """Raise an error if the episode cannot be forked now.

        Raises:
            EpisodeError: If no action is due, or only the rest of one, or sub-agents run concurrently.
        """
        self.pending()
        if self._running_children:
            raise EpisodeError(
                "a rollout is running sub-agents concurrently, so the episode cannot be forked: fork before they "
                "begin, or play the episode with step(), which runs them one after the other"
            )
        if self.agent.due is not None and self.agent.due.parts:
            raise EpisodeError("the action that is due was interrupted: finish it, then fork")

    def become_fork(self, original: "Episode") -> None:
        """Become a separate episode that shares its steps so far with the original."""
        original._forks += 1
        header = original.header
        tokens = {name: len(context.log_tokens) for name, context in self.contexts.items()}
        origins = [*header.origins, Origin(header.id, tokens)]
        self.header = replace(header, id=f"{header.id}{FORK}{original._forks}", origins=origins)
        self._forks, self.side_by_side = 0, False

    def _check_interrupted(self) -> None:
        if self.interrupted:
            raise EpisodeError("sub-agents were interrupted before they had ended: call env.fail(error), or reset()")

    # Calls of authors' methods.

    def _call_and_take(self, agent: Agent, method: str, argument: Any, take: _Take) -> EpisodeGenerator:
        """Call an author's method, take its result, and run until an action is due or the agent has ended."""
        returned = yield from self._call(agent, method, argument)
        outcome = self._take(agent, returned, take)
        return (yield from self._delegate(agent)) if outcome is None else outcome

    def _call(self, agent: Agent, method: str | Callable[[Any], Any], argument: Any) -> Generator[Request, Any, Any]:
        """Return the result of an author's method, or the exception if the method of a sub-agent raised one."""
        try:
            return (yield CallMethod(agent, method, argument))
        except UndeclaredBreak:
            raise
        except Exception as error:
            if agent.parent is None:
                raise
            return error

    def _take(self, agent: Agent, returned: Any, take: _Take) -> StepResult | HandoffResult | None:
        """Take a turn, handoffs, or an exception. Return None if the agent waits for sub-agents."""
        if isinstance(returned, Exception):
            return self._end_child(agent, StopReason.ERROR, returned)
        try:
            if not isinstance(returned, Turn):
                if not is_handoff(returned):
                    raise TurnError(
                        "start(), respond() and resume() return a Turn, a Handoff, or a list of Handoffs that is not "
                        f"empty; got {type_of(returned)}: {brief(returned)}"
                    )
                if agent.phase is Phase.REFUSED:  # it hands over again although a limit is reached
                    return take(agent, Turn(reward=None))
                agent.hand_over(returned, self.root.limits.max_handoff_depth)
                return None
            if taken := RESERVED_INFO & returned.info.keys():
                names = ", ".join(sorted(taken))
                raise TurnError(f"Turn(info=...) has keys that envsdk uses itself: {names}. Choose other names")
            return take(agent, returned)
        except UndeclaredBreak:
            raise
        except Exception as error:
            if agent.parent is None:
                raise
            return self._end_child(agent, StopReason.ERROR, error)

    # Sub-agents.

    def _delegate(self, agent: Agent) -> EpisodeGenerator:
        """Run the pending sub-agents, then the agent itself, until an action is due or the agent has ended."""
        outcome: StepResult | HandoffResult | None = None
        while outcome is None:
            outcome = yield from self._next_child(agent)
            if outcome is not None:
                break
            pending = agent.pending
            assert pending is not None
            agent.pending, self.agent = None, agent
            if pending.results and agent.phase is not Phase.REFUSED:
                agent.phase = Phase.RETURNED
            take: _Take = self._answer if agent.contexts else self._open
            if pending.request is not None:
                written: Any = pending.results[0] if pending.results else None
                if pending.request.writer is not None:
                    written = yield from self._call(agent, pending.request.writer, pending.request.messages)
                returned = written if isinstance(written, Exception) else pending.turn
                take = partial(self._answer_with_summary, written=written)
            else:
                try:
                    pairs = zip(pending.handoffs, pending.results, strict=True)
                    results = [handoff.filter_result(result) for handoff, result in pairs]
                except Exception as error:
                    returned = error
                else:
                    returned = yield from self._call(agent, "resume", results if pending.is_list else results[0])
            outcome = self._take(agent, returned, take)
        return outcome

    def _next_child(self, agent: Agent) -> Generator[Request, Any, StepResult | None]:
        """Run the sub-agents that an agent waits for. Return None once each of them has a result."""
        pending = agent.pending
        assert pending is not None
        left = pending.handoffs[len(pending.results) :]
        if left and self.side_by_side and not agent.limit_now():
            self._running_children += 1
            have_ended = False
            try:
                pending.results += yield RunChildren([agent.child_of(handoff) for handoff in left])
                have_ended = True
            finally:
                self._running_children -= 1
                self.interrupted = self.interrupted or not have_ended
        while len(pending.results) < len(pending.handoffs):
            reason = agent.limit_now()
            if reason is not None:
                agent.phase = Phase.REFUSED
                pending.results.append(HandoffResult([], "", None, str(reason)))
                continue
            outcome = yield from self.enter(agent.child_of(pending.handoffs[len(pending.results)]))
            if isinstance(outcome, StepResult):
                return outcome
            pending.results.append(outcome)
        return None

    def _end_child(self, agent: Agent, reason: StopReason, error: Exception | None = None) -> HandoffResult:
        """End a sub-agent. If it is the agent that was reset, raise the error instead."""
        if agent.parent is None:
            raise error if error is not None else EpisodeError(str(reason))
        self.agent = agent.parent
        return agent.end(reason, error)

    # Turns.

    def _open(self, agent: Agent, turn: Turn) -> StepResult | HandoffResult:
        """Take the first turn: that of `start`, or of `resume` if `start` handed over.

        Raises:
            TurnError: If the turn has a reward, ends the episode, lacks messages, or refers to a reply.
        """
        has_delegated = bool(agent.record)
        if any(turn.rewards.values()) or turn.continuation is not None or turn.mask is not None or turn.shortens:
            raise TurnError(
                "the first turn has a reward, or continues, masks or shortens a reply, but no reply was sampled yet"
            )
        if not has_delegated and (turn.terminated or turn.truncated):
            raise TurnError("the first turn ends the episode, but no reply was sampled yet")
        reason = agent.reason_to_stop(turn) if has_delegated else None
        self._reward_contexts(agent, turn)
        if reason == StopReason.NO_END:
            _warn_of_no_end(agent)
        if reason is not None and agent.parent is not None:
            return self._end_child(agent, reason)
        if not turn.messages and turn.system is None:
            if reason is None:
                raise TurnError("the first turn has no message: start() returns a Turn with at least one")
            agent.phase = Phase.ENDED_UNASKED  # only its sub-agents acted: it has no context
            self._end(reason)
            return self._emit_nothing(agent)
        delta, base = self._open_context(agent, turn, agent.full_name(turn.context), is_final=reason is not None)
        return self._emit(agent, turn, delta, reason or delta.full, base=base, is_new=True)

    def _answer(self, agent: Agent, turn: Turn) -> StepResult | HandoffResult | None:
        """Take the turn that answers a reply. Return None if a summary has to be written first."""
        step, name, reason = agent.last_step, agent.full_name(turn.context), agent.reason_to_stop(turn)
        assert step is not None
        if turn.context_rewards:
            self._reward_contexts(agent, turn)
        self._reward_step(agent, step, turn)
        if turn.mask is not None or turn.shortens:
            if turn.shortens and name != step.context:
                raise TurnError(f"the turn shortens a reply in {step.context!r}, but it addresses {name!r}")
            agent.shorten_reply(step, turn, is_last=reason is not None)
        context = agent.contexts.get(name)
        if context is None or turn.continuation is not None or reason is not None:
            return self._emit_answer(agent, turn, reason)
        is_fold = turn.edit is not None and turn.edit.reason == "fold"  # which makes room itself
        request = None if is_fold else context.request()
        if request is None:
            return self._emit_answer(agent, turn, reason)
        agent.current = context
        agent.pending = pending = PendingHandoffs(False, [], turn=turn, request=request)
        if request.writer is None:  # the model writes it
            before = turn.messages if context.messages[-1].tool_calls else ()  # a call is answered before that
            limits = Limits(max_context_tokens=agent.limits.max_context_tokens)
            env = self._summarizer(request, before, context.renderer)
            pending.handoffs.append(Handoff(env, role=SUMMARY, history="full", limits=limits))
        return None

    def _answer_with_summary(self, agent: Agent, turn: Turn, *, written: Any) -> StepResult | HandoffResult:
        """Emit a turn with a summary, if it is accepted: the model's (a `HandoffResult`), or that of a function."""
        if isinstance(written, HandoffResult):
            summary, reason, child = written.content, written.error, agent.record[-1]
            assert isinstance(child, Agent)
            if reason is None:
                if written.stop_reason != StopReason.TERMINATED:
                    reason = f"it ended with {written.stop_reason}"
                elif child.last_step is not None and child.last_step.finish_reason == "length":
                    reason = "it was cut"
                else:
                    reason = agent.context.rejects(summary)
                reason = reason and f"the summary was rejected: {reason}"
            child.error = reason
            summary = summary if reason is None else None
        else:
            if written is not None and not isinstance(written, str):
                raise TurnError(f"a summarizer returns a string, or None for no summary, got {brief(written)}")
            summary = None if written is None or agent.context.rejects(written) else written
            step = agent.last_step
            assert step is not None
            step.metrics = {**step.metrics, "summaries": float(summary is not None)}
        return self._emit_answer(agent, turn, agent.reason_to_stop(turn), summary)

    def _reward_contexts(self, agent: Agent, turn: Turn) -> None:
        """Add a turn's `context_rewards` to their contexts."""
        if turn.context_rewards:
            rewards = {agent.context_named(name): reward for name, reward in turn.context_rewards.items()}
            for name, reward in rewards.items():
                self.contexts[name].earn(reward)

    def _reward_step(self, agent: Agent, step: Step, turn: Turn) -> None:
        """Add a turn's reward to a step, or to its context if the agent does not add to the episode's reward."""
        if turn.metrics:
            step.metrics = {**step.metrics, **turn.metrics}
        if not agent.adds_reward:
            if turn.reward is not None:
                self.contexts[step.context].earn(turn.reward)
                agent.own_reward = (agent.own_reward or 0.0) + turn.reward
            return
        self._reward += turn.reward or 0.0
        if step.reward is None:
            step.reward, step.rewards = turn.reward, dict(turn.rewards)
        elif turn.rewards:  # another turn scores the same step
            step.reward += turn.reward or 0.0
            for name, value in turn.rewards.items():
                step.rewards[name] = step.rewards.get(name, 0.0) + value

    def _emit_answer(
        self, agent: Agent, turn: Turn, reason: StopReason | None, summary: str | None = None
    ) -> StepResult | HandoffResult:
        """Render the turn that answers a reply, and emit its observation."""
        assert agent.last_step is not None
        name, replied = agent.full_name(turn.context), self.contexts[agent.last_step.context]
        if reason == StopReason.NO_END:
            _warn_of_no_end(agent)
        if reason is not None and agent.parent is not None:
            replied.messages.extend(turn.messages)
            return self._end_child(agent, reason)
        if reason is None and turn.continuation is not None:
            agent.count(tool_calls=-len(replied.messages[-1].tool_calls))  # counted when the reply is whole
            delta = replied.go_on(turn.continuation, max_tokens=agent.limits.max_context_tokens)
        elif reason is None and name not in agent.contexts:
            delta, base = self._open_context(agent, turn, name)
            return self._emit(agent, turn, delta, delta.full, base=base, is_new=True)
        else:
            agent.current = context = agent.contexts.get(name, replied)
            delta = agent.observe(context, turn, is_final=reason is not None, summary=summary)
        return self._emit(agent, turn, delta, reason or delta.full)

    def why_full(self, agent: Agent, turn: Turn) -> StopReason | None:
        """Return why a reply would not fit into the context after a turn, or None if it fits. Nothing changes.

        It renders the turn in a copy of the context, which costs as much as taking it. The result is None if the
        history policy requests a summary first.
        """
        tried = self._tried(agent, turn)
        return None if tried is None else tried[1].full

    def upcoming(self, agent: Agent, turn: Turn) -> tuple[Observation, dict[str, Any], "NDArray[np.int32]"] | None:
        """Return the policy's input for a turn that has not been taken yet, while another action is due.

        No context changes. From now until the turn is taken, `pending_reply` returns the state after the turn.

        Returns:
            The observation, the `info` for the policy, and the prompt: int32, shape (n,). None if they depend on a
            reply that is due: the turn builds on its context, replies share a limit on sampled tokens, or a summary has
            to be written first. None also if no reply fits into the context.
        """
        name, opening = agent.full_name(turn.context), turn.opening
        base = name if opening is None or opening.base is None else agent.context_named(opening.base)
        waiting = {*self._upcoming, *([] if agent.due is None else [agent.due.context])}
        if not waiting.isdisjoint((name, base)) or agent.sampled_left() is not None:
            return None
        tried = self._tried(agent, turn)
        if tried is None or tried[1].full is not None:
            return None
        context, delta, start = tried
        self._upcoming[name] = PendingReply(agent.env, context, turn)
        extends = name in agent.contexts and delta.break_ is None
        observation = Observation(delta.tokens, delta.keep, extends, name, start or name, delta.media)
        return observation, for_policy(context, turn, agent.max_tokens(turn, context), sampled=0), context.prompt()

    def _tried(self, agent: Agent, turn: Turn) -> tuple[Context, Delta, str | None] | None:
        """Try a turn in a copy of its context; return what `opened` returns, or None if a summary comes first."""
        name = agent.full_name(turn.context)
        if name not in agent.contexts:
            return agent.opened(turn, name, self.contexts, records_roles=self.header.records_roles)
        trial = agent.contexts[name].trial()
        if trial.request() is not None:
            return None
        return trial, agent.observe(trial, turn), None

    # New contexts.

    def _open_context(self, agent: Agent, turn: Turn, name: str, *, is_final: bool = False) -> tuple[Delta, str | None]:
        """Open the context that a turn addresses; return the first delta, and the context that it starts from."""
        roles = self.header.records_roles
        context, delta, base = agent.opened(turn, name, self.contexts, records_roles=roles, is_final=is_final)
        self.contexts[name] = agent.contexts[name] = agent.current = context
        self._owners[name] = agent
        return delta, base

    # Observations.

    def _emit(
        self,
        agent: Agent,
        turn: Turn,
        delta: Delta,
        reason: StopReason | None,
        *,
        base: str | None = None,
        is_new: bool = False,
    ) -> StepResult | HandoffResult:
        """Emit an observation. Its action is due, unless `reason` is given: the agent ends with it then."""
        context = agent.context
        agent.turn = turn
        self._upcoming.pop(context.name, None)
        switch = agent.switch_to(delta, base, is_new=is_new)
        # What a new context leaves out of its base is not dropped.
        break_ = switch if is_new else delta.break_ or switch
        agent.phase = Phase.ACTIVE
        extends = not is_new and break_ is None
        how = {**context.turn, "returns": True} if break_ is not switch and switch is not None else context.turn
        if reason is None:
            stop = len(context.log_tokens)
            start = stop - len(delta.tokens)
            base = base or context.name
            agent.due = Step(context.name, base, delta.keep, extends, start, stop, break_=break_, turn=how)
            self.agent = agent
        elif agent.parent is not None:
            return self._end_child(agent, reason)
        else:
            agent.phase = Phase.ENDED_UNASKED if is_new else Phase.ACTIVE
            for one in agent.contexts.values():
                one.check_end()
            final_turn = {"context": context.name, **how} if delta.full and not is_new else {}
            self._end(reason, final_break=break_, final_turn=final_turn)
        info = agent.info(break_, closed_reply=delta.closed_reply)
        if reason is not None:
            info["stop_reason"] = str(reason)
        observation = Observation(delta.tokens, delta.keep, extends, context.name, base or context.name, delta.media)
        terminated = reason == StopReason.TERMINATED
        agent.emitted = StepResult(observation, self._reward, terminated, bool(reason) and not terminated, info)
        return agent.emitted

    def _emit_nothing(self, agent: Agent) -> StepResult:
        """Emit an empty observation: after a part of a reply, or if the episode ended before a reply."""
        is_open = agent.current is not None
        name, length = (agent.context.name, len(agent.context)) if is_open else (agent.name, 0)
        observation = Observation(np.empty(0, dtype=np.int32), length, is_open, name, name)
        info = agent.info()
        info.update(rewards={}, metrics={})
        terminated = truncated = False
        if self.trajectory is not None:
            info["stop_reason"] = self.trajectory.stop_reason
            terminated = self.trajectory.status == "terminated"
            truncated = not terminated
        agent.emitted = StepResult(observation, 0.0 if is_open else self._reward, terminated, truncated, info)
        return agent.emitted

    def _end(self, reason: StopReason, **ending: Any) -> "Trajectory":
        from ._recording import record  # at the first end of an episode: authors' modules need no samples

        self.trajectory = record(self.header, self.root, self.contexts, reason, **ending)
        for agent in self.root.agents():
            agent.due = None
        return self.trajectory


def _warn_of_no_end(agent: Agent) -> None:
    name = type(agent.env).__name__
    warnings.warn(
        f"{name}: an episode without a limit had {STEPS_WITHOUT_LIMIT:,} steps, so it ends here. Return "
        f"Turn(terminated=True) where the task is over, and set a limit: {name}(limits={{'max_steps': ...}}), or "
        "default_limits = Limits(max_steps=...) in the class",
        NoEndWarning,
        stacklevel=2,
    )
