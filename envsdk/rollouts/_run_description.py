"""The files that describe a run folder: `run.json` with its configuration, and `manifest.json` with what was stored.

The configuration contains everything that determines the episodes of a run. A resumed run has to have the same one.
"""

import ast
import functools
import hashlib
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .._describing import what_is_invalid
from .._untrusted import MAX_DESCRIPTION_BYTES, parse_json, read_file
from ..authoring._env import Env
from ..authoring.tasks import find_task, pick_task
from ..errors import InvalidRecord, RunFolderError
from ..policies._policy import PolicyLike
from ..rendering.renderer import Renderer
from ..trajectories._fragments import fragment
from ._jobs import EpisodeJob
from ._player import PlaySettings
from ._unequal import MISSING, Unequal, unequal

CHANGEABLE = ("made_by", "config", "options", "code", "limits", "rows")
"""The keys that may be allowed to change, because the stored episodes are still read in the same way."""
EXTENDABLE = ("groups", "episodes", "tasks", "rows")
"""The keys that differ if a run is to have more episodes."""
_DIGESTS = {"tasks": "the seeds or tasks", "rows": "the data of the tasks"}
"""What the digests of a configuration are of, besides source."""
_ADDED = ("options", "code", "rows")
"""The keys that earlier versions did not record."""
_HARMONY = ("openai-harmony", "oss-harmony")
"""The packages with the same module; the second is vLLM's."""
_PACKAGES = ("envsdk", "gymnasium", "numpy", *_HARMONY, "pydantic", "tiktoken", "tokenizers", "transformers")
"""The packages that tokens, random numbers and tasks depend on."""
_OWN = ("envsdk", "envsdk_renderers")
"""The packages whose version is recorded instead of their source."""
_NAMED = ("renderer", "tokenizer", "history", "limits", "tasks")
"""The options of an environment that the configuration has in another form."""


class _DescriptionFile(BaseModel):
    """A JSON file of a run folder."""

    file_name: ClassVar[str]
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the file of a folder; None if there is none.

        Raises:
            RunFolderError: If it is damaged, or was written by another version of envsdk.
            OSError: If it cannot be read.
        """
        path = folder / cls.file_name
        try:
            return cls.model_validate(parse_json(read_file(path, MAX_DESCRIPTION_BYTES, inside=folder)))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise RunFolderError(f"{path} is damaged, or of another version: {what_is_invalid(error)}") from error
        except ValueError as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error

    def write(self, folder: Path) -> None:
        """Write the file atomically, and wait until it is on disk.

        Raises:
            OSError: If it cannot be written.
        """
        path = folder / self.file_name
        unfinished = path.with_name(f".{path.name}.unfinished")
        with unfinished.open("wb") as file:
            file.write(orjson.dumps(self.model_dump(), option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        if os.name != "nt":  # a folder cannot be opened there
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # the names of its files are on disk, too
            finally:
                os.close(descriptor)


class StoredRenderer(BaseModel):
    """A renderer of a run.

    Attributes:
        specification: Its name and options.
        chosen_because: Why `renderer="auto"` chose it; empty if it was named.
        tokenizer: The fingerprint of its tokenizer.
        vocab_size: The number of ids of the model.
        folder: The folder of the tokenizer's files, inside the run folder.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    specification: dict[str, Any]
    tokenizer: str
    vocab_size: int
    folder: str = Field(pattern=r"^tokenizer(-[0-9]{1,4})?$")
    chosen_because: str = ""


