"""`envsdk rollout`, `show` and `demo`: run episodes, and print them."""

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
from ..rollouts import rollout_many
from ..trajectories.records import read_jsonl
from ..trajectories.report import Report, conversation, summary, table
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from ..visible import on_one_line
from .options import ENVIRONMENT, NAMED, OPTION, SPECIFICATION, TOKENIZER, maker, options_of, specification
from .output import errors, print_error, print_failures, print_json, print_table, print_text, writable, write

# The history policies of the demo in addition to `keep`. The episodes exceed these budgets.
_DEMO_HISTORIES: Mapping[str, tuple[str, ...]] = {
    "Calculator": ("compact:every=2", "budget:max_tokens=440,target=0.8"),
    "LongNotes": ("budget:max_tokens=2500", "summarize:threshold=2500"),
    "MathChat": ("strip", "compact:every=2", "budget:max_tokens=240,target=0.6"),
}


def rollout(
    env: Annotated[str, typer.Argument(help=ENVIRONMENT)],
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    history: Annotated[str, typer.Option(help=SPECIFICATION + " Example: compact:every=10.")] = "keep",
    policy: Annotated[str, typer.Option(help="The policy: reference, null or random.")] = "reference",
    episodes: Annotated[int, typer.Option(min=1, help="The number of episodes.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first episode. Each further one adds 1.")] = 0,
    tasks: Annotated[Path | None, typer.Option(help="A JSONL file with one task per line.")] = None,
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="The maximum number of episodes at the same time.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False,
) -> None:
    """Roll out episodes of an environment, print a report, and write trajectories and samples to a folder."""
    folder = None if out is None else writable(out)
    options = options_of(option or (), NAMED)
    options |= {"renderer": specification(renderer), "tokenizer": tokenizer, "history": specification(history)}
    if tasks is not None:
        options["tasks"] = str(tasks)
    trajectories = _roll_out(env, policy, range(seed, seed + episodes), concurrency, options)
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    report = Report.of(trajectories, samples)
    if as_json:
        print_json({"environment": env, "history": history, "policy": policy, **asdict(report)})
    else:
        print_table(table(f"{policy} policy", [((_short(env), history), report)], ("environment", "history")))
        for line in summary(report):
            print_text(on_one_line(line))
    print_failures(trajectories)
    if folder is not None:
        write(folder, trajectories, samples, quietly=as_json)
    if len(trajectories) < episodes:
        raise typer.Exit(130)  # interrupted
    if report.failed == report.episodes:
        raise typer.Exit(1)


def show(
    file: Annotated[Path, typer.Argument(help="A trajectories.jsonl file.")],
    number: Annotated[int, typer.Argument(min=1, help="The number of the trajectory, starting at 1.")] = 1,
) -> None:
    """Print a trajectory as a conversation, with its rewards and breaks."""
    try:
        trajectory = next(islice(read_jsonl(file, Trajectory), number - 1, None), None)
    except OSError as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {error}. Expected a trajectories.jsonl file") from error
    if trajectory is None:
        raise ConfigError(f"{str(file)!r} has fewer than {number} trajectories; expected a number in the file")
    print_trajectory(trajectory)


def print_trajectory(trajectory: Trajectory) -> None:
    """Print a trajectory as a conversation."""
    for heading, text in conversation(trajectory):
        print_text(heading, style="bold")
        if text:
            print_text(text)


def demo(
    out: Annotated[Path, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = Path("runs/demo"),
    episodes: Annotated[int, typer.Option(min=1, help="The number of episodes per row.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first episode of each row.")] = 0,
) -> None:
    """Roll out every built-in environment, some of them under several history policies. Nothing is downloaded.

    The demo skips an environment that this machine cannot run or that is nondeterministic, and prints why.
    """
    folder = writable(out)
    rows: list[tuple[tuple[str, str], Report]] = []
    trajectories: list[Trajectory] = []
    samples: list[Sample] = []
    for env in (name for name in list_envs() if name.startswith("envsdk/")):
        reason = _reason_to_skip(env)
        if reason is not None:
            print_error(f"skipped: {env}: {reason}")
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
    print_table(table("What each history policy costs (compact: every 2 steps)", rows, ("environment", "history")))
    print_failures(trajectories)
    write(folder, trajectories, samples)
    if any(trajectory.status == "error" for trajectory in trajectories):
        raise typer.Exit(1)


def _reason_to_skip(env: str) -> str | None:
    """Return why the demo skips an environment, on one line; None if it does not."""
    entry = describe(env)
    return "it is nondeterministic" if entry.nondeterministic else entry.problem


def _short(env: str) -> str:
    """Return the name of an environment without namespace, version and module."""
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
            return rollout_many(make_env, policy, seeds=seeds, max_concurrency=concurrency, on_end=on_end)
        except KeyboardInterrupt:
            print_error(f"interrupted after {len(finished)} of {len(seeds)} episodes")
            return sorted(finished, key=lambda trajectory: trajectory.seed or 0)
