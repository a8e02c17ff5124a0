"""What a container can do, and what it cannot."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envsdk.cli import app
from envsdk.containers import Container, ContainerConfig, ContainerPool, prune, start
from envsdk.errors import ConfigError, ContainerError, ContainerLost, ToolError

GET = "import urllib.request as u; print(u.urlopen('http://{}/', timeout=3).read().decode())"


def names_of(config: ContainerConfig) -> list[str]:
    """The names of all containers of its engine."""
    command = (str(config.engine), "ps", "--all", "--format={{.Names}}")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def copies_of(config: ContainerConfig) -> list[str]:
    """The images that were made for one container of its engine."""
    listing = (str(config.engine), "images", "--quiet", "--filter=label=envsdk.copy")
    return subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()


@contextlib.asynccontextmanager
async def server(text: str) -> AsyncIterator[int]:
    """A server on this machine's loopback interface; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(f"HTTP/1.0 200 OK\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as serving:
        yield serving.sockets[0].getsockname()[1]


def test_commands_files_and_their_results(small: ContainerConfig, tmp_path: Path):
    async def main() -> None:
        async with await start(small) as container:
            await container.write("a/ü.txt", "Zürich\n", mode=0o600)
            assert await container.read("a/ü.txt") == "Zürich\n".encode()
            result = await container.run("pwd; stat -c %a a/ü.txt; cat; echo no >&2; exit 3", stdin=b"in")
            assert (result.stdout, result.stderr, result.exit_status) == ("/work\n600\nin", "no\n", 3)
            assert (
                await container.run(["python3", "-c", "import sys; print(sys.argv[1:])", "a b"])
            ).stdout == "['a b']\n"
            (tmp_path / "in" / "deep").mkdir(parents=True)
            (tmp_path / "in" / "deep" / "x").write_text("1")
            await container.copy_in(tmp_path / "in", "/opt/in")
            await container.copy_out("/opt", tmp_path / "out")
            assert (tmp_path / "out" / "in" / "deep" / "x").read_text() == "1"
            async with await start(small) as other:
                await container.run("ln -s /etc/passwd link")
                await container.copy_to(other)
                assert (await other.run("ls; readlink link")).stdout == "a\nlink\n/etc/passwd\n"
            async with await start(small.model_copy(update={"image": await container.snapshot()})) as again:
                assert await again.read("/opt/in/deep/x") == b"1"
            for path in ("nothing", "/etc", "a"):
                with pytest.raises(FileNotFoundError):
                    await container.read(path)

    asyncio.run(main())
    assert names_of(small) == []


