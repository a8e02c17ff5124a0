"""`envsdk list`: print the registered environments with a summary of each."""

import warnings
from dataclasses import asdict
from typing import Annotated

import typer

from .._registry import PluginWarning, installed, list_envs
from ..authoring._making import describe
from ._output import print_error, print_json, print_text


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    is_installed: Annotated[
        bool,
        typer.Option(
            "--installed", help="List names of environments, renderers and history policies, and their packages."
        ),
    ] = False,
) -> None:
    """List all environments with their summary, tools, number of tasks, and reward range."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        ids = list_envs()
    problems = [str(warning.message) for warning in caught if issubclass(warning.category, PluginWarning)]
    if is_installed:
        kinds = installed()
        if as_json:
            print_json({**kinds, "broken_plugins": problems})
            return
        for kind, found in kinds.items():
            print_text(kind.replace("_", " "), style="bold")
            for one in found:
                print_text(f"    {one['name']}    {one['package'] or 'this process'} {one['version']}".rstrip())
        for problem in problems:
            print_error(problem)
        return
    entries = [describe(name) for name in ids]
    if as_json:
        print_json({"environments": [asdict(entry) for entry in entries], "broken_plugins": problems})
        return
    for entry in entries:
        print_text(entry.id, style="bold")
        if entry.problem is not None:
            print_text(f"    cannot be created on this machine: {entry.problem}")
            continue
        print_text(f"    {entry.summary or 'This environment has no docstring.'}")
        if entry.exercises:
            print_text(f"    Exercises: {entry.exercises}.")
        least, most = ("?" if bound is None else f"{bound:g}" for bound in entry.reward_range)
        facts = [f"reward {least} to {most}"]
        if entry.tools:
            facts.append(f"tools {', '.join(entry.tools)}")
        if entry.n_tasks is not None:
            facts.append(f"{entry.n_tasks:,} tasks")
        if entry.nondeterministic:
            facts.append("nondeterministic")
        print_text(f"    {' · '.join(facts)}")
    for problem in problems:
        print_error(problem)
