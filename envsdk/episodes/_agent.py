"""An agent of an episode: one environment with its contexts, limits and counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np

from .._describing import describe_error
from ..contexts._context import Context, Delta
from ..contexts._edits import Edit
from ..contexts._protocol import Break, Observation
from ..contexts._roles import RoleLog
from ..errors import ConfigError, HandoffError, RenderError, TurnError
from ..limits import MAX_ABORTS, MAX_EMPTY_ABORTS, STEPS_WITHOUT_LIMIT, Limits, StopReason
from ..messages import Message
from ..rendering._reply_grammar import reply_grammar
from ..trajectories._steps import Origin, Part, Step
from ._actions import PromptSize, check_action
from ._handoff import AgentEnvironment, Handoff, HandoffResult, PendingHandoffs
from ._turn import Turn

MAIN = "main"


class StepResult(NamedTuple):
    """The result of `reset` and `step`, in gymnasium's order."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True)
class EpisodeHeader:
    """The fields that identify an episode, which its trajectory repeats."""

    id: str
    seed: int | None
    config: dict[str, Any]
    """The environment's own options."""
    group_id: str | None
    origins: list[Origin] = field(default_factory=list[Origin])
    """The episodes from which it was forked."""
    records_roles: bool = False
    """True if its contexts label each token with the part of the conversation that it belongs to."""


class Phase(Enum):
    """The state of an agent since its last observation was emitted."""

    ACTIVE = auto()
    """Nothing has happened."""
    RETURNED = auto()
    """A sub-agent acted, so the next observation is a return."""
    REFUSED = auto()
    """The same as `RETURNED`, but a limit refused a handoff. No further handoff is allowed before the next reply."""
    ENDED_UNASKED = auto()
    """The episode ended before a reply was requested. The next step reports it."""


