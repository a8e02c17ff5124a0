"""What there is to know of each environment without playing it: what `envsdk list` prints, and the demo asks."""

import inspect
import math
import re
from dataclasses import dataclass

import gymnasium

from ..errors import EnvsdkError
from .making import make

_EXERCISES = re.compile(r"Exercises:\s+(.*?)\.(?:\s|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the catalogue says of an environment."""

    id: str
    summary: str = ""
    """The first sentence of the class's docstring."""
    exercises: str = ""
    """What stands there behind `Exercises:`, up to the end of the sentence."""
    tools: tuple[str, ...] = ()
    reward_range: tuple[float | None, float | None] = (None, None)
    """The least and the most that an episode earns; None where it is not known."""
    n_tasks: int | None = None
    """How many different tasks there are, where those are few."""
    nondeterministic: bool = False
    problem: str | None = None
    """Why it cannot be made on this machine."""


def describe(id: str) -> Entry:
    """What the catalogue says of an environment; it is made for that, with its own defaults."""
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
