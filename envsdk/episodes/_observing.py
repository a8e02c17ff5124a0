"""What a step returns of a context: the delta of a turn, the switch that it is, and the `info`."""

from typing import Any

from ..contexts._context import Context, Delta
from ..contexts._protocol import Break
from ._agent import Agent, Phase
from ._turn import Turn

_FOR_THE_POLICY = ("stop_token_ids", "stop", "max_tokens", "sampling", "context", "role", "media")
_ABOUT_THE_STEP = ("rewards", "metrics", "truncated_reply", "break", "stop_reason")
RESERVED_INFO = frozenset((*_FOR_THE_POLICY, *_ABOUT_THE_STEP))
"""The keys of a step's `info` that an author's `Turn(info=)` may not have."""


def observed(
    context: Context, turn: Turn, max_tokens: int | None, *, is_final: bool = False, summary: str | None = None
) -> Delta:
    """Render a turn in its context."""
    return context.observe(
        turn.messages,
        is_final=is_final,
        max_tokens=max_tokens,
        prefill=turn.prefill,
        system=turn.system,
        tools=turn.tools,
        edit=turn.edit,
        summary=summary,
    )


def for_policy(context: Context, turn: Turn, max_tokens: int | None) -> dict[str, Any]:
    """Return the part of a step's `info` that the policy gets; `media` is there if the prompt has images."""
    media = context.media()
    return {
        "stop_token_ids": context.renderer.stop_token_ids,
        "stop": (*context.renderer.stop_strings, *turn.stop),
        "max_tokens": max_tokens,
        "sampling": dict(turn.sampling),
        "context": context.name,
        "role": context.role,
        **({"media": media} if media else {}),
    }


def info_of(agent: Agent, break_: Break | None, *, closed_reply: bool) -> dict[str, Any]:
    """Return the `info` of the observation that an agent gets."""
    turn, context = agent.turn, agent.current
    if context is None:
        asked = {"stop_token_ids": agent.env.renderer.stop_token_ids, "stop": (), "max_tokens": None}
        asked |= {"sampling": dict(turn.sampling), "context": agent.name, "role": agent.role}
    else:
        asked = for_policy(context, turn, agent.max_tokens())
    info = {
        **asked,
        "truncated_reply": closed_reply,
        "rewards": dict(turn.rewards),
        "metrics": dict(turn.metrics),
        **turn.info,
    }
    if break_ is not None:
        info["break"] = break_
    return info


def switch_of(agent: Agent, base: str | None, delta: Delta, *, is_new: bool) -> Break | None:
    """Return the switch that an observation is: to a sub-agent, or back from one; None if it is neither."""
    name = agent.context.name
    if is_new and agent.parent is not None and len(agent.contexts) == 1:
        above = agent.parent.current or agent.parent
        return Break("switch", "handoff", name, base or name, delta.keep, 0, f"from {above.name}")
    if is_new and agent.turn.opening is not None and len(agent.contexts) > 1:
        return Break("switch", "handoff", name, base or name, delta.keep, 0, agent.turn.opening.detail)
    if not is_new and agent.phase in (Phase.RETURNED, Phase.REFUSED):
        return Break("switch", "return", name, name, delta.keep, 0)
    return None
