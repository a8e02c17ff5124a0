"""A container without an image: files in this process, and programs that run in the sandbox on a copy of them."""

import base64
import inspect
import os
import posixpath
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from .._visible import brief
from ..errors import ConfigError, ContainerError
from . import _shell
from ._container import CommandResult, Container, ContainerConfig
from ._isolation import arun_python
from ._result import SandboxLimits

_MAX_WORD = 2**17
"""The length of a word of a command, which is that of Linux."""


class SandboxContainer(Container):
    """Files that exist in this process, and programs that run in `envsdk.sandbox` on a copy of them.

    A command is `python`, `cat` or `ls` with arguments. What it writes is discarded when it ends.
    """

    def __init__(self, config: ContainerConfig) -> None:
        super().__init__("sandbox", config)
        self._files: dict[str, bytes] = {}

    async def _run(
        self,
        command: str | Sequence[str],
        stdin: bytes,
        timeout_s: float,
        folder: PurePosixPath,
        environ: Mapping[str, str],
        user: str | None,
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
        job = (files, posixpath.relpath(folder, self.config.workdir), dict(environ), words)
        limits = SandboxLimits(
            timeout_s=timeout_s,
            cpu_s=max(1, int(timeout_s)),
            memory_mib=max(64, self.config.memory_mib),
            disk_mib=self.config.disk_mib,
            file_mib=self.config.disk_mib,
            processes=min(self.config.processes, 4096),
            output_kib=self.config.output_kib,
        )
        code = f"{inspect.getsource(_shell)}\n\nmain(*{job!r})\n"
        result = await arun_python(code, stdin=stdin.decode(errors="replace"), limits=limits)
        limit = None if result.exit_status is not None else "output" if result.limit == "output" else "time"
        return CommandResult(result.stdout, result.stderr, result.exit_status, limit, time.monotonic() - began_at)

    async def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        data = self._files.get(self._relative(path))
        if data is None:
            raise FileNotFoundError(f"{path} in the container is not a file")
        if max_bytes is not None and len(data) > max_bytes:
            raise ContainerError(f"{path} in the container is larger than {max_bytes:,} bytes")
        return data

    async def write(self, path: str, content: bytes | str, *, mode: int | None = 0o644) -> None:
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
            raise ConfigError(f"the path {brief(path)} is too long")
        return str(name)
