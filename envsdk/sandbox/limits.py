"""What a program in the sandbox may use, and what keeps it apart."""

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Isolation: TypeAlias = Literal["auto", "bubblewrap", "namespaces", "landlock", "unsafe_no_isolation"]
"""What keeps a program apart.

- `bubblewrap`: as `namespaces`, which bubblewrap makes (`bwrap`). Some systems let no other program do so.
- `namespaces`: a file system, a network, processes and users of its own, and a list of the system calls that it may
  make. It needs Linux 5.14, and that this user may make namespaces.
- `landlock`: Landlock and a list of the system calls that it may make, as an ordinary process. It needs Linux 6.2. The
  program is one process, cannot make folders, and sees which files the machine has, though not what is in them.
- `auto`: the first of them that this machine proves to have.
- `unsafe_no_isolation`: nothing but the limits on time, memory and sizes. The program can do whatever you can.
"""


class SandboxLimits(BaseModel):
    """What a program may use. One that uses more is stopped, or told so by an error of Python's.

    Attributes:
        timeout_s: How long it may take, in seconds; then it and all that it started is stopped.
        cpu_s: Processor time of each process, in seconds.
        memory_mib: Memory (address space) of each process, so `processes` times as much for all together.
        file_mib: The size of a file.
        disk_mib: All files together. With Landlock it is looked at ten times a second, and files that have lost their
            name do not count.
        open_files: Open files of each process. The kernel keeps up to 64 KiB for a pipe and 208 KiB for a socket, which
            is not in `memory_mib`.
        processes: Processes and threads, the program's first one included. With Landlock it is one process, and its
            threads are counted ten times a second.
        output_kib: What is kept of the output, and of the errors: the beginning and the end. Sixteen times as much
            stops the program.
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