class Agent:
    """An environment in an episode: the one that was reset, or a sub-agent.

    Args:
        env: The environment.
        name: The name of its first context, unless its first turn sets a different one.
        role: Its role.
        limits: Its limits.
        parent: The agent that handed over to it, or None.
        handoff: The handoff that started it, or None.
        is_summary: Whether it writes a summary for its parent's history policy. Its steps do not count as its parent's
            then.
    """

    def __init__(
        self,
        env: AgentEnvironment,
        name: str,
        role: str,
        limits: Limits,
        parent: "Agent | None" = None,
        handoff: Handoff | None = None,
        *,
        is_summary: bool = False,
    ) -> None:
        self.env = env
        self.name = name
        self.role = role
        self.parent = parent
        self.ancestors: tuple[Agent, ...] = () if parent is None else (parent, *parent.ancestors)
        """Its parent, and so on, up to the agent that was reset."""
        self.handoff = handoff
        self.adds_reward: bool = (parent is None or parent.adds_reward) and (handoff is None or handoff.adds_reward)
        """True if its rewards count for the episode; False if they count only for its own contexts."""
        self.limits = limits
        self.steps = self.sampled = self.tool_calls = 0
        """Its counts, which include those of all agents below it."""
        self.is_summary = is_summary
        self.phase = Phase.ACTIVE
        self.contexts: dict[str, Context] = {}
        self.current: Context | None = None
        self.turn = Turn()
        self.due: Step | None = None
        """The step whose action is due."""
        self.emitted: StepResult | None = None
        """The last result, whose observation that action answers."""
        self.record: list[Step | Agent] = []
        """Its steps, and the sub-agents that acted in between, in order."""
        self.last_step: Step | None = None
        self.pending: PendingHandoffs | None = None
        self.own_reward: float | None = None
        """The sum of its rewards that do not count for the episode; None if it was not scored."""
        self.stop_reason: StopReason | None = None
        self.error: str | None = None
        self.task: Any = None
        self.cut: StopReason | None = None
        """The limit that cut its last reply; None if it was not cut, or only by its turn's `max_tokens`."""
        self.full: StopReason | None = None
        """The reason why its last request did not fit into its context and was refused; None if it fit."""
        self.aborts = self.empty_aborts = 0
        self.is_always_aborted = False
        self._handoffs_in_a_row = self._steps_at_handoff = 0
        self._names: dict[str, int] = {}

    @property
    def context(self) -> Context:
        """The current context.

        Raises:
            TurnError: Before the first turn.
        """
        if self.current is None:
            raise TurnError(f"{self.name!r} has no context yet: its environment has not returned a turn")
        return self.current

    # The agents below it.

    def walk(self) -> "Iterator[Step | Agent]":
        """Yield its steps and all agents below it, depth-first; each agent before its steps."""
        yield self
        for item in self.record:
            if isinstance(item, Agent):
                yield from item.walk()
            else:
                yield item

    def agents(self) -> "Iterator[Agent]":
        """Yield the agent and all agents below it, depth-first."""
        return (item for item in self.walk() if isinstance(item, Agent))

    def rewards(self) -> "Iterator[float]":
        """Yield its rewards, step by step, including those of sub-agents that add to its own."""
        if self.own_reward is not None:
            yield self.own_reward
        for item in self.record:
            if isinstance(item, Step):
                if item.reward is not None:
                    yield item.reward
            elif item.handoff is None or item.handoff.adds_reward:
                yield from item.rewards()

    # Names of contexts.

    def full_name(self, name: str | None) -> str:
        """Return the name in the episode of a context that its environment calls `name`; None is its current one."""
        if name is None:
            return self.name if self.current is None else self.current.name
        if self.parent is None or name == self.name or name.startswith(f"{self.name}/"):
            return name
        return self.name if name == MAIN else f"{self.name}/{name}"

    # Actions.

    def receive(self, step: Step, action: object) -> Message | None:
        """Take an action for the step that is due.

        Returns:
            The whole reply; None if the policy was interrupted and the reply is not complete.

        Raises:
            ActionError: If the action is not legal.
        """
        context = self.context
        is_first, length = not step.parts, len(context)
        # The last token before the new ones counts as new: it had been sampled, but not processed by the model.
        observed = step.action_start - step.start + 1 if is_first else 1
        if is_first and not step.start:  # what a new context keeps may be of another model
            observed = length
        prompt = PromptSize(length, min(length, observed))
        checked = check_action(action, context.renderer.tokenizer.vocab_size, prompt)
        context.act(checked.tokens, checked.logprobs)
        is_abort, sampled = checked.finish_reason == "abort", len(checked.tokens)
        stop = len(context.log_tokens)
        step.parts += (Part(stop, checked.temperature, checked.policy_version, checked.extra),)
        step.finish_reason = checked.finish_reason
        self.aborts = len(step.parts) if is_abort else 0
        self.empty_aborts = self.empty_aborts + 1 if is_abort and not sampled else 0
        self.is_always_aborted = self.empty_aborts >= MAX_EMPTY_ABORTS or self.aborts >= MAX_ABORTS
        if is_first:
            self.record.append(step)
            self.last_step = step
        self.count(steps=int(is_first), sampled=sampled)
        if is_abort:
            if self.max_tokens() != 0 and not self.is_always_aborted:
                return None
            step.finish_reason = "length"  # there is no room for the rest, or none comes
        self.cut = None
        if step.finish_reason == "length" and (
            self.turn.max_tokens is None or stop - step.action_start < self.turn.max_tokens
        ):
            limit = self.limits.max_context_tokens
            is_full = limit is not None and len(context) >= limit
            self.cut = StopReason.MAX_CONTEXT_TOKENS if is_full else StopReason.CUT
            if self.sampled_left() == 0:
                self.cut = StopReason.MAX_SAMPLED_TOKENS
        self.due = None
        stops = (*context.renderer.stop_strings, *self.turn.stop) if step.finish_reason == "stop" else ()
        message, text = context.take_reply(stop - step.action_start, stops)
        step.reply = len(context.messages) - 1
        self.count(tool_calls=len(message.tool_calls))
        return message.as_reply(text)

    def shorten_reply(self, step: Step, turn: Turn, *, is_last: bool) -> None:
        """Mask and cut the reply of a step as its turn specifies. Nothing is cut at the end of the episode.

        Raises:
            TurnError: If the turn refers to a part that the reply does not have.
        """
        context = self.contexts[step.context]
        sampled = context.new_text(step.stop - step.action_start)
        count = kept = len(sampled.tokens)
        if turn.keep_reply is not None:
            kept = turn.keep_reply
        elif turn.up_to is not None and (at := str(sampled).find(turn.up_to)) >= 0:
            kept = sampled.tokens_of(at, at + len(turn.up_to))[1]
        masked: list[tuple[int, int]] = []
        if turn.mask is not None:
            length = len(str(sampled)) if turn.mask.characters else 0
            spans = [("tokens", start, count if stop is None else stop, count) for start, stop in turn.mask.tokens]
            spans += [("characters", a, length if b is None else b, length) for a, b in turn.mask.characters]
            for what, start, stop, most in spans:
                if not start <= stop <= most:
                    raise TurnError(f"mask names the {what} {start} to {stop} of a reply that has {most}")
                masked.append((start, stop) if what == "tokens" else sampled.tokens_of(start, stop))
        if kept < sampled.body:
            if not is_last:
                context.cut_reply(count - kept)
            if not turn.train_dropped:
                masked.append((kept, count))
        merged: list[tuple[int, int]] = []
        for start, stop in sorted((step.action_start + start, step.action_start + stop) for start, stop in masked):
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            elif start < stop:
                merged.append((start, stop))
        step.masked = tuple(merged)

    # Counts and limits.

    def count(self, *, steps: int = 0, sampled: int = 0, tool_calls: int = 0) -> None:
        """Count steps, sampled tokens and tool calls, also for its ancestors. A summary is not a step of its parent."""
        for agent in (self, *self.ancestors):
            agent.steps += steps
            agent.sampled += sampled
            agent.tool_calls += tool_calls
            if agent.is_summary:
                steps = 0

    def limit_reached(self) -> StopReason | None:
        """Return the limit that it or an ancestor has reached, `no_end` after `STEPS_WITHOUT_LIMIT` steps, or None."""
        has_max_steps = False
        for agent in (self, *self.ancestors):
            limits = agent.limits
            has_max_steps = has_max_steps or limits.max_steps is not None
            for count, limit, reason in (
                (agent.steps, limits.max_steps, StopReason.MAX_STEPS),
                (agent.sampled, limits.max_sampled_tokens, StopReason.MAX_SAMPLED_TOKENS),
                (agent.tool_calls, limits.max_tool_calls, StopReason.MAX_TOOL_CALLS),
            ):
                if limit is not None and count >= limit:
                    return reason
        if has_max_steps or self.steps < STEPS_WITHOUT_LIMIT:
            return None
        # Each token brings max_sampled_tokens closer, so that steps with tokens come to an end by themselves.
        has_no_end = self.sampled_left() is None or self.steps - self.sampled >= STEPS_WITHOUT_LIMIT
        return StopReason.NO_END if has_no_end else None

    def sampled_left(self) -> int | None:
        """Return the number of tokens that may still be sampled; None without a limit."""
        counts = [(agent.limits.max_sampled_tokens, agent.sampled) for agent in (self, *self.ancestors)]
        return min((max(0, limit - sampled) for limit, sampled in counts if limit is not None), default=None)

    def tool_calls_left(self, count: int) -> int:
        """Return the number of the last reply's `count` calls that may be run."""
        left = count
        for agent in (self, *self.ancestors):
            limit = agent.limits.max_tool_calls
            if limit is not None:
                left = min(left, limit - (agent.tool_calls - count))
        return max(0, left)

    def reason_to_stop(self, turn: Turn) -> StopReason | None:
        """Return why the agent ends with a turn, or None. The turn's own end takes precedence over limits."""
        if turn.terminated:
            return StopReason.TERMINATED
        return StopReason.TRUNCATED if turn.truncated else self.limit_now()

    def limit_now(self) -> StopReason | None:
        """Return the limit, its own or an ancestor's, that ends the agent after its last reply, or None."""
        if self.is_always_aborted:
            return StopReason.ABORTED
        cut = self.cut if self.limits.end_on_cut else None
        return cut or self.full or self.limit_reached()

    def max_tokens(self, turn: Turn | None = None, context: Context | None = None) -> int | None:
        """Return the most tokens that the rest of the reply may have under the turn and all limits.

        Args:
            turn: A turn that has not been taken yet; None for the reply that is due.
            context: The context of that turn, as it will be once the turn is taken.

        Returns:
            The number, or None if nothing limits it.
        """
        least, of_turn, of_context = self.sampled_left(), (turn or self.turn).max_tokens, self.limits.max_context_tokens
        if of_turn is not None:  # the parts of a reply share it
            sampled = 0 if turn is not None or self.due is None else self.due.stop - self.due.action_start
            left = max(0, of_turn - sampled)
            least = left if least is None else min(least, left)
        if of_context is not None:
            left = max(0, of_context - len(context or self.context))
            least = left if least is None else min(least, left)
        return least

    def leave_context(self) -> None:
        """Return to the context that opened the current one: the next observation is a return.

        If the last reply was cut, that ends only the context that is left.
        """
        self.phase, self.cut = Phase.RETURNED, None

    # Observations.

    def observe(self, context: Context, turn: Turn, *, is_final: bool = False, summary: str | None = None) -> Delta:
        """Render a turn in its context."""
        return context.observe(
            turn.messages,
            is_final=is_final,
            max_tokens=self.limits.max_context_tokens,
            prefill=turn.prefill,
            system=turn.system,
            tools=turn.tools,
            edit=turn.edit,
            summary=summary,
        )

    def info(self, break_: Break | None = None, *, closed_reply: bool = False) -> dict[str, Any]:
        """Return the `info` of its current observation."""
        turn, context = self.turn, self.current
        if context is None:
            asked = {"stop_token_ids": self.env.renderer.stop_token_ids, "stop": (), "max_tokens": None}
            asked |= {"sampling": dict(turn.sampling), "context": self.name, "role": self.role}
        else:
            sampled = None if self.due is None else self.due.stop - self.due.action_start
            asked = for_policy(context, turn, self.max_tokens(), sampled)
        about = {"truncated_reply": closed_reply, "rewards": dict(turn.rewards), "metrics": dict(turn.metrics)}
        return {**asked, **about, **turn.info, **({} if break_ is None else {"break": break_})}

    def switch_to(self, delta: Delta, base: str | None, *, is_new: bool) -> Break | None:
        """Return the break of a switch to a sub-agent or back from one; None if the observation is not a switch."""
        name, opening = self.context.name, self.turn.opening
        if not is_new:
            is_return = self.phase in (Phase.RETURNED, Phase.REFUSED)
            return Break("switch", "return", name, name, delta.keep, 0) if is_return else None
        if self.parent is not None and len(self.contexts) == 1:
            above = self.parent.current or self.parent
            return Break("switch", "handoff", name, base or name, delta.keep, 0, f"from {above.name}")
        if opening is not None and len(self.contexts) > 1:
            return Break("switch", "handoff", name, base or name, delta.keep, 0, opening.detail)
        return None

    # New contexts.

    def context_named(self, name: str) -> str:
        """Return the full name of a context of the agent or of its sub-agents, as an author names it.

        Raises:
            TurnError: If no context has that name.
        """
        below = [known for item in self.agents() for known in item.contexts]
        for known in (self.full_name(name), name):
            if known in below:
                return known
        raise TurnError(f"a turn names the context {name!r}; the contexts are {below}")

    def opened(
        self, turn: Turn, name: str, contexts: Mapping[str, Context], *, records_roles: bool, is_final: bool = False
    ) -> tuple[Context, Delta, str | None]:
        """Make the context that a turn opens. Nothing else changes: the context is not added to the agent.

        Args:
            turn: The turn.
            name: The name of the context.
            contexts: All contexts of the episode by name.
            records_roles: Whether the context labels each token.
            is_final: Whether no further reply is requested.

        Returns:
            The context, its first delta, and the name of the context that it starts from, or None.

        Raises:
            HandoffError: If the name is taken.
            TurnError: If the context would not have any message.
            ConfigError: If it starts from a context with a different renderer or, for a handoff with full history,
                different tools.
        """
        if name in contexts:
            raise HandoffError(f"the context name {name!r} is taken by the role {contexts[name].role!r}")
        opening, env = turn.opening, self.env
        above = None if self.parent is None else self.parent.current
        parent = None if above is None else above.name
        if opening is not None and (opener := opening.base or opening.parent) is not None:
            parent = self.context_named(opener)
        role = opening.role if opening is not None else self.role if turn.context is None else turn.context
        context = Context(name, role, env.renderer_of(role), env.history, parent=parent)
        context.is_trainable = opening is None or opening.is_trainable
        context.roles = RoleLog() if records_roles else None
        limit = 0 if is_final else self.limits.max_context_tokens
        tools = env.default_tools() if turn.tools is None else turn.tools
        system = [] if turn.system is None else [Message(role="system", content=turn.system)]
        handoff = self.handoff if self.current is None else None
        if handoff is not None and handoff.history == "full":
            assert self.parent is not None
            base = self.parent.context
            if context.renderer is not base.renderer:
                raise ConfigError(
                    "a handoff with full history needs the renderer of its parent: make the sub-agent without renderer "
                    "and tokenizer"
                )
            if tools and list(tools) != list(base.tools):
                raise ConfigError(
                    "a handoff with full history begins with its parent's prompt, so it has its parent's tools; give "
                    "the sub-agent the same tools or none, or the handoff a fresh history"
                )
            messages = [*system, *turn.messages]
            return context, context.open_on(base, messages, max_tokens=limit, prefill=turn.prefill), parent
        if opening is not None and opening.base is not None:
            assert parent is not None
            base, edit = contexts[parent], Edit(opening.keep, start=opening.start)
            if context.renderer is not base.renderer:
                raise ConfigError(
                    f"the context {name!r} begins with {base.name!r}, but has a different renderer: let renderer_of() "
                    "return the same renderer for both roles"
                )
            given: dict[str, Any] = {"prefill": turn.prefill, "system": turn.system, "tools": turn.tools}
            return context, context.open_on(base, turn.messages, max_tokens=limit, edit=edit, **given), parent
        before = [] if handoff is None else handoff.filter_messages([] if above is None else list(above.messages))
        messages = [*system, *before, *turn.messages]
        if not messages:
            raise TurnError(f"the first turn for {name!r} has no message; expected at least one")
        return context, context.open(messages, tools, max_tokens=limit, prefill=turn.prefill), None

    # Handoffs.

    def hand_over(self, returned: Handoff | Sequence[Handoff], max_depth: int) -> None:
        """Make a handoff or a list of them pending.

        Raises:
            HandoffError: If a handoff is too deep, repeats without any reply, or goes to an environment that is
                running.
        """
        handoffs = [returned] if isinstance(returned, Handoff) else list(returned)
        depth = 1 + len(self.ancestors)
        if depth > max_depth:
            raise HandoffError(
                f"{self.name!r} hands over at depth {depth}, but at most {max_depth} is allowed. Set a higher limit "
                "with Limits(max_handoff_depth=...)"
            )
        self._handoffs_in_a_row = self._handoffs_in_a_row + 1 if self.steps == self._steps_at_handoff else 0
        self._steps_at_handoff = self.steps
        if self._handoffs_in_a_row > STEPS_WITHOUT_LIMIT:
            raise HandoffError(
                f"{self.name!r} handed over {STEPS_WITHOUT_LIMIT:,} times in a row without any reply: let resume() "
                "return a Turn once a result has an error"
            )
        running = {id(agent.env) for agent in (self, *self.ancestors)}
        for handoff in handoffs:
            if handoff.history == "full" and not self.contexts:
                raise HandoffError(
                    f'{self.name!r} hands over with history="full" before its first turn, when it has no '
                    'conversation yet: use history="fresh"'
                )
            if id(handoff.env) in running:
                raise HandoffError(
                    f"{self.name!r} hands over to {handoff.env!r}, which is running already: make a new object"
                )
            running.add(id(handoff.env))
        self.pending = PendingHandoffs(not isinstance(returned, Handoff), handoffs)

    def child_of(self, handoff: Handoff) -> "Agent":
        """Make the agent of a handoff, and add it to the record."""
        is_summary = self.pending is not None and self.pending.request is not None
        role = self.context.role if is_summary else handoff.role  # the agent that needs a summary writes it
        name = f"{(self.current or self).name}/{handoff.role}"
        self._names[name] = self._names.get(name, 0) + 1
        name, limits = f"{name}-{self._names[name]}", handoff.limits or handoff.env.limits
        child = Agent(handoff.env, name, role, limits, self, handoff, is_summary=is_summary)
        self.record.append(child)
        return child

    def end(self, reason: StopReason, error: Exception | None = None) -> HandoffResult:
        """End as a sub-agent, and return the result for its parent."""
        if error is None:
            try:
                for context in self.contexts.values():
                    context.check_end()
            except RenderError as failed:
                reason, error = StopReason.ERROR, failed
        self.stop_reason, self.due = reason, None
        self.error = None if error is None else describe_error(error)
        context = next(iter(self.contexts.values()), None)
        messages = [] if context is None else list(context.messages)
        own = messages[0 if context is None else context.inherited :]
        rewards = list(self.rewards())
        return HandoffResult(
            messages=messages,
            content=next((message.content for message in reversed(own) if message.role == "assistant"), ""),
            reward=sum(rewards) if rewards else None,
            stop_reason=str(reason),
            error=None if error is None else describe_error(error, with_notes=False),
            context="" if context is None else context.name,
        )


