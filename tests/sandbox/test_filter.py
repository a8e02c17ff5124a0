"""The filter of system calls, read as the kernel reads it."""

import errno
import platform
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.sandbox import _seccomp as seccomp
from envsdk.sandbox._job import OWN_PID, Instruction
from envsdk.sandbox._system_calls import NUMBERS, machine, system_call

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
pytestmark = pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
MYSELF = 4242


class Call(NamedTuple):
    number: int
    arguments: tuple[int, ...] = (0,) * 6
    machine: int = MACHINES.get(platform.machine(), 0)

    def word(self, offset: int) -> int:
        """A word of `struct seccomp_data`: number, machine, instruction pointer, six arguments of eight bytes."""
        words = [self.number, self.machine, 0, 0]
        words += [part for argument in self.arguments for part in (argument % 2**32, argument // 2**32)]
        return words[offset // 4]


def verdict(program: list[Instruction], call: Call) -> int:
    position = value = 0
    while True:
        code, then, otherwise, constant = program[position]
        constant = MYSELF if constant == OWN_PID else constant
        position += 1
        match code:
            case 0x20:
                value = call.word(constant)
            case 0x54:
                value &= constant
            case 0x15:
                position += then if value == constant else otherwise
            case 0x25:
                position += then if value > constant else otherwise
            case 0x06:
                return constant


def refusal(isolation: str, name: str, *arguments: int) -> int:
    """The error that a call is refused with, or 0."""
    call = Call(system_call(name), (*arguments, *(0,) * (6 - len(arguments))))
    answer = verdict(seccomp.filter_for(isolation), call)
    return 0 if answer == ALLOWED else answer - 0x50000


ISOLATIONS = ["bubblewrap", "namespaces", "landlock"]
REFUSALS = {errno.EPERM, errno.EAGAIN, errno.ENOSYS, errno.ENOMEM, errno.EINVAL}
WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, MYSELF, 0x10000, 0x10000000, 8, 10, 0x8901])
HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+) (\d+)"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+) (\d+)"),
}


def numbers_in_headers(name: str) -> dict[str, int]:
    """The numbers of a machine's system calls, from the headers of Linux."""
    header, pattern = HEADERS[name]
    if not header.exists():
        pytest.skip(f"the headers of Linux are not installed: there is no {header}")
    numbers = {called: int(number) for called, number in re.findall(pattern, header.read_text())}
    if name == "aarch64":  # what a 64-bit machine calls these is decided at the end of the header
        numbers["newfstatat"] = numbers["fstatat"]
    return numbers


@given(
    isolation=st.sampled_from(ISOLATIONS),
    number=st.integers(0, 520) | st.integers(0, 2**32 - 1),
    arguments=st.tuples(*[WORDS] * 6),
)
def test_every_call_has_a_verdict_that_the_kernel_knows(isolation: str, number: int, arguments: tuple[int, ...]):
    program = seccomp.filter_for(isolation)
    answer = verdict(program, Call(number, arguments))
    assert answer == ALLOWED or answer - 0x50000 in REFUSALS
    assert verdict(program, Call(number, arguments, machine=0x40000003)) == KILLED


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_call_that_is_not_listed_is_answered_as_by_a_kernel_without_it(isolation: str):
    listed = {row[machine()[0]] for row in NUMBERS.values()}
    unlisted = [number for number in (*range(1200), 2**30, 2**30 + 1, 2**31, 2**32 - 1) if number not in listed]
    program = seccomp.filter_for(isolation)
    assert {verdict(program, Call(number)) - 0x50000 for number in unlisted} == {errno.ENOSYS}


DANGEROUS = {
    "memory that no limit counts": "memfd_create memfd_secret remap_file_pages mlock mlock2 mlockall vmsplice tee",
    "what all users share": "io_setup io_submit inotify_init inotify_init1 fanotify_init timer_create",
    "signals by the thousand": "rt_sigqueueinfo rt_tgsigqueueinfo mq_notify timerfd_create signalfd4 eventfd2",
    "messages and keys": "shmget shmat msgget msgsnd semget semop mq_open add_key request_key keyctl",
    "other processes": "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_open pidfd_getfd "
    "pidfd_send_signal migrate_pages move_pages get_robust_list",
    "the network": "socket connect bind listen accept accept4 sendmsg sendmmsg recvmmsg setsockopt io_uring_setup",
    "the kernel": "bpf perf_event_open userfaultfd personality modify_ldt iopl ioperm kexec_load init_module reboot "
    "syslog quotactl swapon acct landlock_create_ruleset seccomp",
    "namespaces and mounts": "unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen clone3",
    "the clock and the schedule": "settimeofday clock_settime adjtimex clock_adjtime sched_setattr sched_setscheduler "
    "ioprio_set setpriority",
    "all file systems": "sync syncfs open_by_handle_at name_to_handle_at setxattr fallocate mknodat",
    "other users": "setuid setgid setresuid setresgid setgroups capset",
}


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("what", DANGEROUS)
def test_a_dangerous_call_is_refused(isolation: str, what: str):
    program, numbers = seccomp.filter_for(isolation), numbers_in_headers(platform.machine())
    called = [numbers[name] for name in DANGEROUS[what].split() if name in numbers]
    assert {verdict(program, Call(number)) - 0x50000 for number in called} <= {errno.EPERM, errno.ENOSYS}


