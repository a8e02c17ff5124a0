"""The filter of system calls, read as the kernel reads it."""

import errno
import platform
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.sandbox import seccomp
from envsdk.sandbox.job import OWN_PID, Instruction

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
    call = Call(seccomp.system_call(name), (*arguments, *(0,) * (6 - len(arguments))))
    answer = verdict(seccomp.filter_for(isolation), call)
    return 0 if answer == ALLOWED else answer - 0x50000


WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, MYSELF, 0x10000, 0x10000000, 8, 10, 0x8901])


@given(
    isolation=st.sampled_from(["namespaces", "landlock"]),
    number=st.integers(0, 520) | st.integers(0, 2**32 - 1),
    arguments=st.tuples(*[WORDS] * 6),
)
def test_every_call_has_a_verdict_that_the_kernel_knows(isolation: str, number: int, arguments: tuple[int, ...]):
    program = seccomp.filter_for(isolation)
    answer = verdict(program, Call(number, arguments))
    assert answer == ALLOWED or answer - 0x50000 in (errno.EPERM, errno.EAGAIN, errno.ENOSYS)
    if number > 450:
        assert answer - 0x50000 == errno.ENOSYS
    assert verdict(program, Call(number, arguments, machine=0x40000003)) == KILLED


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_filter_fits_the_kernel(isolation: str):
    program = seccomp.filter_for(isolation)
    assert len(program) < 4096
    assert all(0 <= jump < 256 for _, *jumps, _ in program for jump in jumps)


def test_what_landlock_leaves_open_is_refused_but_to_oneself():
    for name in ("kill", "tgkill", "rt_sigqueueinfo"):
        assert refusal("landlock", name, MYSELF) == 0
        assert refusal("landlock", name, MYSELF + 1) == refusal("landlock", name, 2**32 - 1) == errno.EPERM
        assert refusal("namespaces", name, 1) == 0
    assert refusal("landlock", "prlimit64", 0) == refusal("landlock", "prlimit64", MYSELF) == 0
    assert refusal("landlock", "prlimit64", 1) == errno.EPERM
    assert refusal("landlock", "fcntl", 0, 8) == refusal("landlock", "ioctl", 0, 0x8902) == errno.EPERM
    assert refusal("landlock", "fcntl", 0, 1) == refusal("landlock", "ioctl", 0, 0x5401) == 0


def test_threads_are_allowed_and_processes_only_in_namespaces():
    thread, process, namespace = 0x3D0F00, 0x1200011, 0x10000011
    assert [refusal("landlock", "clone", flags) for flags in (thread, process, namespace)] == [
        0,
        errno.EAGAIN,
        errno.EAGAIN,
    ]
    assert [refusal("namespaces", "clone", flags) for flags in (thread, process, namespace)] == [0, 0, errno.EPERM]
    assert refusal("namespaces", "clone3") == errno.ENOSYS


def test_pairs_of_streams_are_the_only_sockets():
    close_on_exec = 0o2000000
    for isolation in ("namespaces", "landlock"):
        assert refusal(isolation, "socket", 1, 1) == errno.EPERM
        assert refusal(isolation, "socketpair", 1, 1 | close_on_exec) == 0
        for pair in ((1, 2), (1, 5 | close_on_exec), (2, 1), (30, 1)):
            assert refusal(isolation, "socketpair", *pair) == errno.EPERM


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the headers are those of the machine")
def test_the_numbers_are_those_of_the_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the headers of Linux are not installed")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    table: dict[str, tuple[int | None, int | None]] = seccomp._NUMBERS
    assert {name: row[0] for name, row in table.items()} == {name: numbers[name] for name in table}
