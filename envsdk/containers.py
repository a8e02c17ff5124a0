"""Run commands in containers, by the command line of podman or docker.

`start` makes a `Container` from an image or a Dockerfile; `Container.run` runs a command in it. A container has no
network. Addresses that `ContainerConfig.allow` lists are reached through its loopback interface; nothing else is.
Nothing of this machine enters it: no environment variables, no files. Its memory, processors, processes and disk are
limited, and it ends by itself after `lifetime_s`.

Each container carries the label `envsdk.owner`, which identifies the process that started it. `prune` removes the
containers whose process has ended, such as those of a killed run.
"""

import abc
import asyncio
import base64
import contextlib
import json
import math
import os
import posixpath
import re
import secrets
import shlex
import shutil
import socket
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ._packages import load
from .authoring._tools import Tool, tool
from .errors import ConfigError, ContainerError, ContainerLost, ToolError
from .sandbox import SandboxLimits, arun_python
from .sandbox._commands import Command, CommandLimit, output_of
from .sandbox._forwarding import HERE, Forwarding, background_loop, locals_of
from .sandbox._process import Output
from .sandbox._result import reported

_EngineName = Literal["podman", "docker", "sandbox"]
_ToolName = Literal["shell", "python", "read_file", "write_file", "edit_file"]
_OWNER, _COPY, _MARK = "envsdk.owner", "envsdk.copy", "ENVSDK_COMMAND"
_CLIENT_FAILED = 125
"""Exit statuses from this one on may be those of the engine's client, such as when the container has ended."""
_FILES_S = 120.0
"""The maximum time for writing files, in seconds."""
_COMMIT_S = 600.0
"""The maximum time for storing a container as an image, in seconds."""
_KILL_S = 30.0
"""The maximum time for killing the processes of a command, in seconds, until the container is killed."""
_IN_SANDBOX = """
import base64, os, runpy, sys
from pathlib import Path
os.mkdir("files")  # next to main.py, which is this program
os.chdir("files")
for name, data in JOB["files"].items():
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(base64.b64decode(data))
os.environ.update(JOB["environ"])
os.chdir(JOB["folder"])
program, *arguments = JOB["words"] or [""]
sys.path.insert(0, "")
try:
    if program in ("python", "python3") and arguments[:1] in (["-c"], ["-m"]):
        sys.argv = arguments[1:] if arguments[0] == "-m" else ["-c", *arguments[2:]]
        if arguments[0] == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif program in ("python", "python3") and arguments:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    elif program == "cat":
        for name in arguments:
            print(Path(name).read_text(), end="")
    elif program == "ls":
        for folder in arguments or ["."]:
            print(*sorted(path.name for path in Path(folder).iterdir()), sep="\\n")
    else:
        print(f"sh: {program}: not found; there are python, cat and ls", file=sys.stderr)
        sys.exit(127)
except OSError as error:
    if program.startswith("python"):
        raise
    print(f"{program}: {error}", file=sys.stderr)
    sys.exit(1)
"""
_LABEL = re.compile(rf"\b{re.escape(_OWNER)}[=:]([^\s,\]]+)")
"""The label in a list of labels, which podman and docker write in different forms."""
_MAX_WORD = 2**17
"""The length of a word of a command in the sandbox, which is that of Linux."""
_BATCH = 50
"""The number of containers that one command removes: each takes a part of its time limit."""
_VARIABLE = re.compile(r"(?!ENVSDK_[0-9])[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}")
_KILL = f"""for round in 1 2 3 4 5 6 7 8; do
  [ $round -lt 3 ] || sleep 0.1
  left=
  for process in /proc/[0-9]*; do
    if tr '\\000' '\\n' < $process/environ | grep -qxF "{_MARK}=$0"; then kill -9 ${{process#/proc/}}; left=1; fi
  done 2> /dev/null
  if [ -z "$left" ]; then exit 0; fi
done
exit 1"""
_BEGIN = f"""printf %s "${_MARK}" >&2; cd "$1" || exit 126; unset OLDPWD; shift"""
"""The start of a command, which reports that it runs: so no other command is mistaken for a failure of the engine."""
_WRITE = """mkdir -p "$1" && cat > "$3" && chmod "$4" "$3" &&
if [ -L "$2" ] || ! [ -f "$2" ]; then rm -rf "$2"; fi && mv -fT "$3" "$2" || { rm -f "$3"; exit 1; }"""
"""Puts a new file in place of whatever is there: a program may have left a link, whose target would change."""
_PREPARE = """if ! [ -d "$1" ]; then mkdir -p "$1" && chown "$2" "$1"; fi &&
shift 2 && printf '%s\\n' "$@" > /etc/hosts && : > /etc/resolv.conf"""
"""Makes the folder, and replaces the machine's names and DNS servers, which podman copies into a container."""
_HOSTNAME = "container"
_PROCESS_1 = """read now rest < /proc/uptime
end=$((${now%.*} + $0))
while read now rest < /proc/uptime && [ "${now%.*}" -lt "$end" ]; do sleep $((end - ${now%.*})) & wait; done"""
"""Process 1 ends with its lifetime, even if its `sleep` is killed, and waits for processes whose parents have ended."""


