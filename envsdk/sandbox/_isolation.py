"""Running a program in the sandbox: its isolation from the machine, and the trial run that proves it."""

import asyncio
import functools
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import get_args

from ..errors import SandboxUnavailable, UnknownName
from ._folders import own_folder
from ._interpreter import FLAGS, OWN_FOLDER, executable, file_rules, shown_files
from ._job import SandboxJob
from ._process import Run
from ._result import DEFAULT_LIMITS, Isolation, SandboxLimits, SandboxResult
from ._seccomp import filter_for
from ._system_calls import system_call

_MIB = 2**20
_OWN_PROCESSES = {"bubblewrap": 0, "namespaces": 2}  # the launcher's own, which count toward the limit
_MAX_FILES = 10_000
_PENDING_SIGNALS = 64

_ADVICE = (
    "The sandbox needs Linux with user namespaces (5.14 or newer, created by bubblewrap where it is installed; "
    "containers often forbid them) or with Landlock (6.2 or newer). isolation='unsafe_no_isolation' runs programs "
    "without isolation: use it only for code that you would run yourself"
)


@functools.cache
def check_isolation(isolation: Isolation = "auto") -> Isolation:
    """Check that an isolation works on this machine, by a trial run. The result is cached for this process.

    Args:
        isolation: The name of the isolation.

    Returns:
        The same name; for `auto`, the first isolation that works.

    Raises:
        SandboxUnavailable: If the isolation does not work on this machine.
        SandboxError: If the trial could not run, for instance because the machine is out of memory.
        UnknownName: If no isolation has that name.
    """
    if isolation not in get_args(Isolation):
        raise UnknownName.of("isolation", isolation, get_args(Isolation))
    if isolation == "auto":
        reasons: list[str] = []
        for each in ("bubblewrap", "namespaces", "landlock"):
            try:
                return check_isolation(each)
            except SandboxUnavailable as error:
                reasons.append(str(error))
        raise SandboxUnavailable("; ".join(reasons))
    if isolation != "unsafe_no_isolation":
        _prove(isolation)
    return isolation


def run_isolated(
    code: bytes, stdin: bytes, limits: SandboxLimits, isolation: Isolation, cancelled: threading.Event
) -> SandboxResult:
    """Run a program, and remove its folder.

    Args:
        code: The source code of the program, UTF-8.
        stdin: The program's standard input.
        limits: The resource limits.
        isolation: The name of the isolation, except `auto`.
        cancelled: The program is stopped when the caller sets this event.

    Raises:
        SandboxError: If the program could not be run, or its exit status is unknown.
    """
    if isolation in _OWN_PROCESSES:
        # Not in /tmp if the interpreter is in that folder of the machine.
        is_taken = any(Path(target).is_relative_to("/tmp") for _, target in shown_files()[0])
        job = make_job(isolation, code, limits, "/work" if is_taken else "/tmp")
        return Run(job, stdin, limits, isolation, cancelled).wait()
    with own_folder() as folder:
        Path(folder, "main.py").write_bytes(code)
        return Run(make_job(isolation, b"", limits, folder), stdin, limits, isolation, cancelled).wait()


