"""How bubblewrap makes the namespaces of a program, and starts the launcher as process 1 in them.

bubblewrap (https://github.com/containers/bubblewrap) is in every distribution, and some let it make namespaces where
they let no other program do so. The launcher does what it has no options for: limits on the number of files and of
processes, and a filter without the ways around it.
"""

import functools
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from ..errors import SandboxUnavailable
from .interpreter import command
from .job import Root

_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")


@functools.cache
def executable() -> str:
    """Return the path of bubblewrap.

    Raises:
        SandboxUnavailable: If it is not installed.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable("bubblewrap is not installed: there is no bwrap on the PATH")
    return found


def wrapped(root: Root, status: int) -> list[str]:
    """Return the command that starts the launcher in namespaces.

    Args:
        root: The files that the program sees.
        status: The file descriptor to which bubblewrap writes, as JSON, which process it started.
    """
    is_root = os.geteuid() == 0
    capabilities = ["CAP_SYS_ADMIN", *(("CAP_SETUID", "CAP_SETGID") if is_root else ())]
    options = [
        *_NAMESPACES,
        "--die-with-parent",
        "--as-pid-1",
        "--hostname",
        "sandbox",
        "--json-status-fd",
        str(status),
    ]
    options += [] if is_root else ["--unshare-user"]
    options += ["--cap-drop", "ALL", *(word for name in capabilities for word in ("--cap-add", name))]
    for folder in _folders_above(target for _, target in root["mounts"]):
        options += ["--perms", "0755", "--dir", folder]  # else some are closed to others
    for source, target in root["mounts"]:
        options += ["--dev-bind" if source.startswith("/dev/") else "--ro-bind", source, target]
    for folder in root["hidden"]:
        options += ["--tmpfs", folder]
    return [*_with_default_signals(), executable(), *options, "--proc", "/proc", "--", *command()]


def _with_default_signals() -> tuple[str, ...]:
    """What starts bubblewrap where children are ignored, which is inherited: it would never hear that its own ended."""
    is_ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    return ("env", "--default-signal=CHLD") if is_ignored else ()


def _folders_above(paths: Iterable[str]) -> list[str]:
    """The folders that have to be there for some files, each after the one that it is in."""
    return sorted({str(folder) for path in paths for folder in Path(path).parents} - {"/"})
