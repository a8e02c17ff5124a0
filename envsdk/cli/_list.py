"""`envsdk list`: print the registered environments with a summary of each."""

import warnings
from dataclasses import asdict
from typing import Annotated

import typer

from .._registry import PluginWarning, list_envs
from ..authoring._making import CatalogEntry, describe
from ._output import print_error, print_json, print_text


def list_(as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False) -> None:
    """List all environments with their summary, tools, number of tasks, and reward range."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        ids = list_envs()
    problems = [str(warning.message) for warning in caught if issubclass(warning.category, PluginWarning)]
    entries = [describe(name) for name in ids]
    if as_json:
        print_json({"environments": [asdict(entry) for entry in entries], "broken_plugins": problems})
        return
    for entry in entries:
        print_text(entry.id, style="bold")
        for line in _lines(entry):
            print_text(f"    {line}")
    for problem in problems:
        print_error(problem)


def _lines(entry: CatalogEntry) -> list[str]:
    if entry.problem is not None:
        return [f"cannot be created on this machine: {entry.problem}"]
    least, most = ("?" if bound is None else f"{bound:g}" for bound in entry.reward_range)
    facts = [f"reward {least} to {most}"]
    if entry.tools:
        facts.append(f"tools {', '.join(entry.tools)}")
    if entry.n_tasks is not None:
        facts.append(f"{entry.n_tasks:,} tasks")
    if entry.nondeterministic:
        facts.append("nondeterministic")
    exercises = [f"Exercises: {entry.exercises}."] if entry.exercises else []
    return [entry.summary or "This environment has no docstring.", *exercises, " · ".join(facts)]
