"""What keeps a program apart from the machine, and the proof that it does."""

import functools
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import get_args

from ..errors import SandboxUnavailable, unknown_name
from .child import check_descriptors
from .files import OWN_FOLDER, file_rules, shown_files
from .folders import own_folder
from .interpreter import FLAGS, executable
from .job import Job, Root
from .limits import Isolation, SandboxLimits
from .process import Run
from .result import SandboxResult
from .seccomp import filter_for
from .system_calls import system_call

_MIB = 2**20
_OWN_PROCESSES = {"bubblewrap": 0, "namespaces": 2}  # the launcher's, which are counted with the program's
_MAX_FILES = 10_000
_PENDING_SIGNALS = 64

_ADVICE = (
    "Programs are isolated in Linux, by user namespaces (5.14 or newer, made by bubblewrap where it is installed; "
    "containers often forbid them) or by Landlock "
    "(6.2 or newer). isolation='unsafe_no_isolation' runs them without: only what you would run yourself"
)


def check_isolation(isolation: Isolation = "auto") -> Isolation:
    """Try out, once in this process, that a program is kept apart.

    Args:
        isolation: How.

    Returns:
        How, in place of `auto` the one that was found.

    Raises:
        SandboxUnavailable: If this machine cannot do it.
        SandboxError: If that could not be found out, as on a machine without memory.
        UnknownName: If there is no such isolation.
    """
    if isolation not in get_args(Isolation):
        raise unknown_name("isolation", isolation, get_args(Isolation))
    if isolation == "auto":
        return _best()
    if isolation != "unsafe_no_isolation":
        _prove(isolation)
    return isolation


@functools.cache
def _best() -> Isolation:
    reasons: list[str] = []
    for isolation in ("bubblewrap", "namespaces", "landlock"):
        try:
            return check_isolation(isolation)
        except SandboxUnavailable as error:
            reasons.append(str(error))
    raise SandboxUnavailable("; ".join(reasons))


def run_isolated(
    code: bytes, stdin: bytes, limits: SandboxLimits, isolation: Isolation, unwanted: threading.Event
) -> SandboxResult:
    """Run a program, and remove its folder.

    Args:
        code: The program.
        stdin: What it reads.
        limits: What it may use.
        isolation: What keeps it apart, any but `auto`.
        unwanted: Set by somebody who does not want it any more: then it is stopped.

    Raises:
        SandboxError: If it could not be run, or nobody knows how it ended.
    """
    if isolation in _OWN_PROCESSES:
        return Run(make_job(isolation, code, limits, "/tmp"), stdin, limits, isolation, unwanted).wait()
    with own_folder() as folder:
        Path(folder, "main.py").write_bytes(code)
        return Run(make_job(isolation, b"", limits, folder), stdin, limits, isolation, unwanted).wait()


def make_job(isolation: Isolation, code: bytes, limits: SandboxLimits, folder: str) -> Job:
    """All that the launcher has to know.

    Args:
        isolation: Any but `auto`.
        code: The program, if its folder is made for it.
        limits: What it may use.
        folder: Where it runs.
    """
    # a name that tells nothing of the folder's own, which is another in each run: errors show it
    file = "/proc/self/cwd/main.py" if isolation == "landlock" else "main.py"
    job: Job = {
        "control": -1,
        "parent": os.getpid(),
        "arguments": [executable(), *FLAGS, "-B", "-u", file],
        "folder": folder,
        "code": code,
        "limits": _resources(limits),
        "root": None,
        "rules": None,
        "filter": None if isolation == "unsafe_no_isolation" else filter_for(isolation),
    }
    if isolation in _OWN_PROCESSES:
        size = limits.disk_mib * _MIB + len(code) + 2**16
        job["root"] = _root(f"mode=1777,nr_inodes={_MAX_FILES},size={size}", is_wrapped=isolation == "bubblewrap")
        processes = limits.processes + _OWN_PROCESSES[isolation]
        job["limits"].append(("RLIMIT_NPROC", processes, processes))
    if isolation == "landlock":
        job["rules"] = [*file_rules(), (folder, OWN_FOLDER)]
    return job


def _resources(limits: SandboxLimits) -> list[tuple[str, int, int]]:
    values = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file_mib * _MIB,
        "RLIMIT_NOFILE": limits.open_files,
    }
    if sys.platform == "linux":
        # the memory of processes, and what the kernel shares out among all processes of a user
        values |= {"RLIMIT_AS": limits.memory_mib * _MIB, "RLIMIT_SIGPENDING": _PENDING_SIGNALS}
        values |= dict.fromkeys(("RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO"), 0)
    cpu = ("RLIMIT_CPU", limits.cpu_s, limits.cpu_s + 1)  # a second after the signal that can be caught
    return [cpu, *((name, value, value) for name, value in values.items())]


def _root(disk: str, *, is_wrapped: bool) -> Root:
    mounts, hidden = shown_files()
    return {
        "staging": os.path.realpath(tempfile.gettempdir()),
        "mounts": mounts,
        "hidden": hidden,
        "disk": disk,
        "pivot_root": system_call("pivot_root"),
        "is_wrapped": is_wrapped,
    }


_PROBE = """\
import os, socket

def attempts():
    yield lambda: open(OUTSIDE).read()
    yield lambda: open(OUTSIDE, "a").write("changed")
    yield lambda: os.chmod(OUTSIDE, 0o700)
    yield lambda: os.rename(OUTSIDE, OUTSIDE + ".moved")
    yield lambda: open(f"/proc/{PARENT}/environ", "rb").read()
    yield lambda: os.listdir("/proc")
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    yield lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    yield lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    yield lambda: os.getpid() == 2 or os.kill(PARENT, 0)  # the second process of a namespace sees no other

for number, attempt in enumerate(attempts()):
    try:
        print(number, "gives", attempt())
    except OSError:
        print(number, "is refused")
"""
_PROVED = [f"{number} is refused" for number in range(9)]


@functools.cache
def _prove(isolation: Isolation) -> None:
    """Run a program that tries to get out, and see that nothing came of it.

    Raises:
        SandboxUnavailable: If it cannot be confined, or got out.
        SandboxError: If it could not be run.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(f"{isolation}: this is {sys.platform}. {_ADVICE}")
    limits = SandboxLimits()
    if isolation == "landlock":
        try:
            check_descriptors()
        except OSError as error:
            raise SandboxUnavailable(
                f"{isolation}: a program could outlive its launcher: no pidfd_open: {error}. {_ADVICE}"
            ) from error
    with own_folder() as outside:
        secret = Path(outside, "secret")
        secret.write_text("secret")
        secret.chmod(0o666)  # so that it is the isolation that keeps others from it
        Path(outside).chmod(0o777)
        code = f"OUTSIDE, PARENT = {str(secret)!r}, {os.getpid()}\n{_PROBE}".encode()
        try:
            result = run_isolated(code, b"", limits, isolation, threading.Event())
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{isolation}: {error}. {_ADVICE}") from error
        is_untouched = [path.name for path in Path(outside).iterdir()] == ["secret"]
        is_untouched = is_untouched and secret.read_text() == "secret" and secret.stat().st_mode & 0o777 == 0o666
    last = "9 gives True" if isolation in _OWN_PROCESSES else "9 is refused"
    if result.stdout.splitlines() != [*_PROVED, last] or not is_untouched:
        raise SandboxUnavailable(
            f"{isolation}: the trial program did not run, or was not kept apart: {result.report()}. {_ADVICE}"
        )
