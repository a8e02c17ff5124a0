"""The limits of a program, and its result."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Isolation: TypeAlias = Literal["auto", "bubblewrap", "namespaces", "landlock", "unsafe_no_isolation"]
"""The isolation of a program.

- `bubblewrap`: like `namespaces`, but bubblewrap (`bwrap`) creates the namespaces. Some systems allow no other program
  to create them.
- `namespaces`: separate namespaces for files, network, processes and users, and a list of allowed system calls. It
  needs Linux 5.14 and the permission to create namespaces.
- `landlock`: Landlock rules and a list of allowed system calls, for an ordinary process. It needs Linux 6.2. The
  program is a single process, cannot execute another one, and cannot create folders. It sees the names of the machine's
  files, not their contents.
- `auto`: the first of these that works on this machine.
- `unsafe_no_isolation`: only the limits on time, memory and sizes. The program can do everything that you can do.
"""


class SandboxLimits(BaseModel):
    """The resource limits of a program. A program that exceeds one is stopped, or gets an error from Python.

    Attributes:
        timeout_s: The wall-clock time limit, in seconds. After it, the program and its processes are stopped.
        cpu_s: The CPU time of each process, in seconds.
        memory_mib: The memory (address space) of each process, in MiB. All processes together may use `processes`
            times as much.
        file_mib: The maximum size of a file, in MiB.
        disk_mib: The maximum size of all files together, in MiB. With Landlock it is checked ten times a second, and
            deleted files that are still open do not count.
        open_files: The maximum number of open files of each process. The kernel uses up to 64 KiB for a pipe and
            208 KiB for a socket, which does not count toward `memory_mib`.
        processes: The maximum number of processes and threads, including the main one. With Landlock, the program is a
            single process, and its threads are counted ten times a second.
        output_kib: The size, in KiB, to which standard output and standard error are each cut, by leaving out the
            middle. A program that writes sixteen times as much is stopped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    cpu_s: int = Field(default=10, ge=1, le=10**6)
    memory_mib: int = Field(default=512, ge=64, le=2**30)
    file_mib: int = Field(default=16, ge=1, le=2**30)
    disk_mib: int = Field(default=64, ge=1, le=2**30)
    open_files: int = Field(default=64, ge=16, le=4096)
    processes: int = Field(default=16, ge=1, le=4096)
    output_kib: int = Field(default=64, ge=1, le=2**20)


DEFAULT_LIMITS = SandboxLimits()

Limit: TypeAlias = Literal["time", "cpu", "memory", "file", "disk", "open_files", "processes", "output"]
"""The name of a limit that a program exceeded."""

_ERRORS: dict[str, Limit] = {
    r"MemoryError\b": "memory",
    r"OSError: \[Errno 12\]": "memory",
    r"OSError: \[Errno 27\]": "file",
    r"OSError: \[Errno 28\]": "disk",
    r"OSError: \[Errno 24\]": "open_files",
    r"BlockingIOError: \[Errno 11\]": "processes",
    r"RuntimeError: can't start new thread": "processes",
}
"""Limits that end a program with a Python error, by a pattern for the start of the last line of the traceback."""
_LOST = "lost sys.stderr"
"""The last line if Python had no memory left to print the error. The error's type is two lines before it."""
_WORDS: dict[Limit, str] = {
    "time": "it ran longer than {timeout_s:g} s",
    "cpu": "it used more than {cpu_s} s of processor time",
    "memory": "it needs more than {memory_mib} MiB of memory",
    "file": "it wrote a file larger than {file_mib} MiB",
    "disk": "it wrote more than {disk_mib} MiB of files",
    "open_files": "it opened more than {open_files} files",
    "processes": "it may not start so many processes and threads",
    "output": "it wrote much more than {output_kib} KiB of output",
}


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The result of a program, including one that failed or exceeded a limit."""

    stdout: str
    """The standard output. Invalid UTF-8 is replaced by U+FFFD."""
    stderr: str
    """The standard error, including Python's traceback."""
    exit_status: int | None
    """0 for success; minus the signal number if a signal ended the program; None if the sandbox stopped it."""
    limit: Limit | None
    """The limit that ended the program (`"time"`, `"cpu"`, `"memory"`, `"file"`, `"disk"`, `"open_files"`,
    `"processes"` or `"output"`), or None. The limits on memory, files and processes are recognized by the error that
    the program ended with."""
    stdout_cut: bool
    """True if the middle of `stdout` is left out."""
    stderr_cut: bool
    """True if the middle of `stderr` is left out."""
    seconds: float
    """The wall-clock time of the run, in seconds."""
    limits: SandboxLimits
    """The resource limits of the run."""
    isolation: Isolation
    """The isolation of the program: any name except `auto`."""

    @property
    def ok(self) -> bool:
        """True if the program ended without an error."""
        return self.exit_status == 0 and self.limit is None

    @property
    def timed_out(self) -> bool:
        """True if the program was stopped by the time limit."""
        return self.limit == "time"

    def report(self) -> str:
        """Return the output, errors and end as one string, such as for a tool result."""
        if self.limit is not None:
            stopped = "stopped" if self.exit_status is None else "ended"
            end = f"[the program was {stopped} by a limit: {_WORDS[self.limit].format(**self.limits.model_dump())}]"
        elif self.exit_status is not None and self.exit_status < 0:
            end = f"[the program was ended by signal {-self.exit_status}]"
        else:
            end = "" if self.exit_status == 0 else f"[exit status {self.exit_status}]"
        return reported(self.stdout, self.stderr, end)


def reported(stdout: str, stderr: str, end: str) -> str:
    """Return the output, errors and end of a program as one string, such as for a tool result."""
    parts = [stdout, f"[errors]\n{stderr}" if stderr else "", end]
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


def limit_in(stderr: str) -> Limit | None:
    """Return the limit that caused the Python error that ended a program; None if the error has another cause.

    The error is in the last line of `stderr`. If a program started too many processes, several of them write at the
    same time, so the error may be in any line.
    """
    *_, dumped, _, last = ["", "", *stderr.rstrip().rsplit("\n", 3)]
    if last == _LOST:
        last = dumped.removeprefix("object type name: ")
    for words, limit in _ERRORS.items():
        if re.match(words, last) or (limit == "processes" and re.search(words, stderr)):
            return limit
    return None
