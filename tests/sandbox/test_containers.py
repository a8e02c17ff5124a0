"""Containers without an engine: what `ContainerConfig` refuses, and the container that is a sandbox."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from envsdk.containers import Container, ContainerConfig, ContainerPool, prune, start
from envsdk.errors import ConfigError, ContainerError, SandboxUnavailable, ToolError
from envsdk.sandbox import check_isolation
from envsdk.sandbox._commands import Command, output_of

SANDBOX = ContainerConfig(engine="sandbox", memory_mib=128, disk_mib=1, output_kib=4)


def in_sandbox(use: Callable[[Container], Awaitable[Any]]) -> Any:
    """The result of a function of a container."""
    try:
        check_isolation()
    except SandboxUnavailable as error:
        pytest.skip(str(error))

    async def main() -> Any:
        async with await start(SANDBOX) as container:
            return await use(container)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"image": "a", "dockerfile": Path("b")},
        {"image": "--privileged"},
        {"image": "a b"},
        {"image": "a", "allow": ["example.org"]},
        {"image": "a", "allow": ["example.org:0"]},
        {"image": "a", "allow": ["example.org:99999"]},
        {"image": "a", "allow": ["-x:80"]},
        {"image": "a", "user": "0 --privileged"},
        {"image": "a", "workdir": "relative"},
        {"image": "a", "memory_mib": 0},
        {"image": "a", "cpus": float("nan")},
        {"image": "a", "privileged": True},
        {"engine": "sandbox", "image": "a"},
        {"engine": "sandbox", "dockerfile": Path("b")},
        {"engine": "sandbox", "allow": ["example.org:80"]},
        {"engine": "sandbox", "user": "1000"},
        {"image": "a", "environ": {"*": ""}},
        {"image": "a", "environ": {"A=B": ""}},
        {"image": "a", "environ": {"A": "\0"}},
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(fields: dict[str, Any]):
    with pytest.raises(ConfigError):
        ContainerConfig(**fields)


def test_a_machine_without_an_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="containers need podman or docker, which is not installed"):
        asyncio.run(start(ContainerConfig(image="python:3.12-slim")))


def test_commands_of_the_sandbox_see_the_files_and_change_none():
    async def use(container: Container) -> None:
        await container.write("deep/m.py", "print(open('deep/x').read())\nopen('new', 'w').write('1')\n")
        await container.write("deep/x", "Zürich")
        for command, stdout in (
            ("python3 deep/m.py", "Zürich\n"),
            ("ls", "deep\n"),
            ("cat deep/x", "Zürich"),
            ("python -c 'import sys; print(sys.stdin.read())'", "in\n"),
        ):
            assert (await container.run(command, stdin=b"in")).stdout == stdout
        assert (await container.run("git status")).exit_status == 127
        assert (await container.run("python -c 'while True: pass'", timeout_s=0.3)).limit == "time"
        with pytest.raises(ConfigError, match="environment variable"):
            await container.run("ls", environ={"SECRET*": ""})

    in_sandbox(use)


def test_files_of_the_sandbox_stay_in_its_folder_and_below_its_limit(tmp_path: Path):
    async def use(container: Container) -> None:
        for path in ("/etc/passwd", "../x", "/work/../etc/x"):
            with pytest.raises(ContainerError):
                await container.write(path, "")
        with pytest.raises(ContainerError, match="disk_mib"):
            await container.write("large", bytes(2**21))
        await container.write("a/b", "1")
        for path in (".", "/work", "a", "a/b/c"):
            with pytest.raises(ContainerError, match="folder"):
                await container.write(path, "")
        await container.write("main.py", "print(2)")
        assert (await container.run("ls")).stdout == "a\nmain.py\n"
        assert (await container.run("python main.py")).stdout == "2\n"
        await container.copy_out("a", tmp_path / "a")
        assert (tmp_path / "a" / "b").read_text() == "1"

    in_sandbox(use)


def test_the_tools_of_a_container_read_and_change_files():
    async def use(container: Container) -> None:
        shell, python, read_file, write_file, edit_file = container.tools()
        assert await write_file(path="x.txt", content="one\ntwo\ntwo\n") == "x.txt has 3 lines now."
        assert await read_file(path="x.txt", first_line=2, last_line=2) == "two\n"
        assert await edit_file(path="x.txt", old="one", new="1") == "x.txt was changed."
        for old, times in (("two", 2), ("three", 0), ("", 0)):
            with pytest.raises(ToolError, match=f"old occurs {times} times"):
                await edit_file(path="x.txt", old=old, new="")
        with pytest.raises(ToolError, match="not a text file"):
            await read_file(path="nothing")
        assert await shell(command="cat x.txt") == "1\ntwo\ntwo"
        assert "ZeroDivisionError" in await python(code="1 / 0")
        await write_file(path="long", content="x" * 5000)
        assert "[cut: 4,096 of 5,000 characters are shown]" in await read_file(path="long")

    in_sandbox(use)


def test_the_tools_count_lines_as_other_programs_do():
    async def use(container: Container) -> None:
        _, _, read_file, *_ = container.tools()
        await container.write("x", "one\ftwo\u2028\r\nthree\n")
        assert await read_file(path="x", first_line=2) == "three\n"
        assert await read_file(path="x", last_line=1) == "one\ftwo\u2028\r\n"

    in_sandbox(use)


def test_the_tools_refuse_a_file_that_is_larger_than_4_mib():
    async def main() -> None:
        async with await start(SANDBOX.model_copy(update={"disk_mib": 8})) as container:
            _, _, read_file, _, edit_file = container.tools()
            await container.write("x", bytes(2**22 + 1))
            for call in (read_file(path="x"), edit_file(path="x", old="a", new="b")):
                with pytest.raises(ToolError, match="larger than 4,194,304 bytes"):
                    await call

    asyncio.run(main())


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("why", ["it is late", "its caller is cancelled", "another task failed"])
def test_a_command_is_not_stopped_before_it_begins(why: str, tmp_path: Path):
    """An engine starts the command of a client that was killed, after the processes of the command were killed."""
    call = Command(timeout_s=0.1, mark="begun")

    async def main() -> None:
        line = f"touch {tmp_path}/requested; sleep 0.6; printf begun >&2; exec sleep 60"
        running = asyncio.create_task(call.execute(("sh", "-c", line)))
        if why != "it is late":
            while not (tmp_path / "requested").exists():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # its process is known
            if why == "another task failed":
                raise LookupError
            running.cancel()
        await asyncio.wait([running])

    with contextlib.suppress(LookupError):
        asyncio.run(main())
    assert (call.stderr.text(), call.status) == ("begun", None)
    assert call.limit == ("time" if why == "it is late" else None)


def test_a_pool_that_is_closed_gives_none():
    async def main() -> None:
        pool = ContainerPool(SANDBOX)
        one, two = await pool.take(), await pool.take()
        assert one is not two
        await pool.close()
        with pytest.raises(ConfigError, match="closed"):
            await pool.take()

    asyncio.run(main())


@pytest.mark.parametrize("form", ["map[envsdk.owner:{}]", "maintainer=a b,envsdk.owner={}"])
def test_the_containers_of_ended_processes_are_removed_in_batches(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both engines are a program here: one container for each of 1,500 ended processes, and one of this process."""
    host = socket.gethostname()
    own = f"{host}:{os.getpid()}:{Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]}"
    lines = [f"name{number} {form.format(f'{host}:{number}:0')}" for number in range(1500)]
    (tmp_path / "list").write_text("\n".join([*lines, f"kept {form.format(own)}"]))
    engine = tmp_path / "podman"
    removes = f"elif [ $1 = rm ]; then echo $# >> {tmp_path}/removed"
    engine.write_text(f"#!/bin/sh\nif [ $1 = ps ]; then cat {tmp_path}/list; {removes}; fi\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert asyncio.run(prune("podman")) == [f"name{number}" for number in range(1500)]
    counts = [int(line) - 3 for line in (tmp_path / "removed").read_text().split()]
    assert sum(counts) == 1500 and max(counts) <= 100


def test_the_output_of_an_engine_is_whole_or_an_error():
    with pytest.raises(ContainerError, match="too much"):
        asyncio.run(output_of("head", "-c", "2000000", "/dev/zero"))


def test_mistakes_of_a_model_are_errors_of_the_tools_of_a_sandbox():
    async def use(container: Container) -> None:
        shell, _, read_file, write_file, _ = container.tools()
        calls = [
            shell(command="x" * 2**17), read_file(path="a\0"), read_file(path="/dev/zero"), read_file(path="\ud800"),
            write_file(path="x" * 300, content=""), write_file(path="a/" * 2000, content=""),
            write_file(path="x", content="\ud800"), write_file(path="large", content="x" * 2**21),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(ToolError):
                await call
        assert await shell(command="ls") == "[no output]"

    in_sandbox(use)


@pytest.mark.full
def test_a_pool_of_a_forked_process_has_its_own_containers():
    program = (
        "import asyncio, os\nfrom envsdk.containers import ContainerConfig, ContainerPool\n"
        "pool = ContainerPool(ContainerConfig(engine='sandbox'))\n"
        "async def use(): await pool.take(); await pool.close()\n"
        "asyncio.run(pool.take())\nif os.fork() == 0:\n    asyncio.run(use())\n    os._exit(0)\n"
        "print(os.wait()[1])\nasyncio.run(use())\n"
    )
    ran = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True, timeout=600)
    assert ran.stdout == "0\n"
