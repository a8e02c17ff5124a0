"""Containers of podman and docker, by their command line."""

import asyncio
import atexit
import contextlib
import json
import os
import re
import secrets
import stat
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..errors import ConfigError, ContainerError, ContainerLost
from ._commands import Command, output_of
from ._container import CommandResult, Container, ContainerConfig, words_of
from ._forwarding import HERE, Forwarding, background_loop, locals_of

OWNER, COPY = "envsdk.owner", "envsdk.copy"
"""The labels of containers, and of images that were made for one container, with the process that made them."""
_MARK = "ENVSDK_COMMAND"
"""The environment variable that identifies the processes of a command; `-` for those that envsdk runs."""
_CLIENT_FAILED = 125
"""Exit statuses from this one on may be those of the engine's client, such as when the container has ended."""
_FILES_S = 120.0
"""The maximum time for writing files, in seconds."""
_COMMIT_S = 600.0
"""The maximum time for storing a container as an image, in seconds."""
_KILL_S = 30.0
"""The maximum time for killing the processes of a command, in seconds, until the container is killed."""
_REPORTED_S = 0.5
"""The time after which an engine reports that a container has ended whose processes were killed, in seconds."""
_START_S = 120.0
"""The time for which the end of this process waits for containers that are being started, in seconds."""
_LOOK_S = 1.0
"""The interval between checks of the disk while no command runs, in seconds."""
_HOSTNAME = "container"
_PROCESS_1 = """read now rest < /proc/uptime
end=$((${now%.*} + $0))
while read now rest < /proc/uptime && [ "${now%.*}" -lt "$end" ]; do sleep $((end - ${now%.*})) & wait; done"""
"""Process 1 ends with its lifetime, even if its `sleep` is killed, and waits for processes whose parents have ended."""
_PREPARE = """if ! [ -d "$1" ]; then mkdir -p "$1" && chown "$2" "$1"; fi &&
shift 2 && printf '%s\\n' "$@" > /etc/hosts && : > /etc/resolv.conf"""
"""Makes the folder, and replaces the machine's names and DNS servers, which podman copies into a container."""
_BEGIN = f"""printf %s "${_MARK}" >&2; cd "$1" || exit 126; unset OLDPWD; shift"""
"""The start of a command, which reports that it runs: so no other command is mistaken for a failure of the engine."""
_KILL = f"""read now rest < /proc/uptime
from=$((${{now%.*}} - $1))00
for round in 1 2 3 4 5 6 7 8; do
  [ $round -lt 3 ] || sleep 0.1
  left=
  for process in /proc/[0-9]*; do
    status=
    while read -r line; do status="$status$line"; done < $process/stat
    set -- ${{status##*)}}
    [ "${{20:-0}}" -ge $from ] && [ "$1" != Z ] && [ $process != /proc/$$ ] || continue
    case $(tr '\\000' ' ' < $process/environ) in *{_MARK}=$0*) ;; *{_MARK}=*) continue ;; esac
    kill -9 ${{process#/proc/}} && left=1
  done 2> /dev/null
  [ -n "$left" ] || exit 0
done
exit 1"""
"""Kills the processes that began in the last seconds, except those of other commands."""
_WRITE = """mkdir -p "$1" && if [ -z "$4" ] && [ -f "$2" ]; then cp -p "$2" "$3"; fi &&
cat > "$3" && chmod "${4:-u+rw}" "$3" &&
if [ -L "$2" ] || ! [ -f "$2" ]; then rm -rf "$2"; fi && mv -fT "$3" "$2" || { rm -f "$3"; exit 1; }"""
"""Puts a new file in place of whatever is there: a program may have left a link, whose target would change."""


