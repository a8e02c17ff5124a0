"""Handing over: which handoffs are legal, the agent of a handoff, and what its parent gets of it."""

import hashlib
from collections.abc import Sequence

from ..errors import HandoffError, RenderError
from ..limits import STEPS_WITHOUT_LIMIT, StopReason
from ._agent import Agent
from ._handoff import Handoff, HandoffResult, PendingHandoffs
from ._header import describe_error

SUMMARY = "summary"
"""The role of a sub-agent that writes a summary, in the name of its context."""


def hand_over(agent: Agent, returned: Handoff | Sequence[Handoff], max_depth: int) -> None:
    """Let an agent wait for a handoff, or for a list of them.

    Raises:
        HandoffError: If the handoff is too deep, goes round in a circle, or goes to an environment that is running.
    """
    handoffs = [returned] if isinstance(returned, Handoff) else list(returned)
    depth = sum(1 for _ in agent.lineage())
    if depth > max_depth:
        raise HandoffError(
            f"{agent.name!r} hands over at depth {depth}, and {max_depth} is allowed: Limits(max_handoff_depth=...)"
        )
    if agent.usage.hands_over_in_a_circle():
        raise HandoffError(
            f"{agent.name!r} handed over {STEPS_WITHOUT_LIMIT:,} times in a row without any reply: let resume() return "
            "a Turn once a result has an error"
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
                f"{agent.name!r} hands over to {handoff.env!r}, which is running already: make another object of it"
            )
        running.add(id(handoff.env))
    agent.pending = PendingHandoffs(not isinstance(returned, Handoff), handoffs)


def child_of(parent: Agent, handoff: Handoff) -> Agent:
    """Make the agent of a handoff and add it to its parent's record."""
    is_summary = parent.pending is not None and parent.pending.request is not None
    role = parent.context.role if is_summary else handoff.role  # the agent that needs a summary writes it
    limits = handoff.limits or handoff.env.limits
    child = Agent(handoff.env, parent.child_name(handoff.role), role, limits, parent, handoff, is_summary=is_summary)
    parent.record.append(child)
    return child


def end_child(child: Agent, reason: StopReason, error: Exception | None = None) -> HandoffResult:
    """End a sub-agent and return what its parent gets."""
    if error is None:
        try:
            for context in child.contexts.values():
                context.check_end()
        except RenderError as failed:
            reason, error = StopReason.ERROR, failed
    child.stop_reason, child.due = reason, None
    child.error = None if error is None else describe_error(error)
    context = next(iter(child.contexts.values()), None)
    messages = [] if context is None else list(context.messages)
    own = messages[0 if context is None else context.inherited :]
    rewards = list(child.rewards())
    return HandoffResult(
        messages=messages,
        content=next((message.content for message in reversed(own) if message.role == "assistant"), ""),
        reward=sum(rewards) if rewards else None,
        stop_reason=str(reason),
        error=None if error is None else describe_error(error, with_notes=False),
        context="" if context is None else context.name,
    )


def why_rejected(parent: Agent, child: Agent, result: HandoffResult) -> str | None:
    """Return why the text that a model wrote is rejected as a summary, or None if it is accepted."""
    if result.error is not None:
        return result.error
    if result.stop_reason != StopReason.TERMINATED:
        reason = f"it ended with {result.stop_reason}"
    else:
        is_cut = child.last_step is not None and child.last_step.finish_reason == "length"
        reason = "it was cut" if is_cut else parent.context.rejects(result.content)
    return reason and f"the summary was rejected: {reason}"


def seed_of(seed: int | None, name: str) -> int | None:
    """Return the seed of a sub-agent: the hash of the episode's seed and its context's name. None stays None."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")
