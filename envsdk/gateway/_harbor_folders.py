"""Task folders in Harbor's format: reading them, and what they need of a container. It needs no package of Harbor.

The format is that of Harbor's task.toml, version 1.4. A field that cannot be honored is refused with its name.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .._describing import what_is_invalid
from .._untrusted import read_file
from .._visible import brief
from ..containers import ContainerConfig
from ..errors import ConfigError, InvalidRecord, TaskError

_MAX_BYTES = 2**20
"""The maximum size of task.toml and instruction.md, in bytes."""
_LIFETIME_S = 6 * 3600
"""The time that the model has for its replies, in seconds. A container ends after that and the task's time limits."""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_CANARY = re.compile(r"\A(?:[ \t]*(?:<!--.*canary.*-->|#.*canary.*)[ \t]*(?:\n|\Z))+\s*\n?", re.IGNORECASE)
_PATTERN = re.compile(r"[*/:\[]")
"""What only an entry of allowed_hosts has that names several hosts, or a port."""
_User: TypeAlias = Annotated[str | None, Field(coerce_numbers_to_str=True)]
_SIZES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Network(_Part):
    network_mode: Literal["no-network", "public", "allowlist"] | None = None
    allowed_hosts: tuple[str, ...] | None = None


class _Healthcheck(_Part):
    command: str
    interval_sec: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    timeout_sec: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    start_period_sec: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    start_interval_sec: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    retries: int = Field(default=3, ge=1)


