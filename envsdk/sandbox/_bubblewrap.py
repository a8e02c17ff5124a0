"""The bubblewrap command that creates the namespaces of a program and starts the launcher as process 1 in them.

bubblewrap (https://github.com/containers/bubblewrap) is in every distribution, and some distributions allow only it to
create namespaces. The launcher adds what bubblewrap has no options for: limits on the number of files and processes,
and a stricter system call filter.
"""

import os
import shutil
import signal
from pathlib import Path

from ..errors import SandboxUnavailable
from ._interpreter import command
from ._job import Root

_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")


def wrapped(root: Root, status: int) -> list[str]:
    """Return the command that starts the launcher in namespaces.

    Args:
        root: The files that the program sees.
        status: The file descriptor to which bubblewrap writes the id of the process that it started, as JSON.

    Raises:
        SandboxUnavailable: If bubblewrap is not installed.
    """
    executable, is_root = shutil.which("bwrap"), os.geteuid() == 0
    if executable is None:
        raise SandboxUnavailable("bubblewrap is not installed: bwrap is not on the PATH")
    capabilities = ["CAP_SYS_ADMIN", *(("CAP_SETUID", "CAP_SETGID") if is_root else ())]
    options = [*_NAMESPACES, "--die-with-parent", "--as-pid-1"]
    options += ["--hostname", "sandbox", "--json-status-fd", str(status)]
    options += [] if is_root else ["--unshare-user"]
    options += ["--cap-drop", "ALL", *(word for name in capabilities for word in ("--cap-add", name))]
    folders = {str(folder) for _, target in root["mounts"] for folder in Path(target).parents} - {"/"}
    for folder in sorted(folders):  # each after its parent
        options += ["--perms", "0755", "--dir", folder]  # otherwise other users cannot read some of them
    for source, target in root["mounts"]:
        options += ["--dev-bind" if source.startswith("/dev/") else "--ro-bind", source, target]
    for folder in root["hidden"]:
        options += ["--tmpfs", folder]
    # bubblewrap inherits an ignored SIGCHLD, and would not see its child end.
    is_ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    prefix = ["env", "--default-signal=CHLD"] if is_ignored else []
    return [*prefix, executable, *options, "--proc", "/proc", "--", *command()]