class ContainerConfig(BaseModel):
    """What a container is made from, what it may reach, and its limits.

    Attributes:
        image: The name of the image, such as `python:3.12-slim`.
        dockerfile: A folder with a Dockerfile, from which each start builds the image, in place of `image`. The engine
            keeps what it built, so that only the first takes long. The build has a network.
        engine: The program that runs containers; None takes the first of podman and docker that is installed.
            `sandbox` needs neither, nor an image: it has the files that are written, and commands are `python`, `cat`
            and `ls`, each of which runs in `envsdk.sandbox` on a copy of the files. `harbor:NAME` is an environment of
            Harbor's, by its name or import path, such as `harbor:modal`: it has the fields that Harbor has, not
            `processes`, `disk_mib` only as its storage, and hosts in `allow` on any port. A process that leaves the
            group of its command survives a time limit there. It needs the package `harbor` and Python 3.12.
        build_timeout_s: The maximum time for building the image, in seconds.
        workdir: The folder that commands run in. It is created if it is missing. An empty string is the image's own.
        user: The user that commands run as, such as `1000:1000`; None takes the image's.
        environ: The environment variables of its commands, in addition to the image's.
        allow: The addresses that it reaches, as `host:port`. Without any, it has no network. Its loopback interface
            forwards them, and the host's name leads there, so that a TLS certificate fits. Port 0 is not possible. At
            most 64 connections are open at the same time.
        memory_mib: The memory of all its processes together, in MiB. It has no swap.
        cpus: The number of processors.
        processes: The maximum number of processes and threads.
        disk_mib: The maximum size of the files that it writes, in MiB. It is checked five times a second while a
            command runs, where this process may read the engine's storage, and applies to each single file anywhere.
            Files that were removed while a process has them open, volumes, and what background processes write between
            commands are not counted.
        output_kib: The size, in KiB, to which standard output and standard error of a command are each cut, by leaving
            out the middle. A command that writes sixteen times as much is stopped.
        lifetime_s: The time after which it ends by itself, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(default="", pattern=r"^([^\s-]\S*)?$")
    dockerfile: Path | None = None
    engine: _EngineName | Annotated[str, Field(pattern=r"^harbor:\S+$")] | None = None
    build_timeout_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    workdir: str = Field(default="/work", pattern=r"^(/[^\x00:]*)?$")
    user: str | None = Field(default=None, pattern=r"^[\w.-]+(:[\w.-]+)?$")
    environ: Mapping[str, str] = Field(default_factory=dict[str, str])
    allow: tuple[str, ...] = ()
    memory_mib: int = Field(default=1024, ge=16, le=2**30)
    cpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    processes: int = Field(default=256, ge=4, le=2**20)
    disk_mib: int = Field(default=1024, ge=1, le=2**30)
    output_kib: int = Field(default=64, ge=1, le=2**20)
    lifetime_s: int = Field(default=3600, ge=1, le=10**7)

    @field_validator("allow")
    @classmethod
    def _check_addresses(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for address in allow:
            if not _ADDRESS.fullmatch(address) or not 0 < int(address.rpartition(":")[2]) < 2**16:
                raise ValueError(f"{address!r} is not an address; expected host:port, such as 'pypi.org:443'")
        return allow

    @field_validator("environ")
    @classmethod
    def _check_environ(cls, environ: Mapping[str, str]) -> Mapping[str, str]:
        return _checked(environ)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.engine == "sandbox":
            if given := [name for name in ("image", "dockerfile", "user", "allow") if getattr(self, name)]:
                raise ValueError(f"engine='sandbox' has no {', '.join(given)}; leave it out, or use podman or docker")
        elif bool(self.image) == (self.dockerfile is not None):
            raise ValueError("expected either image, the name of an image, or dockerfile, a folder with a Dockerfile")
        return self


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command in a container, including one that failed or was stopped."""

    stdout: str
    """The standard output. Invalid UTF-8 is replaced by U+FFFD."""
    stderr: str
    """The standard error, in the same form."""
    exit_status: int | None
    """0 for success; 128 plus the signal number if a signal ended the command; None if it was stopped."""
    limit: CommandLimit | None
    """The limit at which the command and everything that it started was stopped, or None."""
    seconds: float
    """The wall-clock time of the command, in seconds."""

    @property
    def ok(self) -> bool:
        """True if the command ended without an error."""
        return self.exit_status == 0

    def report(self) -> str:
        """Return the output, errors and end as one string, such as for a tool result."""
        words = {
            "time": f"after {self.seconds:.0f} s",
            "output": "it wrote too much output",
            "disk": "the disk is full",
        }
        end = f"[exit status {self.exit_status}]" if self.exit_status else ""
        if self.limit is not None:
            end = f"[the command was stopped by a limit: {words[self.limit]}]"
        return reported(self.stdout, self.stderr, end)