class _Place(_Network):
    """[environment] or [verifier.environment]."""

    build_timeout_sec: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    docker_image: str | None = None
    os: str = "linux"
    cpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    memory_mb: int | None = None
    memory: str | None = None
    storage_mb: int | None = None
    storage: str | None = None
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: Any = None
    mcp_servers: tuple[Any, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    skills_dir: str | None = None
    healthcheck: _Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None


class _Agent(_Network):
    timeout_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    user: _User = None


class _Collect(_Part):
    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    user: _User = None


class _Verifier(_Network):
    timeout_sec: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    user: _User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: _Place | None = None
    collect: tuple[_Collect, ...] = ()


class _Solution(_Part):
    env: Mapping[str, str] = Field(default_factory=dict[str, str])


class _Artifact(_Part):
    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None


class TaskFile(_Part):
    """A task.toml. As in Harbor, other tables are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: str = "1.4"
    version: str | None = None
    task: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    environment: _Place = _Place()
    solution: _Solution = _Solution()
    source: str | None = None
    multi_step_reward_strategy: str | None = None
    steps: tuple[Any, ...] = ()
    artifacts: tuple[str | _Artifact, ...] = ()


@dataclass(frozen=True, slots=True)
class HarborFolder:
    """A task folder, read and checked.

    Attributes:
        path: The folder.
        file: The content of its task.toml.
        instruction: The task, as the agent sees it.
        box: The container of the agent.
        grader: The container of the tests, if the task has a separate one; else None.
        grader_allow: The addresses that the tests reach.
        has_own_tests: True if the image of `grader` has the tests.
        artifacts: What the agent leaves for a separate grader: paths in its container.
        tests_environ: Environment variables of the tests.
        solution_environ: Environment variables of the solution.
    """

    path: Path
    file: TaskFile
    instruction: str
    box: ContainerConfig
    grader: ContainerConfig | None
    grader_allow: tuple[str, ...]
    has_own_tests: bool
    artifacts: tuple[str, ...]
    tests_environ: Mapping[str, str]
    solution_environ: Mapping[str, str]

    def solution(self) -> dict[str, bytes]:
        """Return the files of the solution by their paths; empty if there is none."""
        folder = self.path / "solution"
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def folders_in(source: str | Path | Sequence[str | Path]) -> dict[str, Path]:
    """Return task folders by their names.

    Args:
        source: A task folder, a folder of task folders, or several of these.

    Raises:
        TaskError: If there is none, or two have the same name.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    found: dict[str, Path] = {}
    for each in map(Path, sources):
        is_one = (each / "task.toml").is_file()
        folders = [each] if is_one else sorted(path.parent for path in each.glob("*/task.toml"))
        if not folders:
            raise TaskError(f"{str(each)!r} is neither a folder with a task.toml nor a folder of such folders")
        for folder in folders:
            path = folder.resolve()
            if found.setdefault(path.name, path) != path:
                raise TaskError(f"two tasks have the name {path.name!r}: {found[path.name]} and {path}; rename one")
    return found


def read_folder(path: Path, environ: Mapping[str, str], *, offline: bool, engine: Any = None) -> HarborFolder:
    """Read and check a task folder.

    Args:
        path: The folder.
        environ: The values of the variables that task.toml refers to, as `${NAME}`.
        offline: True takes a task that asks for the internet, or for hosts by a pattern, and does not give it these.
        engine: The engine of its containers.

    Raises:
        TaskError: If it is not valid, or needs what there is not.
    """
    _check_links(path)
    try:
        file = TaskFile.model_validate(tomllib.loads(_text(path / "task.toml")))
        if needs := _needs(path, file, offline=offline):
            raise TaskError(f"the task {path} needs what is not supported: {'; '.join(needs)}")
        return _checked(path, file, environ, engine)
    except ValidationError as error:
        raise TaskError(f"the task {path} is not valid: {what_is_invalid(error)}") from error
    except ConfigError as error:
        raise TaskError(f"the task {path} is not valid: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskError(f"{path / 'task.toml'} is not TOML: {error}") from error


def _checked(path: Path, file: TaskFile, environ: Mapping[str, str], engine: Any) -> HarborFolder:
    verifier, place = file.verifier, file.environment
    own_place = verifier.environment or place
    is_separate = (verifier.environment_mode or ("separate" if verifier.environment else "shared")) == "separate"
    image_of_tests = None if verifier.environment is None else verifier.environment.docker_image
    has_own_tests = is_separate and (bool(image_of_tests) or (path / "tests" / "Dockerfile").is_file())
    if not has_own_tests and not (path / "tests" / "test.sh").is_file():
        raise TaskError(f"the task {path} has no tests/test.sh")

    def container(
        where: _Place, phase: _Agent | _Verifier, folder: str, image: str | None, time_s: float
    ) -> ContainerConfig:
        if not image and not (path / folder / "Dockerfile").is_file():
            raise TaskError(f"the task {path} has neither {folder}/Dockerfile nor environment.docker_image")
        return ContainerConfig(
            image=image or "",
            dockerfile=None if image else path / folder,
            engine=engine,
            workdir=where.workdir or "",
            user=phase.user,
            environ=_resolved("environment.env", where.env, environ),
            allow=_allow_of(phase, where),
            cpus=where.cpus,
            memory_mib=_mib(where.memory_mb, where.memory, 2048),
            disk_mib=_mib(where.storage_mb, where.storage, 10240),
            build_timeout_s=where.build_timeout_sec,
            lifetime_s=int(time_s) + _LIFETIME_S,
        )

    tests_in = ("tests", image_of_tests) if has_own_tests else ("environment", place.docker_image)
    sources = [entry if isinstance(entry, str) else entry.source for entry in file.artifacts]
    agent_s = file.agent.timeout_sec or 0.0
    return HarborFolder(
        path=path,
        file=file,
        instruction=_CANARY.sub("", _text(path / "instruction.md")),
        box=container(place, file.agent, "environment", place.docker_image, agent_s + verifier.timeout_sec),
        grader=container(own_place, verifier, *tests_in, verifier.timeout_sec) if is_separate else None,
        grader_allow=_allow_of(verifier, own_place),
        has_own_tests=has_own_tests,
        artifacts=tuple(dict.fromkeys(("/logs/artifacts", *sources))),
        tests_environ=_resolved("verifier.env", verifier.env, environ),
        solution_environ=_resolved("solution.env", file.solution.env, environ),
    )


def _mib(number: int | None, text: str | None, default: int) -> int:
    """Return a size in MiB, given the field and the older one, such as `2G`."""
    if text is None:
        return default if number is None else number
    size = text.strip().upper()
    try:
        return int(float(size[:-1]) * _SIZES[size[-1:]])
    except (ValueError, KeyError, OverflowError):
        raise TaskError(f"the size {brief(text)} is not valid; expected a number with G, M or K") from None


def _allow_of(phase: _Network, place: _Place) -> tuple[str, ...]:
    """Return the addresses that a phase reaches."""
    chosen = phase if phase.network_mode is not None else place
    if chosen.network_mode != "allowlist":
        return ()
    hosts = [host.strip().lower().rstrip(".") for host in chosen.allowed_hosts or () if not _PATTERN.search(host)]
    return tuple(f"{host}:{port}" for host in hosts for port in (443, 80))


def _needs(path: Path, file: TaskFile, *, offline: bool) -> list[str]:
    """Return what a task needs and cannot have: fields of task.toml, and files of its folder."""
    needs = [name for name in ("steps", "multi_step_reward_strategy") if getattr(file, name)]
    network: list[str] = []
    places = {"environment": file.environment, "verifier.environment": file.verifier.environment}
    for name, part in {"agent": file.agent, "verifier": file.verifier, **places}.items():
        if part is None:
            continue
        network += [f"{name}.allowed_hosts has {host!r}" for host in part.allowed_hosts or () if _PATTERN.search(host)]
        network += [f"{name}.network_mode = 'public'"] if part.network_mode == "public" else []
        if isinstance(part, _Place):
            if part.allow_internet and part.network_mode is None:
                network.append(f"{name}.allow_internet = true")
            needs += [f"{name}.os = {part.os!r}"] if part.os.lower() != "linux" else []
            needs += [
                f"{name}.{field}" for field in ("gpus", "tpu", "mcp_servers", "skills_dir") if getattr(part, field)
            ]
    for entry in file.artifacts:
        if not isinstance(entry, str):
            needs += [f"artifacts.exclude of {entry.source!r}"] if entry.exclude else []
            needs += [f"artifacts.service = {entry.service!r}"] if entry.service not in (None, "main") else []
    services = (hook.service for hook in file.verifier.collect)
    needs += [f"verifier.collect.service = {service!r}" for service in services if service != "main"]
    composed = [f"{folder}/{name}" for folder in ("environment", "tests") for name in _COMPOSE]
    needs += [name for name in (*composed, "trajectory.json") if (path / name).exists()]
    needs += [str(each.relative_to(path)) for each in sorted(path.rglob(".harborignore"))]
    return [*needs, *(f"{need} (offline=True runs it without)" for need in network if not offline)]


def _resolved(name: str, values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables, with the values of the variables that they refer to."""
    resolved: dict[str, str] = {}
    for key, value in values.items():
        match = _VARIABLE.fullmatch(value)
        if match is not None and match[2] is None and match[1] not in environ:
            raise TaskError(f"{name}.{key} refers to the variable {match[1]!r}; give it: environ={{{match[1]!r}: ...}}")
        resolved[key] = value if match is None else environ.get(match[1], match[2])
    return resolved


def _check_links(path: Path) -> None:
    """Check that the files of a task are files and folders in it.

    Raises:
        TaskError: If a link leads out of it, or there is a device or a pipe.
    """
    for each in path.rglob("*"):
        if not each.resolve().is_relative_to(path) or not (each.is_file() or each.is_dir()):
            raise TaskError(f"{each} is not a file or folder in the task: it is a link out of it, or a device")


def _text(path: Path) -> str:
    try:
        return read_file(path, _MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError, InvalidRecord) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error


def quoted_file(path: str, content: bytes) -> str:
    """Return a command line that writes a file, and creates its folder."""
    name = shlex.quote(path)
    folder = shlex.quote(path.rpartition("/")[0])
    try:
        return f"mkdir -p {folder} && printf %s {shlex.quote(content.decode())} > {name}"
    except UnicodeDecodeError:
        import base64

        return f"mkdir -p {folder} && echo {base64.b64encode(content).decode()} | base64 -d > {name}"
