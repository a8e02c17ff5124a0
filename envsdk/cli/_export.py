"""`envsdk export`: write episodes of an environment in the format of another framework."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import ConfigError
from ._options import ENVIRONMENT, OPTION, import_from_here, options_of
from ._output import print_text


def export(
    form: Annotated[Literal["harbor"], typer.Argument(help="The format: harbor writes task folders.")],
    env: Annotated[str, typer.Argument(help=ENVIRONMENT)],
    out: Annotated[Path, typer.Option(help="The folder to write into, with a folder for each task.")],
    seeds: Annotated[str, typer.Option(help="The seeds, as FIRST:END.")] = "0:8",
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    image: Annotated[str, typer.Option(help="An image with Python, which tasks start from.")] = "python:3.12-slim",
    package: Annotated[
        str | None, typer.Option(help="What pip installs in the image; empty if it has envsdk and the environment.")
    ] = None,
) -> None:
    """Write episodes as tasks of Harbor, which any agent of Harbor's can play, and print their folders."""
    first, _, end = seeds.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ConfigError(f"--seeds is {seeds!r}; expected FIRST:END, such as 0:8")
    import_from_here()
    from ..gateway._harbor_export import export_tasks

    chosen = f"envsdk=={version('envsdk')}" if package is None else package
    folders = export_tasks(
        env, options_of(option or (), ()), range(int(first), int(end)), out, image=image, package=chosen
    )
    print_text("\n".join(str(folder) for folder in folders))
