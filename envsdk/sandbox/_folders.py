"""The temporary folders that programs run in, and the removal of folders that a killed process left.

The process that uses a folder locks it (`flock`). The kernel unlocks it when that process ends, even if it is killed.
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

if sys.platform != "win32":  # Windows has no fcntl; the sandbox reports there that it needs Linux
    import fcntl

_PREFIX = "envsdk-sandbox-"


@contextlib.contextmanager
def own_folder() -> Generator[str]:
    """Create a folder, and remove it with all its files when the context exits.

    Raises:
        SandboxError: If it cannot be created or removed.
    """
    remove_leftovers(tempfile.gettempdir())
    try:
        while True:
            folder = tempfile.mkdtemp(prefix=_PREFIX)
            with contextlib.suppress(FileNotFoundError):  # another process removed it as a leftover: make another one
                Path(folder).chmod(0o700)  # regardless of the umask
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                with contextlib.suppress(OSError):  # without locks, only this process removes it
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if Path(folder).exists():
                    break
                os.close(lock)
        try:
            yield folder
        finally:
            try:
                Path(folder).chmod(0o700)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
    except OSError as error:
        raise SandboxError(f"the program's folder cannot be created or removed: {error}") from error


@functools.cache
def remove_leftovers(root: str) -> None:
    """Remove the folders that killed processes of this user left. It runs once per process."""
    with os.scandir(root) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for name in names:
        with contextlib.suppress(OSError):  # it belongs to another user, is in use, or was just removed
            lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(name)
            finally:
                os.close(lock)
