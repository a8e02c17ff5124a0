"""What a program in a container tries, and cannot do: each row is a command line that would succeed."""

import asyncio
import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsdk.containers import ContainerConfig, start
from envsdk.errors import ContainerError

FORBIDDEN = {
    "DAC_READ_SEARCH": 2, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_PTRACE": 19,
    "SYS_ADMIN": 21, "SYS_BOOT": 22, "SYS_TIME": 25, "MKNOD": 27,
}  # fmt: skip
"""Capabilities that lead out of a container, by their numbers."""
MASK = sum(1 << number for number in FORBIDDEN.values())
CALL = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({}) < 0)"
CONNECT = "import socket; s = socket.socket(socket.{}, socket.SOCK_STREAM); s.settimeout(3); s.connect({!r})"
DATAGRAM = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', {!r})"
HOLD = (
    "import os\nkept = []\nwhile True:\n    kept.append(open('x', 'wb', 0))\n    os.remove('x')\n"
    "    kept[-1].write(bytes(2**25))\n"
)


def python(code: str) -> str:
    """The command line of a program."""
    return f"python3 -c {shlex.quote(code)}"


ATTACKS = {
    "files: the host's": f"cat {Path(__file__)}",
    "files: the host's, through process 1": f"cat /proc/1/root{Path(__file__)}",
    "files: the engine's storage": "ls /var/lib/containers /var/lib/docker /run/containers",
    "files: a mount": "mount -t tmpfs none /mnt",
    "files: a new /proc": "unshare -Urmpf sh -c 'mount -t proc p /mnt && echo 1 > /mnt/sys/kernel/sysrq'",
    "files: a new /sys": "unshare -Urmn sh -c 'mount -t sysfs s /mnt && echo 0 > /mnt/kernel/uevent_seqnum'",
    "files: a disk in a new namespace": "unshare -Urm sh -c 'mknod disk b 8 0 && head -c 1 disk'",
    "files: process 1's mounts": "nsenter --target 1 --mount true && nsenter --target 1 --net ip link",
    "files: a bind mount of the root": "mkdir -p r && mount --bind / r",
    "devices: a new one": "mknod disk b 8 0",
    "devices: a disk": "find /dev -type b | grep .",
    "devices: memory": "head -c 1 /dev/mem || head -c 1 /proc/kcore",
    "devices: loop": "truncate -s 1M x && losetup --find --show x",
    "processes: the host's": f"kill -0 {os.getpid()} || grep -q py[t]est /proc/[0-9]*/cmdline",
    "processes: process 1 of the container": "kill -9 1; sleep 1; ! grep -q uptime /proc/1/cmdline",
    "kernel: a setting": "echo 1 > /proc/sys/kernel/sysrq",
    "kernel: the program for core files": "echo '|/bin/true' > /proc/sys/kernel/core_pattern",
    "kernel: help of sysrq": "echo h > /proc/sysrq-trigger",
    "kernel: any file in /sys": "find /sys -type f -writable 2> /dev/null | head -1 | grep .",
    "kernel: any setting": "find /proc/sys -type f -writable 2> /dev/null | grep -v /proc/sys/net | head -1 | grep .",
    "kernel: its messages": "dmesg",
    "kernel: a module": python(CALL.format("175, 0, 0, b''")),
    "kernel: bpf": python(CALL.format("321, 5, 0, 0")),
    "kernel: keys": python(CALL.format("248, b'user', b'x', b'y', 1, -3")),
    "kernel: a file by its handle": python(CALL.format("304, 0, bytes([8, 0, 0, 0, 1, 0, 0, 0, 2, *[0] * 7]), 0")),
    "kernel: the clock": "date --set 2000-01-01",
    "kernel: the name of the machine": "hostname other || echo other > /proc/sys/kernel/hostname",
    "rights: capabilities": f"test $((0x$(sed -n 's/^CapBnd:\\s*//p' /proc/self/status) & {MASK})) != 0",
    "rights: a setuid program": "cp /bin/id i && chmod 4755 i && setpriv --reuid=1000 --clear-groups ./i | grep euid=0",
    "rights: more files than the limit": "ulimit -n 4096",
    "network: another host": python(CONNECT.format("AF_INET", ("1.1.1.1", 80))),
    "network: a name": python("import socket; socket.getaddrinfo('example.org', 80)"),
    "network: a name server": python(DATAGRAM.format(("1.1.1.1", 53))),
    "network: all machines": python(DATAGRAM.format(("224.0.0.1", 9999))),
    "network: raw packets": python("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)"),
    "network: ping": python("import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    "network: an interface": "ls /sys/class/net | grep -v lo",
}  # fmt: skip
"""Command lines by what they try."""


@contextlib.contextmanager
def listeners() -> Iterator[dict[str, str]]:
    """Servers of this machine, as command lines that connect to them."""
    address = socket.gethostbyname(socket.gethostname())
    places = {
        "network: the host's loopback interface": ("AF_INET", ("127.0.0.1", 0)),
        "network: the host's address": ("AF_INET", (address, 0)),
        "network: IPv6": ("AF_INET6", ("::1", 0)),
        "network: an abstract socket": ("AF_UNIX", f"\0envsdk-{os.getpid()}"),
    }
    with contextlib.ExitStack() as stack:
        tried: dict[str, str] = {}
        for what, (family, place) in places.items():
            listener = stack.enter_context(socket.socket(getattr(socket, family), socket.SOCK_STREAM))
            listener.bind(place)
            listener.listen()
            reached = place if isinstance(place, str) else listener.getsockname()
            tried[what] = python(CONNECT.format(family, reached))
        yield tried


def test_no_attack_from_inside_succeeds(small: ContainerConfig):
    async def main(attacks: dict[str, str]) -> list[str]:
        async with await start(small) as container:
            results = {name: await container.run(line) for name, line in attacks.items()}
            assert (await container.run("true")).ok
            slow = [name for name, result in results.items() if result.limit is not None]
            assert slow == []
            return [f"{name}: {result.report()}" for name, result in results.items() if result.ok]

    with listeners() as reaching:
        for line in reaching.values():  # they do succeed on this machine
            subprocess.run((sys.executable, *shlex.split(line)[1:]), check=True)
        assert asyncio.run(main(ATTACKS | reaching)) == []


def test_a_container_knows_nothing_of_another_one(small: ContainerConfig):
    reach = python(CONNECT.format("AF_INET", ("127.0.0.1", 8000)))

    async def main() -> None:
        async with await start(small) as one, await start(small) as other:
            await one.run("echo secret > /tmp/x; python3 -m http.server 8000 > /dev/null 2>&1 &")
            while not (await one.run(reach)).ok:
                await asyncio.sleep(0.5)
            for line in (
                reach,
                "grep -r secret /tmp || grep http[.]server /proc/[0-9]*/cmdline",
                f"getent hosts {one.name}",
            ):
                assert not (await other.run(line)).ok, line

    asyncio.run(main())


@pytest.mark.parametrize(
    "left",
    [
        "i=0; while :; do i=$((i+1)); head -c 30000000 /dev/zero > file$i; done",
        python(HOLD),
        "for i in 1 2 3 4 5; do (exec 3> $i; rm $i; head -c 40000000 /dev/zero >&3; sleep 60) & done; wait",
    ],
)
def test_a_process_that_a_command_left_cannot_fill_the_disk(left: str, small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            with pytest.raises(ContainerError, match="more than twice disk_mib"):
                await container.run(f"({left}) > /dev/null 2>&1 &")
                for _ in range(100):
                    await asyncio.sleep(0.2)
                    await container.run("true")

    asyncio.run(main())


def test_what_a_stopped_command_started_ends_also_if_it_hides(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            await container.run("sleep 81 > /dev/null 2>&1 &")
            running = asyncio.create_task(container.run("sleep 5; echo ended"))
            hidden = "env -i sleep 71 & setpriv --reuid=1000 --clear-groups sleep 72 & setsid env -i setsid sleep 73 &"
            assert (await container.run(f"{hidden} sleep 74", timeout_s=1.5)).limit == "time"
            left = (await container.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
            assert [seconds for seconds in (71, 72, 73, 74, 81) if f"sleep {seconds}" in left] == [81]
            assert (await running).stdout == "ended\n"

    asyncio.run(main())
