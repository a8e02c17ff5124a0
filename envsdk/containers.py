"""Run commands in containers, by the command line of podman or docker.

`start` makes a `Container` from an image or a Dockerfile; `Container.run` runs a command in it. A container has no
network. Addresses that `ContainerConfig.allow` lists are reached through its loopback interface; nothing else is.
Nothing of this machine enters it: no environment variables, no files. Its memory, processors, processes and disk are
limited, and it ends by itself after `lifetime_s`.

Each container carries the label `envsdk.owner`, which identifies the process that started it. `prune` removes the
containers whose process has ended, such as those of a killed run.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .authoring._event_loops import LoopThread
from .errors import ConfigError, ContainerError, ContainerLost
from .sandbox._process import Output

EngineName = Literal["podman", "docker"]
_OWNER, _MARK = "envsdk.owner", "ENVSDK_COMMAND"
_CLIENT_FAILED = 125
"""Exit statuses from this one on may be those of the engine's client: of 125, 126, 127, and 128 + a signal."""
_ENGINE_S = 120.0
"""The maximum time for a command of the engine that runs nothing of the user's, in seconds."""
_LOOK_S = 0.2
"""The interval between checks of the limits, in seconds."""
_DRAIN_S = 1.0
"""The maximum time for reading what a command wrote after it has ended: its children may keep the output open."""
_MAX_OUTPUT = 16
"""A command is stopped when it writes more than this many times the limit on its kept output."""
_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}")
_HERE = ("127.0.0.1", "localhost")
_KILL = f"""for round in 1 2 3 4 5; do
  left=
  for process in /proc/[0-9]*; do
    if tr '\\000' '\\n' < $process/environ | grep -qxF "{_MARK}=$0"; then kill -9 ${{process#/proc/}}; left=1; fi
  done 2> /dev/null
  if [ -z "$left" ]; then exit 0; fi
done"""
_JOIN = """import ctypes, os, socket, sys
control, process, *addresses = sys.argv[1:]
for kind in ("user", "net"):
    theirs = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
    is_ours = os.path.samestat(os.fstat(theirs), os.stat(f"/proc/self/ns/{kind}"))
    if not is_ours and ctypes.CDLL(None, use_errno=True).setns(theirs, 0):
        sys.exit(f"{os.strerror(ctypes.get_errno())}: its {kind} namespace cannot be joined")
listeners = []
for address in addresses:
    host, _, port = address.rpartition(":")
    listeners.append(socket.create_server((host, int(port)), backlog=64))
socket.send_fds(socket.socket(fileno=int(control)), [b"."], [listener.fileno() for listener in listeners])
"""


