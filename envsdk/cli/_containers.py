"""`envsdk containers`: remove the containers that killed runs left."""

import asyncio
from typing import Annotated, Literal

import typer

from ._output import print_text


def containers(
    action: Annotated[Literal["prune"], typer.Argument(help="What to do: prune removes containers.")],
    engine: Annotated[
        Literal["podman", "docker"] | None, typer.Option(help="The engine; the first one that is installed by default.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all containers of envsdk, those of running processes included.")
    ] = False,
) -> None:
    """Remove the containers whose process has ended, such as those of a run that was killed."""
    from ..containers import prune

    names = asyncio.run(prune(engine, everything=everything))
    print_text("\n".join([*names, f"{len(names)} containers were removed"]))
