"""What a run was configured with, as its folder records it: a run that is resumed has to have the same."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..authoring.env import Env
from ..policies.policy import PolicyLike
from .jobs import Job
from .player import PlaySettings


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
        "policy": _policy(settings.policy),
        "group_size": group_size,
        "groups": len({job.group_id for job in jobs}),
        "episodes": len(jobs),
        "tasks": _digest(jobs),
    }


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