class Container(abc.ABC):
    """A running container. Make it with `start`, and use it as an asynchronous context manager, which stops it.

    Its methods may be called from any event loop, several at the same time. Relative paths are in `config.workdir`.

    Attributes:
        name: The engine's name of the container.
        config: What it was made from.
    """

    def __init__(self, name: str, config: ContainerConfig) -> None:
        self.name, self.config = name, config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @abc.abstractmethod
    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> CommandResult:
        """Run a command, and return its result.

        When it is stopped, by a limit or because the caller is cancelled, everything that it started is stopped, too:
        all processes that inherited its environment.

        Args:
            command: A command line for the image's `sh`, or a program and its arguments.
            stdin: Its standard input.
            timeout_s: The maximum wall-clock time, in seconds.
            cwd: The folder to run in; None for `config.workdir`.
            environ: Environment variables in addition to those of `config`.
            user: The user that it runs as; None for that of `config`.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If the engine could not run the command.
        """

    @abc.abstractmethod
    async def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: If the container has no such file.
            ContainerError: If it cannot be read.
        """

    @abc.abstractmethod
    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Write a new file in place of whatever is there, and create its folders.

        Args:
            path: Its path. A link or a folder there is removed.
            content: Its content; a string is written as UTF-8.
            mode: Its permissions.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If it cannot be written.
        """

    @abc.abstractmethod
    async def copy_in(self, source: Path, target: str) -> None:
        """Copy the content of a folder of this machine into a folder of the container, which is created.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If it cannot be copied.
        """

    @abc.abstractmethod
    async def copy_out(self, source: str, target: Path) -> None:
        """Copy the content of a folder of the container into a folder of this machine.

        The container's files are not trusted: devices, and links that lead out of the folder, are refused.

        Raises:
            FileNotFoundError: If the container has no such folder.
            ContainerError: If it cannot be copied, or contains such a file.
        """

    async def copy_to(self, other: "Container", folder: str = ".") -> None:
        """Copy the content of a folder to the same place in another container.

        Args:
            other: The other container.
            folder: The folder; by default `config.workdir`.

        Raises:
            FileNotFoundError: If the container has no such folder.
            ContainerError: If it cannot be copied.
        """
        with tempfile.TemporaryDirectory(prefix="envsdk-container-") as here:
            await self.copy_out(folder, Path(here))
            await other.copy_in(Path(here), folder)

    async def snapshot(self) -> str:
        """Store the files of the container as an image, and return the image's id, for a `ContainerConfig`.

        Raises:
            ContainerError: If the engine cannot do that.
        """
        raise ContainerError(f"the container {self.name} cannot be stored as an image; copy its files with copy_out")

    async def duplicate(self, **changes: Any) -> "Container":
        """Start a container with the files that this one has now, all of them, and with none of its processes.

        Args:
            **changes: Fields of its config that differ from this one's, such as `allow`.

        Raises:
            ContainerError: If the engine cannot store the container as an image, or cannot start the other one.
        """
        raise ContainerError(f"the container {self.name} cannot be duplicated; copy its files with copy_to")

    @abc.abstractmethod
    async def stop(self) -> None:
        """End everything in the container, and remove it. A second call does nothing.

        Raises:
            ContainerError: If the engine fails while the container exists.
        """

    def tools(self, *names: _ToolName, timeout_s: float = 60.0) -> list[Tool]:
        """Return tools for a `ToolEnv`, with which a model works in the container.

        Args:
            names: Which ones; all of them if none is named.
            timeout_s: The time limit of a command, in seconds.
        """

        async def shell(command: str) -> str:
            """Run a command line in a shell, and return its output and errors.

            Args:
                command: The command line.
            """
            return (await self.run(command, timeout_s=timeout_s)).report()

        async def python(code: str) -> str:
            """Run a Python program, and return its output and errors.

            Args:
                code: The whole program. Print everything that you want to see.
            """
            return (await self.run(["python3", "-c", code], timeout_s=timeout_s)).report()

        async def read_file(path: str, first_line: int = 1, last_line: int | None = None) -> str:
            """Return lines of a text file.

            Args:
                path: The path of the file.
                first_line: The first line to return, counted from 1.
                last_line: The last line to return; by default the end of the file.
            """
            lines = (await self._text(path)).splitlines(keepends=True)
            text, limit = "".join(lines[max(first_line, 1) - 1 : last_line]), self.config.output_kib * 1024
            if len(text) <= limit:
                return text
            return f"{text[:limit]}\n[cut: {limit:,} of {len(text):,} characters are shown]"

        async def write_file(path: str, content: str) -> str:
            """Write a text file, and replace it if it exists.

            Args:
                path: The path of the file.
                content: The whole content.
            """
            await self.write(path, content)
            return f"{path} has {len(content.splitlines())} lines now."

        async def edit_file(path: str, old: str, new: str) -> str:
            """Replace a string in a text file. It must occur exactly once.

            Args:
                path: The path of the file.
                old: The string to replace, with its white space.
                new: The string to write in its place.
            """
            text = await self._text(path)
            if text.count(old) != 1 or not old:
                raise ToolError(f"old occurs {text.count(old) if old else 0} times in {path}; it must occur once")
            await self.write(path, text.replace(old, new))
            return f"{path} was changed."

        functions = {each.__name__: each for each in (shell, python, read_file, write_file, edit_file)}
        return [tool(_reporting(functions[name])) for name in names or functions]

    async def _text(self, path: str) -> str:
        try:
            return (await self.read(path)).decode()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise ToolError(f"{path} is not a text file: {error}") from error

    def _absolute(self, path: str) -> PurePosixPath:
        if re.search("[\0\ud800-\udc7f\udd00-\udfff]", path):
            raise ConfigError(f"the path {path!r:.80} contains a null character or half of a surrogate pair")
        return PurePosixPath(posixpath.normpath(PurePosixPath(self.config.workdir, path)))


