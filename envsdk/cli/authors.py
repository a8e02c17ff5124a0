"""`envsdk init`: a package with an environment of one's own, to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from ..scaffold import create
from .output import say


def init(
    name: Annotated[str, typer.Argument(help="The package's name, such as my-quiz.")],
    folder: Annotated[Path | None, typer.Argument(help="Where to put it; by default a folder of that name.")] = None,
    tools: Annotated[bool, typer.Option("--tools", help="An environment whose model calls a tool.")] = False,
) -> None:
    """Make a package: an environment, its registration, a test that checks it, and how to go on."""
    made = create(name, Path(name) if folder is None else folder, with_tools=tools)
    say(f"{made.folder}/ has the environment {made.env_id}. To begin with:")
    for command in (f"cd {made.folder}", "pip install -e . && pytest", f"envsdk play {made.env_id}"):
        say(f"    {command}")
