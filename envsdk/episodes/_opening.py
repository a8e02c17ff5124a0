"""New contexts: what a turn opens for an agent, and which part of another context that starts from."""

from collections.abc import Mapping, Sequence

from ..contexts._context import Context, Delta
from ..contexts._edits import Edit
from ..contexts._roles import RoleLog
from ..errors import ConfigError, HandoffError, TurnError
from ..messages import Message, ToolSchema
from ._agent import Agent
from ._turn import Opening, Turn


def context_named(agent: Agent, name: str) -> str:
    """Return the context that an author means: one of the agent's own, or of its sub-agents.

    Raises:
        TurnError: If there is no such context.
    """
    below = [known for item in agent.agents() for known in item.contexts]
    for known in (agent.full_name(name), name):
        if known in below:
            return known
    raise TurnError(f"a turn names the context {name!r}; the contexts are {below}")


def opened(
    agent: Agent,
    turn: Turn,
    name: str,
    contexts: Mapping[str, Context],
    *,
    records_roles: bool,
    is_final: bool = False,
) -> tuple[Context, Delta, str | None]:
    """Return the context that a turn opens. It is not the agent's yet: nothing changes.

    Args:
        agent: The agent that the turn is for.
        turn: The turn.
        name: The name of the context.
        contexts: All contexts of the episode by name.
        records_roles: Whether the context records what each token belongs to.
        is_final: Whether no further reply is requested, so that the context may be completely full.

    Returns:
        The context, the first delta, and the name of the context that it starts from, or None.

    Raises:
        HandoffError: If the name is taken.
        TurnError: If the context would have no message.
        ConfigError: If it starts from a context of another renderer, or has other tools than that one.
    """
    if name in contexts:
        raise HandoffError(f"the context name {name!r} is taken by the role {contexts[name].role!r}")
    opening = turn.opening
    above = None if agent.parent is None else agent.parent.current
    parent = None if above is None else above.name
    if opening is not None and opening.base is not None:
        parent = context_named(agent, opening.base)
    context = _unopened(agent, turn, name, parent, records_roles=records_roles)
    system = [] if turn.system is None else [Message(role="system", content=turn.system)]
    tools = agent.env.default_tools() if turn.tools is None else turn.tools
    limit = 0 if is_final else agent.limits.max_context_tokens
    handoff = agent.handoff if agent.current is None else None
    if handoff is not None and handoff.history == "full":
        return context, _on_parent(agent, context, [*system, *turn.messages], tools, limit, turn), parent
    if opening is not None and parent is not None:
        return context, _on_part(context, contexts[parent], opening, turn, limit), parent
    before: Sequence[Message] = ()
    if handoff is not None:
        before = handoff.filter_messages([] if above is None else list(above.messages))
    messages = [*system, *before, *turn.messages]
    if not messages:
        raise TurnError(f"the first turn for {name!r} has no message")
    return context, context.open(messages, tools, max_tokens=limit, prefill=turn.prefill), None


def _unopened(agent: Agent, turn: Turn, name: str, parent: str | None, *, records_roles: bool) -> Context:
    opening = turn.opening
    role = opening.role if opening is not None else agent.role if turn.context is None else turn.context
    context = Context(name, role, agent.env.renderer_of(role), agent.env.history, parent=parent)
    context.is_trainable = opening is None or opening.is_trainable
    context.roles = RoleLog() if records_roles else None
    return context


def _on_parent(
    agent: Agent,
    context: Context,
    messages: list[Message],
    tools: Sequence[ToolSchema],
    limit: int | None,
    turn: Turn,
) -> Delta:
    """Open a context that begins with all of its parent's."""
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


def _on_part(context: Context, base: Context, opening: Opening, turn: Turn, limit: int | None) -> Delta:
    """Open a context that begins with the first messages of another one."""
    if context.renderer is not base.renderer:
        raise ConfigError(f"the context {context.name!r} begins with {base.name!r}, so it needs the same renderer")
    return context.open_on(
        base,
        turn.messages,
        max_tokens=limit,
        prefill=turn.prefill,
        system=turn.system,
        tools=turn.tools,
        edit=Edit(opening.keep, start=opening.start),
    )
