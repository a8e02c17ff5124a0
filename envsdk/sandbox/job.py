"""What the launcher is told: plain data, because it goes through a pipe to an interpreter that knows nothing else."""

from typing import TypedDict

Instruction = tuple[int, int, int, int]
"""One of a seccomp filter: code, jump if true, jump if false, constant."""
OWN_PID = -1
"""A constant that stands for the program's own process id, which nobody knows before it is there."""


class Root(TypedDict):
    """The files that a program sees in namespaces, instead of the machine's."""

    staging: str
    """Some folder that exists, where they are put together."""
    mounts: list[tuple[str, str]]
    """What can be read: the file or folder, and where the program sees it."""
    hidden: list[str]
    """Folders in there that are shown empty."""
    disk: str
    """The options of the file system that can be written."""
    pivot_root: int
    """The number of the system call, which has no function in C."""
    is_wrapped: bool
    """Whether bubblewrap has made the namespaces and shown the files already."""


class Job(TypedDict):
    """All about one program."""

    control: int
    """The file descriptor that the launcher reports to."""
    parent: int
    """The process that started the launcher, without which it ends."""
    arguments: list[str]
    """The command."""
    folder: str
    """Where it runs, ..."""
    code: bytes
    """... and what `main.py` is there."""
    limits: list[tuple[str, int, int]]
    """Names of limits of the `resource` module, and their values: soft and hard."""
    root: Root | None
    """For namespaces."""
    rules: list[tuple[str, int]] | None
    """For Landlock: paths, and the rights to what is beneath them."""
    filter: list[Instruction] | None
    """For seccomp."""
