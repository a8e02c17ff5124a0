"""Agents that Harbor installs, in a container of envsdk. It needs the package `harbor`, which needs Python 3.12."""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..containers import Container, ContainerConfig, start
from ..errors import ConfigError, ContainerError
from ..sandbox._harbor_container import harbor_module

_base: Any = harbor_module("environments.base")
_config: Any = harbor_module("models.task.config")
_EXEC_S = 24 * 3600.0


class ContainerEnvironment(_base.BaseEnvironment):
    """A container of `envsdk.containers` as an environment of Harbor's: for its agents, and for `harbor run`.

    `harbor run --env envsdk.gateway._harbor_agents:ContainerEnvironment` starts it from a task's image.
    """

    box: Container | None = None

    @staticmethod
    def type() -> str:
        return "envsdk"

    @classmethod
    def resource_capabilities(cls) -> Any:
        capabilities: Any = harbor_module("environments.capabilities")
        return capabilities.EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @property
    def capabilities(self) -> Any:
        capabilities: Any = harbor_module("environments.capabilities")
        return capabilities.EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        given = self.task_env_config
        image = given.docker_image or ""
        self.box = await start(
            ContainerConfig(
                image=image,
                dockerfile=None if image else self.environment_dir,
                workdir=given.workdir or "",
                cpus=given.cpus or 1.0,
                memory_mib=given.memory_mb or 2048,
                disk_mib=given.storage_mb or 10240,
                lifetime_s=int(_EXEC_S),
            )
        )
        await self.ensure_dirs(["/logs/agent", "/logs/verifier", "/logs/artifacts"], chmod=True)
        if image and self.environment_dir.is_dir() and not (self.environment_dir / "Dockerfile").exists():
            await self.box.copy_in(self.environment_dir, self.box.config.workdir)

    async def stop(self, delete: bool) -> None:
        if self.box is not None:
            await self.box.stop()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> Any:
        chosen = self.default_user if user is None else user
        result = await self._running().run(
            ["bash", "-c", command],
            cwd=cwd,
            environ=self._merge_env(env),
            timeout_s=timeout_sec or _EXEC_S,
            user=None if chosen is None else str(chosen),
        )
        if result.limit is not None:
            raise RuntimeError(f"the command was stopped by a limit, {result.limit}")
        return _base.ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_status)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        await self._running().write(target_path, source.read_bytes(), mode=source.stat().st_mode & 0o777)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._running().copy_in(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).write_bytes(await self._running().read(source_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with tempfile.TemporaryDirectory(prefix="envsdk-harbor-") as here:
            await self._running().copy_out(source_dir, Path(here))
            await asyncio.to_thread(shutil.copytree, here, target_dir, symlinks=True, dirs_exist_ok=True)

    def _running(self) -> Container:
        if self.box is None:
            raise ContainerError("the environment was not started")
        return self.box


async def run_agent(
    name: str,
    options: Mapping[str, Any],
    box: Container,
    instruction: str,
    environ: Mapping[str, str],
    limit_s: float,
) -> str:
    """Install an agent of Harbor's in a container and run it, and return how it ended.

    Args:
        name: Its name or import path.
        options: Fields of Harbor's `AgentConfig`.
        box: The container.
        instruction: The task.
        environ: The variables with which clients find the gateway.
        limit_s: The time limit, in seconds.

    Raises:
        ConfigError: If there is no such agent, or its options are not valid.
        ContainerError: If it cannot be installed.
    """
    factory: Any = harbor_module("agents.factory").AgentFactory
    paths: Any = harbor_module("models.trial.paths")
    trials: Any = harbor_module("models.trial.config")
    context: Any = harbor_module("models.agent.context")
    with tempfile.TemporaryDirectory(prefix="envsdk-harbor-") as here:
        folder = Path(here)
        trial = paths.TrialPaths(trial_dir=folder)
        trial.mkdir()
        environment = ContainerEnvironment(
            environment_dir=folder,
            environment_name="envsdk",
            session_id="envsdk",
            trial_paths=trial,
            task_env_config=_config.EnvironmentConfig(workdir=box.config.workdir),
        )
        environment.box = box
        given = {"model_name": "openai/envsdk", **options, "name": name, "env": dict(environ)}
        try:
            agent = factory.create_agent_from_config(trials.AgentConfig(**given), logs_dir=trial.agent_dir)
        except (ValueError, TypeError, ImportError, AttributeError) as error:
            raise ConfigError(f"the agent {name!r} of Harbor's cannot be made: {error}") from error
        try:
            await agent.setup(environment)
        except RuntimeError as error:
            raise ContainerError(
                f"the agent {name!r} cannot be installed; use an image that has it: {error}"
            ) from error
        try:
            with environment.scoped_exec_env(dict(environ)):
                async with asyncio.timeout(limit_s):
                    await agent.run(instruction, environment, context.AgentContext())
        except TimeoutError:
            return f"it was stopped after {limit_s:g} s"
        except RuntimeError as error:  # it ended with an error
            return str(error)[-2000:]
    return "it ended"