def for_policy(context: Context, turn: Turn, max_tokens: int | None, sampled: int | None) -> dict[str, Any]:
    """Return the part of a step's `info` that the policy receives. It has `media` if the prompt has images.

    Args:
        context: The context.
        turn: The turn that requests the reply.
        max_tokens: The most tokens that the reply may have.
        sampled: The number of tokens of the reply that are sampled already; None if no reply is requested.

    Raises:
        TurnError: If the turn constrains the reply in a way that cannot be enforced.
        RenderError: If the model family cannot express such a reply.
        MissingPackage: If llguidance is needed, but not installed.
    """
    media = context.media()
    sampling = dict(turn.sampling)
    if sampled is not None:
        if turn.schema is not None or turn.tool_choice != "auto":
            prompt_tail, reply = context.reply_tokens()
            begun = np.concatenate([context.renderer.after_opening(prompt_tail), reply[: len(reply) - sampled]])
            sampling["grammar"] = reply_grammar(
                context.renderer, begun, schema=turn.schema, tools=context.tools, choice=turn.tool_choice
            )
        if sampled and sampling.get("grammar") is not None:
            sampling["grammar_sampled"] = sampled
    return {
        "stop_token_ids": context.renderer.stop_token_ids,
        "stop": (*context.renderer.stop_strings, *turn.stop),
        "max_tokens": max_tokens,
        "sampling": sampling,
        "context": context.name,
        "role": context.role,
        **({"media": media} if media else {}),
    }
