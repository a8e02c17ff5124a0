"""The launcher's description of a run: plain data, because it is sent over a pipe to a bare interpreter."""

from typing import TypedDict

Instruction = tuple[int, int, int, int]
"""One instruction of a seccomp filter: code, jump if true, jump if false, constant."""
OWN_PID = -1
"""A placeholder for the program's process id, which is unknown until the program starts."""
OWN_FILE = -2
"""A placeholder for the number of the open file that may be executed, once."""


class Root(TypedDict):
    """The file system that a program sees in namespaces."""

    staging: str
    """An existing folder, on which the file system is built."""
    mounts: list[tuple[str, str]]
    """The readable files and folders: the path on the machine, and the path that the program sees."""
    hidden: list[str]
    """Folders that appear empty to the program."""
    folder: str
    """The writable folder."""
    disk: str
    """The mount options of the writable file system."""
    pivot_root: int
    """The number of the system call `pivot_root`, which the C library has no function for."""
    is_wrapped: bool
    """True if bubblewrap has already created the namespaces and mounted the files."""


class SandboxJob(TypedDict):
    """The description of one run."""

    control: int
    """The file descriptor that the launcher reports to."""
    parent: int
    """The id of the process that started the launcher. The launcher ends with it."""
    arguments: list[str]
    """The command of the program."""
    folder: str
    """The folder that the program runs in."""
    code: bytes
    """The content of `main.py` in that folder."""
    limits: list[tuple[str, int, int]]
    """Resource limits: the name in the `resource` module, the soft limit, the hard limit."""
    root: Root | None
    """The file system, if the program runs in namespaces."""
    rules: list[tuple[str, int]] | None
    """The Landlock rules: a path, and the rights to everything beneath it."""
    filter: list[Instruction] | None
    """The seccomp filter."""
    execveat: int | None
    """The number of the system call `execveat` if the program is executed with it, once; None for `execve`."""
