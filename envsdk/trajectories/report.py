"""What a set of trajectories comes to, in figures and as a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..messages import Message
from ..visible import on_one_line, visible
from .samples import Sample
from .trajectory import Step, Trajectory

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a set of trajectories and their samples."""

    episodes: int
    failed: int
    mean_reward: float
    """Over the episodes that did not fail; 0.0 if there is none."""
    steps: int
    breaks: dict[str, int]
    """By reason."""
    stop_reasons: dict[str, int]
    metrics: dict[str, float]
    """The sum of each metric over all steps; `tool_calls` and `tool_errors` of environments with tools among them."""
    samples: int
    observed_tokens: int
    """Tokens handed out."""
    sampled_tokens: int
    sample_tokens: int
    """Tokens that a trainer computes over when each sample is a sequence of its own."""
    tree_tokens: int
    """The same when the samples of an episode are one prefix tree."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> "Report":
        """Add up."""
        sound = [t for t in trajectories if t.status != "error"]
        metrics: Counter[str] = Counter()
        for trajectory in trajectories:
            for step in trajectory.steps:
                metrics.update(step.metrics)  # pyright: ignore[reportArgumentType] (it adds floats as well)
        return cls(
            episodes=len(trajectories),
            failed=len(trajectories) - len(sound),
            mean_reward=sum(t.reward for t in sound) / len(sound) if sound else 0.0,
            steps=sum(len(t.steps) for t in trajectories),
            breaks=dict(Counter(break_.reason for t in trajectories for break_ in t.breaks)),
            stop_reasons=dict(Counter(t.stop_reason for t in trajectories)),
            metrics=dict(sorted(metrics.items())),
            samples=len(samples),
            observed_tokens=sum(t.observed_tokens for t in trajectories),
            sampled_tokens=sum(t.sampled_tokens for t in trajectories),
            sample_tokens=sum(len(sample) for sample in samples),
            tree_tokens=sum(t.tree_size() for t in sound),
        )


def summary(report: Report) -> Iterator[str]:
    """What a table has no room for: how episodes ended, and the metrics."""
    yield "ended: " + ", ".join(f"{count} {reason}" for reason, count in sorted(report.stop_reasons.items()))
    metrics = dict(report.metrics)
    calls, errors = metrics.pop("tool_calls", None), metrics.pop("tool_errors", 0)
    crashes = metrics.pop("tool_crashes", 0)
    if calls is not None:
        yield f"tool errors: {errors:g} of {calls:g} calls" + (f", {crashes:g} of them crashes" if crashes else "")
    if metrics:
        yield "metrics: " + ", ".join(f"{name} {value:g}" for name, value in metrics.items())


# Heads stand on two lines and numbers never wrap, so that the table fits into 80 columns.
_COLUMNS = ("epi-\nsodes", "mean\nreward", "\nsteps", "breaks by\nreason", "sam-\nples")
_TOKEN_COLUMNS = ("handed\nout", "as\nsamples", "as a\ntree")


def table(title: str, rows: Sequence[tuple[Sequence[str], Report]], labels: Sequence[str]) -> "Table":
    """Draw reports as a table, a row each.

    Args:
        title: What stands above it.
        rows: For each row its labels and its report.
        labels: The heads of the label columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    caption = "Tokens handed out, tokens trained as separate samples, tokens trained as a prefix tree."
    drawn = Table(
        title=Text(on_one_line(title), "italic"), caption=caption, box=SIMPLE_HEAD, padding=0, show_edge=False
    )
    for label in labels:
        drawn.add_column("\n" + label, no_wrap=True)
    for column in (*_COLUMNS, *_TOKEN_COLUMNS):
        if column.startswith("breaks"):
            drawn.add_column(column, min_width=13, overflow="fold")
        else:
            drawn.add_column(column, justify="right", no_wrap=True)
    for names, report in rows:
        drawn.add_row(*(Text(visible(cell)) for cell in (*names, *_cells(report))))
    return drawn


def _cells(report: Report) -> list[str]:
    failed = f" ({report.failed} failed)" if report.failed else ""
    tokens = (report.observed_tokens, report.sample_tokens, report.tree_tokens)
    return [
        f"{report.episodes}{failed}",
        f"{report.mean_reward:.3f}",
        str(report.steps),
        "\n".join(f"{count} {_wrapped(reason)}" for reason, count in sorted(report.breaks.items())) or "none",
        str(report.samples),
        *(f"{count:,}" for count in tokens),
    ]


def _wrapped(reason: str) -> str:
    return reason.replace("_", "_\n", 1)


def conversation(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """A trajectory as a conversation: for each message a head (who, which step, reward, break) and what was said.

    Both are safe to print (`visible`); a head is a line for each step.
    """
    end = trajectory.error or trajectory.stop_reason
    yield on_one_line(f"{trajectory.id}: {trajectory.status} ({end}), reward {trajectory.reward:g}"), ""
    for name, log in trajectory.contexts.items():
        numbered = [(n, step) for n, step in enumerate(trajectory.steps, start=1) if step.context == name]
        steps: dict[int | None, list[tuple[int, Step]]] = {}
        for n, step in numbered:
            steps.setdefault(step.reply, []).append((n, step))
        if log.parent is not None or log.reward is not None:
            yield on_one_line(f"{name}: {_end_of(trajectory, name)}"), ""
        for index, message in enumerate(log.messages):
            who = f"{name} · {message.role}"
            heads = [on_one_line(f"{who}{_step_head(n, step)}") for n, step in steps.get(index, ())]
            yield "\n".join(heads) or on_one_line(who), _said(message)


def _end_of(trajectory: Trajectory, name: str) -> str:
    """How a context of its own ended: a sub-agent's, or a player's."""
    log = trajectory.contexts[name]
    own = None if log.reward is None else f"reward of its own {log.reward:g}"
    return ", ".join(filter(None, [log.role, log.stop_reason, log.error, own]))


def _step_head(number: int, step: Step) -> str:
    reward = "not scored" if step.reward is None else f"reward {step.reward:g}"
    named = ", ".join(f"{name} {value:g}" for name, value in step.rewards.items() if name != "reward")
    head = f" · step {number} · {step.stop - step.action_start} tokens · {reward}" + (f" ({named})" if named else "")
    break_ = step.break_
    return (
        head if break_ is None else f"{head} · before it {break_.reason}: {break_.kept} kept, {break_.dropped} dropped"
    )


def _said(message: Message) -> str:
    thinking = "" if message.reasoning is None else f"<think>{message.reasoning}</think>\n"
    calls = "".join(f"\n-> {call.name}({call.arguments})" for call in message.tool_calls)
    errors = "".join(f"\n! {error}" for error in message.errors)
    return visible(f"{thinking}{message.content}{calls}{errors}")
