"""Make the trajectory of an episode."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..contexts._context import Context
from ..contexts._protocol import Break
from ..limits import StopReason
from ..trajectories._context_log import ContextLog, logged
from ..trajectories._steps import Step
from ..trajectories._trajectory import Status, Trajectory
from ._agent import Agent, EpisodeHeader


def record(
    header: EpisodeHeader,
    root: Agent,
    contexts: Mapping[str, Context],
    reason: StopReason,
    *,
    error: str | None = None,
    final_break: Break | None = None,
    final_turn: dict[str, Any] | None = None,
) -> Trajectory:
    """Return the trajectory of an episode so far, with the steps of all agents depth-first."""
    steps = [item for item in root.walk() if isinstance(item, Step)]
    for step in steps:
        if step.reply == len(contexts[step.context].messages):  # it was continued and never finished
            step.reply = None
    status: Status = "truncated"
    if reason in (StopReason.TERMINATED, StopReason.ERROR):
        status = "terminated" if reason == StopReason.TERMINATED else "error"
    renderer = root.env.renderer
    # An example of earlier text that a template rewrites but a context kept.
    kept = (context.rewriting for context in contexts.values() if context.steps > 1 and context.rewriting)
    return Trajectory(
        id=header.id,
        env=root.env.name,
        seed=header.seed,
        status=status,
        stop_reason=str(reason),
        contexts=_logs(root, steps, reason),
        steps=steps,
        renderer=renderer.specification(),
        renderer_chosen_because=renderer.chosen_because,
        renderer_rewrites=next(kept, ""),
        tokenizer=renderer.tokenizer.fingerprint,
        vocab_size=renderer.tokenizer.vocab_size,
        history=root.env.history.specification(),
        limits=root.limits.model_dump(exclude_defaults=True),
        config=header.config,
        task=task_as_json(root.task),
        group_id=header.group_id,
        origins=header.origins,
        final_break=final_break,
        final_turn=final_turn or {},
        error=error,
    )


def _logs(root: Agent, steps: Sequence[Step], reason: StopReason) -> dict[str, ContextLog]:
    """Return the log of each context. The logs of sub-agents follow those of their parents.

    Sub-agents that have not ended end for the reason for which the episode ended.
    """
    ends: dict[str, int] = {}
    for step in steps:
        ends[step.context] = max(step.stop, ends.get(step.context, 0))
    logs: dict[str, ContextLog] = {}
    main, history = root.env.renderer.tokenizer, root.env.history.specification()
    for agent in root.agents():
        is_child = agent.parent is not None
        # A sub-agent that acted before its parent's first turn has the first context of an agent above as its parent.
        above = (name for one in agent.ancestors for name in one.contexts)
        parent = next(above, None)
        for name, context in agent.contexts.items():
            tokenizer = context.renderer.tokenizer
            is_other = tokenizer.fingerprint != main.fingerprint
            own_history = context.policy.specification()
            logs[name] = ContextLog(
                role=context.role,
                parent=context.parent or parent,
                messages=list(context.messages),
                reward=context.reward,
                is_trainable=context.is_trainable,
                stop_reason=str(agent.stop_reason or reason) if is_child else "",
                error=agent.error,
                task=task_as_json(agent.task) if is_child else None,
                tokenizer=tokenizer.fingerprint if is_other else "",
                vocab_size=tokenizer.vocab_size if is_other else 0,
                history={} if own_history == history else own_history,
                **logged(context, ends.get(name, 0)),
            )
    return logs


def task_as_json(task: Any) -> Any:
    """Return a task in the form in which records store it."""
    if hasattr(task, "model_dump"):
        return task.model_dump(mode="json")
    return dict(cast("Mapping[str, Any]", task)) if isinstance(task, Mapping) else task
