"""List, play, roll out, check and price environments; show, view, report on, replay and import runs; make packages."""

import logging
import signal
import sys
import traceback

import typer

from ..errors import EnvsdkError
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

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command("list")(list_)
app.command("eval")(eval_)
app.command("export")(export)
app.command("export-template")(export_template_)
app.command("import")(import_)
app.command("plan")(plan_)
app.command("report")(report_)
for command in (
    card,
    play,
    rollout,
    show,
    view,
    replay,
    cost,
    onpolicy,
    gateway,
    serve,
    containers,
    init,
    check,
    doctor,
    explain,
    demo,
):
    app.command()(command)


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
