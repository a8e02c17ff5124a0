"""A fresh virtual environment, and what an installation adds to it."""

import os
import re
import resource
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .contender import NotMeasured


class Installation(NamedTuple):
    """What pip did: its CPU time in seconds, without the network, and the bytes that it added."""

    cpu_s: float
    size: int


@cache
def installed(*requirements: str) -> Installation:
    """Install packages into a fresh environment, which is removed.

    Raises:
        NotMeasured: If pip cannot install them.
    """
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        empty, before = _size(Path(folder)), _cpu_s()
        command = [Path(folder) / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, *requirements], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            missing = re.search(r"that satisfies the requirement (\S+)", done.stderr)
            raise NotMeasured("pip cannot install it" + (f": {missing[1]} is not on the index" if missing else ""))
        return Installation(_cpu_s() - before, _size(Path(folder)) - empty)


def _size(folder: Path) -> int:
    return sum(os.lstat(file).st_size for file in folder.rglob("*"))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
