"""`envsdk doctor` and `check`: whether a renderer, or an environment, does what every one must."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..env import Env
from ..registry import get_renderer
from ..testing import Check, check_env, check_renderer
from ..testing.reports import CheckReport
from .options import ENVIRONMENT, OPTION, SPECIFICATION, TOKENIZER, maker, options_of, specification
from .output import say, say_json

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
    print_report("renderer", report, as_json=as_json)


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
    report = check_env(subject, seeds=seeds, first_seed=seed, only=only)
    if isinstance(subject, Env):
        subject.close()
    print_report("environment", report, as_json=as_json)


def print_report(kind: str, report: CheckReport[Any], *, as_json: bool) -> None:
    """Print a report, and end with status 1 if something failed."""
    checks: list[Check] = report.checks
    if as_json:
        say_json({kind: report.subject, "checks": [asdict(one) for one in checks]})
    else:
        for one in checks:
            say(str(one), style=_STYLES.get(one.verdict, "yellow"))
        say(f"{report.subject}: {len(report.failed)} of {len(checks)} checks fail")
    if report.failed:
        raise typer.Exit(1)