class _EngineContainer(Container):
    """A container of podman or docker."""

    def __init__(
        self,
        engine: str,
        name: str,
        config: ContainerConfig,
        user: str,
        storage: str | None,
        forwarding: Forwarding,
    ) -> None:
        super().__init__(name, config)
        self._engine, self._user, self._forwarding = engine, user, forwarding
        self._copied_from: str | None = None
        """The image that was made for this container alone."""
        self._written = None if storage is None or not os.access(storage, os.R_OK) else partial(_size, Path(storage))

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> CommandResult:
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        if not words or any("\0" in word for word in words):
            raise ConfigError("expected a program and its arguments, or a command line, without null characters")
        mark, size, began_at = secrets.token_hex(8), self.config.output_kib * 1024, time.monotonic()
        environ = {**self.config.environ, **_checked(environ or {})}
        # By name, because other users see a command's arguments, and by one that means nothing to the engine's client.
        variables = {f"ENVSDK_{number}": value for number, value in enumerate(environ.values())} | {_MARK: mark}
        renamed = (f'export {name}="$ENVSDK_{number}"; unset ENVSDK_{number}' for number, name in enumerate(environ))
        script = "; ".join((_BEGIN, *renamed, 'exec "$@"'))
        written = 0 if self._written is None else await asyncio.to_thread(self._written)
        # A command may always remove files, also when the disk is full.
        call = Command(size, timeout_s, self._written, max(written, self.config.disk_mib * 2**20))
        try:
            named = (f"--env={name}" for name in variables)
            inside = ("sh", "-c", script, "sh", str(self._absolute(cwd or ".")), *words)
            execute = (self._engine, "exec", f"--user={user or self._user}")
            await call.execute(
                (*execute, "--interactive", "--workdir=/", *named, self.name, *inside), stdin, environ=variables
            )
        finally:
            if call.status is None:
                await asyncio.shield(self._kill(mark, user or self._user))
        warnings, began, stderr = call.stderr.text().partition(mark)
        if call.status is not None and (not began or call.status >= _CLIENT_FAILED):
            await self._check_runs()
            if not began:
                raise ContainerError(f"{self._engine} could not run the command: {call.message}")
        seconds = time.monotonic() - began_at
        return CommandResult(call.stdout.text(), stderr if began else warnings, call.status, call.limit, seconds)

    async def _kill(self, mark: str, user: str) -> None:
        """Kill the processes of a command, or the container if that fails, as after a command that forks forever."""
        call = Command(timeout_s=_KILL_S)
        await call.execute((self._engine, "exec", f"--user={user}", self.name, "sh", "-c", _KILL, mark))
        if call.status != 0:
            await Command().execute((self._engine, "kill", self.name))

    async def _check_runs(self) -> None:
        """Check that the container has not ended.

        Raises:
            ContainerLost: If it has.
        """
        state = Command()
        await state.execute((self._engine, "inspect", "--format={{.State.Running}}", self.name))
        if state.stdout.text().strip() != "true":
            raise ContainerLost(f"the container {self.name} has ended: it was removed, or it reached its lifetime_s")

    async def read(self, path: str) -> bytes:
        with tempfile.TemporaryFile() as packed:
            await self._pack(str(self._absolute(path)), packed)
            with tarfile.open(fileobj=packed) as archive:
                member = archive.next()
                file = archive.extractfile(member) if member is not None and member.isfile() else None
                if file is None:
                    raise FileNotFoundError(f"{path} in the container is not a file")
                return file.read()

    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        target = self._absolute(path)
        data = content.encode() if isinstance(content, str) else content
        if PurePosixPath(self.config.workdir).is_relative_to(target):
            raise ConfigError(f"{path} in the container is the folder of its commands; expected the path of a file")
        new = target.parent / f".{secrets.token_hex(8)}"
        words = ("sh", "-c", _WRITE, "sh", str(target.parent), str(target), str(new), f"{mode:o}")
        result = await self.run(words, stdin=data, cwd="/", timeout_s=_FILES_S)
        if not result.ok:
            raise ContainerError(f"{path} in the container cannot be written: {result.report()}")

    async def copy_in(self, source: Path, target: str) -> None:
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(_pack, source, packed)
            await self._unpack(packed, str(self._absolute(target)))

    async def copy_out(self, source: str, target: Path) -> None:
        with tempfile.TemporaryFile() as packed:
            await self._pack(f"{self._absolute(source)}/.", packed)
            try:
                with tarfile.open(fileobj=packed) as archive:
                    await asyncio.to_thread(archive.extractall, target, filter="data")
            except tarfile.TarError as error:
                raise ContainerError(f"{source} in the container cannot be copied: {error}") from error

    async def _pack(self, path: str, file: IO[bytes]) -> None:
        """Write an archive of a file or folder into a file of this machine."""
        call = Command(written=lambda: os.fstat(file.fileno()).st_size, most=(self.config.disk_mib + 1) * 2**20)
        await call.execute((self._engine, "cp", f"{self.name}:{path}", "-"), into=file)
        if call.status == 0:
            file.seek(0)
            return
        if call.limit:
            raise ContainerError(f"{path} in the container is larger than disk_mib, {self.config.disk_mib} MiB")
        if re.search("could not (be found|find)", call.message, re.IGNORECASE):
            raise FileNotFoundError(f"{path} does not exist in the container")
        await self._check_runs()
        raise ContainerError(f"{path} in the container cannot be read: {call.message}")

    async def _unpack(self, packed: IO[bytes], folder: str) -> None:
        """Extract an archive into a folder, which is created."""
        as_root = (self._engine, "exec", "--user=0", self.name)
        is_empty = not any(os.pread(packed.fileno(), 512, 0))  # podman refuses such an archive
        for arguments, source in (
            ((*as_root, "mkdir", "-p", "--", folder), b""),
            *(() if is_empty else (((self._engine, "cp", "-", f"{self.name}:{folder}"), packed),)),
            ((*as_root, "chown", "-R", "-h", self._user, "--", folder), b""),
        ):
            call = Command()
            await call.execute(arguments, source)
            if call.status:
                await self._check_runs()
                raise ContainerError(f"{folder} in the container cannot be filled: {call.message}")

    async def copy_to(self, other: Container, folder: str = ".") -> None:
        if not isinstance(other, _EngineContainer):
            return await super().copy_to(other, folder)
        path = str(self._absolute(folder))
        with tempfile.TemporaryFile() as packed:
            await self._pack(f"{path}/.", packed)  # links and all, because no file of it gets into this machine
            await other._unpack(packed, path)
        return None

    async def snapshot(self) -> str:
        return await self._commit()

    async def _commit(self, *options: str) -> str:
        return (await output_of(self._engine, "commit", *options, self.name, timeout_s=_COMMIT_S)).split()[-1]

    async def duplicate(self, **changes: Any) -> Container:
        image = await self._commit(f"--change=LABEL {_COPY}={_owner()}")
        changes = {"engine": self._engine, "image": image, "dockerfile": None, "user": self._user, **changes}
        try:
            other = await start(self.config.model_copy(update=changes))
        except BaseException:
            await Command().execute((self._engine, "rmi", "--no-prune", image))
            raise
        assert isinstance(other, _EngineContainer)
        other._copied_from = image
        return other

    async def stop(self) -> None:
        self._forwarding.close()
        call = Command()
        await call.execute((self._engine, "rm", "--force", "--volumes", self.name))
        listing = ("ps", "--all", "--quiet", f"--filter=name=^{self.name}$")
        if call.status != 0 and await output_of(self._engine, *listing):
            raise ContainerError(f"{self._engine} could not remove {self.name}: {call.message or 'it took too long'}")
        if self._copied_from is not None:
            await Command().execute((self._engine, "rmi", "--no-prune", "--force", self._copied_from))


