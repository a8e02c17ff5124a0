"""The command line: environments are listed, played, rolled out and shown; new ones are made and checked."""

import sys

import typer

from ..errors import EnvsdkError
from .authors import init
from .catalogue import list_
from .checks import check, doctor
from .episodes import demo, rollout, show
from .options import specification
from .output import complain
from .playing import play

__all__ = ["app", "main", "specification"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command("list")(list_)
for command in (play, rollout, show, init, check, doctor, demo):
    app.command()(command)


def main() -> None:
    """Run the command line; an error of ours is one line, without a traceback, and exit status 2."""
    try:
        app()
    except EnvsdkError as error:
        complain(f"error: {error}")
        sys.exit(2)
