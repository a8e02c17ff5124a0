"""The system calls that a program may make, as a seccomp filter. All other calls fail.

A filter is a program of the classic Berkeley packet filter that the kernel runs before each system call; see
`Documentation/userspace-api/seccomp_filter.rst` of Linux, and `linux/filter.h`.

The lists below contain what CPython and its standard library need. A call that is not listed fails with ENOSYS, as on a
kernel without this call, so that libraries fall back to older calls (`clone3` to `clone`). Well-known calls that are
refused on purpose fail with EPERM, which Python reports as PermissionError.
"""

import errno
from collections.abc import Iterable
from typing import NamedTuple

from ._job import OWN_FILE, OWN_PID, Instruction
from ._result import Isolation
from ._system_calls import NUMBERS, machine

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL = 0x15
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data; little-endian
_WHOLE = 0xFFFFFFFF

# Allowed for all programs. These calls affect only the program itself and the files that it can see.
_OPEN_FILES = "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile"
_DESCRIPTORS = "close close_range dup dup2 dup3 pipe pipe2"
_PATHS = (
    "open openat creat access faccessat faccessat2 stat lstat fstat newfstatat statx statfs fstatfs readlink "
    "readlinkat getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link "
    "linkat symlink symlinkat truncate ftruncate fsync fdatasync fadvise64 umask getxattr lgetxattr fgetxattr "
    "listxattr llistxattr flistxattr"
)
_MEMORY = "brk munmap mremap mprotect msync"
_WAITING = "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2"
_PAIRS = "getsockopt getsockname getpeername sendto recvfrom recvmsg shutdown"  # of sockets: see filter_for
_THREADS = "futex set_robust_list set_tid_address rseq sched_yield sched_getaffinity restart_syscall"
_ITSELF = "wait4 waitid exit exit_group"
_SIGNALS = (
    "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack alarm setitimer "
    "getitimer pause"
)
_TIME = "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage"
_IDENTITY = (
    "getpid getppid gettid getpgid getpgrp getsid getuid geteuid getgid getegid getresuid getresgid getgroups "
    "getpriority capget"
)
_KERNEL = "getrandom uname sysinfo"
_ALLOWED = (
    f"{_OPEN_FILES} {_DESCRIPTORS} {_PATHS} {_MEMORY} {_WAITING} {_PAIRS} {_THREADS} {_ITSELF} {_SIGNALS} {_TIME} "
    f"{_IDENTITY} {_KERNEL}"
)

# Allowed in namespaces, where processes and files belong to the program only. Landlock does not restrict these calls.
_PROCESSES = "execve fork vfork setsid setpgid kill tkill tgkill"
_ATTRIBUTES = "chmod fchmod fchmodat chown fchown lchown fchownat utimensat"

# Refused with EPERM: calls that ordinary programs may try.
_REFUSED = (
    "socket connect bind listen accept accept4 sendmsg setsockopt mknod mknodat setxattr lsetxattr fsetxattr "
    "removexattr lremovexattr fremovexattr setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid "
    "setfsgid flock capset setpriority sched_setaffinity sched_setparam sched_setscheduler ioprio_set memfd_create "
    "fallocate sync syncfs splice clock_settime settimeofday sethostname chroot unshare setns mount umount2 pivot_root "
    "ptrace"
)

