"""What came of a program."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .limits import Isolation, SandboxLimits

Limit: TypeAlias = Literal["time", "cpu", "memory", "file", "disk", "open_files", "processes", "output"]
"""A limit that a program reached."""

_ERRORS: dict[str, Limit] = {
    r"MemoryError\b": "memory",
    r"OSError: \[Errno 12\]": "memory",
    r"OSError: \[Errno 27\]": "file",
    r"OSError: \[Errno 28\]": "disk",
    r"OSError: \[Errno 24\]": "open_files",
    r"BlockingIOError: \[Errno 11\]": "processes",
    r"RuntimeError: can't start new thread": "processes",
}
"""The limits that Python itself tells a program of, by how its last words begin if that ended it."""
_LOST = "lost sys.stderr"
"""Python's last words where it had no memory left to print an error. Two lines before them is the error's type."""
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
    """What came of a program. Whatever it did, and however it ended, there is one."""

    stdout: str
    """What it wrote; bytes that are no UTF-8 are replaced by U+FFFD."""
    stderr: str
    """What it wrote there, which is also where Python says what is wrong."""
    exit_status: int | None
    """0 if all went well; minus the number of a signal that ended it; None if it was stopped from outside."""
    limit: Limit | None
    """The limit that ended it. Those that Python tells the program of (memory, files, processes) are known by the
    error that it ended with."""
    stdout_cut: bool
    """Whether the middle of the output is left out."""
    stderr_cut: bool
    seconds: float
    """How long it ran."""
    limits: SandboxLimits
    """What it was allowed to use."""
    isolation: Isolation
    """What kept it apart: any but `auto`."""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end, without an error."""
        return self.exit_status == 0 and self.limit is None

    @property
    def timed_out(self) -> bool:
        """Whether it was stopped because it took too long."""
        return self.limit == "time"

    def report(self) -> str:
        """All of it as a text, such as a model is told."""
        parts = [self.stdout, f"[errors]\n{self.stderr}" if self.stderr else "", self._end()]
        return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"

    def _end(self) -> str:
        if self.limit is not None:
            stopped = "stopped" if self.exit_status is None else "ended"
            return f"[the program was {stopped} by a limit: {_WORDS[self.limit].format(**self.limits.model_dump())}]"
        if self.exit_status is not None and self.exit_status < 0:
            return f"[the program was ended by signal {-self.exit_status}]"
        return "" if self.exit_status == 0 else f"[exit status {self.exit_status}]"


def limit_in(stderr: str) -> Limit | None:
    """The limit that Python names in the error that ended a program, if it is one.

    That is in the last line. Where too many processes were started, those that there are write at the same time, so
    that any of their lines may be the last.
    """
    *_, dumped, _, last = ["", "", *stderr.rstrip().rsplit("\n", 3)]
    if last == _LOST:
        last = dumped.removeprefix("object type name: ")
    for words, limit in _ERRORS.items():
        if re.match(words, last) or (limit == "processes" and re.search(words, stderr)):
            return limit
    return None
