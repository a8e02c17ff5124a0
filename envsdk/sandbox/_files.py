"""The files of the machine that a program can read: those that its interpreter needs."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from ._interpreter import Interpreter, interpreter

_FILES = ("/etc/ld.so.cache",)
_FOLDERS = ("/usr/share/zoneinfo",)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

# Landlock rights, from linux/landlock.h.
_EXECUTE, _WRITE, _READ, _LIST, _REMOVE, _CREATE, _TRUNCATE = 0x1, 0x2, 0x4, 0x8, 0x20, 0x100, 0x4000
OWN_FOLDER = _READ | _LIST | _WRITE | _CREATE | _REMOVE | _TRUNCATE
"""The Landlock rights to a program's own folder: to create files, but no folders, links or sockets."""


@functools.cache
def shown_files() -> tuple[list[tuple[str, str]], list[str]]:
    """Return the (source, target) paths that are mounted in namespaces, and the folders that appear empty in them."""
    found = interpreter()
    paths = [found.executable, *found.libraries, *found.paths, *_existing((*_FILES, *_FOLDERS, *_DEVICES))]
    outermost = [path for path in paths if not any(other != path and _is_in(path, other) for other in found.paths)]
    return [(os.path.realpath(path), path) for path in dict.fromkeys(outermost)], list(found.hidden)


@functools.cache
def file_rules() -> list[tuple[str, int]]:
    """Return the Landlock rules, as (path, rights), without the one for the program's own folder."""
    found = interpreter()
    rules = [(path, _EXECUTE | _READ) for path in (found.executable, *found.libraries)]
    rules += [(path, _READ) for path in _existing(_FILES)]
    rules += [(path, _READ | _LIST) for path in _existing(_FOLDERS)]
    rules += [(path, _READ | _WRITE) for path in _existing(_DEVICES)]
    return [*rules, *_rules_of_library(found)]


def _rules_of_library(found: Interpreter) -> Iterator[tuple[str, int]]:
    """Yield rules for the standard library, entry by entry, because a Landlock rule cannot exclude site-packages."""
    for path in map(Path, found.paths):
        if not path.is_dir():
            yield str(path), _READ
            continue
        yield str(path), _LIST
        for child in path.iterdir():
            if str(child) not in found.hidden and not child.is_symlink():
                yield str(child), _READ | _LIST * child.is_dir()


def _existing(paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if Path(path).exists()]


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)
