"""List, play, roll out, check and price environments; show, view, report on, replay and import runs; make packages."""

import logging
import signal
import sys
import traceback
from typing import Any, cast

import typer
from typer.core import TyperCommand

from ..errors import EnvsdkError, UnknownName
from ._card import card
from ._check import check, doctor
from ._containers import containers
from ._cost import cost
from ._eval import eval_
from ._explain import explain
from ._export import export
from ._export_template import export_template_
from ._gateway import gateway
from ._import import import_
from ._init import init
from ._list import list_
from ._onpolicy import onpolicy
from ._options import specification
from ._output import ErrorHandler, print_error
from ._plan import plan_
from ._play import play
from ._replay import replay
from ._report import report_
from ._rollout import demo, rollout
from ._serve import serve
from ._show import show
from ._view import view

__all__ = ["app", "main", "specification"]


class Command(TyperCommand):
    """A command that names the option that is likely meant by one that does not exist."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name.

        Raises:
            UnknownName: If an option does not exist. Of those that do, the ones that are likely meant are named.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if not hasattr(error, "possibilities"):  # of Typer's NoSuchOption, which is private
                raise
            known = [name if name.startswith("-") else name.upper() for one in self.params for name in one.opts]
            raise UnknownName.of("option", cast("Any", error).option_name, known) from None


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
for name, command in {
    "list": list_,
    "card": card,
    "play": play,
    "rollout": rollout,
    "eval": eval_,
    "show": show,
    "view": view,
    "report": report_,
    "plan": plan_,
    "replay": replay,
    "cost": cost,
    "onpolicy": onpolicy,
    "export": export,
    "export-template": export_template_,
    "import": import_,
    "gateway": gateway,
    "serve": serve,
    "containers": containers,
    "init": init,
    "check": check,
    "doctor": doctor,
    "explain": explain,
    "demo": demo,
}.items():
    app.command(name, cls=Command)(command)


def main() -> None:
    """Run the command line.

    An `EnvsdkError` is printed without a traceback, and the exit status is 2. Any other error is printed with its
    traceback, and the exit status is 1. SIGTERM ends a command as Ctrl-C does.
    """

    def interrupt(number: int, frame: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script started in the background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
    logging.captureWarnings(True)
    logging.getLogger().addHandler(ErrorHandler())
    try:
        app()
    except EnvsdkError as error:
        print_error(f"error: {error}")
        sys.exit(2)
    except Exception:  # its text may come from a record, so it has to be escaped
        print_error(traceback.format_exc())
        sys.exit(1)
