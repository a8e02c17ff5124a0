"""`envsdk rollout` and `demo`: run episodes, and print a report."""

import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .._registry import list_envs
from .._visible import on_one_line
from ..authoring._event_loops import run
from ..authoring._making import describe
from ..errors import ConfigError
from ..policies._find import SERVED, policy_of
from ..rollouts import Rollouts
from ..rollouts._stored_run import StoredRun
from ..rollouts._workers import Executor
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import write_jsonl
from ._options import (
    ALLOW_CHANGED,
    ENVIRONMENT,
    OPTION,
    POLICY,
    POLICY_OPTION,
    RENDERER,
    SPECIFICATION,
    TOKENIZER,
    env_options,
    environment,
    policy_options,
    specification,
)
from ._output import errors, print_error, print_failures, print_json, print_table, print_text, writable, write
from ._summaries import TrajectoryReport, summary, table

# The history policies of the demo in addition to `keep`. The episodes exceed these budgets.
_DEMO_HISTORIES: Mapping[str, tuple[str, ...]] = {
    "Calculator": ("compact:every=2", "budget:max_tokens=440,target=0.8"),
    "LongNotes": ("budget:max_tokens=2500", "summarize:threshold=2500"),
    "MathChat": ("strip", "compact:every=2", "budget:max_tokens=240,target=0.6"),
}