class Segment(BaseModel):
    """The part of a run from where it continued although something had changed (`allow_changed`).

    Attributes:
        at: When it began: ISO 8601, in UTC.
        episodes: The number of episodes before it.
        changed: What changed: the place in the configuration, and both values.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    at: str
    episodes: int = Field(ge=0)
    changed: list[str]


class RunDescription(_DescriptionFile):
    """The configuration of a run.

    Attributes:
        configuration: The arguments that the caller of the run gave; those of the last segment.
        segments: The segments after the first one, in order.
        renderers: The renderer of each role; the first is the environment's.
        trajectories: The name of the file of trajectories.
        versions: The versions of Python, envsdk, and the packages that tokens and tasks depend on.
        created: When the run began: ISO 8601, in UTC.
    """

    file_name: ClassVar[str] = "run.json"

    kind: Literal["run"] = "run"
    schema_version: Literal[1] = 1
    configuration: dict[str, Any]
    segments: list[Segment] = Field(default_factory=list[Segment])
    renderers: dict[str, StoredRenderer] = Field(min_length=1)
    trajectories: Literal["trajectories.jsonl", "trajectories.jsonl.zst"]
    versions: dict[str, str]
    created: str

    @classmethod
    def of(cls, configuration: Mapping[str, Any], renderers: Mapping[str, Renderer], trajectories: Any) -> Self:
        """Describe a run that begins now.

        Raises:
            RunFolderError: If the configuration cannot be written as JSON.
        """
        found = {"python": platform.python_version()}
        for name in _PACKAGES:
            with suppress(PackageNotFoundError):  # a part of a distribution
                found[name] = version(name)
        folders: dict[tuple[str, int], str] = {}
        stored: dict[str, StoredRenderer] = {}
        for role, renderer in renderers.items():
            tokenizer = renderer.tokenizer
            key = (tokenizer.fingerprint, tokenizer.vocab_size)
            stored[role] = StoredRenderer(
                specification=_as_json(renderer.specification()),
                tokenizer=key[0],
                vocab_size=key[1],
                folder=folders.setdefault(key, f"tokenizer-{len(folders) + 1}" if folders else "tokenizer"),
                chosen_because=renderer.chosen_because,
            )
        return cls(
            configuration=_as_json(configuration),
            renderers=stored,
            trajectories=trajectories,
            versions=found,
            created=now(),
        )

    def differences_to(self, given: "RunDescription") -> list[Unequal]:
        """Return the differences to a run that is to continue this one."""
        pair: list[dict[str, Any]] = []
        for one in (self, given):
            described = one.model_dump(include={"configuration", "renderers", "trajectories"})
            for renderer in described["renderers"].values():
                del renderer["chosen_because"]  # another version may word it differently
            pair.append(described)
        # A key that an earlier version of envsdk did not record may have any value now.
        found = unequal(pair[0], pair[1])
        added = [f"configuration.{name}" for name in _ADDED]
        return [one for one in found if one.stored != MISSING or one.path not in added]


class Manifest(_DescriptionFile):
    """The stored episodes at some moment of the run.

    Attributes:
        is_complete: Whether the run is complete.
        episodes: How many episodes are stored.
        by_status: How many of them ended with each status.
        by_error_kind: How many of them failed, by the kind of the error; `unknown` if that was not recorded.
        bytes: The length of the file of trajectories. A run that was killed may have written more.
        sha256: The SHA-256 of the first `bytes` bytes of it.
        updated: When this was written: ISO 8601, in UTC.
    """

    file_name: ClassVar[str] = "manifest.json"

    kind: Literal["manifest"] = "manifest"
    schema_version: Literal[1] = 1
    is_complete: bool = False
    episodes: int = 0
    by_status: dict[str, int] = Field(default_factory=dict)
    by_error_kind: dict[str, int] = Field(default_factory=dict)
    bytes: int = 0
    sha256: str
    updated: str


def now() -> str:
    """Return the time: ISO 8601, in UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def described(difference: Unequal) -> str:
    """Describe a difference between the folder and the given configuration: its place, and both values if readable."""
    place = difference.path.removeprefix("configuration.")
    if place.startswith("code.modules."):
        return f"the source of {place.removeprefix('code.modules.')}"
    if place in _DIGESTS:
        return _DIGESTS[place]
    return f"{difference.path}: {difference.stored} in the folder, {difference.given} now"


