"""The command line: `envsdk rollout`, `show`, `doctor` and `demo`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from .env import Env
from .errors import ConfigError, EnvsdkError
from .records import read_jsonl, write_jsonl
from .registry import get_renderer, list_envs, make
from .report import Report, conversation, summary, table
from .rollouts import gather
from .samples import Sample
from .testing import check_renderer
from .trajectory import Trajectory

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
_console = Console()
_errors = Console(stderr=True)

# What the demo shows beside `keep`: history policies that make a difference, with budgets that the episodes exceed.
_DEMO_HISTORIES: Mapping[str, tuple[str, ...]] = {
    "Calculator": ("compact:every=2", "budget:max_tokens=440,target=0.8"),
    "MathChat": ("strip", "compact:every=2", "budget:max_tokens=240,target=0.6"),
}
_SPECIFICATION = "A name, with options as name:key=value,key=value or as JSON."


def main() -> None:
    """Run the command line; an error of ours is one line, without a traceback, and exit status 2."""
    try:
        app()
    except EnvsdkError as error:
        _errors.print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)


@app.command()
def rollout(
    env: Annotated[str, typer.Argument(help="An environment's id, such as envsdk/GuessNumber-v0.")],
    renderer: Annotated[str, typer.Option(help=_SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help="'embedded', a folder or file, or a Hugging Face id.")] = "embedded",
    history: Annotated[str, typer.Option(help=_SPECIFICATION + " Such as compact:every=10.")] = "keep",
    policy: Annotated[str, typer.Option(help="reference, null or random.")] = "reference",
    episodes: Annotated[int, typer.Option(min=1)] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The first episode's; the others count on.")] = 0,
    tasks: Annotated[Path | None, typer.Option(help="A JSONL file, one task a line.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON.")] = False,
) -> None:
    """Roll out episodes of an environment and write what came of them."""
    folder = None if out is None else _writable(out)
    options = {"renderer": specification(renderer), "tokenizer": tokenizer, "history": specification(history)}
    if tasks is not None:
        options["tasks"] = str(tasks)
    trajectories = _roll_out(env, policy, range(seed, seed + episodes), concurrency, options)
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    report = Report.of(trajectories, samples)
    if as_json:
        typer.echo(json.dumps({"environment": env, "history": history, "policy": policy, **asdict(report)}))
    else:
        _console.print(table(f"{policy} policy", [((_short(env), history), report)], ("environment", "history")))
        for line in summary(report):
            _console.print(line, markup=False, highlight=False)
    _print_errors(trajectories)
    if folder is not None:
        _write(folder, trajectories, samples, quietly=as_json)
    if len(trajectories) < episodes:
        raise typer.Exit(130)  # interrupted
    if report.failed == report.episodes:
        raise typer.Exit(1)


@app.command()
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
    for head, said in conversation(trajectory):
        _console.print(head, style="bold", markup=False, highlight=False)
        if said:
            _console.print(said, markup=False, highlight=False)


@app.command()
def doctor(
    renderer: Annotated[str, typer.Option(help=_SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help="'embedded', a folder or file, or a Hugging Face id.")] = "embedded",
    random_replies: Annotated[int, typer.Option(min=0, help="Random token sequences to read.")] = 500,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one line of JSON.")] = False,
) -> None:
    """Check that a renderer keeps what every renderer promises, on a tokenizer."""
    given = specification(renderer)
    options = {"name": given} if isinstance(given, str) else dict(given)
    checked = get_renderer(options.pop("name", ""), tokenizer, **options)
    report = check_renderer(checked, random_replies=random_replies, seed=seed)
    if as_json:
        typer.echo(json.dumps({"renderer": report.renderer, "checks": [asdict(check) for check in report.checks]}))
    else:
        for check in report.checks:
            style = {"PASS": "green", "FAIL": "red"}.get(check.verdict, "yellow")
            line = f"{check.verdict:12} {check.name}" + (f": {check.detail}" if check.detail else "")
            _console.print(line, style=style, markup=False, highlight=False)
        _console.print(f"{report.renderer}: {len(report.failed)} of {len(report.checks)} checks fail", markup=False)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = Path("runs/demo"),
    episodes: Annotated[int, typer.Option(min=1, help="Episodes for each row.")] = 32,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Roll out every built-in environment, under history policies that matter there; nothing is downloaded."""
    folder = _writable(out)
    rows: list[tuple[tuple[str, str], Report]] = []
    trajectories: list[Trajectory] = []
    samples: list[Sample] = []
    for env in (name for name in list_envs() if name.startswith("envsdk/")):
        for history in ("keep", *_DEMO_HISTORIES.get(_short(env), ())):
            row = _roll_out(env, "reference", range(seed, seed + episodes), 16, {"history": specification(history)})
            label = history.partition(":")[0]
            for trajectory in row:
                trajectory.id += f"/{label}"
            row_samples = [sample.validate() for trajectory in row for sample in trajectory.samples()]
            rows.append(((_short(env), label), Report.of(row, row_samples)))
            trajectories += row
            samples += row_samples
    _console.print(table("What each history policy costs (compact: every 2 steps)", rows, ("environment", "history")))
    _print_errors(trajectories)
    _write(folder, trajectories, samples)
    if any(trajectory.status == "error" for trajectory in trajectories):
        raise typer.Exit(1)


