"""`envsdk check` and `envsdk doctor`: conformance checks of environments and renderers."""

import shlex
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..authoring._env import Env
from ..testing import Check, check_env, check_renderer
from ..testing._environments import EnvCheck
from ..testing._renderers import summary
from ..testing._reports import CheckReport
from ._options import (
    SPECIFICATION,
    TOKENIZER,
    AsJson,
    EnvName,
    EnvOptions,
    HistoryOption,
    RendererOption,
    SeedsOption,
    TasksOption,
    TokenizerOption,
    env_options,
    maker,
    renderer_from,
)
from ._output import errors, print_json, print_text

_STYLES = {"PASS": "green", "FAIL": "red"}


def doctor(
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    random_replies: Annotated[int, typer.Option(min=0, help="The number of random token sequences to parse.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random token sequences.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Summarize what environments can rely on, and run the conformance checks of a renderer with a tokenizer.

    The exit status is 1 if a check fails.
    """
    found = renderer_from(renderer, tokenizer)
    for line in [] if as_json else summary(found):
        print_text(line)
    report = check_renderer(found, random_replies=random_replies, seed=seed)
    for one in [] if as_json else report.checks:
        print_check(one)
    print_end("renderer", report, as_json=as_json)


def check(
    env: EnvName,
    seeds: SeedsOption = "16",
    only: Annotated[str | None, typer.Option(help="The name of a single check to run.")] = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    as_json: AsJson = False,
) -> None:
    """Run the conformance checks of an environment. The exit status is 1 if a check fails."""
    options = env_options(option, renderer, tokenizer, history, tasks)
    subject: Any = maker(env, options)
    if ":" not in env:
        subject = subject() if options else env
    named = {"--renderer": renderer, "--tokenizer": tokenizer, "--history": history, "--tasks": tasks}
    words = [(name, str(value)) for name, value in named.items() if value is not None]
    words += [("--option", one) for one in option or ()]
    command_line = shlex.join(["envsdk", "check", env, *(word for pair in words for word in pair)])
    with printed_checks(as_json=as_json) as on_progress:
        report = check_env(subject, seeds=seeds, only=only, on_progress=on_progress, command_line=command_line)
    if isinstance(subject, Env):
        subject.close()
    print_end("environment", report, as_json=as_json)


@contextmanager
def printed_checks(*, as_json: bool) -> Generator[Callable[[str, EnvCheck | None], None]]:
    """Print each check when it ends, one failure for each cause. On a terminal, show the running check.

    Yields:
        A callback for `check_env`: it gets the name of a check, and the check itself when it has ended.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("")

        def on_progress(name: str, check: EnvCheck | None) -> None:
            if check is None:
                progress.update(task, description=name)
            elif not as_json and not check.same_as:
                print_check(check)

        yield on_progress


def print_check(check: Check) -> None:
    """Print a check."""
    print_text(str(check), style=_STYLES.get(check.verdict, "yellow"))


def print_end(kind: str, report: CheckReport[Any], *, as_json: bool) -> None:
    """Print the summary of a report, or the report as JSON, and exit with status 1 if a check failed."""
    checks: list[Check] = report.checks
    if as_json:
        print_json({kind: report.subject, "checks": [asdict(one) for one in checks]})
    else:
        same = Counter(one.same_as for one in checks if isinstance(one, EnvCheck) and one.same_as)
        for name, count in same.items():
            print_text(f'{count} more checks are not possible because "{name}" fails', style="yellow")
        print_text(f"{report.subject}: {len(report.failed)} of {len(checks)} checks failed")
    if report.failed:
        raise typer.Exit(1)