def rollout(
    env: Annotated[str, typer.Argument(help=ENVIRONMENT)],
    policy: Annotated[str, typer.Option(help=POLICY)] = "reference",
    model: Annotated[str | None, typer.Option(help="The name of the model on the server.")] = None,
    policy_option: Annotated[list[str] | None, typer.Option(help=POLICY_OPTION)] = None,
    renderer: Annotated[str | None, typer.Option(help=RENDERER)] = None,
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    history: Annotated[str, typer.Option(help=SPECIFICATION + " Example: compact:every=10.")] = "keep",
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    tasks: Annotated[Path | None, typer.Option(help="A JSONL file with one task per line.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="The number of tasks: of seeds.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first task. Each further one adds 1.")] = 0,
    group_size: Annotated[int, typer.Option(min=1, help="The number of episodes of each task.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="The maximum number of episodes at the same time.")] = 16,
    timeout: Annotated[float, typer.Option(help="The maximum time of a call of the policy, in seconds.")] = 600,
    method_timeout: Annotated[float, typer.Option(help="The maximum time of a method of the environment.")] = 60,
    retries: Annotated[
        int, typer.Option(min=0, help="How often an episode restarts if the server fails; 0: requests are not retried.")
    ] = 2,
    fail_fast: Annotated[int | None, typer.Option(min=1, help="End after this many failures in a row.")] = None,
    executor: Annotated[str | None, typer.Option(help="Play in worker processes: processes or ray.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="The number of worker processes.")] = None,
    out: Annotated[Path | None, typer.Option(help="A run folder. Samples are written into it at the end.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    allow_changed: Annotated[bool, typer.Option("--allow-changed", help=ALLOW_CHANGED)] = False,
    compress: Annotated[bool, typer.Option("--compress", help="Compress the trajectories in the folder.")] = False,
    log_to: Annotated[
        str | None, typer.Option(help="Log to trackio, wandb, tensorboard or otel; see the docs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False,
) -> None:
    """Roll out episodes of an environment, print a report, and store the run in a folder.

    A run that is interrupted, or killed, continues with --resume.
    """
    if resume and out is None:
        raise ConfigError("--resume continues the run in a folder: name it with --out")
    given = policy_options(model, policy_option or ())
    if not retries and policy.partition(":")[0] in SERVED:
        given.setdefault("max_retries", 0)
    found: Any = policy_of(policy, **given)
    rollouts = Rollouts(
        environment(env),
        found,
        seeds=range(seed, seed + episodes),
        group_size=group_size,
        env_options=env_options(option, renderer, tokenizer, history, tasks),
        max_concurrency=concurrency,
        policy_timeout_s=timeout,
        method_timeout_s=method_timeout,
        max_retries=retries,
        fail_fast=fail_fast,
        executor=cast("Executor | None", executor),
        n_workers=workers,
        out=out,
        resume=resume,
        allow_changed=allow_changed,
        compress=compress,
        progress=errors if errors.is_terminal else not as_json,
        log_to=log_to,
    )
    trajectories = played(rollouts)
    is_whole = rollouts.statistics.episodes + rollouts.statistics.resumed == rollouts.statistics.total
    if out is not None:
        trajectories = list(StoredRun(out).trajectories())
    samples = [sample for one in trajectories if one.is_trainable for sample in one.samples()]
    report = TrajectoryReport.of(trajectories, samples)
    if as_json:
        print_json({"environment": env, "history": history, "policy": policy, **report.to_dict()})
    else:
        print_table(table(f"{policy} policy", [((_short(env), history), report)], ("environment", "history")))
        for line in (*summary(report), *statistics(rollouts)):
            print_text(on_one_line(line))
    print_failures(trajectories)
    if out is not None and is_whole:
        write_jsonl(out / "samples.jsonl", samples)
        if not as_json:
            print_text(f"wrote {len(trajectories)} trajectories and {len(samples)} samples to {out}/")
    if not is_whole:
        raise typer.Exit(130)  # interrupted
    if report.tally.failed == report.tally.episodes:
        raise typer.Exit(1)


def played(rollouts: Rollouts) -> list[Trajectory]:
    """Run rollouts; return the episodes that ended before the run did, or before Ctrl-C."""
    ended: list[Trajectory] = []

    async def play() -> None:
        async for trajectory in rollouts:
            ended.append(trajectory)  # noqa: PERF401 (an interrupt leaves what has ended)

    try:
        run(play())
    except KeyboardInterrupt:
        done, total = rollouts.statistics.resumed + len(ended), rollouts.statistics.total
        print_error(f"interrupted after {done} of {total} episodes")
        if rollouts.folder is not None:
            command = [argument for argument in sys.argv[1:] if argument != "--resume"]
            print_error(f"completed episodes are stored; continue with: {shlex.join(['envsdk', *command, '--resume'])}")
    return sorted(ended, key=lambda trajectory: (trajectory.seed or 0, trajectory.id))


def statistics(rollouts: Rollouts) -> Iterator[str]:
    """Yield lines about the run: its speed, where it waited, and what went wrong."""
    done, tally = rollouts.statistics, rollouts.statistics.tally
    seconds = max(done.elapsed_s, 1e-9)
    yield f"speed: {tally.steps / seconds:,.0f} steps and {tally.sampled_tokens / seconds:,.0f} sampled tokens a second"
    if done.resumed:
        yield f"resumed: {done.resumed} episodes were stored already"
    for name, counts in (("failed", tally.failures), ("errors", tally.errors), ("began again", done.play.retries)):
        if counts:
            yield f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in Counter(counts).most_common())


def demo(
    out: Annotated[Path, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = Path("runs/demo"),
    episodes: Annotated[int, typer.Option(min=1, help="The number of episodes per row.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first episode of each row.")] = 0,
) -> None:
    """Let scripted players play every built-in environment, some under several history policies. Nothing is downloaded.

    The demo skips an environment that this machine cannot run or that is nondeterministic, and prints why.
    """
    folder = writable(out)
    rows: list[tuple[tuple[str, str], TrajectoryReport]] = []
    trajectories: list[Trajectory] = []
    samples: list[Sample] = []
    for env in (name for name in list_envs() if name.startswith("envsdk/")):
        entry = describe(env)
        reason = "it is nondeterministic" if entry.nondeterministic else entry.problem
        if reason is not None:
            print_error(f"skipped: {env}: {reason}")
            continue
        for history in ("keep", *_DEMO_HISTORIES.get(_short(env), ())):
            rollouts = Rollouts(
                env,
                "reference",
                seeds=range(seed, seed + episodes),
                group_size=1,
                env_options={"history": specification(history)},
                max_concurrency=16,
                progress="auto",
            )
            row = played(rollouts)
            label = history.partition(":")[0]
            for trajectory in row:
                trajectory.id += f"/{label}"
            row_samples = [sample.validate() for trajectory in row for sample in trajectory.samples()]
            rows.append(((_short(env), label), TrajectoryReport.of(row, row_samples)))
            trajectories += row
            samples += row_samples
    print_text("No model plays here: a script that knows the answers earned the rewards, by the policy 'reference'.")
    print_text("So the table shows what each history policy costs (compact rewrites the past every 2 steps).\n")
    print_table(table(f"{episodes} episodes in each row", rows, ("environment", "history")))
    print_failures(trajectories)
    write(folder, trajectories, samples)
    program = "envsdk" if shutil.which("envsdk") else sys.argv[0]
    print_text(f"\nNext, look at the episodes in a browser:\n    {shlex.join([program, 'view', str(out)])}")
    if any(trajectory.status == "error" for trajectory in trajectories):
        raise typer.Exit(1)


def _short(env: str) -> str:
    """Return the name of an environment without namespace, version and module."""
    return re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])