class _SandboxContainer(Container):
    """Files that exist in this process, and programs that run in `envsdk.sandbox` on a copy of them.

    A command is `python`, `cat` or `ls` with arguments. What it writes is discarded when it ends.
    """

    def __init__(self, config: ContainerConfig) -> None:
        super().__init__("sandbox", config)
        self._files: dict[str, bytes] = {}

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> CommandResult:
        if user is not None:
            raise ConfigError(f"user is {user!r}, but the sandbox has no users")
        began_at = time.monotonic()
        words = [command] if isinstance(command, str) else [str(word) for word in command]
        if max(map(len, words), default=0) >= _MAX_WORD:
            raise ConfigError(f"the command is too long; a word of it has at most {_MAX_WORD:,} characters")
        try:
            words = shlex.split(command) if isinstance(command, str) else words
        except ValueError as error:
            return CommandResult("", f"sh: {error}", 2, None, 0.0)
        files = {path: base64.b64encode(data).decode() for path, data in self._files.items()}
        job = {"files": files, "words": words, "environ": {**self.config.environ, **_checked(environ or {})}}
        job |= {"folder": posixpath.relpath(self._absolute(cwd or ""), self.config.workdir)}
        limits = SandboxLimits(
            timeout_s=timeout_s,
            cpu_s=max(1, int(timeout_s)),
            memory_mib=max(64, self.config.memory_mib),
            disk_mib=self.config.disk_mib,
            file_mib=self.config.disk_mib,
            processes=min(self.config.processes, 4096),
            output_kib=self.config.output_kib,
        )
        code = f"JOB = {json.dumps(job)}\n{_IN_SANDBOX}"
        result = await arun_python(code, stdin=stdin.decode(errors="replace"), limits=limits)
        limit = None if result.exit_status is not None else "output" if result.limit == "output" else "time"
        return CommandResult(result.stdout, result.stderr, result.exit_status, limit, time.monotonic() - began_at)

    async def read(self, path: str) -> bytes:
        try:
            return self._files[self._relative(path)]
        except KeyError:
            raise FileNotFoundError(f"{path} in the container is not a file") from None

    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        name = self._relative(path)
        folders = {str(folder) for folder in PurePosixPath(name).parents}
        if name == "." or folders & self._files.keys() or any(other.startswith(f"{name}/") for other in self._files):
            raise ContainerError(f"{path} cannot be written: it is a folder, or a file is where its folder would be")
        written = sum(map(len, self._files.values())) - len(self._files.get(name, b"")) + len(data)
        if written > self.config.disk_mib * 2**20:
            raise ContainerError(f"the files are larger than disk_mib, {self.config.disk_mib} MiB")
        self._files[name] = data

    async def copy_in(self, source: Path, target: str) -> None:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                await self.write(str(PurePosixPath(target, path.relative_to(source))), path.read_bytes())

    async def copy_out(self, source: str, target: Path) -> None:
        folder = PurePosixPath(self._relative(source))
        for name, data in self._files.items():
            if PurePosixPath(name).is_relative_to(folder):
                path = target / PurePosixPath(name).relative_to(folder)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    async def stop(self) -> None:
        self._files.clear()

    def _relative(self, path: str) -> str:
        absolute = self._absolute(path)
        if not absolute.is_relative_to(self.config.workdir):
            raise ContainerError(f"{path} is not in {self.config.workdir}, and the sandbox has no other files")
        name = absolute.relative_to(self.config.workdir)
        if len(os.fsencode(name)) > 2000 or any(len(os.fsencode(part)) > 255 for part in name.parts):
            raise ConfigError(f"the path {path!r:.80} is too long")
        return str(name)