class EngineContainer(Container):
    """A container of podman or docker."""

    def __init__(self, engine: str, config: ContainerConfig) -> None:
        super().__init__(f"envsdk-{secrets.token_hex(8)}", config)
        self._engine, self._forwarding = engine, Forwarding()
        self._owner, self._user = "", "0"
        self._copied_from: str | None = None
        """The image that was made for this container alone."""
        self._process = 0
        """The id of its process 1 on this machine."""
        self.is_starting = False
        """True from before the engine makes it until `start` ends."""
        self._storage: list[str] = []
        """The folders of this machine that have what it writes, if they can be read."""
        self._watching: Future[None] | None = None
        self._killed = ""
        """Why this process killed the container."""

    async def start(self, owner: str) -> None:
        """Start it.

        Args:
            owner: What identifies this process.

        Raises:
            ContainerError: If the engine could not start it.
        """
        config, image, self._owner = self.config, self.config.image, owner
        if config.dockerfile is not None:
            folder = str(config.dockerfile.resolve())
            image = await output_of(self._engine, "build", "--quiet", folder, timeout_s=config.build_timeout_s)
        limits = {"fsize": config.disk_mib * 2**20, "nofile": 1024, "nproc": 8192}  # some machines refuse the defaults
        arguments = (
            *("--detach", f"--name={self.name}", f"--label={OWNER}={owner}", f"--env={_MARK}=-", "--network=none"),
            *("--user=0", f"--hostname={_HOSTNAME}", "--workdir=/", "--entrypoint=sh", "--stop-signal=SIGKILL"),
            *(f"--memory={config.memory_mib}m", f"--memory-swap={config.memory_mib}m", f"--cpus={config.cpus}"),
            *(f"--pids-limit={config.processes}", "--log-driver=none", "--security-opt=no-new-privileges"),
            *("--cap-drop=mknod", "--cap-drop=net_raw"),
            *(f"--ulimit={limit}={value}:{value}" for limit, value in limits.items()),
            *(("--http-proxy=false", "--image-volume=ignore") if self._engine == "podman" else ()),
        )
        try:
            self.is_starting = True
            _ours.add(self)
            call = Command(mark=self.name)  # it never writes that, so it is not stopped: half a container is not found
            await call.execute((self._engine, "run", *arguments, image, "-c", _PROCESS_1, str(config.lifetime_s)))
            if call.status != 0:
                raise ContainerError(f"{self._engine} could not start {image}: {call.message or 'it took too long'}")
            described: dict[str, Any] = json.loads(await output_of(self._engine, "inspect", self.name))[0]
            form = "--format={{.Config.User}}|{{.Config.WorkingDir}}"
            own_user, _, own_folder = (await output_of(self._engine, "image", "inspect", form, image)).partition("|")
            config = self.config = config.model_copy(update={"workdir": config.workdir or own_folder or "/"})
            self._user, self._process = config.user or own_user or "0", described["State"]["Pid"]
            hosts = {"127.0.0.1": f"localhost {_HOSTNAME}", "::1": "localhost"}
            hosts |= {local: host for host, local in locals_of(config.allow) if host not in HERE}
            lines = (f"{address} {host}" for address, host in hosts.items())
            await output_of(*self._as_root("sh", "-c", _PREPARE, "sh", config.workdir, self._user, *lines))
            if config.allow:
                await self._forwarding.open(self._process, config.allow)
        except BaseException:
            with contextlib.suppress(ContainerError):
                await self.stop()
            raise
        finally:
            self.is_starting = False
        driver: dict[str, Any] = described.get("GraphDriver") or {}
        layer: dict[str, str] = driver.get("Data") or {}
        folders = [layer.get("UpperDir", ""), *(mount["Source"] for mount in described.get("Mounts") or ())]
        self._storage = [folder for folder in folders if os.access(folder, os.R_OK)]
        if self._storage:
            self._watching = background_loop(os.getpid()).submit(self._watch())

    async def _run(
        self,
        command: str | Sequence[str],
        stdin: bytes,
        timeout_s: float,
        folder: PurePosixPath,
        environ: Mapping[str, str],
        user: str | None,
    ) -> CommandResult:
        words = words_of(command)
        mark, size, began_at = secrets.token_hex(8), self.config.output_kib * 1024, time.monotonic()
        # By name, because other users see a command's arguments, and by one that means nothing to the engine's client.
        variables = {f"ENVSDK_{number}": value for number, value in enumerate(environ.values())} | {_MARK: mark}
        renamed = (f'export {name}="$ENVSDK_{number}"; unset ENVSDK_{number}' for number, name in enumerate(environ))
        script = "; ".join((_BEGIN, *renamed, 'exec "$@"'))
        # A command may always remove files, also when the disk is full. A file system counts some blocks later.
        written = await asyncio.to_thread(self._written) if self._storage else 0
        most = max(written + 2**20, self.config.disk_mib * 2**20)
        call = Command(size, timeout_s, self._written if self._storage else None, most, mark)
        try:
            named = (f"--env={name}" for name in variables)
            inside = ("sh", "-c", script, "sh", str(folder), *words)
            arguments = ("--interactive", "--workdir=/", f"--user={user or self._user}", *named, self.name, *inside)
            await call.execute((self._engine, "exec", *arguments), stdin, environ=variables)
        finally:
            if call.status is None:
                await asyncio.shield(self._end(mark, user or self._user, time.monotonic() - began_at))
        warnings, began, stderr = call.stderr.text().partition(mark)
        if call.status is not None and (not began or call.status >= _CLIENT_FAILED):
            if began and self._killed:  # while it ran
                call.status, call.limit = None, "disk"
            else:
                await asyncio.sleep(0 if began and call.status != 137 else _REPORTED_S)
                await self._check_runs()
            if not began:
                raise ContainerError(f"{self._engine} could not run the command: {call.message}")
        seconds = time.monotonic() - began_at
        return CommandResult(call.stdout.text(), stderr if began else warnings, call.status, call.limit, seconds)

    async def _end(self, mark: str, user: str, seconds: float) -> None:
        """Kill the processes of a command, or the container if that fails, as after a command that forks forever."""
        call = Command(timeout_s=_KILL_S)
        inside = ("sh", "-c", _KILL, mark, str(int(seconds) + 2))
        await call.execute((self._engine, "exec", f"--user={user}", self.name, *inside))
        if call.status != 0:
            await self._kill("a command in it could not be stopped")

    async def _kill(self, why: str) -> None:
        self._killed = self._killed or why
        await Command().execute((self._engine, "kill", self.name))

    async def _watch(self) -> None:
        """Kill the container if processes that commands left in it write too much."""
        while await asyncio.to_thread(self._written) <= 2 * self.config.disk_mib * 2**20:
            await asyncio.sleep(_LOOK_S)
        await self._kill(f"it has written more than twice disk_mib, {self.config.disk_mib} MiB")

    async def _check_runs(self) -> None:
        """Check that the container has not ended.

        Raises:
            ContainerLost: If it has.
            ContainerError: If what ran in it is the reason.
        """
        if self._killed:
            raise ContainerError(f"the container {self.name} was killed: {self._killed}")
        state = Command()
        await state.execute((self._engine, "inspect", "--format={{.State.Running}}", self.name))
        if state.stdout.text().strip() != "true":
            raise ContainerLost(f"the container {self.name} has ended: it was removed, or it reached its lifetime_s")

    async def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        most = self.config.disk_mib * 2**20 if max_bytes is None else max_bytes
        with tempfile.TemporaryFile() as packed:
            await self._pack(str(self._absolute(path)), packed, most)
            with tarfile.open(fileobj=packed) as archive:
                member = archive.next()
                file = archive.extractfile(member) if member is not None and member.isfile() else None
                if member is None or file is None:
                    raise FileNotFoundError(f"{path} in the container is not a file")
                if member.size > most:
                    raise ContainerError(f"{path} in the container is larger than {most:,} bytes")
                return file.read()

    async def write(self, path: str, content: bytes | str, *, mode: int | None = 0o644) -> None:
        target = self._absolute(path)
        data = content.encode() if isinstance(content, str) else content
        if PurePosixPath(self.config.workdir).is_relative_to(target):
            raise ConfigError(f"{path} in the container is the folder of its commands; expected the path of a file")
        places = (str(target.parent), str(target), str(target.parent / f".{secrets.token_hex(8)}"))
        words = ("sh", "-c", _WRITE, "sh", *places, "" if mode is None else f"{mode:o}")
        result = await self.run(words, stdin=data, cwd="/", timeout_s=_FILES_S)
        if not result.ok:
            raise ContainerError(f"{path} in the container cannot be written: {result.report()}")

    async def copy_in(self, source: Path, target: str) -> None:
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(_pack, source, packed)
            await self._unpack(packed, str(self._absolute(target)))

    async def copy_out(self, source: str, target: Path) -> None:
        with tempfile.TemporaryFile() as packed:
            await self._pack(f"{self._absolute(source)}/.", packed, self.config.disk_mib * 2**20)
            try:
                with tarfile.open(fileobj=packed) as archive:
                    await asyncio.to_thread(archive.extractall, target, filter="data")
            except tarfile.TarError as error:
                raise ContainerError(f"{source} in the container cannot be copied: {error}") from error

    async def copy_to(self, other: Container, folder: str = ".") -> None:
        if not isinstance(other, EngineContainer):
            return await super().copy_to(other, folder)
        path = str(self._absolute(folder))
        with tempfile.TemporaryFile() as packed:
            # Links and all, because no file of it gets into this machine.
            await self._pack(f"{path}/.", packed, self.config.disk_mib * 2**20)
            await other._unpack(packed, path)
        return None

    async def _pack(self, path: str, file: IO[bytes], most: int) -> None:
        """Write an archive of a file or folder, of at most `most` bytes and 1 MiB, into a file of this machine."""
        call = Command(written=lambda: os.fstat(file.fileno()).st_size, most=most + 2**20)
        await call.execute((self._engine, "cp", f"{self.name}:{path}", "-"), into=file)
        if call.status == 0:
            file.seek(0)
            return
        if call.limit:
            raise ContainerError(f"{path} in the container is larger than {most:,} bytes")
        if re.search("could not (be found|find)", call.message, re.IGNORECASE):
            raise FileNotFoundError(f"{path} does not exist in the container")
        await self._check_runs()
        raise ContainerError(f"{path} in the container cannot be read: {call.message}")

    async def _unpack(self, packed: IO[bytes], folder: str) -> None:
        """Extract an archive into a folder, which is created."""
        is_empty = not any(os.pread(packed.fileno(), 512, 0))  # podman refuses such an archive
        for arguments, source in (
            (self._as_root("mkdir", "-p", "--", folder), b""),
            *(() if is_empty else (((self._engine, "cp", "-", f"{self.name}:{folder}"), packed),)),
            # The root folder is not given away: it has the whole image, and /proc.
            *(() if folder == "/" else ((self._as_root("chown", "-R", "-h", self._user, "--", folder), b""),)),
        ):
            call = Command()
            await call.execute(arguments, source)
            if call.status:
                await self._check_runs()
                raise ContainerError(f"{folder} in the container cannot be filled: {call.message}")

    def _as_root(self, *words: str) -> tuple[str, ...]:
        return self._engine, "exec", "--user=0", self.name, *words

    async def snapshot(self) -> str:
        return (await output_of(self._engine, "commit", self.name, timeout_s=_COMMIT_S)).split()[-1]

    async def duplicate(self, **changes: Any) -> Container:
        label = f"--change=LABEL {COPY}={self._owner}"
        image = (await output_of(self._engine, "commit", label, self.name, timeout_s=_COMMIT_S)).split()[-1]
        changes = {"engine": self._engine, "image": image, "dockerfile": None, "user": self._user, **changes}
        other = EngineContainer(self._engine, self.config.model_copy(update=changes))
        other._copied_from = image
        await other.start(self._owner)
        return other

    async def stop(self) -> None:
        self._forwarding.close()
        if self._watching is not None:
            self._watching.cancel()
        call = Command()
        await call.execute((self._engine, "rm", "--force", "--volumes", self.name))
        listing = ("ps", "--all", "--quiet", f"--filter=name=^{self.name}$")
        if call.status != 0 and await output_of(self._engine, *listing):
            raise ContainerError(f"{self._engine} could not remove {self.name}: {call.message or 'it took too long'}")
        if self._copied_from is not None:
            await Command().execute((self._engine, "rmi", "--no-prune", "--force", self._copied_from))
        _ours.discard(self)

    def _written(self) -> int:
        """Return the size of what it has written, in bytes."""
        return sum(map(_size_of, self._storage)) + _size_of_removed(self._process)


