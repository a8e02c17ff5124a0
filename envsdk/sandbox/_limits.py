"""The resource limits and the kinds of isolation of the sandbox."""

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Isolation: TypeAlias = Literal["auto", "bubblewrap", "namespaces", "landlock", "unsafe_no_isolation"]
"""How a program is isolated.

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