def _as_json(configuration: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(orjson.dumps(fragment(dict(configuration))))
    except InvalidRecord as error:
        raise RunFolderError(f"the configuration of the run cannot be stored: {error}") from error


# The configuration of a run.


def configuration_of(settings: PlaySettings, env: Env, jobs: Sequence[EpisodeJob], group_size: int) -> dict[str, Any]:
    """Return everything that determines the episodes of a run, as JSON.

    Its speed (concurrency, deadlines, the executor) and the URLs of its servers may differ when it is resumed.
    """
    made_by: Any = settings.env
    left_out = {*_NAMED, *env.config.model_dump()}
    options = {name: json.loads(_text(value)) for name, value in settings.env_options.items() if name not in left_out}
    tasks = [(job.id, job.seed, repr(sorted(job.task.items()))) for job in jobs]
    rows: dict[str, str] = {}  # the task data of each group
    for job in jobs:
        if env.tasks is None:
            break
        if job.group_id not in rows and (job.task or job.seed is not None):  # a seed of None draws any row
            index = job.task["task"] if job.task else pick_task(env.tasks, job.seed, np.random.default_rng())
            rows[job.group_id] = _text(find_task(env.tasks, index))
    return {
        "env": env.name,
        "made_by": made_by if isinstance(made_by, str) else _path(made_by),
        "renderer": env.renderer.specification(),
        "history": env.history.specification(),
        "limits": env.limits.model_dump(exclude_defaults=True),
        "config": env.config.model_dump(mode="json"),
        "options": options,
        "code": _code(env, made_by),
        "policy": _policy(settings.policy),
        "group_size": group_size,
        "groups": len({job.group_id for job in jobs}),
        "episodes": len(jobs),
        "tasks": _digest(tasks),
        **({} if env.tasks is None else {"rows": _digest(rows)}),
    }


def _code(env: Env, made_by: object) -> dict[str, Any]:
    """Return the class of an environment, the versions of its distributions, and a digest of each of its source files.

    These are the modules of its class, of the classes that it derives from, and of the function that makes it; and the
    modules that those import, unless they are Python's, envsdk's, or belong to another distribution.
    """
    kind = type(env)
    modules = {one.__module__ for one in kind.__mro__}
    own = {module.partition(".")[0] for module in modules} - {*_OWN, "builtins", "gymnasium", "typing", "abc"}
    left = [*modules, getattr(getattr(made_by, "func", made_by), "__module__", "builtins")]
    found: dict[str, str] = {}
    while left:
        name = left.pop()
        if name in found:
            continue
        package = name.partition(".")[0]
        origin = _origin(package)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(origin.parts)
        is_python = origin.is_relative_to(sysconfig.get_path("stdlib"))
        # A package of the environment, or source next to it that is not installed.
        is_own = package in own or not (package in _OWN or is_installed or is_python or not origin.is_file())
        if not is_own:
            continue
        file = _origin(name)  # finding a module imports its package
        if file.suffix == ".py" and file.is_file():
            source = file.read_bytes()
            found[name] = hashlib.sha256(source).hexdigest()[:16]
            left += _imported_by(source, name if file.name == "__init__.py" else name.rpartition(".")[0])
    distributions = sorted({name for top in own for name in _distributions().get(top, ())} - {"envsdk"})
    return {
        "class": _path(kind),
        "versions": {name: version(name) for name in distributions},
        "modules": dict(sorted(found.items())),
    }


_distributions = functools.cache(packages_distributions)  # it reads the list of files of every installed distribution


def _origin(name: str) -> Path:
    """Return the file of a module; an empty path if there is none."""
    module = sys.modules.get(name)
    try:
        found = find_spec(name) if module is None else module.__spec__
    except (ImportError, AttributeError, ValueError):  # it is imported conditionally, or not a module
        found = None
    return Path(getattr(module, "__file__", None) or getattr(found, "origin", None) or "")


def _imported_by(source: bytes, package: str) -> Iterator[str]:
    """Yield the names of the modules that a module of a package may import."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    """Return a value as JSON; for an object that is not JSON, its class, since its `repr` may contain an address."""
    return json.dumps(value, sort_keys=True, default=lambda one: {"class": _path(one)})


def _policy(policy: PolicyLike) -> Any:
    if isinstance(policy, str):
        return policy
    if isinstance(policy, Mapping):
        return {role: _policy(one) for role, one in cast("Mapping[str, PolicyLike]", policy).items()}
    specification: Any = getattr(policy, "specification", None)
    if specification is not None:
        return specification()
    function: Any = getattr(policy, "func", policy)  # for a functools.partial
    facts = {key: getattr(function, key, None) for key in ("name", "model")}
    found: dict[str, Any] = {key: value for key, value in facts.items() if isinstance(value, str)}
    if function is not policy:
        found["options"] = json.loads(_text(cast("Any", policy).keywords))
    return {"class": _path(function), **found} if found else _path(function)


def _path(value: Any) -> str:
    """Return the module and name of a function or class, or of the class of an object."""
    function: Any = getattr(value, "func", value)  # for a functools.partial
    name: Any = getattr(function, "__qualname__", None)
    owner: Any = function if name is not None else cast("Any", type(function))
    return f"{owner.__module__}:{owner.__qualname__}"
