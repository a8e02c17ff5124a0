"""The command line: environments are listed, played, rolled out and shown; new ones are made and checked."""

import logging
import sys
import traceback

import typer

from ..errors import EnvsdkError
from .authors import init
from .catalog import list_
from .checks import check, doctor
from .episodes import demo, rollout, show
from .options import specification
from .output import Complaints, complain
from .playing import play

__all__ = ["app", "main", "specification"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command("list")(list_)
for command in (play, rollout, show, init, check, doctor, demo):
    app.command()(command)


def main() -> None:
    """Run the command line; an error of ours is printed without a traceback, with exit status 2, any other with one."""
    logging.captureWarnings(True)
    logging.getLogger().addHandler(Complaints())
    try:
        app()
    except EnvsdkError as error:
        complain(f"error: {error}")
        sys.exit(2)
    except Exception:  # whatever it says may come from a record, too
        complain(traceback.format_exc())
        sys.exit(1)