# Constants of Linux: linux/sched.h, linux/fcntl.h, asm/ioctls.h, linux/prctl.h, asm/prctl.h, linux/mman.h.
_THREAD = 0x003D0F00
"""The flags of `clone` that C libraries use for a thread, which shares memory, files, signals and the process."""
_DETACHED = 0x00400000  # some C libraries set it; the kernel ignores it
_PROCESS = 0x013041FF
"""The flags of `clone` that `fork`, `vfork` and `posix_spawn` use: a signal, VM, VFORK, and addresses for the id."""
_UNIX, _STREAM = 1, 1  # other kinds of pairs could write to other processes' sockets
_FILE_COMMANDS = (0, 1, 2, 3, 4, 6, 7, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. None of them sends
signals, enlarges a pipe, or reveals who else has locked a file that all programs read (F_GETLK; `flock` is refused)."""
_DEVICE_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PROCESS_OPTIONS = (2, 3, 4, 15, 16, 23, 39)
"""PR_{GET_PDEATHSIG, GET_DUMPABLE, SET_DUMPABLE, SET_NAME, GET_NAME, CAPBSET_READ, GET_NO_NEW_PRIVS}."""
_REGISTERS = (0x1001, 0x1002, 0x1003, 0x1004)
"""ARCH_SET_GS, ARCH_SET_FS, ARCH_GET_FS, ARCH_GET_GS."""
_HUGE_PAGES = 0x40000  # MAP_HUGETLB: takes memory from a pool of the whole machine
_ADVICE = (0, 1, 2, 3, 4, 8, 14, 15)
"""NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE."""


class _Condition(NamedTuple):
    """A condition: the masked argument has one of the values."""

    argument: int
    values: tuple[int, ...]
    mask: int = _WHOLE


class _Rule(NamedTuple):
    """A system call, allowed if all conditions hold, else refused with `error`. Without conditions, `error` decides."""

    name: str
    error: int = 0
    conditions: tuple[_Condition, ...] = ()


def filter_for(isolation: Isolation) -> list[Instruction]:
    """Return the filter of a program in namespaces, or, for `landlock`, of an ordinary process.

    Raises:
        SandboxUnavailable: If the system call numbers of this machine are unknown.
    """
    column, name = machine()
    program = [(_LOAD, 0, 0, _MACHINE_AT), (_IF_EQUAL, 1, 0, name), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    rules = [
        *_rules(_ALLOWED),
        *_rules(_REFUSED, errno.EPERM),
        _Rule("socketpair", errno.EPERM, (_Condition(0, (_UNIX,)), _Condition(1, (_STREAM,), mask=0xF))),
        _Rule("fcntl", errno.EPERM, (_Condition(1, _FILE_COMMANDS),)),
        _Rule("ioctl", errno.EPERM, (_Condition(1, _DEVICE_COMMANDS),)),
        _Rule("prctl", errno.EPERM, (_Condition(0, _PROCESS_OPTIONS),)),
        _Rule("arch_prctl", errno.EPERM, (_Condition(0, _REGISTERS),)),
        _Rule("mmap", errno.ENOMEM, (_Condition(3, (0,), mask=_HUGE_PAGES),)),
        _Rule("madvise", errno.EINVAL, (_Condition(2, _ADVICE),)),
    ]
    if isolation == "landlock":  # no second process, no other program in this one, no signals to other processes
        rules += [
            _Rule("execve", errno.EPERM),
            _Rule("execveat", errno.EPERM, (_Condition(0, (OWN_FILE,)),)),
            *_rules(_ATTRIBUTES, errno.EPERM),
            *_rules("setsid setpgid tkill", errno.EPERM),
            *_rules("fork vfork", errno.EAGAIN),
            _Rule("clone", errno.EAGAIN, (_Condition(0, (_THREAD,), mask=_WHOLE & ~_DETACHED),)),
            *(_Rule(name, errno.EPERM, (_Condition(0, (OWN_PID,)),)) for name in ("kill", "tgkill")),
            _Rule("prlimit64", errno.EPERM, (_Condition(0, (0, OWN_PID)),)),
        ]
    else:
        not_a_flag = _WHOLE & ~(_THREAD | _DETACHED | _PROCESS)
        rules += [
            *_rules(f"{_PROCESSES} {_ATTRIBUTES}"),
            _Rule("clone", errno.EPERM, (_Condition(0, (0,), mask=not_a_flag),)),
            _Rule("prlimit64", errno.EPERM, (_Condition(0, (0,)),)),  # not of process 1, which reports the exit status
        ]
    for rule in rules:
        number = NUMBERS[rule.name][column]
        if number is not None:
            body = _body(rule)
            program += [(_IF_EQUAL, 0, len(body), number), *body]
    return [*program, (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]


def _rules(names: str, error: int = 0) -> Iterable[_Rule]:
    return (_Rule(name, error) for name in names.split())


def _body(rule: _Rule) -> list[Instruction]:
    """Return the instructions for the rule's system call. They end with a verdict."""
    refuse = (_RETURN, 0, 0, _ERROR | rule.error)
    if not rule.conditions:
        return [refuse if rule.error else (_RETURN, 0, 0, _ALLOW)]
    body: list[Instruction] = []
    for condition in rule.conditions:
        body += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * condition.argument), (_AND, 0, 0, condition.mask)]
        left = range(len(condition.values), 0, -1)
        body += [(_IF_EQUAL, skipped, 0, value) for skipped, value in zip(left, condition.values, strict=True)]
        body.append(refuse)
    return [*body, (_RETURN, 0, 0, _ALLOW)]