def test_a_command_that_reaches_a_limit_is_stopped_with_its_children(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            slow = await container.run("sleep 70 & setsid nohup sleep 71 & sleep 72", timeout_s=0.5)
            assert (slow.limit, slow.exit_status) == ("time", None)
            loud = await container.run("yes", timeout_s=30)
            assert loud.limit == "output" and len(loud.stdout) < 17_000
            full = await container.run("for i in 1 2 3 4; do head -c 30000000 /dev/zero > $i; sleep 0.5; done")
            assert full.limit == "disk" and (await container.run("rm 1 2 3; ls")).ok
            large = await container.run(["python3", "-c", "bytearray(2**30)"])
            assert large.exit_status == 137
            running = asyncio.create_task(container.run("sleep 73"))
            await asyncio.sleep(0.5)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            left = await container.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            assert all(f"sleep {seconds}" not in left.stdout for seconds in (70, 71, 72, 73))
            forks = await container.run("for i in $(seq 200); do sleep 1 & done; wait")
            assert "fork" in forks.stderr and not forks.ok

    asyncio.run(main())


def test_a_container_has_nothing_of_the_machine_and_reaches_what_it_may(
    small: ContainerConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", "of the machine")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")

    async def main() -> None:
        async with server("allowed") as allowed, server("another") as another:
            reach = (f"127.0.0.1:{allowed}", f"example.org:{allowed}", f"localhost:{allowed}", f"localhost:{allowed}")
            config = small.model_copy(update={"allow": reach, "environ": {"OWN": "1"}})
            async with await start(config) as container, await start(small) as alone:
                environ = (await container.run("env", environ={"MORE": "2"})).stdout
                assert "OWN=1" in environ and "MORE=2" in environ
                assert "SECRET" not in environ and "proxy" not in environ.lower()
                assert "allowed" in (await container.run(["python3", "-c", GET.format(reach[0])])).stdout
                for address in (f"127.0.0.1:{another}", "1.1.1.1", f"192.0.2.2:{another}"):
                    assert not (await container.run(["python3", "-c", GET.format(address)])).ok
                assert not (await alone.run(["python3", "-c", GET.format(reach[0])])).ok
                hosts = "127.0.0.1 localhost container\n::1 localhost\n127.1.0.2 example.org\n"
                assert (await container.run("cat /etc/hosts /etc/resolv.conf")).stdout == hosts
                assert (await container.run("getent hosts example.org")).stdout.startswith("127.1.0.")
                for attempt in (
                    "mount -t tmpfs none /mnt",
                    f"ls {Path(__file__).parent}",
                    "mknod device b 8 0 && cat device",
                    "echo 1 > /proc/sys/kernel/sysrq",
                    "cat /proc/kcore",
                    "nsenter -t 1 -n ip link add x type dummy",
                ):
                    assert not (await container.run(attempt)).ok, attempt

    asyncio.run(main())


def test_variables_reach_the_command_and_not_the_client_of_the_engine(small: ContainerConfig):
    environ = {"PATH": "/bin:/nowhere", "LD_PRELOAD": "/nowhere.so", "CONTAINERS_CONF": "/nowhere", "A": "a 'b'\n$C"}

    async def main() -> None:
        async with await start(small.model_copy(update={"environ": environ})) as container:
            result = await container.run("env", environ={"HOME": "/h"})
            shown = result.stdout
            assert result.ok and all(f"{name}={value}\n" in shown for name, value in {**environ, "HOME": "/h"}.items())
            assert "ENVSDK_0" not in shown and "OLDPWD" not in shown

    asyncio.run(main())


def test_what_a_command_does_to_itself_is_its_result(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            for status in (125, 126, 127):
                result = await container.run(f"echo 'Error: OCI runtime' >&2; exit {status}")
                assert (result.exit_status, result.stderr) == (status, "Error: OCI runtime\n")
            assert (await container.run(["no-such-program"])).exit_status == 127
            await container.run("for each in 1 2; do pkill sleep || kill -9 -1; done")
            await container.run("mkdir sub; echo 1 > sub/x")
            assert (await container.run("pwd; cat x", cwd="sub")).stdout == "/work/sub\n1\n"
            missing = await container.run("ls", cwd="nothing")
            assert missing.exit_status == 126 and "can't cd to /work/nothing" in missing.stderr
            await container.run("rm -rf /work")
            assert not (await container.run("ls")).ok
            with pytest.raises(FileNotFoundError):
                await container.read("x")

    asyncio.run(main())


def test_a_file_is_written_in_place_of_what_is_there(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            await container.run("echo old > old; ln -s old link; ln old hard; mkdir -p folder/x; mkfifo pipe")
            for path in ("link", "hard", "folder", "pipe"):
                await container.write(path, "new", mode=0o600)
                assert (
                    await container.run(f"cat old {path}; stat -c %a-%F {path}")
                ).stdout == "old\nnew600-regular file\n"
            assert (await container.run("ls -A")).stdout == "folder\nhard\nlink\nold\npipe\n"
            with pytest.raises(ConfigError):
                await container.write(".", "")

    asyncio.run(main())


def test_the_editor_keeps_the_permissions_of_a_file(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            _, _, _, write_file, edit_file = container.tools()
            await container.write("x", "echo 1", mode=0o755)
            await edit_file(path="x", old="1", new="2")
            assert (await container.run("./x; stat -c %a x")).stdout == "2\n755\n"
            await write_file(path="x", content="echo 3")
            await write_file(path="y", content="")
            assert (await container.run("./x; stat -c %a x y")).stdout == "3\n755\n644\n"

    asyncio.run(main())


def test_mistakes_of_a_model_are_errors_of_its_tools(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            shell, python, read_file, write_file, edit_file = container.tools(timeout_s=5)
            calls = [
                shell(command="\0"), shell(command="\ud800"), shell(command="x" * 200_000), python(code="\0"),
                read_file(path="/dev/zero"), read_file(path="/proc/kmsg"), read_file(path="a\0"),
                read_file(path="\ud800"), write_file(path="/proc/x", content=""),
                write_file(path="x", content="\ud800"), write_file(path="x" * 300, content=""),
                write_file(path=".", content=""), edit_file(path="/proc/self/mem", old="a", new="b"),
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(ToolError):
                    await call
            assert await shell(command="echo 1") == "1"

    asyncio.run(main())


def test_a_command_that_forks_forever_ends_with_its_container_at_the_latest(small: ContainerConfig):
    bomb = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)\n"

    async def main() -> None:
        async with await start(small) as container:
            assert (await container.run(["python3", "-c", bomb], timeout_s=1)).limit == "time"
            try:
                assert (await container.run("grep -l f[o]rk /proc/[0-9]*/cmdline")).stdout == ""
            except ContainerError as error:
                assert not isinstance(error, ContainerLost)  # which is played again

    asyncio.run(main())


def test_what_leads_out_of_a_folder_is_not_copied(small: ContainerConfig, tmp_path: Path):
    async def main() -> None:
        async with await start(small) as container:
            for name, made in (("absolute", "ln -s /etc/passwd x"), ("up", "ln -s ../../etc x"), ("pipe", "mkfifo x")):
                await container.run(f"mkdir /{name} && cd /{name} && {made}")
                with pytest.raises(ContainerError):
                    await container.copy_out(f"/{name}", tmp_path / name)
            await container.run(
                "truncate -s 60G /work/huge || truncate -s 60M /work/huge; for i in 1 2; do cp huge h$i; done"
            )
            with pytest.raises(ContainerError, match="larger than 67,108,864 bytes"):
                await container.copy_out(".", tmp_path / "huge")

    asyncio.run(main())


def test_at_most_64_connections_are_open_at_the_same_time(small: ContainerConfig):
    program = (
        "import socket, sys, time\nopen_ = []\n"
        "for _ in range(80):\n    s = socket.create_connection(('localhost', int(sys.argv[1])), 5)\n"
        "    s.settimeout(2)\n    open_.append(s)\n"
        "time.sleep(1)\nended = 0\nfor s in open_:\n    s.setblocking(False)\n"
        "    try: ended += s.recv(1) == b''\n    except BlockingIOError: pass\n    except ConnectionError: ended += 1\n"
        "print(ended)\nfor s in open_: s.close()\ntime.sleep(0.5)\n"
        "s = socket.create_connection(('localhost', int(sys.argv[1])), 5)\ns.sendall(b'x')\nprint(s.recv(1))\n"
    )

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as serving:
            port = serving.sockets[0].getsockname()[1]
            config = small.model_copy(update={"allow": (f"127.0.0.1:{port}",)})
            async with await start(config) as container:
                result = await container.run(["python3", "-c", program, str(port)], timeout_s=20)
                assert result.stdout == "16\nb'x'\n", result.report()

    asyncio.run(main())


def test_a_user_without_rights_may_write_its_folder(small: ContainerConfig, tmp_path: Path):
    async def main() -> None:
        (tmp_path / "x").write_text("1")
        async with await start(small.model_copy(update={"user": "1000:1000"})) as container:
            await container.copy_in(tmp_path, ".")
            assert (await container.run("id -u; echo 2 > x; cat x")).stdout == "1000\n2\n"
            assert not (await container.run("touch /etc/x")).ok

    asyncio.run(main())


def test_a_container_that_ends_while_it_is_used_is_reported(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as container:
            running = asyncio.create_task(container.run("sleep 60"))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(
                subprocess.run, (str(small.engine), "rm", "--force", container.name), capture_output=True
            )
            with pytest.raises(ContainerLost):
                await running
            with pytest.raises(ContainerLost):
                await container.write("x", "1")
        with pytest.raises(ContainerError, match="could not start no-such-image"):
            await start(small.model_copy(update={"image": "no-such-image:1"}))

    asyncio.run(main())
    assert names_of(small) == []


def test_the_containers_of_a_killed_process_are_found(small: ContainerConfig):
    program = (
        "import asyncio, sys, time\nfrom envsdk.containers import ContainerConfig, start\n"
        f"config = ContainerConfig(**{small.model_dump(exclude_defaults=True)!r})\n"
        "print(asyncio.run(start(config)).name, flush=True)\ntime.sleep(60)\n"
    )

    async def main() -> None:
        async with await start(small) as kept:
            process = subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            name = process.stdout.readline().strip()
            assert await prune(small.engine) == []
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            result = await asyncio.to_thread(
                CliRunner().invoke, app, ["containers", "prune", f"--engine={small.engine}"]
            )
            assert result.exit_code == 0 and name in result.output
            assert names_of(small) == [kept.name]

    asyncio.run(main())


def test_an_interrupt_ends_what_a_command_started(small: ContainerConfig):
    program = (
        "import asyncio, sys\nfrom envsdk.containers import ContainerConfig, start\n"
        "async def main():\n"
        f"    async with await start(ContainerConfig(**{small.model_dump(exclude_defaults=True)!r})) as container:\n"
        "        print(container.name, flush=True)\n"
        "        await container.run('echo > begun; sleep 300 & sleep 300', timeout_s=300)\n"
        "asyncio.run(main())\n"
    )
    # As in a terminal: the interrupt reaches each process of the group.
    with subprocess.Popen(
        (sys.executable, "-c", program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        look = (str(small.engine), "exec", name, "cat", "/work/begun")
        while subprocess.run(look, check=False, capture_output=True).returncode:
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt") and "ContainerError" not in errors
    assert names_of(small) == []


def test_a_start_that_is_cancelled_leaves_nothing(small: ContainerConfig):
    async def main() -> None:
        pool = ContainerPool(small, size=1)
        for _ in range(5):
            starts = [asyncio.create_task(each) for each in (start(small), start(small), start(small), pool.take())]
            for each in starts:
                await asyncio.sleep(0.15)
                each.cancel()
            for each in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(each, Container):
                    await each.stop()
        await pool.close()

    asyncio.run(main())
    assert names_of(small) == []
    storage = str(Path(os.environ["CONTAINERS_STORAGE_CONF"]).parent)
    running = subprocess.run(("ps", "-eo", "args"), check=True, capture_output=True, text=True).stdout
    assert not any("conmon" in line and storage in line for line in running.splitlines())


def test_a_process_that_ends_removes_its_containers_also_those_that_start(small: ContainerConfig):
    program = (
        "import asyncio, threading, time\nfrom envsdk.containers import ContainerConfig, start\n"
        f"config = ContainerConfig(**{small.model_dump(exclude_defaults=True)!r})\n"
        "asyncio.run(start(config))\n"
        "threading.Thread(target=lambda: asyncio.run(start(config)), daemon=True).start()\ntime.sleep(0.2)\n"
    )
    subprocess.run((sys.executable, "-c", program), check=True)
    assert names_of(small) == []


def test_a_pool_gives_each_container_once(small: ContainerConfig):
    async def main() -> None:
        pool = ContainerPool(small, size=1)
        async with await pool.take() as one, await pool.take() as two:
            assert one.name != two.name
            await one.write("x", "1")
            with pytest.raises(FileNotFoundError):
                await two.read("x")
        await pool.close()

    asyncio.run(main())
    assert names_of(small) == []


def test_a_pool_replaces_containers_past_half_of_their_lifetime(small: ContainerConfig):
    async def main() -> None:
        pool = ContainerPool(small.model_copy(update={"lifetime_s": 10}), size=1)
        await (await pool.take()).stop()
        await asyncio.sleep(5.1)
        async with await pool.take() as fresh:
            await asyncio.sleep(5.1)
            assert (await fresh.run("true")).ok
        await pool.close()

    asyncio.run(main())
    assert names_of(small) == []


def test_an_image_is_built_from_a_dockerfile(small: ContainerConfig, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM python:3.12-slim\nENV BUILT=1\nUSER 1000\n")
    config = small.model_copy(update={"image": "", "dockerfile": tmp_path})

    async def main(container: Container) -> None:
        async with container:
            assert (await container.run("echo $BUILT; id -u; touch here")).stdout == "1\n1000\n"

    asyncio.run(main(asyncio.run(start(config))))


def test_a_duplicate_has_all_files_and_no_process(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as first:
            await first.run("echo 1 > /etc/mine; echo 2 > here; sleep 1000 > /dev/null 2>&1 &")
            async with await first.duplicate(user="1000") as second:
                shown = await second.run("cat /etc/mine here; id -u; ls /proc | grep -c '^[0-9]'")
                before = await first.run("ls /proc | grep -c '^[0-9]'")
                assert shown.stdout.split()[:3] == ["1", "2", "1000"]
                assert int(shown.stdout.split()[3]) < int(before.stdout)
                await first.write("here", "4")
                assert await second.read("here") == b"2\n"

    asyncio.run(main())
    assert names_of(small) == copies_of(small) == []


def test_what_a_killed_run_left_of_a_duplicate_is_pruned(small: ContainerConfig):
    program = f"""
import asyncio, os
from envsdk.containers import ContainerConfig, start

async def main():
    box = await start(ContainerConfig(image="python:3.12-slim", engine="{small.engine}"))
    await box.duplicate()
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    assert subprocess.run((sys.executable, "-c", program)).returncode == -9
    assert len(names_of(small)) == 2 and len(copies_of(small)) == 1
    assert len(asyncio.run(prune(small.engine))) == 2
    assert names_of(small) == copies_of(small) == []


def test_a_command_may_run_as_another_user_and_in_the_folder_of_the_image(small: ContainerConfig, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM python:3.12-slim\nWORKDIR /srv/here\nUSER 1000\n")
    config = small.model_copy(update={"image": "", "dockerfile": tmp_path, "workdir": ""})

    async def main() -> None:
        async with await start(config) as container:
            assert container.config.workdir == "/srv/here"
            assert (await container.run("pwd; id -u")).stdout == "/srv/here\n1000\n"
            assert (await container.run("id -u", user="0")).stdout == "0\n"
            late = await container.run("sleep 100", user="0", timeout_s=1)
            assert late.limit == "time"
            assert (
                await container.run("ls /proc/*/exe -d | xargs -n1 readlink | grep -c sleep", user="0")
            ).stdout == "1\n"

    asyncio.run(main())


def test_an_empty_folder_is_copied(small: ContainerConfig):
    async def main() -> None:
        async with await start(small) as first, await start(small) as second:
            await first.run("mkdir empty")
            await first.copy_to(second, "empty")
            assert (await second.run("ls -A empty")).stdout == ""

    asyncio.run(main())