class _HarborContainer(Container):
    """An environment of Harbor's, all of whose methods are called in one event loop.

    Args:
        environment: The environment, which was started.
        config: What it was made from.
        folder: A folder for its files on this machine.
    """

    def __init__(self, environment: Any, config: ContainerConfig, folder: Path) -> None:
        super().__init__(str(environment.session_id), config)
        self._environment, self._folder = environment, folder

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> CommandResult:
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        if not words or any("\0" in word for word in words):
            raise ConfigError("expected a program and its arguments, or a command line, without null characters")
        line, source, began_at = shlex.join(words), "/dev/null", time.monotonic()
        if stdin:
            source = f"/tmp/.{secrets.token_hex(8)}"
            await self.write(source, stdin)
        result = await self._call(
            "exec",
            f"timeout -k 1 {timeout_s:.3f} {line} < {source}",
            cwd=str(self._absolute(cwd or ".")),
            env={**self.config.environ, **_checked(environ or {})},
            timeout_sec=math.ceil(timeout_s) + 30,
            user=user or self.config.user,
        )
        seconds, size = time.monotonic() - began_at, self.config.output_kib * 1024
        outputs = [Output(size), Output(size)]
        for output, text in zip(outputs, (result.stdout, result.stderr), strict=True):
            output.add((text or "").encode(errors="replace"))
        is_late = result.return_code in (124, 137) and seconds >= timeout_s
        status = None if is_late else result.return_code
        return CommandResult(outputs[0].text(), outputs[1].text(), status, "time" if is_late else None, seconds)

    async def read(self, path: str) -> bytes:
        name = str(self._absolute(path))
        if not await self._call("is_file", name):
            raise FileNotFoundError(f"{path} in the container is not a file")
        with tempfile.TemporaryDirectory(dir=self._folder) as here:
            await self._call("download_file", name, Path(here, "file"))
            return Path(here, "file").read_bytes()

    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        target = self._absolute(path)
        await self._call("exec", shlex.join(("mkdir", "-p", str(target.parent))), user="root")
        await self._call("exec", shlex.join(("rm", "-rf", str(target))), user="root")
        with tempfile.TemporaryDirectory(dir=self._folder) as here:
            file = Path(here, "file")
            file.write_bytes(content.encode() if isinstance(content, str) else content)
            file.chmod(mode)
            await self._call("upload_file", file, str(target))
        await self._call("exec", shlex.join(("chmod", f"{mode:o}", str(target))), user="root")

    async def copy_in(self, source: Path, target: str) -> None:
        await self._call("exec", shlex.join(("mkdir", "-p", str(self._absolute(target)))), user="root")
        await self._call("upload_dir", source, str(self._absolute(target)))

    async def copy_out(self, source: str, target: Path) -> None:
        name = str(self._absolute(source))
        if not await self._call("is_dir", name):
            raise FileNotFoundError(f"{source} does not exist in the container")
        with tempfile.TemporaryDirectory(dir=self._folder) as here:
            await self._call("download_dir", name, here)
            for path in Path(here).rglob("*"):
                if not path.resolve().is_relative_to(Path(here).resolve()) or not (path.is_file() or path.is_dir()):
                    raise ContainerError(f"{path.name} of {source} in the container leads out of it, or is a device")
            await asyncio.to_thread(shutil.copytree, here, target, symlinks=True, dirs_exist_ok=True)

    async def stop(self) -> None:
        if self._folder.exists():
            await self._call("stop", delete=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the environment.

        Raises:
            ContainerError: If it fails.
        """
        call = background_loop(os.getpid()).submit(getattr(self._environment, method)(*arguments, **named))
        try:
            return await asyncio.wrap_future(call)
        except Exception as error:  # each of Harbor's environments raises its own
            raise ContainerError(f"{method} of {self.config.engine} failed: {error}") from error


async def _started_by_harbor(config: ContainerConfig) -> Container:
    """Start an environment of Harbor's.

    Raises:
        MissingPackage: If Harbor, or what the environment needs, is not installed.
        ContainerError: If it cannot be made or started.
    """
    what, advice = f"engine={config.engine!r} needs the package", "pip install harbor, with Python 3.12 or newer"
    factory: Any = load("harbor.environments.factory", what, advice).EnvironmentFactory
    models, trials = load("harbor.models.task.config", what, advice), load("harbor.models.trial.config", what, advice)
    paths: Any = load("harbor.models.trial.paths", what, advice)
    folder = Path(tempfile.mkdtemp(prefix="envsdk-harbor-"))
    hosts = list(dict.fromkeys(address.rpartition(":")[0] for address in config.allow))
    policy = {"network_mode": "allowlist" if hosts else "no-network", "allowed_hosts": hosts}
    name = (config.engine or "").partition(":")[2]
    environment: Any = None
    try:
        given = {"import_path": name} if ":" in name else {"type": name}
        environment = factory.create_environment_from_config(
            trials.EnvironmentConfig(**given),
            environment_dir=folder if config.dockerfile is None else config.dockerfile.resolve(),
            environment_name="envsdk",
            session_id=f"envsdk-{secrets.token_hex(8)}",
            trial_paths=paths.TrialPaths(trial_dir=folder),
            task_env_config=models.EnvironmentConfig(
                docker_image=config.image or None,
                build_timeout_sec=config.build_timeout_s,
                cpus=config.cpus,
                memory_mb=config.memory_mib,
                storage_mb=config.disk_mib,
                **policy,
            ),
            network_policy=models.NetworkPolicy(**policy),
        )
        await environment.start(force_build=False)
        workdir = config.workdir or (await environment.exec("pwd")).stdout.strip()
        container = _HarborContainer(environment, config.model_copy(update={"workdir": workdir}), folder)
        await environment.exec(
            f"mkdir -p {shlex.quote(workdir)} && chmod 777 {shlex.quote(workdir)}", cwd="/", user="root"
        )
        return container
    except (Exception, SystemExit) as error:  # each of Harbor's environments raises its own
        if environment is not None:
            with contextlib.suppress(Exception):
                await environment.stop(delete=True)
        shutil.rmtree(folder, ignore_errors=True)
        raise ContainerError(f"{config.engine} could not start a container: {error}") from error


async def start(config: ContainerConfig) -> Container:
    """Start a container.

    Raises:
        ConfigError: If neither podman nor docker is installed.
        ContainerError: If the engine could not start it, such as because it cannot find the image.
    """
    if config.engine == "sandbox":
        return _SandboxContainer(config)
    if config.engine is not None and config.engine.startswith("harbor:"):
        return await asyncio.wrap_future(background_loop(os.getpid()).submit(_started_by_harbor(config)))
    engine, image = _installed(config.engine), config.image
    if config.dockerfile is not None:
        folder = str(config.dockerfile.resolve())
        image = await output_of(engine, "build", "--quiet", folder, timeout_s=config.build_timeout_s)
    name = f"envsdk-{secrets.token_hex(8)}"
    limits = {"fsize": config.disk_mib * 2**20, "nofile": 1024, "nproc": 8192}  # not every machine allows the default
    call = Command()
    arguments = (
        *(engine, "run", "--detach", f"--name={name}", f"--label={_OWNER}={_owner()}", "--network=none", "--user=0"),
        f"--hostname={_HOSTNAME}",
        *("--workdir=/", "--entrypoint=sh", "--stop-signal=SIGKILL", "--log-driver=none"),
        *(f"--memory={config.memory_mib}m", f"--memory-swap={config.memory_mib}m", f"--cpus={config.cpus}"),
        *(
            f"--pids-limit={config.processes}",
            "--security-opt=no-new-privileges",
            "--cap-drop=mknod",
            "--cap-drop=net_raw",
        ),
        *(f"--ulimit={limit}={value}:{value}" for limit, value in limits.items()),
        *(("--http-proxy=false", "--image-volume=ignore") if engine == "podman" else ()),
        *(image, "-c", _PROCESS_1, str(config.lifetime_s)),
    )
    try:
        await call.execute(arguments)
        if call.status != 0:
            raise ContainerError(f"{engine} could not start {image}: {call.message or 'it took too long'}")
        described: dict[str, Any] = json.loads(await output_of(engine, "inspect", name))[0]
        form = "--format={{.Config.User}}|{{.Config.WorkingDir}}"
        own_user, _, own_folder = (await output_of(engine, "image", "inspect", form, image)).partition("|")
        user, storage = config.user or own_user or "0", described.get("GraphDriver", {}).get("Data", {}).get("UpperDir")
        config = config.model_copy(update={"workdir": config.workdir or own_folder or "/"})
        hosts = {"127.0.0.1": f"localhost {_HOSTNAME}", "::1": "localhost"}
        hosts |= {local: host for host, local in locals_of(config.allow) if host not in HERE}
        lines = (f"{address} {host}" for address, host in hosts.items())
        await output_of(engine, "exec", "--user=0", name, "sh", "-c", _PREPARE, "sh", config.workdir, user, *lines)
        forwarding = Forwarding()
        if config.allow:
            await forwarding.open(described["State"]["Pid"], config.allow)
    except BaseException:
        await Command().execute((engine, "rm", "--force", "--volumes", name))
        raise
    return _EngineContainer(engine, name, config, user, storage, forwarding)


class ContainerPool:
    """Containers of one image that are started before they are needed.

    Its containers are used once: take one, and stop it when it is not needed anymore.

    Args:
        config: What they are made from.
        size: How many are kept ready.
    """

    def __init__(self, config: ContainerConfig, size: int = 1) -> None:
        self.config = config
        self._size, self._is_closed = size, False
        self._become_own()

    def _become_own(self) -> None:
        """Forget the containers of another process, such as those from before a fork."""
        self._process, self._lock = os.getpid(), threading.Lock()
        self._ready: deque[tuple[float, Future[Container]]] = deque()
        """When each container was started, and its result, from the oldest."""

    async def take(self) -> Container:
        """Return a container that nothing has run in, and that has at least half of its lifetime left.

        Raises:
            ConfigError: If the pool is closed, or for the reasons of `start`.
            ContainerError: If a container could not be started.
        """
        if self._process != os.getpid():
            self._become_own()
        loop, now = background_loop(os.getpid()), time.monotonic()
        with self._lock:
            if self._is_closed:
                raise ConfigError("the pool of containers is closed")
            while self._ready and self._ready[0][0] < now - self.config.lifetime_s / 2:
                loop.submit(_stop_started(self._ready.popleft()[1]))
            while len(self._ready) <= self._size:
                self._ready.append((now, loop.submit(start(self.config))))
            _, taken = self._ready.popleft()
        return await asyncio.wrap_future(taken)

    async def close(self) -> None:
        """Stop the containers that were not taken. A second call does nothing."""
        if self._process != os.getpid():
            self._become_own()
        with self._lock:
            self._is_closed, waiting = True, list(self._ready)
            self._ready.clear()
        await asyncio.gather(*(_stop_started(started) for _, started in waiting), return_exceptions=True)


async def _stop_started(started: Future[Container]) -> None:
    await (await asyncio.wrap_future(started)).stop()


async def prune(engine: _EngineName | None = None, *, everything: bool = False) -> list[str]:
    """Remove the containers whose process has ended, and return their names.

    Args:
        engine: The engine that runs them; None takes the first of podman and docker that is installed.
        everything: True removes all containers of envsdk, those of running processes included.

    Raises:
        ConfigError: If the engine is not installed.
        ContainerError: If the engine fails.
    """
    program = _installed(engine)
    listing = ("ps", "--all", f"--filter=label={_OWNER}", "--format={{.Names}} {{.Labels}}")
    names = [
        line.split()[0]
        for line in (await output_of(program, *listing)).splitlines()
        if everything or not _lives(next(iter(_LABEL.findall(line)), ""))
    ]
    for start_at in range(0, len(names), _BATCH):
        await output_of(program, "rm", "--force", "--volumes", *names[start_at : start_at + _BATCH])
    copies = (await output_of(program, "images", "--quiet", "--no-trunc", f"--filter=label={_COPY}")).split()
    form = f'--format={{{{index .Config.Labels "{_COPY}"}}}}'
    for image in dict.fromkeys(copies):
        if everything or not _lives(await output_of(program, "image", "inspect", form, image)):
            await output_of(program, "rmi", "--no-prune", "--force", image)
    return names


def _installed(engine: str | None) -> str:
    """Return an engine that is installed: the given one, or by default the first.

    Raises:
        ConfigError: If it is not installed.
    """
    choices = ("podman", "docker") if engine is None else (engine,)
    for name in choices:
        if shutil.which(name):
            return name
    raise ConfigError(
        f"containers need {' or '.join(choices)}, which is not installed here; engine='sandbox' runs Python without one"
    )


def _reporting(function: Callable[..., Coroutine[Any, Any, str]]) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return a function whose errors are reported to the model, except that the container has ended."""

    @wraps(function)
    async def call(*args: Any, **named: Any) -> str:
        try:
            return await function(*args, **named)
        except ContainerLost:
            raise
        except (ContainerError, ValueError, OSError) as error:  # a ConfigError is a ValueError
            raise ToolError(f"{function.__name__} failed: {error}") from error

    return call


def _checked(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return environment variables.

    Raises:
        ConfigError: If a name or a value cannot be one: an engine expands some names, such as `*`.
    """
    for name, value in environ.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ConfigError(
                f"{name!r:.80} cannot be an environment variable; expected a name of letters, digits and '_', not "
                "ENVSDK_0 and so on, and a value without null characters"
            )
    return environ


def _pack(folder: Path, packed: IO[bytes]) -> None:
    """Write an archive of the content of a folder, whose files belong to root."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        return entry

    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=owned)
    packed.seek(0)


def _size(folder: Path) -> int:
    """Return the size of the files of a folder on the disk, in bytes."""
    size, waiting = 0, [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:  # it was removed
            for entry in entries:
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return size


def _owner() -> str:
    """Return what identifies this process: the machine, its id, and when it started."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started_at(os.getpid())}"


def _started_at(process: int) -> str:
    """Return when a process started; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _lives(owner: str) -> bool:
    """Return whether the process that a label identifies runs. One of another machine is taken to run."""
    host, process, started_at = owner.rsplit(":", 2)
    return host != socket.gethostname() or _started_at(int(process)) == started_at != ""
