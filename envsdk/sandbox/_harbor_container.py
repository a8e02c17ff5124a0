"""Containers of Harbor's environments, such as Modal's or Daytona's."""

import asyncio
import contextlib
import math
import os
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .._packages import load
from ..errors import ContainerError
from ._container import CommandResult, Container, ContainerConfig, words_of
from ._forwarding import background_loop
from ._process import Output


def harbor_module(name: str) -> Any:
    """Return a module of the package `harbor`.

    Raises:
        MissingPackage: If it is not installed.
    """
    what, advice = "Harbor's environments and agents need the package", "pip install harbor, with Python 3.12 or newer"
    return load(f"harbor.{name}", what, advice)


class HarborContainer(Container):
    """An environment of Harbor's, all of whose methods are called in one event loop.

    Args:
        environment: The environment, which was started.
        config: What it was made from.
        folder: A folder for its files on this machine.
    """

    def __init__(self, environment: Any, config: ContainerConfig, folder: Path) -> None:
        super().__init__(str(environment.session_id), config)
        self._environment, self._folder = environment, folder

    async def _run(
        self,
        command: str | Sequence[str],
        stdin: bytes,
        timeout_s: float,
        folder: PurePosixPath,
        environ: Mapping[str, str],
        user: str | None,
    ) -> CommandResult:
        line, source, began_at = shlex.join(words_of(command)), "/dev/null", time.monotonic()
        if stdin:
            source = f"/tmp/.{secrets.token_hex(8)}"
            await self.write(source, stdin)
        result = await self._call(
            "exec",
            f"timeout -k 1 {timeout_s:.3f} {line} < {source}",
            cwd=str(folder),
            env=environ,
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

    async def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        name = str(self._absolute(path))
        if not await self._call("is_file", name):
            raise FileNotFoundError(f"{path} in the container is not a file")
        with tempfile.TemporaryDirectory(dir=self._folder) as here:
            file = Path(here, "file")
            await self._call("download_file", name, file)
            if max_bytes is not None and file.stat().st_size > max_bytes:
                raise ContainerError(f"{path} in the container is larger than {max_bytes:,} bytes")
            return file.read_bytes()

    async def write(self, path: str, content: bytes | str, *, mode: int | None = 0o644) -> None:
        target = self._absolute(path)
        if mode is None:
            asked = await self._call("exec", f"stat -c %a {shlex.quote(str(target))}", user="root")
            mode = int(asked.stdout, 8) if asked.return_code == 0 else 0o644
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


async def started_by_harbor(config: ContainerConfig) -> Container:
    """Start an environment of Harbor's.

    Raises:
        MissingPackage: If Harbor, or what the environment needs, is not installed.
        ContainerError: If it cannot be made or started.
    """
    factory: Any = harbor_module("environments.factory").EnvironmentFactory
    models, trials = harbor_module("models.task.config"), harbor_module("models.trial.config")
    paths: Any = harbor_module("models.trial.paths")
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
        container = HarborContainer(environment, config.model_copy(update={"workdir": workdir}), folder)
        await environment.exec(
            f"mkdir -p {shlex.quote(workdir)} && chmod 777 {shlex.quote(workdir)}", cwd="/", user="root"
        )
        return container
    except BaseException as error:  # each of Harbor's environments raises its own
        if environment is not None:
            with contextlib.suppress(Exception):
                await environment.stop(delete=True)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Exception | SystemExit):
            raise ContainerError(f"{config.engine} could not start a container: {error}") from error
        raise
