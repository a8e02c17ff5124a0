"""`envsdk list`: the environments that there are, and what each is about."""

import warnings
from dataclasses import asdict
from typing import Annotated

import typer

from ..authoring.catalog import Entry, describe
from ..registry import PluginWarning, list_envs
from .output import complain, say, say_json


def list_(as_json: Annotated[bool, typer.Option("--json", help="Print it as one line of JSON.")] = False) -> None:
    """List all environments: what each is about and exercises, its tools, and what an episode can earn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        ids = list_envs()
    break_ = [str(warning.message) for warning in caught if issubclass(warning.category, PluginWarning)]
    entries = [describe(name) for name in ids]
    if as_json:
        say_json({"environments": [asdict(entry) for entry in entries], "broken_plugins": break_})
        return
    for entry in entries:
        say(entry.id, style="bold")
        for line in _lines(entry):
            say(f"    {line}")
    for problem in break_:
        complain(problem)


def _lines(entry: Entry) -> list[str]:
    if entry.problem is not None:
        return [f"cannot be made here: {entry.problem}"]
    least, most = ("?" if bound is None else f"{bound:g}" for bound in entry.reward_range)
    facts = [f"reward {least} to {most}"]
    if entry.tools:
        facts.append(f"tools {', '.join(entry.tools)}")
    if entry.n_tasks is not None:
        facts.append(f"{entry.n_tasks:,} tasks")
    if entry.nondeterministic:
        facts.append("not the same each time")
    exercises = [f"Exercises: {entry.exercises}."] if entry.exercises else []
    return [entry.summary or "It has no docstring.", *exercises, " · ".join(facts)]