_ours: set[EngineContainer] = set()
"""The containers that this process began to start, and has not removed."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ours.clear)


@atexit.register
def _remove_ours() -> None:
    """Remove what is left when this process ends, such as a container whose start was cancelled just before."""

    async def stop() -> None:
        await asyncio.gather(*(container.stop() for container in _ours), return_exceptions=True)

    ends_at = time.monotonic() + _START_S
    while any(container.is_starting for container in list(_ours)) and time.monotonic() < ends_at:
        time.sleep(0.1)
    if _ours:
        asyncio.run(stop())


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


def _size_of(folder: str) -> int:
    """Return the size of the files of a folder on the disk, in bytes."""
    size, waiting = 0, [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:  # it was removed
            for entry in entries:
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return size


def _size_of_removed(process: int) -> int:
    """Return the size of the removed files that processes of a container have open or mapped, in bytes.

    Args:
        process: The id of one of the processes.
    """
    sizes: dict[int, int] = {}
    with contextlib.suppress(OSError):  # it has ended
        device = Path(f"/proc/{process}/root").stat().st_dev  # a file in memory has another
        for each in _processes_with(process):
            for kind in ("fd", "map_files"):
                with contextlib.suppress(OSError), os.scandir(f"/proc/{each}/{kind}") as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):
                            file = entry.stat()
                            if file.st_nlink == 0 and file.st_dev == device and stat.S_ISREG(file.st_mode):
                                sizes[file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def _processes_with(process: int) -> set[str]:
    """Return the ids of the processes in the cgroup of a process."""
    found: set[str] = set()
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            with contextlib.suppress(OSError):  # this version of cgroups is not mounted
                found.update(Path(f"/sys/fs/cgroup/{controllers}/{path}/cgroup.procs").read_text().split())
    return found
