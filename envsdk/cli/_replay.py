"""`envsdk replay`: repeat the episodes of a stored run, and print what differs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .._visible import on_one_line
from ..authoring._trust import Trust
from ..errors import ConfigError
from ..rollouts._replaying import replay_run
from ..rollouts._stored_run import StoredRun
from ._options import import_from_here
from ._output import print_error, print_json, print_text

_SHOWN = 20
"""The maximum number of differences of an episode that are printed."""


def replay(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    number: Annotated[int | None, typer.Argument(min=1, help="The number of one trajectory, starting at 1.")] = None,
    episode: Annotated[str | None, typer.Option("--id", help="The id of one trajectory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each episode.")] = False,
    trust_imports: Annotated[
        bool, typer.Option("--trust-imports", help="Import modules that the run names, also from the current folder.")
    ] = False,
    trust_isolation: Annotated[
        bool, typer.Option("--trust-isolation", help="Run programs with the isolation that the run names, even none.")
    ] = False,
    trust_paths: Annotated[
        bool, typer.Option("--trust-paths", help="Open files and models outside of the run folder that the run names.")
    ] = False,
) -> None:
    """Repeat the recorded actions of a stored run in fresh environments, and report each byte that differs.

    The exit status is 0 if every episode that was repeated is the same, and 1 if one differs or none was repeated. The
    environments are those that are installed here. Give the options --trust only for a run whose author you trust.
    """
    given: dict[Trust, bool] = {"imports": trust_imports, "isolation": trust_isolation, "paths": trust_paths}
    if trust_imports:
        import_from_here()
    same = differing = refused = 0
    for result in replay_run(
        StoredRun(run),
        trust=[kind for kind, is_trusted in given.items() if is_trusted],
        is_chosen=lambda n, trajectory: number in (None, n) and episode in (None, trajectory.id),
    ):
        name, found = result.trajectory.id, result.differences
        if as_json:
            print_json({"id": name, "refused": result.refused, "differences": [asdict(one) for one in found]})
        else:
            if result.refused is not None:
                print_error(on_one_line(f"not repeated: {result.refused}"))
            for difference in found[:_SHOWN]:
                print_error(on_one_line(f"{name}: {difference}"))
            if len(found) > _SHOWN:
                print_error(on_one_line(f"{name}: ... and {len(found) - _SHOWN} more"))
        refused += result.refused is not None
        differing += bool(result.differences)
        same += result.refused is None and not result.differences
    total = same + differing + refused
    if not total:
        raise ConfigError(f"{str(run)!r} has no such trajectory: number {number}, id {episode!r}")
    if not as_json:
        print_text(f"{same} of {total} episodes are the same, {differing} differ, {refused} were not repeated")
    if differing or not same:
        raise typer.Exit(1)
