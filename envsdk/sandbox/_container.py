"""What a container is made from, what can be done with it, and the tools that a model uses in it."""

import abc
import io
import posixpath
import re
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .._visible import brief
from ..authoring._tools import Tool, tool
from ..errors import ConfigError, ContainerError, ContainerLost, ToolError
from ._commands import CommandLimit
from ._result import reported

EngineName: TypeAlias = Literal["podman", "docker", "sandbox"]
_ToolName: TypeAlias = Literal["shell", "python", "read_file", "write_file", "edit_file"]
_MAX_TEXT = 2**22
"""The maximum size of a file that the tools of a model read, in bytes."""
_VARIABLE = re.compile(r"(?!ENVSDK_[0-9])[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}")


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
        disk_mib: The maximum size of the files that it writes, in MiB. It applies to each single file, by the kernel,
            and to all files together, by a check, where this process may read the engine's storage: volumes count, and
            removed files that a process has open. A command that exceeds it is stopped, within 0.2 s. What background
            processes write is checked once a second; at twice the limit, the container is killed.
        output_kib: The size, in KiB, to which standard output and standard error of a command are each cut, by leaving
            out the middle. A command that writes sixteen times as much is stopped.
        lifetime_s: The time after which it ends by itself, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(default="", pattern=r"^([^\s-]\S*)?$")
    dockerfile: Path | None = None
    engine: EngineName | Annotated[str, Field(pattern=r"^harbor:\S+$")] | None = None
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
        return checked_environ(environ)

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

        When it is stopped, by a limit or because the caller is cancelled, everything that it started is killed, too.
        If that fails, the container is killed.

        Args:
            command: A command line for the image's `sh`, or a program and its arguments.
            stdin: Its standard input.
            timeout_s: The maximum wall-clock time, in seconds.
            cwd: The folder to run in; None for `config.workdir`.
            environ: Environment variables in addition to those of `config`.
            user: The user that it runs as; None for that of `config`.

        Raises:
            ContainerLost: If the container has ended.
            ContainerError: If the engine could not run the command, or the container was killed because of an earlier
                one.
        """
        variables = {**self.config.environ, **checked_environ(environ or {})}
        return await self._run(command, stdin, timeout_s, self._absolute(cwd or "."), variables, user)

    @abc.abstractmethod
    async def _run(
        self,
        command: str | Sequence[str],
        stdin: bytes,
        timeout_s: float,
        folder: PurePosixPath,
        environ: Mapping[str, str],
        user: str | None,
    ) -> CommandResult:
        """Run a command in a folder, with all of its environment variables; see `run`."""

    @abc.abstractmethod
    async def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return the content of a file.

        Args:
            path: Its path.
            max_bytes: Its maximum size; None for `config.disk_mib`.

        Raises:
            FileNotFoundError: If the container has no such file.
            ContainerError: If it cannot be read, or is larger.
        """

    @abc.abstractmethod
    async def write(self, path: str, content: bytes | str, *, mode: int | None = 0o644) -> None:
        """Write a new file in place of whatever is there, and create its folders.

        Args:
            path: Its path. A link or a folder there is removed.
            content: Its content; a string is written as UTF-8.
            mode: Its permissions; None keeps those of the file that is there.

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
            lines = list(io.StringIO(await self._text(path), newline="\n"))  # counted as by other programs
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
            await self.write(path, content, mode=None)
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
            await self.write(path, text.replace(old, new), mode=None)
            return f"{path} was changed."

        functions = {each.__name__: each for each in (shell, python, read_file, write_file, edit_file)}
        return [tool(_reporting(functions[name])) for name in names or functions]

    async def _text(self, path: str) -> str:
        try:
            return (await self.read(path, max_bytes=_MAX_TEXT)).decode()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise ToolError(f"{path} is not a text file: {error}") from error

    def _absolute(self, path: str) -> PurePosixPath:
        if re.search("[\0\ud800-\udc7f\udd00-\udfff]", path):
            raise ConfigError(f"the path {brief(path)} contains a null character or half of a surrogate pair")
        return PurePosixPath(posixpath.normpath(PurePosixPath(self.config.workdir, path)))


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


def words_of(command: str | Sequence[str]) -> list[str]:
    """Return the program and the arguments of a command; the image's `sh` runs a command line.

    Raises:
        ConfigError: If it is empty, or contains null characters.
    """
    words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    if not words or any("\0" in word for word in words):
        raise ConfigError("expected a program and its arguments, or a command line, without null characters")
    return words


def checked_environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return environment variables.

    Raises:
        ConfigError: If a name or a value cannot be one: an engine expands some names, such as `*`.
    """
    for name, value in environ.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ConfigError(
                f"{brief(name)} cannot be an environment variable; expected a name of letters, digits and '_', not "
                "ENVSDK_0 and so on, and a value without null characters"
            )
    return environ