ARGUMENTS = [
    ("fcntl", (0, 1), (0, 4, 0x800), (0, 6), (0, 1030)),
    ("ioctl", (0, 0x5401), (0, 0x541B)),
    ("prctl", (4, 0), (15,), (16,)),
    ("mmap", (0, 4096, 3, 0x22), (0, 4096, 1, 0x802)),
    ("madvise", (0, 4096, 4), (0, 4096, 14)),
    ("prlimit64", (0, 7)),
]
REFUSED_ARGUMENTS = [
    ("fcntl", errno.EPERM, (0, 8), (0, 10), (0, 15), (0, 37), (0, 1024), (0, 1026), (0, 1031), (0, 1033)),
    ("ioctl", errno.EPERM, (0, 0x5412), (0, 0x5452), (0, 0x8901), (0, 0x8902), (0, 0x40049409), (0, 0x5203)),
    ("prctl", errno.EPERM, (1, 0), (22, 2), (24, 0), (36, 1), (59, 1), (0x59616D61, 1)),
    ("mmap", errno.ENOMEM, (0, 2**21, 3, 0x40022), (0, 2**30, 3, 30 << 26 | 0x40022)),
    ("madvise", errno.EINVAL, (0, 4096, 9), (0, 4096, 12), (0, 4096, 100)),
    ("prlimit64", errno.EPERM, (1, 7), (MYSELF + 1, 7), (2**32 - 1, 7)),
]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_arguments_decide_where_a_call_has_good_and_bad_uses(isolation: str):
    for name, *allowed in ARGUMENTS:
        assert [refusal(isolation, name, *arguments) for arguments in allowed] == [0] * len(allowed)
    for name, error, *refused in REFUSED_ARGUMENTS:
        assert [refusal(isolation, name, *arguments) for arguments in refused] == [error] * len(refused)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_filter_fits_the_kernel(isolation: str):
    program = seccomp.filter_for(isolation)
    assert len(program) < 4096
    assert all(0 <= jump < 256 for _, *jumps, _ in program for jump in jumps)


def test_what_landlock_leaves_open_is_refused_but_to_oneself():
    for name in ("kill", "tgkill"):
        assert refusal("landlock", name, MYSELF) == 0
        assert refusal("landlock", name, MYSELF + 1) == refusal("landlock", name, 2**32 - 1) == errno.EPERM
        assert refusal("namespaces", name, 1) == 0
    assert refusal("landlock", "prlimit64", MYSELF) == 0
    for name in ("tkill", "setsid", "setpgid", "fchmod", "utimensat", "execve"):
        assert refusal("landlock", name) == errno.EPERM
        assert refusal("namespaces", name) == 0


def test_threads_are_allowed_and_processes_only_in_namespaces():
    thread, process, namespace = 0x3D0F00, 0x1200011, 0x10000011
    assert [refusal("landlock", "clone", flags) for flags in (thread, process, namespace)] == [
        0,
        errno.EAGAIN,
        errno.EAGAIN,
    ]
    assert [refusal("namespaces", "clone", flags) for flags in (thread, process, namespace)] == [0, 0, errno.EPERM]
    own_files = thread & ~0x400  # without CLONE_FILES, each thread could open files of its own
    assert [refusal("landlock", "clone", flags) for flags in (own_files, thread | 0x400000)] == [errno.EAGAIN, 0]
    for flags in (0x2000, 0x8000, 0x00020000, 0x800000, 0x1000):  # PTRACE, PARENT, NEWNS, UNTRACED, PIDFD
        assert refusal("namespaces", "clone", process | flags) == errno.EPERM


def test_pairs_of_streams_are_the_only_sockets():
    close_on_exec = 0o2000000
    for isolation in ISOLATIONS:
        assert refusal(isolation, "socket", 1, 1) == errno.EPERM
        assert refusal(isolation, "socketpair", 1, 1 | close_on_exec) == 0
        for pair in ((1, 2), (1, 5 | close_on_exec), (2, 1), (30, 1)):
            assert refusal(isolation, "socketpair", *pair) == errno.EPERM


@pytest.mark.parametrize("name", MACHINES)
def test_the_numbers_are_those_of_the_headers(name: str):
    numbers, column = numbers_in_headers(name), list(MACHINES).index(name)
    assert {called: row[column] for called, row in NUMBERS.items()} == {
        called: numbers.get(called) for called in NUMBERS
    }
