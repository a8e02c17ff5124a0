"""`envsdk export`: write episodes of an environment in the format of another framework."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from ._options import (
    EnvName,
    EnvOptions,
    HistoryOption,
    RendererOption,
    SeedsOption,
    TasksOption,
    TokenizerOption,
    env_options,
    import_from_here,
)
from ._output import print_text


def export(
    form: Annotated[Literal["harbor"], typer.Argument(help="The format: harbor writes task folders.")],
    env: EnvName,
    out: Annotated[Path, typer.Option(help="The folder to write into, with a folder for each task.")],
    seeds: SeedsOption = "16",
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    image: Annotated[str, typer.Option(help="An image with Python, which tasks start from.")] = "python:3.12-slim",
    package: Annotated[
        str | None, typer.Option(help="What pip installs in the image; empty if it has envsdk and the environment.")
    ] = None,
) -> None:
    """Write episodes as tasks of Harbor, which any agent of Harbor's can play, and print their folders."""
    import_from_here()
    from ..gateway._harbor_export import export_tasks

    chosen = f"envsdk=={version('envsdk')}" if package is None else package
    options = env_options(option, renderer, tokenizer, history, tasks)
    folders = export_tasks(env, options, seeds, out, image=image, package=chosen)
    print_text("\n".join(str(folder) for folder in folders))
