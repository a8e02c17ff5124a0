"""The system calls that a program may not make, as a seccomp filter.

A filter is a program of the classic Berkeley packet filter that the kernel runs before each system call; see
`Documentation/userspace-api/seccomp_filter.rst` of Linux, and `linux/filter.h`.
"""

import errno
import platform
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import SandboxUnavailable
from .job import OWN_PID, Instruction
from .limits import Isolation

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_GREATER = 0x15, 0x25
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data; little-endian
_WHOLE = 0xFFFFFFFF

_LAST_KNOWN = 450
"""The last system call that somebody has looked at; whatever came after it is answered as by an older kernel."""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the table, and the kernel's own name of the machine."""

# Numbers on x86_64 and on aarch64, from the headers of Linux.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fallocate": (285, 47),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "get_robust_list": (274, 100),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "listen": (50, 201),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
}

_NETWORK = "socket connect bind listen accept accept4 io_uring_setup io_uring_enter io_uring_register"
_OTHER_PROCESSES = "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd"
_MEMORY_BESIDES = "memfd_create memfd_secret fallocate"  # which no limit counts
_SHARED = "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open mq_unlink"
_NAMESPACES = (
    "unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr"
)
_KERNEL = (
    "bpf perf_event_open userfaultfd keyctl add_key request_key kexec_load kexec_file_load init_module finit_module "
    "delete_module reboot swapon swapoff acct quotactl quotactl_fd syslog settimeofday clock_settime adjtimex "
    "clock_adjtime sethostname setdomainname iopl ioperm modify_ldt name_to_handle_at open_by_handle_at fanotify_init "
    "lookup_dcookie vhangup migrate_pages move_pages"
)
_NEVER = f"{_NETWORK} {_OTHER_PROCESSES} {_MEMORY_BESIDES} {_SHARED} {_NAMESPACES} {_KERNEL}"

# What Landlock leaves open, to a program that shares users, processes and files with others.
_ATTRIBUTES = (
    "chmod fchmod fchmodat chown fchown lchown fchownat utime utimes utimensat futimesat setxattr lsetxattr fsetxattr "
    "removexattr lremovexattr fremovexattr inotify_init inotify_init1 inotify_add_watch"
)
_SIGNALS = "tkill pidfd_open pidfd_send_signal"
_SCHEDULING = "setpriority sched_setaffinity sched_setparam sched_setscheduler sched_setattr ioprio_set get_robust_list"

_NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW* flags of clone
_THREAD = 0x00010000  # CLONE_THREAD
_UNIX, _STREAM = 1, 1  # a pair of any other kind could write to the sockets of others
_OWNERS = (8, 10, 15, 1024)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE
_SOCKET_OWNERS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP


class _Condition(NamedTuple):
    """An argument, as far as the mask lets see it, has one of the values; or has none of them."""

    argument: int
    values: tuple[int, ...]
    mask: int = _WHOLE
    has_none: bool = False


class _Rule(NamedTuple):
    """A system call fails, unless all conditions hold, and there is one."""

    name: str
    error: int = errno.EPERM
    conditions: tuple[_Condition, ...] = ()


def system_call(name: str) -> int:
    """The number of a system call on this machine.

    Raises:
        SandboxUnavailable: If this is another machine, or it has no such call.
    """
    number = _NUMBERS[name][_machine()[0]]
    if number is None:
        raise SandboxUnavailable(f"{platform.machine()} has no system call {name!r}")
    return number


def filter_for(isolation: Isolation) -> list[Instruction]:
    """The filter of a program in namespaces of its own (`namespaces`), or under Landlock (`landlock`).

    Raises:
        SandboxUnavailable: If the numbers of system calls on this machine are not known.
    """
    column, machine = _machine()
    rules = _rules_in_namespaces() if isolation == "namespaces" else _rules_under_landlock()
    program = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_IF_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_GREATER, 0, 1, _LAST_KNOWN),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for rule in rules:
        number = _NUMBERS[rule.name][column]
        if number is not None:
            body = _body(rule)
            program += [(_IF_EQUAL, 0, len(body), number), *body]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _machine() -> tuple[int, int]:
    found = _MACHINES.get(platform.machine())
    if found is None:
        raise SandboxUnavailable(f"system calls are known for {' and '.join(_MACHINES)}, not {platform.machine()}")
    return found


def _rules_in_namespaces() -> list[_Rule]:
    return [*_in_any_case(), _Rule("clone", conditions=(_Condition(0, (0,), _NEW_NAMESPACES),))]


def _rules_under_landlock() -> list[_Rule]:
    """No process but its own, and nothing said to others."""
    myself = (_Condition(0, (OWN_PID,)),)
    is_thread = (_Condition(0, (_THREAD,), _NEW_NAMESPACES | _THREAD),)
    return [
        *_in_any_case(),
        *_denied(f"{_ATTRIBUTES} {_SIGNALS} {_SCHEDULING}"),
        *_denied("fork vfork", errno.EAGAIN),
        _Rule("clone", errno.EAGAIN, is_thread),
        *(_Rule(name, conditions=myself) for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")),
        _Rule("prlimit64", conditions=(_Condition(0, (0, OWN_PID)),)),
        _Rule("fcntl", conditions=(_Condition(1, _OWNERS, has_none=True),)),
        _Rule("ioctl", conditions=(_Condition(1, _SOCKET_OWNERS, has_none=True),)),
    ]


def _in_any_case() -> list[_Rule]:
    pair_of_streams = (_Condition(0, (_UNIX,)), _Condition(1, (_STREAM,), mask=0xF))
    return [
        *_denied(_NEVER),
        _Rule("socketpair", conditions=pair_of_streams),
        _Rule("clone3", errno.ENOSYS),  # its flags cannot be seen; the C library then uses clone
    ]


def _denied(names: str, error: int = errno.EPERM) -> Iterable[_Rule]:
    return (_Rule(name, error) for name in names.split())


def _body(rule: _Rule) -> list[Instruction]:
    """What is done for the rule's system call: it ends with a verdict."""
    refuse = (_RETURN, 0, 0, _ERROR | rule.error)
    if not rule.conditions:
        return [refuse]
    body: list[Instruction] = []
    for condition in rule.conditions:
        body += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * condition.argument), (_AND, 0, 0, condition.mask)]
        last = len(condition.values) - 1
        for index, value in enumerate(condition.values):
            then, otherwise = (last - index, int(index == last)) if condition.has_none else (last - index + 1, 0)
            body.append((_IF_EQUAL, then, otherwise, value))
        body.append(refuse)
    return [*body, (_RETURN, 0, 0, _ALLOW)]
