"""The folders that commands run in, whose path is the same in each episode, because agents put it into their prompts.

Each episode claims one of the numbered folders of this user by a lock, which the kernel releases when this process
ends. Where Linux allows mounts, the program sees its folder in place of the folder of all of them,
`TMP/envsdk-program-UID`, whatever its number is, and none of the others. Elsewhere it sees the number in the path.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError, SandboxUnavailable
from ..sandbox import _launcher
from ..sandbox._interpreter import FLAGS, executable

if sys.platform != "win32":  # commands need a Unix
    import fcntl


class ProgramFolder(NamedTuple):
    """The folder of an episode. It contains `work`, `home` and `tmp`, all empty."""

    path: Path
    """Its path here."""
    seen: Path
    """Its path for the program, if it is started with `launcher`."""
    launcher: list[str]
    """The command that starts the program's command; empty if the program sees what others see."""


@contextlib.contextmanager
def claimed_folder(end_programs: Callable[[str], None]) -> Generator[ProgramFolder]:
    """Claim a folder for an episode, and empty it afterwards.

    A folder in which a killed run left something is emptied first; if that fails, another one is claimed.

    Args:
        end_programs: Ends the processes that a killed run left, given the path of its folder.

    Raises:
        ConfigError: If the folder of all folders is not this user's own.
    """
    root = Path(tempfile.gettempdir()).resolve() / f"envsdk-program-{os.getuid()}"
    root.mkdir(0o700, exist_ok=True)
    if root.is_symlink() or root.lstat().st_uid != os.getuid():
        raise ConfigError(f"{str(root)!r} belongs to another user, or is a link: remove it, or set TMPDIR")
    number = 1
    while (lock := _claimed(path := root / str(number), end_programs)) is None:
        number += 1
    try:
        for name in ("work", "home", "tmp"):
            (path / name).mkdir()
        launcher = _launcher_command()
        if launcher:
            yield ProgramFolder(path, root, [*launcher, str(path), str(root), str(root / "work")])
        else:
            yield ProgramFolder(path, path, [])
    finally:
        _empty(path)
        fcntl.flock(lock, fcntl.LOCK_UN)  # also in a process that this one forked meanwhile
        os.close(lock)


def _claimed(path: Path, end_programs: Callable[[str], None]) -> int | None:
    """Return the lock of a folder that is empty now; None if it is in use, or cannot be emptied."""
    path.mkdir(0o700, exist_ok=True)
    path.chmod(0o700)  # a program may have changed it
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if any(path.iterdir()):
        end_programs(str(path))
        _empty(path)
    if any(path.iterdir()):
        os.close(lock)
        return None
    return lock


def _empty(folder: Path) -> None:
    """Remove everything in a folder, including what a program made read-only, as far as this user may."""
    for is_again in (False, True):
        entries = list(folder.iterdir())
        if is_again and entries:
            subprocess.run(("chmod", "-R", "u+rwX", folder), stderr=subprocess.DEVNULL, check=False)
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()


@functools.cache
def _launcher_command() -> list[str]:
    """Return the beginning of the command that shows a program its folder at another path, proved by a trial.

    It is empty if this machine does not allow that.
    """
    with tempfile.TemporaryDirectory() as root:
        (path := Path(root, "1", "work")).mkdir(parents=True)
        with contextlib.suppress(SandboxUnavailable, OSError):
            command = [executable(), *FLAGS, _launcher.__file__]
            trial = [*command, str(path.parent), root, str(Path(root, "work")), "true"]
            if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
                return command
    return []
