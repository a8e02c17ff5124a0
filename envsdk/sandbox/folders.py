"""The folders that programs run in, and those that were left behind by a process that was killed.

A folder is locked (`flock`) by the process that uses it. The kernel unlocks it when that process ends, however it ends.
"""

import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from ..errors import SandboxError

if sys.platform != "win32":  # where there is no sandbox, but a module that says so
    import fcntl

_PREFIX = "envsdk-sandbox-"


@contextlib.contextmanager
def own_folder() -> Generator[str]:
    """Make a folder that is removed afterwards, whatever a program made of it.

    Raises:
        SandboxError: If it cannot be made or removed.
    """
    remove_leftovers(tempfile.gettempdir())
    try:
        folder, lock = _locked_folder()
        try:
            yield folder
        finally:
            try:
                Path(folder).chmod(0o700)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
    except OSError as error:
        raise SandboxError(f"the program's folder cannot be made or removed: {error}") from error


@functools.cache
def remove_leftovers(root: str) -> None:
    """Remove, once in this process, the folders of this user's processes that were killed."""
    with os.scandir(root) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for name in names:
        with contextlib.suppress(OSError):  # it is somebody else's, in use, or just gone
            _remove_if_left(name)


def _locked_folder() -> tuple[str, int]:
    """Make a folder and lock it; again if another process took it for a leftover before it was locked."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with contextlib.suppress(FileNotFoundError):
            Path(folder).chmod(0o700)  # whatever the file mask says
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with contextlib.suppress(OSError):  # a file system without locks: then nobody removes it but its owner
                fcntl.flock(lock, fcntl.LOCK_EX)
            if Path(folder).exists():
                return folder, lock
            os.close(lock)


def _remove_if_left(folder: str) -> None:
    """Remove a folder that is this user's and that no process has locked."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(lock)
