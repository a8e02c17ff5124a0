"""`envsdk init`: create a package with a new environment."""

from pathlib import Path
from typing import Annotated

import typer

from ._output import print_text
from .scaffold import create


def init(
    name: Annotated[str, typer.Argument(help="The name of the package, such as my-quiz.")],
    folder: Annotated[Path | None, typer.Argument(help="The new folder. Default: the package name.")] = None,
    tools: Annotated[bool, typer.Option("--tools", help="Create an environment with a tool.")] = False,
    openenv: Annotated[
        bool, typer.Option("--openenv", help="Also create a server, which OpenEnv's own tool builds and pushes.")
    ] = False,
) -> None:
    """Create a package with an environment, its registration, a test, and a README."""
    made = create(name, Path(name) if folder is None else folder, with_tools=tools, for_openenv=openenv)
    print_text(f"Created {made.folder}/ with the environment {made.env_id}. Next steps:")
    commands = [f"cd {made.folder}", "pip install -e . && pytest", f"envsdk play {made.env_id}"]
    for command in [*commands, *(["uv lock && openenv validate && openenv build"] if openenv else [])]:
        print_text(f"    {command}")