def specification(text: str) -> str | dict[str, Any]:
    """Read a name with options: `compact:every=10`, or JSON.

    Raises:
        ConfigError: If it is neither.
    """
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is no JSON: {error}") from error
    name, _, options = text.partition(":")
    if not options:
        return name
    pairs = [option.partition("=") for option in options.split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise ConfigError(f"{text!r} is no name with options; write it as name:key=value,key=value or as JSON")
    return {"name": name, **{key.strip(): _value(value) for key, _, value in pairs}}


def _short(env: str) -> str:
    return env.rpartition("/")[2].partition("-v")[0]


def _value(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def _roll_out(env: str, policy: str, seeds: range, concurrency: int, options: Mapping[str, Any]) -> list[Trajectory]:
    def make_env() -> Env:
        return make(env, **options)

    finished: list[Trajectory] = []
    with Progress(console=_errors, transient=True, disable=not _errors.is_terminal) as progress:
        task = progress.add_task(env, total=len(seeds))

        def on_end(trajectory: Trajectory) -> None:
            finished.append(trajectory)
            progress.advance(task)

        try:
            return gather(make_env, policy, seeds=seeds, max_concurrency=concurrency, on_end=on_end)
        except KeyboardInterrupt:
            _errors.print(f"interrupted: {len(finished)} of {len(seeds)} episodes are finished", style="red")
            return sorted(finished, key=lambda trajectory: trajectory.seed or 0)


def _writable(folder: Path) -> Path:
    """Make the folder, before any work is done for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".envsdk-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"the output folder {str(folder)!r} cannot be written: {error}. Take another --out"
        ) from error
    return folder


def _write(folder: Path, trajectories: list[Trajectory], samples: list[Sample], *, quietly: bool = False) -> None:
    write_jsonl(folder / "trajectories.jsonl", trajectories)
    write_jsonl(folder / "samples.jsonl", samples)
    if quietly:
        return
    _console.print(
        f"{len(trajectories)} trajectories and {len(samples)} samples are in {folder}/", markup=False, highlight=False
    )


def _print_errors(trajectories: list[Trajectory]) -> None:
    failed = [trajectory for trajectory in trajectories if trajectory.error is not None]
    for trajectory in failed[:5]:
        _errors.print(f"failed: {trajectory.id}: {trajectory.error}", style="red", markup=False, highlight=False)
    if len(failed) > 5:
        _errors.print(f"... and {len(failed) - 5} more", style="red")
