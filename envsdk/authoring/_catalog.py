"""Describe environments without playing them, for `envsdk list` and the table of environments."""

import inspect
import math
import re
from dataclasses import dataclass

import gymnasium

from ..errors import EnvsdkError
from ._making import make

_EXERCISES = re.compile(r"Exercises:\s+(.*?)\.(?:\s|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """The catalog's description of an environment.

    Attributes:
        id: The environment's id.
        summary: The first paragraph of the class's docstring.
        exercises: The text after `Exercises:` in the docstring, up to the end of the sentence.
        tools: The names of the tools.
        reward_range: The lowest and the highest reward of an episode; None where it is unknown.
        n_tasks: The number of different tasks, or None if each seed has its own.
        nondeterministic: Whether the same seed may give different episodes.
        problem: Why the environment cannot be made on this machine, or None.
    """

    id: str
    summary: str = ""
    exercises: str = ""
    tools: tuple[str, ...] = ()
    reward_range: tuple[float | None, float | None] = (None, None)
    n_tasks: int | None = None
    nondeterministic: bool = False
    problem: str | None = None


def describe(id: str) -> Entry:
    """Return the description of an environment, which is made with its default options for this purpose."""
    is_random = gymnasium.spec(id).nondeterministic
    try:
        env = make(id)
    except (EnvsdkError, ImportError) as error:
        return Entry(id, nondeterministic=is_random, problem=" ".join(str(error).split()))
    text = inspect.getdoc(type(env)) or ""
    found = _EXERCISES.search(text)
    least, most = (bound if math.isfinite(bound) else None for bound in env.reward_range)
    tools = tuple(str(tool.get("function", tool)["name"]) for tool in env.default_tools())
    env.close()
    return Entry(
        id,
        " ".join(text.partition("\n\n")[0].split()),
        " ".join(found[1].split()) if found else "",
        tools,
        (least, most),
        env.n_tasks,
        is_random,
    )
