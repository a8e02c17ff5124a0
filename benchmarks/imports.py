"""How long a new Python takes to import something."""

import os
import resource
import subprocess
import sys
import tempfile

from .contender import Repetition

STARTS = 3
"""The processes that one repetition starts."""


def importing(statement: str) -> Repetition:
    """Return the CPU time of a new Python that runs an import statement, its start included."""

    def run() -> None:
        # From an empty folder: the folders of a checkout have names of packages.
        command = [sys.executable, "-c", statement]
        subprocess.run(command, check=True, cwd=tempfile.gettempdir(), capture_output=True, env=_environment())

    run()  # compiles

    def repetition() -> float:
        before = _cpu_s()
        for _ in range(STARTS):
            run()
        return (_cpu_s() - before) / STARTS

    return repetition


def _environment() -> dict[str, str]:
    """Return the variables of a user's process: Python keeps what it compiles, as an installation does."""
    ours = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