class ContainerConfig(BaseModel):
    """What a container is made from, what it may reach, and its limits.

    Attributes:
        image: The name of the image, such as `python:3.12-slim`.
        dockerfile: A folder with a Dockerfile, from which the image is built once, in place of `image`.
        engine: The program that runs containers; None takes the first of podman and docker that is installed.
        workdir: The folder that commands run in. It is created.
        user: The user that commands run as, such as `1000:1000`; None takes the image's.
        environ: The environment variables of its commands, in addition to the image's.
        allow: The addresses that it reaches, as `host:port`. Without any, it has no network. Its loopback interface
            forwards them, and the host's name leads there, so that a TLS certificate fits. Port 0 is not possible.
        memory_mib: The memory of all its processes together, in MiB. It has no swap.
        cpus: The number of processors.
        processes: The maximum number of processes and threads.
        disk_mib: The maximum size of the files that it writes, in MiB. It is checked once a second while a command
            runs, where this process may read the engine's storage, and applies to each single file anywhere.
        output_kib: The size, in KiB, to which standard output and standard error of a command are each cut, by leaving
            out the middle. A command that writes sixteen times as much is stopped.
        lifetime_s: The time after which it ends by itself, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(default="", pattern=r"^([^\s-]\S*)?$")
    dockerfile: Path | None = None
    engine: EngineName | None = None
    workdir: str = Field(default="/work", pattern=r"^/[^\x00:]*$")
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

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if bool(self.image) == (self.dockerfile is not None):
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
    limit: Literal["time", "output", "disk"] | None
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
        parts = [self.stdout, f"[errors]\n{self.stderr}" if self.stderr else "", end]
        return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


class Container:
    """A running container. Make it with `start`, and use it as an asynchronous context manager, which stops it.

    Its methods may be called from any event loop, several at the same time.

    Attributes:
        name: The engine's name of the container.
        config: What it was made from.
    """

    def __init__(self, engine: str, name: str, config: ContainerConfig, user: str, storage: str | None) -> None:
        self.name, self.config = name, config
        self._engine, self._user = engine, user
        self._written = None if storage is None or not os.access(storage, os.R_OK) else partial(_size, Path(storage))
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
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

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If the engine could not run the command.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        if not words:
            raise ConfigError("the command is empty; expected a program and its arguments, or a command line")
        mark, size, began_at = secrets.token_hex(8), self.config.output_kib * 1024, time.monotonic()
        variables = [f"--env={name}={value}" for name, value in {**(environ or {}), _MARK: mark}.items()]
        folder = f"--workdir={cwd or self.config.workdir}"
        execute = (self._engine, "exec", f"--user={self._user}")
        written = 0 if self._written is None else await asyncio.to_thread(self._written)
        # A command may always remove files, also when the disk is full.
        call = _Call(size, timeout_s, self._written, max(written, self.config.disk_mib * 2**20))
        try:
            await call.execute((*execute, "--interactive", folder, *variables, self.name, *words), stdin)
        finally:
            if call.status is None:
                await _Call().execute((*execute, self.name, "sh", "-c", _KILL, mark))
        if call.status is not None and call.status >= _CLIENT_FAILED:
            await self._check_runs(call)
        seconds = time.monotonic() - began_at
        return CommandResult(call.stdout.text(), call.stderr.text(), call.status, call.limit, seconds)

    async def _check_runs(self, call: "_Call") -> None:
        """Check that the failure of a command is its own.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If the engine did not run the command.
        """
        state = _Call()
        await state.execute((self._engine, "inspect", "--format={{.State.Running}}", self.name))
        if state.stdout.text().strip() != "true":
            raise ContainerLost(f"the container {self.name} has ended: it was removed, or it reached its lifetime_s")
        if call.status == _CLIENT_FAILED:
            raise ContainerError(f"{self._engine} could not run the command: {call.message}")

    async def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: If the container has no such file.
            ContainerError: If it cannot be read.
        """
        with tempfile.TemporaryFile() as packed:
            await self._pack(str(self._absolute(path)), packed)
            with tarfile.open(fileobj=packed) as archive:
                member = archive.next()
                file = archive.extractfile(member) if member is not None and member.isfile() else None
                if file is None:
                    raise FileNotFoundError(f"{path} in the container is not a file")
                return file.read()

    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, and create its folders.

        Args:
            path: Its path; a relative one is in `config.workdir`.
            content: Its content; a string is written as UTF-8.
            mode: Its permissions.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If it cannot be written.
        """
        target = self._absolute(path)
        data = content.encode() if isinstance(content, str) else content
        command = 'mkdir -p "$1" && cat > "$2" && chmod "$3" "$2"'
        words = ("sh", "-c", command, "sh", str(target.parent), str(target), f"{mode:o}")
        result = await self.run(words, stdin=data, cwd="/", timeout_s=_ENGINE_S)
        if not result.ok:
            raise ContainerError(f"{path} in the container cannot be written: {result.report()}")

    async def copy_in(self, source: Path, target: str) -> None:
        """Copy the content of a folder of this machine into a folder of the container, which is created.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If it cannot be copied.
        """
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(_pack, source, packed)
            await self._unpack(packed, str(self._absolute(target)))

    async def copy_out(self, source: str, target: Path) -> None:
        """Copy the content of a folder of the container into a folder of this machine.

        The container's files are not trusted: devices, and links that lead out of the folder, are refused.

        Raises:
            FileNotFoundError: If the container has no such folder.
            ContainerError: If it cannot be copied, or contains such a file.
        """
        with tempfile.TemporaryFile() as packed:
            await self._pack(f"{self._absolute(source)}/.", packed)
            try:
                with tarfile.open(fileobj=packed) as archive:
                    await asyncio.to_thread(archive.extractall, target, filter="data")
            except tarfile.TarError as error:
                raise ContainerError(f"{source} in the container cannot be copied: {error}") from error

    async def _pack(self, path: str, file: IO[bytes]) -> None:
        """Write an archive of a file or folder into a file of this machine."""
        call = _Call(written=lambda: os.fstat(file.fileno()).st_size, most=(self.config.disk_mib + 1) * 2**20)
        await call.execute((self._engine, "cp", f"{self.name}:{path}", "-"), into=file)
        if call.status == 0:
            file.seek(0)
            return
        if call.limit:
            raise ContainerError(f"{path} in the container is larger than disk_mib, {self.config.disk_mib} MiB")
        if re.search("could not (be found|find)", call.message, re.IGNORECASE):
            raise FileNotFoundError(f"{path} does not exist in the container")
        await self._check_runs(call)
        raise ContainerError(f"{path} in the container cannot be read: {call.message}")

    def _absolute(self, path: str) -> PurePosixPath:
        if "\0" in path:
            raise ConfigError(f"the path {path!r:.80} contains a null character")
        return PurePosixPath(self.config.workdir, path)

    async def copy_to(self, other: "Container", folder: str | None = None) -> None:
        """Copy the content of a folder, with links and owners, to the same place in another container.

        Args:
            other: The other container.
            folder: The folder; None for `config.workdir`.

        Raises:
            FileNotFoundError: If the container has no such folder.
            ContainerError: If it cannot be copied.
        """
        path = str(self._absolute(folder or ""))
        with tempfile.TemporaryFile() as packed:
            await self._pack(f"{path}/.", packed)
            await other._unpack(packed, path)

    async def _unpack(self, packed: IO[bytes], folder: str) -> None:
        """Extract an archive into a folder, which is created."""
        made = await self.run(("mkdir", "-p", "--", folder), cwd="/", timeout_s=_ENGINE_S)
        call = _Call()
        if made.ok:
            await call.execute((self._engine, "cp", "-", f"{self.name}:{folder}"), packed)
        if not made.ok or call.status:
            raise ContainerError(f"{folder} in the container cannot be filled: {call.message or made.report()}")

    async def snapshot(self) -> str:
        """Store the files of the container as an image, and return the image's id, for a `ContainerConfig`.

        Raises:
            ContainerError: If the engine cannot do that.
        """
        return await _output(self._engine, "commit", "--quiet", self.name)

    async def stop(self) -> None:
        """End everything in the container, and remove it. A second call does nothing."""
        servers, self._servers = self._servers, []
        for server in servers:
            _loop(os.getpid()).submit(_close(server))
        await _Call().execute((self._engine, "rm", "--force", "--volumes", self.name))

    async def _serve_allowed(self, process: int) -> None:
        """Forward what arrives at the container's loopback interface to the allowed addresses.

        A helper process joins the container's network namespace, opens the sockets, and passes them to this process: a
        socket stays in the namespace that it was opened in.
        """
        allow = self.config.allow
        listeners = [f"{local}:{address.rpartition(':')[2]}" for address, local in _locals(allow)]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            control = str(theirs.fileno())
            helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _JOIN, control, str(process), *listeners),
                pass_fds=[theirs.fileno()],
                env={},
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, errors = await helper.communicate()
            if helper.returncode:
                why = errors.decode(errors="replace").strip()[-300:]
                raise ContainerError(f"allow needs Linux, and root or a rootless podman: {why}")
            _, descriptors, _, _ = socket.recv_fds(ours, 1, len(listeners))
        for address, descriptor in zip(allow, descriptors, strict=True):
            serving = _loop(os.getpid()).submit(_serve(socket.socket(fileno=descriptor), address))
            self._servers.append(await asyncio.wrap_future(serving))


async def start(config: ContainerConfig) -> Container:
    """Start a container.

    Raises:
        ConfigError: If neither podman nor docker is installed.
        ContainerError: If the engine could not start it, such as because it cannot find the image.
    """
    engine = config.engine or next((name for name in ("podman", "docker") if shutil.which(name)), None)
    if engine is None or shutil.which(engine) is None:
        raise ConfigError(f"containers need {engine or 'podman or docker'}, which is not installed here")
    image = config.image
    if config.dockerfile is not None:
        image = await _output(engine, "build", "--quiet", str(config.dockerfile), timeout_s=config.lifetime_s)
    name = f"envsdk-{secrets.token_hex(8)}"
    options = {
        "name": name,
        "label": f"{_OWNER}={_owner()}",
        "network": "none",
        "user": "0",
        "workdir": "/",
        "entrypoint": "sh",
        "memory": f"{config.memory_mib}m",
        "memory-swap": f"{config.memory_mib}m",
        "cpus": config.cpus,
        "pids-limit": config.processes,
        "security-opt": "no-new-privileges",
        "stop-signal": "SIGKILL",
        "log-driver": "none",
        **({"http-proxy": "false"} if engine == "podman" else {}),
    }
    # An engine would raise the limits on processes and files, which not every machine allows.
    limits = {"fsize": config.disk_mib * 2**20, "nofile": 1024, "nproc": 8192}
    hosts = [(address.rpartition(":")[0], local) for address, local in _locals(config.allow)]
    arguments = [
        *(f"--{option}={value}" for option, value in options.items()),
        *(f"--ulimit={name}={value}:{value}" for name, value in limits.items()),
        *(f"--env={variable}={value}" for variable, value in config.environ.items()),
        *(f"--add-host={host}:{local}" for host, local in dict(hosts).items() if host not in _HERE),
    ]
    # Process 1 ends with its lifetime, and waits for processes whose parents have ended.
    try:
        await _output(engine, "run", "--detach", *arguments, image, "-c", f"sleep {config.lifetime_s} & wait")
        described: dict[str, Any] = json.loads(await _output(engine, "inspect", name))[0]
        own_user = (await _output(engine, "image", "inspect", "--format={{.Config.User}}", image)).strip()
        user = config.user or own_user or "0"
        container = Container(
            engine, name, config, user, described.get("GraphDriver", {}).get("Data", {}).get("UpperDir")
        )
        making = f"mkdir -p {shlex.quote(config.workdir)} && chown {user} {shlex.quote(config.workdir)}"
        await _output(engine, "exec", "--user=0", name, "sh", "-c", making)
        if config.allow:
            await container._serve_allowed(described["State"]["Pid"])  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        await _Call().execute((engine, "rm", "--force", "--volumes", name))
        raise
    return container


async def prune(engine: EngineName, *, everything: bool = False) -> list[str]:
    """Remove the containers whose process has ended, and return their names.

    Args:
        engine: The engine that runs them.
        everything: True removes all containers of envsdk, those of running processes included.

    Raises:
        ContainerError: If the engine fails.
    """
    ids = (await _output(engine, "ps", "--all", "--quiet", f"--filter=label={_OWNER}")).split()
    found: list[dict[str, Any]] = json.loads(await _output(engine, "inspect", *ids)) if ids else []
    names = [
        str(container["Name"]).lstrip("/")
        for container in found
        if everything or not _lives(container["Config"]["Labels"][_OWNER])
    ]
    if names:
        await _output(engine, "rm", "--force", "--volumes", *names)
    return names


class _Call:
    """A command of an engine's client.

    Args:
        size: The size to which each output is cut, in bytes.
        timeout_s: The maximum wall-clock time, in seconds.
        written: Returns how much was written, in bytes.
        most: The maximum of that.
    """

    def __init__(
        self,
        size: int = 2**20,
        timeout_s: float = _ENGINE_S,
        written: Callable[[], int] | None = None,
        most: int = 0,
    ) -> None:
        self.stdout, self.stderr = Output(size), Output(size)
        self.status: int | None = None
        """The exit status; None if the client was stopped."""
        self.limit: Literal["time", "output", "disk"] | None = None
        self._size, self._ends_at = size, time.monotonic() + timeout_s
        self._written, self._most = written, most

    @property
    def message(self) -> str:
        """The end of what it wrote to standard error."""
        return self.stderr.text().strip()[-500:]

    async def execute(
        self, arguments: Sequence[str], stdin: bytes | IO[bytes] = b"", into: IO[bytes] | None = None
    ) -> None:
        """Run it to its end or to a limit, whichever comes first."""
        pipe, source = asyncio.subprocess.PIPE, None if isinstance(stdin, bytes) else stdin
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=source or pipe, stdout=into or pipe, stderr=pipe
        )
        ended = asyncio.create_task(process.wait())
        tasks: list[asyncio.Task[None]] = []
        if process.stdin is not None and isinstance(stdin, bytes):
            tasks.append(asyncio.create_task(_feed(process.stdin, stdin)))
        for stream, output in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if stream is not None:
                tasks.append(asyncio.create_task(_read(stream, output)))
        try:
            while self.limit is None and not ended.done():
                await asyncio.wait([ended], timeout=_LOOK_S)
                self.limit = await self._exceeded()
            if ended.done():
                await asyncio.wait(tasks, timeout=_DRAIN_S)
                self.status = None if self.limit else process.returncode
        finally:
            if process.returncode is None:
                process.kill()
            for task in tasks:
                task.cancel()
            await asyncio.wait([*tasks, ended])

    async def _exceeded(self) -> Literal["time", "output", "disk"] | None:
        if time.monotonic() > self._ends_at:
            return "time"
        if max(self.stdout.size, self.stderr.size) > _MAX_OUTPUT * self._size:
            return "output"
        if self._written is not None and await asyncio.to_thread(self._written) > self._most:
            return "disk"
        return None


async def _output(*arguments: str, timeout_s: float = _ENGINE_S) -> str:
    """Return the standard output of a command of the engine, without the line's end.

    Raises:
        ContainerError: If it failed.
    """
    call = _Call(timeout_s=timeout_s)
    await call.execute(arguments)
    if call.status != 0:
        why = f"it took longer than {timeout_s:g} s" if call.limit else call.message
        raise ContainerError(f"{' '.join(arguments[:2])} failed: {why}")
    return call.stdout.text().strip()


async def _read(stream: asyncio.StreamReader, output: Output) -> None:
    while data := await stream.read(2**16):
        output.add(data)


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it does not read its input
        stream.write(data)
        await stream.drain()
    stream.close()


@cache
def _loop(process: int) -> LoopThread:
    """Return the thread that forwards connections; a forked process gets its own."""
    return LoopThread("envsdk-containers")


async def _serve(listener: socket.socket, address: str) -> asyncio.Server:
    host, _, port = address.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    return await asyncio.start_server(forward, sock=listener)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof() if writer.can_write_eof() else writer.close()


async def _close(server: asyncio.Server) -> None:
    server.close()


def _locals(allow: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each address with the address of the container's loopback interface that leads to it: one for each host."""
    hosts = list(dict.fromkeys(address.rpartition(":")[0] for address in allow))
    for address in allow:
        host = address.rpartition(":")[0]
        number = hosts.index(host) + 1
        yield address, "127.0.0.1" if host in _HERE else f"127.1.{number // 256}.{number % 256}"


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
    host, process, started_at = owner.split(":")
    return host != socket.gethostname() or _started_at(int(process)) == started_at != ""
