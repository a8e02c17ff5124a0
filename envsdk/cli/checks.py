"""`envsdk doctor` and `check`: whether a renderer, or an environment, does what every one must."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any, Self

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..authoring.env import Env
from ..registry import get_renderer
from ..testing import Check, check_env, check_renderer
from ..testing.environments import EnvCheck
from ..testing.reports import CheckReport
from .options import ENVIRONMENT, OPTION, SPECIFICATION, TOKENIZER, maker, options_of, specification
from .output import errors, say, say_json

_STYLES = {"PASS": "green", "FAIL": "red"}


def doctor(
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    random_replies: Annotated[int, typer.Option(min=0, help="Random token sequences to read.")] = 500,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one line of JSON.")] = False,
) -> None:
    """Check that a renderer keeps what every renderer promises, on a tokenizer."""
    given = specification(renderer)
    options = {"name": given} if isinstance(given, str) else dict(given)
    checked = get_renderer(options.pop("name", ""), tokenizer, **options)
    report = check_renderer(checked, random_replies=random_replies, seed=seed)
    for one in [] if as_json else report.checks:
        print_check(one)
    print_end("renderer", report, as_json=as_json)


def check(
    env: Annotated[str, typer.Argument(help=ENVIRONMENT)],
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the first one on.")] = 16,
    only: Annotated[str | None, typer.Option(help="The name of the one check to make.")] = None,
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one line of JSON.")] = False,
) -> None:
    """Check that an environment keeps what every environment promises; exit status 1 if it does not."""
    options = options_of(option or ())
    subject: Any = maker(env, options)
    if ":" not in env:
        subject = subject() if options else env
    with _Shown(as_json=as_json) as shown:
        report = check_env(subject, seeds=seeds, first_seed=seed, only=only, on_progress=shown.on_progress)
    if isinstance(subject, Env):
        subject.close()
    print_end("environment", report, as_json=as_json)


class _Shown:
    """Prints checks as they end, one finding for each cause; on a terminal also which check is being made."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=errors, transient=True
        )
        self._task = self._progress.add_task("")

    def __enter__(self) -> Self:
        if errors.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_progress(self, name: str, check: EnvCheck | None) -> None:
        """See `check_env`."""
        if check is None:
            self._progress.update(self._task, description=name)
        elif not self._as_json and not check.same_as:
            print_check(check)


def print_check(check: Check) -> None:
    """Print a check."""
    say(str(check), style=_STYLES.get(check.verdict, "yellow"))


def print_end(kind: str, report: CheckReport[Any], *, as_json: bool) -> None:
    """Print what a report comes to, all of it as JSON, and end with status 1 if something failed."""
    checks: list[Check] = report.checks
    if as_json:
        say_json({kind: report.subject, "checks": [asdict(one) for one in checks]})
    else:
        same = Counter(one.same_as for one in checks if isinstance(one, EnvCheck) and one.same_as)
        for name, count in same.items():
            say(f'{count} more are not possible because of what "{name}" reports', style="yellow")
        say(f"{report.subject}: {len(report.failed)} of {len(checks)} checks fail")
    if report.failed:
        raise typer.Exit(1)
