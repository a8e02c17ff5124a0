"""From an episode that has ended to its trajectory."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import encodable, message_of
from ..trajectories.steps import ContextLog, Step
from ..trajectories.trajectory import Status, Trajectory
from .agent import Agent

if TYPE_CHECKING:
    from .episode import Episode


def record(episode: "Episode", status: Status, stop_reason: str, error: str | None = None) -> Trajectory:
    """The trajectory of an episode, as far as it went: its steps depth-first by context."""
    root = episode.root
    steps = [item for item in root.walk() if isinstance(item, Step)]
    for step in steps:
        if step.reply == len(episode.contexts[step.context].messages):  # it goes on, and was never finished
            step.reply = None
    renderer = root.env.renderer
    return Trajectory(
        id=episode.id,
        env=root.env.name,
        seed=episode.seed,
        status=status,
        stop_reason=stop_reason,
        contexts=_logs(root, steps),
        steps=steps,
        renderer=renderer.specification(),
        tokenizer=renderer.tokenizer.fingerprint,
        vocab_size=renderer.tokenizer.vocab_size,
        history=root.env.history.specification(),
        limits=root.limits.model_dump(exclude_defaults=True),
        config=episode.config,
        task=_as_json(root.task),
        group_id=episode.group_id,
        origins=episode.origins,
        error=error,
    )


def told(error: BaseException, *, with_notes: bool = True) -> str:
    """An exception as a record has it: its type, what it says, and its notes, which are no part of an episode."""
    notes: list[str] = getattr(error, "__notes__", []) if with_notes else []
    return " ".join([f"{type(error).__name__}: {message_of(error)}", *(encodable(str(note)) for note in notes)])


def _logs(root: Agent, steps: Sequence[Step]) -> dict[str, ContextLog]:
    """What went through each context, those of sub-agents behind their parents'."""
    ends: dict[str, int] = {}
    for step in steps:
        ends[step.context] = max(step.stop, ends.get(step.context, 0))
    logs: dict[str, ContextLog] = {}
    main = root.env.renderer.tokenizer
    for agent in root.agents():
        for name, context in agent.contexts.items():
            length, tokenizer = ends.get(name, 0), context.renderer.tokenizer
            is_child, is_other = agent.parent is not None, tokenizer.fingerprint != main.fingerprint
            logs[name] = ContextLog(
                role=context.role,
                parent=context.parent or _first_above(agent),
                tokens=context.log_tokens.copy(0, length),
                logprobs=context.log_logprobs.copy(0, length),
                messages=list(context.messages),
                tools=[dict(tool) for tool in context.tools],
                reward=context.reward,
                stop_reason=str(agent.stop_reason or "") if is_child else "",
                error=agent.error,
                task=_as_json(agent.task) if is_child else None,
                tokenizer=tokenizer.fingerprint if is_other else "",
                vocab_size=tokenizer.vocab_size if is_other else 0,
            )
    return logs


def _first_above(agent: Agent) -> str | None:
    """Return the first context of who handed over to an agent: it handed over before its own first turn."""
    above = (name for one in agent.lineage() if one is not agent for name in one.contexts)
    return next(above, None)


def _as_json(task: Any) -> Any:
    if hasattr(task, "model_dump"):
        return task.model_dump(mode="json")
    return dict(cast("Mapping[str, Any]", task)) if isinstance(task, Mapping) else task
