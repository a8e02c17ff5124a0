"""`envsdk rollout` and `demo`: run episodes, and print a report."""

import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .._registry import list_envs
from .._specifications import as_option
from .._visible import on_one_line
from ..authoring._driver import seeds_of
from ..authoring._event_loops import run
from ..authoring._making import describe
from ..errors import ConfigError
from ..policies._find import SERVED, closing_policy
from ..rollouts import Rollouts
from ..rollouts._run_description import Segment
from ..rollouts._stored_run import StoredRun
from ..rollouts._workers import Executor
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import write_jsonl
from ._options import (
    AllowChanged,
    AsJson,
    EnvName,
    EnvOptions,
    Extend,
    GroupSize,
    HistoryOption,
    MaxConcurrency,
    ModelOption,
    PolicyOption,
    PolicyOptions,
    PolicyTimeout,
    RendererOption,
    SeedsOption,
    TasksOption,
    TokenizerOption,
    env_options,
    environment,
    options_of,
    policy_from,
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
    env: EnvName,
    policy: PolicyOption = "reference",
    model: ModelOption = None,
    policy_option: PolicyOptions = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    seeds: SeedsOption = "16",
    group_size: GroupSize = 1,
    max_concurrency: MaxConcurrency = 64,
    policy_timeout_s: PolicyTimeout = 600,
    method_timeout_s: Annotated[float, typer.Option(help="The maximum time of a method of the environment.")] = 60,
    max_retries: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often an episode restarts if the server fails, and a request is sent again; by default 2 and 10.",
        ),
    ] = None,
    fail_fast: Annotated[int | None, typer.Option(min=1, help="End after this many failures in a row.")] = None,
    executor: Annotated[str | None, typer.Option(help="Play in worker processes: processes or ray.")] = None,
    n_workers: Annotated[int | None, typer.Option(min=1, help="The number of worker processes.")] = None,
    out: Annotated[Path | None, typer.Option(help="A run folder. Samples are written into it at the end.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    extend: Extend = False,
    allow_changed: AllowChanged = False,
    compress: Annotated[bool, typer.Option("--compress", help="Compress the trajectories in the folder.")] = False,
    log_to: Annotated[
        str | None, typer.Option(help="Log to trackio, wandb, tensorboard or otel; see the docs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Roll out episodes of an environment, print a report, and store the run in a folder.

    A run that is interrupted, or killed, continues with --resume.
    """
    if (resume or extend) and out is None:
        raise ConfigError("--resume and --extend continue the run in a folder: name it with --out")
    retries: dict[str, Any] = {} if max_retries is None else {"max_retries": max_retries}
    is_served = policy.partition(":")[0] in SERVED
    has_own = not is_served or "max_retries" in options_of(policy_option or ())
    found = policy_from(policy, model, policy_option, **({} if has_own else retries))
    name = policy if is_served else getattr(getattr(found, "func", found), "name", policy)
    rollouts = Rollouts(
        environment(env),
        found,
        seeds=seeds,
        group_size=group_size,
        env_options=env_options(option, renderer, tokenizer, history, tasks),
        max_concurrency=max_concurrency,
        policy_timeout_s=policy_timeout_s,
        method_timeout_s=method_timeout_s,
        fail_fast=fail_fast,
        executor=cast("Executor | None", executor),
        n_workers=n_workers,
        out=out,
        resume=resume,
        extend=extend,
        allow_changed=allow_changed,
        compress=compress,
        progress=errors if errors.is_terminal else not as_json,
        log_to=log_to,
        **retries,
    )
    with closing_policy(found):
        trajectories = played(rollouts)
    is_whole = rollouts.statistics.episodes + rollouts.statistics.resumed == rollouts.statistics.total
    stored, segments = trajectories, list[Segment]()
    if out is not None:
        run_folder = StoredRun(out)
        stored, segments = list(run_folder.trajectories()), run_folder.description.segments
    samples = [one.samples() if one.is_trainable else [] for one in stored]
    first = segments[-1].episodes if segments else 0
    trajectories = stored[first:]
    report = TrajectoryReport.of(trajectories, [*chain.from_iterable(samples[first:])])
    shown = history or (as_option(trajectories[0].history) if trajectories else "keep")
    if as_json:
        print_json({"environment": env, "history": shown, "policy": policy, **report.to_dict()})
    else:
        print_table(table(f"{name} policy", [((_short(env), shown), report)], ("environment", "history")))
        for line in (*summary(report), *statistics(rollouts)):
            print_text(on_one_line(line))
    print_failures(trajectories)
    if segments:
        print_error(f"these are the figures of segment {len(segments) + 1}; `envsdk report {out}` has all segments")
    if out is not None and is_whole:
        count = write_jsonl(out / "samples.jsonl", chain.from_iterable(samples))
        if not as_json:
            print_text(f"wrote {len(stored)} trajectories and {count} samples to {out}/")
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
    counted = {"failed": tally.failures, "errors": tally.errors, "began again": done.play.retries}
    for name, counts in (counted | {"requests sent again": done.play.request_retries}).items():
        if counts:
            yield f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in Counter(counts).most_common())


def demo(
    out: Annotated[Path, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = Path("runs/demo"),
    seeds: SeedsOption = "16",
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
                seeds=seeds,
                env_options={"history": specification(history)},
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
    print_table(table(f"{len(seeds_of(seeds))} episodes in each row", rows, ("environment", "history")))
    print_failures(trajectories)
    write(folder, trajectories, samples)
    program = "envsdk" if shutil.which("envsdk") else sys.argv[0]
    print_text(f"\nNext, look at the episodes in a browser:\n    {shlex.join([program, 'view', str(out)])}")
    if any(trajectory.status == "error" for trajectory in trajectories):
        raise typer.Exit(1)


def _short(env: str) -> str:
    """Return the name of an environment without namespace, version and module."""
    return re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])