def make_job(isolation: Isolation, code: bytes, limits: SandboxLimits, folder: str) -> SandboxJob:
    """Return the launcher's description of a run.

    Args:
        isolation: The name of the isolation, except `auto`.
        code: The source code of the program; empty if the folder contains it already.
        limits: The resource limits.
        folder: The folder that the program runs in.
    """
    # Tracebacks show this name, so it must not contain the name of the folder, which differs in each run.
    file = "/proc/self/cwd/main.py" if isolation == "landlock" else "main.py"
    values = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.file_mib * _MIB, "RLIMIT_NOFILE": limits.open_files}
    if sys.platform == "linux":
        # the memory of each process, and resources that the kernel counts for all processes of a user
        values |= {"RLIMIT_AS": limits.memory_mib * _MIB, "RLIMIT_SIGPENDING": _PENDING_SIGNALS}
        values |= dict.fromkeys(("RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO"), 0)
    cpu = ("RLIMIT_CPU", limits.cpu_s, limits.cpu_s + 1)  # SIGXCPU, then SIGKILL
    job: SandboxJob = {
        "control": -1,
        "parent": os.getpid(),
        "arguments": [executable(), *FLAGS, "-B", "-u", file],
        "folder": folder,
        "code": code,
        "limits": [cpu, *((name, value, value) for name, value in values.items())],
        "root": None,
        "rules": None,
        "filter": None if isolation == "unsafe_no_isolation" else filter_for(isolation),
        "execveat": system_call("execveat") if isolation == "landlock" else None,
    }
    if isolation in _OWN_PROCESSES:
        size = limits.disk_mib * _MIB + len(code) + 2**16
        mounts, hidden = shown_files()
        job["root"] = {
            "staging": os.path.realpath(tempfile.gettempdir()),
            "mounts": mounts,
            "hidden": hidden,
            "folder": folder,
            "disk": f"mode=1777,nr_inodes={_MAX_FILES},size={size}",
            "pivot_root": system_call("pivot_root"),
            "is_wrapped": isolation == "bubblewrap",
        }
        processes = limits.processes + _OWN_PROCESSES[isolation]
        job["limits"].append(("RLIMIT_NPROC", processes, processes))
    if isolation == "landlock":
        job["rules"] = [*file_rules(), (folder, OWN_FOLDER)]
    return job


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


def _prove(isolation: Isolation) -> None:
    """Run a program that tries to leave the sandbox, and check that each attempt failed.

    Raises:
        SandboxUnavailable: If the program cannot be confined, or an attempt succeeded.
        SandboxError: If the program could not be run.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(f"{isolation}: the platform is {sys.platform}; expected linux. {_ADVICE}")
    limits = SandboxLimits()
    if isolation == "landlock":
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            raise SandboxUnavailable(
                f"{isolation}: a program could outlive its launcher, because pidfd_open failed: {error}. {_ADVICE}"
            ) from error
    with own_folder() as outside:
        secret = Path(outside, "secret")
        secret.write_text("secret")
        secret.chmod(0o666)  # so that only the isolation protects it
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
            f"{isolation}: the trial program did not run, or was not isolated: {result.report()}. {_ADVICE}"
        )


def run_python(
    code: str, *, stdin: str = "", limits: SandboxLimits = DEFAULT_LIMITS, isolation: Isolation = "auto"
) -> SandboxResult:
    """Run an untrusted program, and wait for its end. It may be called from several threads at the same time.

    The program runs in a bare copy of this interpreter (`python -I -S`). It has the standard library, but no packages,
    environment variables or network. It starts in an empty folder, which is removed afterwards.

    Args:
        code: The source code of the program.
        stdin: The program's standard input.
        limits: The resource limits.
        isolation: How the program is isolated; see `Isolation`.

    Returns:
        The output and the exit status. A program that fails or exceeds a limit has a result, too.

    Raises:
        SandboxUnavailable: If this machine cannot isolate programs.
        SandboxError: If the program could not be run, or its exit status is unknown. This does not depend on the
            program.
        UnknownName: If no isolation has that name.
    """
    return _run(code, stdin, limits, isolation, threading.Event())


async def arun_python(
    code: str, *, stdin: str = "", limits: SandboxLimits = DEFAULT_LIMITS, isolation: Isolation = "auto"
) -> SandboxResult:
    """Run an untrusted program without blocking the event loop; see `run_python`. Cancellation stops the program."""
    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(_run, code, stdin, limits, isolation, cancelled)
    finally:
        cancelled.set()


def _run(
    code: str, stdin: str, limits: SandboxLimits, isolation: Isolation, cancelled: threading.Event
) -> SandboxResult:
    found = check_isolation(isolation)
    # A surrogate becomes invalid UTF-8, which the interpreter rejects.
    source, data = (text.encode(errors="surrogatepass") for text in (code, stdin))
    return run_isolated(source, data, limits, found, cancelled)
