"""The interpreter that runs programs, this Python without packages and environment variables, and its files."""

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
_FILES = ("/etc/ld.so.cache",)
_FOLDERS = ("/usr/share/zoneinfo",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

# Landlock rights, from linux/landlock.h.
_EXECUTE, _WRITE, _READ, _LIST, _REMOVE, _CREATE, _TRUNCATE = 0x1, 0x2, 0x4, 0x8, 0x20, 0x100, 0x4000
OWN_FOLDER = _READ | _LIST | _WRITE | _CREATE | _REMOVE | _TRUNCATE
"""The Landlock rights to a program's own folder: to create files, but no folders, links or sockets."""
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
    """The path of the executable."""
    paths: tuple[str, ...]
    """The folders (and archives) of the standard library."""
    libraries: tuple[str, ...]
    """The paths of the shared libraries, as the loader looks for them."""
    hidden: tuple[str, ...]
    """The package folders inside the standard library, which programs see empty."""


def executable() -> str:
    """Return the path of the base interpreter; that of a virtual environment would find its packages.

    Raises:
        SandboxUnavailable: If Python does not know it, as in a program that embeds Python.
    """
    path = getattr(sys, "_base_executable", None) or sys.executable
    if not path:
        raise SandboxUnavailable("sys.executable is empty, so there is no interpreter to run programs with")
    return os.path.realpath(path)


def command() -> list[str]:
    """Return the command of a bare interpreter, which reads its code from standard input; see `sent`."""
    return [executable(), *FLAGS, "-c", _BOOT]


def sent(module: str, *arguments: Any) -> bytes:
    """Return the standard input for a bare interpreter that calls `start(*arguments)` of a module of this package."""
    found = importlib.util.find_spec(f"{__package__}.{module}")
    if found is None or not isinstance(found.loader, importlib.abc.InspectLoader):
        raise SandboxUnavailable(f"the code of the module {module!r} of envsdk.sandbox cannot be read")
    data = marshal.dumps((found.loader.get_code(found.name), arguments))
    return b"%016x" % len(data) + data


@functools.cache
def interpreter() -> Interpreter:
    """Find the interpreter and its files. The result is cached.

    Raises:
        SandboxUnavailable: If the interpreter does not run without environment variables, or its files are not found.
    """
    try:
        ended = subprocess.run(
            command(), input=sent("_finder"), capture_output=True, env={}, check=True, timeout=_TIMEOUT_S
        )
        found = json.loads(ended.stdout)
    except subprocess.CalledProcessError as error:
        stderr = error.stderr.decode(errors="replace")
        raise SandboxUnavailable(f"{executable()} does not run with an empty environment: {stderr}") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailable(f"the files of {executable()} cannot be found: {error}") from error
    paths: list[str] = found["paths"]
    hidden = [Path(path, name) for path in paths for name in ("site-packages", "dist-packages")]
    return Interpreter(
        executable(), tuple(paths), tuple(found["libraries"]), tuple(str(path) for path in hidden if path.is_dir())
    )


@functools.cache
def shown_files() -> tuple[list[tuple[str, str]], list[str]]:
    """Return the (source, target) paths that are mounted in namespaces, and the folders that appear empty in them."""
    found = interpreter()
    paths = [found.executable, *found.libraries, *found.paths, *_existing((*_FILES, *_FOLDERS, *_DEVICES))]
    outermost = [
        path for path in paths if not any(other != path and Path(path).is_relative_to(other) for other in found.paths)
    ]
    return [(os.path.realpath(path), path) for path in dict.fromkeys(outermost)], list(found.hidden)


@functools.cache
def file_rules() -> list[tuple[str, int]]:
    """Return the Landlock rules, as (path, rights), without the one for the program's own folder."""
    found = interpreter()
    rules = [(path, _EXECUTE | _READ) for path in (found.executable, *found.libraries)]
    rules += [(path, _READ) for path in _existing(_FILES)]
    rules += [(path, _READ | _LIST) for path in _existing(_FOLDERS)]
    rules += [(path, _READ | _WRITE) for path in _existing(_DEVICES)]
    for path in map(Path, found.paths):  # entry by entry, because a Landlock rule cannot exclude site-packages
        rules.append((str(path), _LIST if path.is_dir() else _READ))
        for child in path.iterdir() if path.is_dir() else ():
            if str(child) not in found.hidden and not child.is_symlink():
                rules.append((str(child), _READ | _LIST * child.is_dir()))
    return rules


def _existing(paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if Path(path).exists()]
