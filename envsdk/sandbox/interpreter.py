"""The interpreter that runs programs: this one's own, bare (without packages and environment variables)."""

import functools
import importlib.abc
import importlib.util
import json
import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SandboxUnavailable

FLAGS = ("-I", "-S")
_TIMEOUT_S = 60
_BOOT = """\
import marshal, os
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise SystemExit(f"{len(data)} of {size} bytes came")
        data += part
    return data
code, arguments = marshal.loads(take(int(take(16), 16)))
names = {"__name__": "bare"}
exec(code, names)
names["start"](*arguments)
"""


class Interpreter(NamedTuple):
    """An interpreter, and the files that it needs."""

    executable: str
    paths: tuple[str, ...]
    """Folders (and archives) of the standard library."""
    libraries: tuple[str, ...]
    """Shared libraries, by the paths that the loader looks for."""
    hidden: tuple[str, ...]
    """Folders for packages in the standard library's folders."""


def executable() -> str:
    """The interpreter's own file: not that of a virtual environment, which would look for its packages.

    Raises:
        SandboxUnavailable: If there is none, as in a program that embeds Python.
    """
    path = getattr(sys, "_base_executable", None) or sys.executable
    if not path:
        raise SandboxUnavailable("Python does not know its own executable, so no program can be run with it")
    return os.path.realpath(path)


def command() -> list[str]:
    """What starts a bare interpreter that waits for code, as `sent` makes it."""
    return [executable(), *FLAGS, "-c", _BOOT]


def sent(module: str, *arguments: Any) -> bytes:
    """A module of this package, whose function `start` is called, for the standard input of a bare interpreter."""
    data = marshal.dumps((_code(module), arguments))
    return b"%016x" % len(data) + data


@functools.cache
def _code(module: str) -> Any:
    found = importlib.util.find_spec(f"{__package__}.{module}")
    if found is None or not isinstance(found.loader, importlib.abc.InspectLoader):
        raise SandboxUnavailable(f"the code of {module} cannot be read")
    return found.loader.get_code(found.name)


@functools.cache
def interpreter() -> Interpreter:
    """Find the interpreter and its files, once.

    Raises:
        SandboxUnavailable: If it does not run without environment variables, or does not know its files.
    """
    try:
        ended = subprocess.run(
            command(), input=sent("finder"), capture_output=True, env={}, check=True, timeout=_TIMEOUT_S
        )
        found = json.loads(ended.stdout)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace")
        raise SandboxUnavailable(f"{executable()} does not run with an empty environment: {said}") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailable(f"the files of {executable()} cannot be found: {error}") from error
    paths: list[str] = found["paths"]
    hidden = [Path(path, name) for path in paths for name in ("site-packages", "dist-packages")]
    return Interpreter(
        executable(), tuple(paths), tuple(found["libraries"]), tuple(str(path) for path in hidden if path.is_dir())
    )
