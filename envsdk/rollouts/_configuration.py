"""What a run was configured with, as its folder records it: a run that is resumed has to have the same."""

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..authoring._env import Env
from ..authoring.tasks import Rows, find_task, pick_task
from ..policies._policy import PolicyLike
from ._jobs import Job
from ._player import PlaySettings

_OWN = ("envsdk", "envsdk_renderers")
"""Packages whose version is recorded, and not their source."""
_NAMED = ("renderer", "tokenizer", "history", "limits", "tasks")
"""Options of an environment that the configuration has in another form."""


def configuration_of(settings: PlaySettings, env: Env, jobs: Sequence[Job], group_size: int) -> dict[str, Any]:
    """Return all that determines the episodes of a run, as JSON.

    How fast it runs (concurrency, deadlines, the executor) and where its servers are may differ when it is resumed.
    """
    made_by: Any = settings.env
    return {
        "env": env.name,
        "made_by": made_by if isinstance(made_by, str) else _path(made_by),
        "renderer": env.renderer.specification(),
        "history": env.history.specification(),
        "limits": env.limits.model_dump(exclude_defaults=True),
        "config": env.config.model_dump(mode="json"),
        "options": _options(settings.env_options, env),
        "code": _code(env, made_by),
        "policy": _policy(settings.policy),
        "group_size": group_size,
        "groups": len({job.group_id for job in jobs}),
        "episodes": len(jobs),
        "tasks": _digest(jobs),
        **({} if env.tasks is None else {"rows": _digest_of_rows(env.tasks, jobs)}),
    }


def _options(given: Mapping[str, Any], env: Env) -> dict[str, Any]:
    """Return the options of an environment that its `Config` does not have; of an object, its class."""
    left_out = {*_NAMED, *env.config.model_dump()}
    return {name: json.loads(_text(value)) for name, value in given.items() if name not in left_out}


def _code(env: Env, made_by: object) -> dict[str, Any]:
    """Return the class of an environment, the versions of its distributions, and a digest of each file it is made of.

    These are the modules of its class, of the classes that it derives from, and of the function that makes it; and the
    modules that those import, unless they are Python's, envsdk's, or of another distribution.
    """
    kind = type(env)
    modules = {one.__module__ for one in kind.__mro__}
    own = {module.partition(".")[0] for module in modules} - {*_OWN, "builtins", "gymnasium", "typing", "abc"}
    left = [*modules, getattr(getattr(made_by, "func", made_by), "__module__", "builtins")]
    found: dict[str, str] = {}
    while left:
        name = left.pop()
        file = None if name in found else _file_of(name, own)
        if file is not None:
            source = file.read_bytes()
            found[name] = hashlib.sha256(source).hexdigest()[:16]
            left += _imported_by(name, source, is_package=file.name == "__init__.py")
    distributions = sorted({name for top in own for name in packages_distributions().get(top, ())} - {"envsdk"})
    return {
        "class": _path(kind),
        "versions": {name: version(name) for name in distributions},
        "modules": dict(sorted(found.items())),
    }


def _file_of(name: str, own: set[str]) -> Path | None:
    """Return the source file of a module; None if it has none, or is of another distribution than the environment."""
    top = name.partition(".")[0]
    if top not in own and (top in _OWN or _is_installed(_origin(top))):
        return None
    file = _origin(name)  # finding a module imports its package
    return file if file.suffix == ".py" and file.is_file() else None


def _origin(name: str) -> Path:
    """Return the file of a module; an empty path if there is none."""
    module = sys.modules.get(name)
    try:
        found = find_spec(name) if module is None else module.__spec__
    except (ImportError, AttributeError, ValueError):  # it is imported under a condition, or not a module
        found = None
    return Path(getattr(module, "__file__", None) or getattr(found, "origin", None) or "")


def _is_installed(file: Path) -> bool:
    """Return whether a file is of Python or of an installed distribution, or does not exist."""
    parts = {"site-packages", "dist-packages"}
    return not file.is_file() or not parts.isdisjoint(file.parts) or file.is_relative_to(sysconfig.get_path("stdlib"))


def _imported_by(name: str, source: bytes, *, is_package: bool) -> Iterator[str]:
    """Yield the names of the modules that a module may import."""
    package = name if is_package else name.rpartition(".")[0]
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


def _digest_of_rows(rows: Rows, jobs: Sequence[Job]) -> str:
    """Return a digest of the task data that the jobs play; a seed of None draws any row."""
    found: dict[str, str] = {}
    for job in jobs:
        if job.group_id not in found and (job.task or job.seed is not None):
            index = job.task["task"] if job.task else pick_task(rows, job.seed, np.random.default_rng())
            found[job.group_id] = _text(find_task(rows, index))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    """Return a value as JSON; of an object that is none, its class, since its `repr` may hold an address."""
    return json.dumps(value, sort_keys=True, default=lambda one: {"class": _path(one)})


def _digest(jobs: Sequence[Job]) -> str:
    """Return a digest of which tasks the jobs have."""
    described = [(job.id, job.seed, repr(sorted(job.task.items()))) for job in jobs]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _policy(policy: PolicyLike) -> Any:
    if isinstance(policy, str):
        return policy
    if isinstance(policy, Mapping):
        return {role: _policy(one) for role, one in cast("Mapping[str, PolicyLike]", policy).items()}
    specification: Any = getattr(policy, "specification", None)
    if specification is not None:
        return specification()
    model: Any = getattr(policy, "model", None)
    return {"class": _path(policy), "model": model} if isinstance(model, str) else _path(policy)


def _path(value: Any) -> str:
    """Return where a function or class is defined, or the class of an object."""
    function: Any = getattr(value, "func", value)  # of a functools.partial
    name: Any = getattr(function, "__qualname__", None)
    owner: Any = function if name is not None else cast("Any", type(function))
    return f"{owner.__module__}:{owner.__qualname__}"
