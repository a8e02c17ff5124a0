"""`envsdk rollout`, `show` and `demo`: episodes, played and printed."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress

from ..authoring.catalog import describe
from ..errors import ConfigError
from ..registry import list_envs
from ..rollouts import gather
from ..trajectories.records import read_jsonl
from ..trajectories.report import Report, conversation, summary, table
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from ..visible import on_one_line
from .options import ENVIRONMENT, NAMED, OPTION, SPECIFICATION, TOKENIZER, maker, options_of, specification
from .output import complain, complain_of, errors, say, say_json, show_table, writable, write

# What the demo shows beside `keep`: history policies that make a difference, with budgets that the episodes exceed.
_DEMO_HISTORIES: Mapping[str, tuple[str, ...]] = {
    "Calculator": ("compact:every=2", "budget:max_tokens=440,target=0.8"),
    "LongNotes": ("budget:max_tokens=2500", "summarize:threshold=2500"),
    "MathChat": ("strip", "compact:every=2", "budget:max_tokens=240,target=0.6"),
}


def rollout(
    env: Annotated[str, typer.Argument(help=ENVIRONMENT)],
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    history: Annotated[str, typer.Option(help=SPECIFICATION + " Such as compact:every=10.")] = "keep",
    policy: Annotated[str, typer.Option(help="reference, null or random.")] = "reference",
    episodes: Annotated[int, typer.Option(min=1)] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The first episode's; the others count on.")] = 0,
    tasks: Annotated[Path | None, typer.Option(help="A JSONL file, one task a line.")] = None,
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON.")] = False,
) -> None:
    """Roll out episodes of an environment and write what came of them."""
    folder = None if out is None else writable(out)
    options = options_of(option or (), NAMED)
    options |= {"renderer": specification(renderer), "tokenizer": tokenizer, "history": specification(history)}
    if tasks is not None:
        options["tasks"] = str(tasks)
    trajectories = _roll_out(env, policy, range(seed, seed + episodes), concurrency, options)
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    report = Report.of(trajectories, samples)
    if as_json:
        say_json({"environment": env, "history": history, "policy": policy, **asdict(report)})
    else:
        show_table(table(f"{policy} policy", [((_short(env), history), report)], ("environment", "history")))
        for line in summary(report):
            say(on_one_line(line))
    complain_of(trajectories)
    if folder is not None:
        write(folder, trajectories, samples, quietly=as_json)
    if len(trajectories) < episodes:
        raise typer.Exit(130)  # interrupted
    if report.failed == report.episodes:
        raise typer.Exit(1)


def show(
    file: Annotated[Path, typer.Argument(help="A trajectories.jsonl.")],
    number: Annotated[int, typer.Argument(min=1, help="Which of its trajectories, counted from 1.")] = 1,
) -> None:
    """Print one trajectory as a conversation, with its rewards and breaks."""
    try:
        trajectory = next(islice(read_jsonl(file, Trajectory), number - 1, None), None)
    except OSError as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {error}") from error
    if trajectory is None:
        raise ConfigError(f"{str(file)!r} has fewer than {number} trajectories")
    print_trajectory(trajectory)


def print_trajectory(trajectory: Trajectory) -> None:
    """Print a trajectory as a conversation."""
    for head, said in conversation(trajectory):
        say(head, style="bold")
        if said:
            say(said)


def demo(
    out: Annotated[Path, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = Path("runs/demo"),
    episodes: Annotated[int, typer.Option(min=1, help="Episodes for each row.")] = 32,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Roll out every built-in environment, under history policies that matter there; nothing is downloaded.

    An environment that this machine cannot run, or that is not the same each time, is named and left out.
    """
    folder = writable(out)
    rows: list[tuple[tuple[str, str], Report]] = []
    trajectories: list[Trajectory] = []
    samples: list[Sample] = []
    for env in (name for name in list_envs() if name.startswith("envsdk/")):
        reason = _reason_to_skip(env)
        if reason is not None:
            complain(f"skipped: {env}: {reason}")
            continue
        for history in ("keep", *_DEMO_HISTORIES.get(_short(env), ())):
            row = _roll_out(env, "reference", range(seed, seed + episodes), 16, {"history": specification(history)})
            label = history.partition(":")[0]
            for trajectory in row:
                trajectory.id += f"/{label}"
            row_samples = [sample.validate() for trajectory in row for sample in trajectory.samples()]
            rows.append(((_short(env), label), Report.of(row, row_samples)))
            trajectories += row
            samples += row_samples
    show_table(table("What each history policy costs (compact: every 2 steps)", rows, ("environment", "history")))
    complain_of(trajectories)
    write(folder, trajectories, samples)
    if any(trajectory.status == "error" for trajectory in trajectories):
        raise typer.Exit(1)


def _reason_to_skip(env: str) -> str | None:
    """Why the demo leaves an environment out, on one line; None if it does not."""
    entry = describe(env)
    return "it is not the same each time" if entry.nondeterministic else entry.problem


def _short(env: str) -> str:
    """The name of an environment without namespace, version and module."""
    return re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])


def _roll_out(env: str, policy: str, seeds: range, concurrency: int, options: Mapping[str, Any]) -> list[Trajectory]:
    make_env = maker(env, dict(options))
    finished: list[Trajectory] = []
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(escape(on_one_line(env)), total=len(seeds))

        def on_end(trajectory: Trajectory) -> None:
            finished.append(trajectory)
            progress.advance(task)

        try:
            return gather(make_env, policy, seeds=seeds, max_concurrency=concurrency, on_end=on_end)
        except KeyboardInterrupt:
            complain(f"interrupted: {len(finished)} of {len(seeds)} episodes are finished")
            return sorted(finished, key=lambda trajectory: trajectory.seed or 0)
