"""What an episode knows of an environment: a small protocol, and the one attribute that holds the machinery."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..contexts._history_policy import HistoryPolicy
from ..contexts._protocol import Observation
from ..limits import Limits
from ..messages import ToolSchema
from ..rendering.renderer import Renderer

MACHINERY = "_envsdk"
"""The attribute of an environment that holds all that the SDK keeps of it."""


class StepResult(NamedTuple):
    """What `reset` and `step` return, in gymnasium's order."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Environment(Protocol):
    """What an agent needs of its environment, besides the methods that the driver calls."""

    @property
    def name(self) -> str:
        """The id that the environment was made by, or its class's name."""
        ...

    @property
    def renderer(self) -> Renderer:
        """The renderer of the environment's contexts."""
        ...

    @property
    def history(self) -> HistoryPolicy:
        """The history policy of the environment's contexts."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of an episode."""
        ...

    def renderer_of(self, role: str) -> Renderer:
        """Return the renderer of a role's context."""
        ...

    def default_tools(self) -> Sequence[ToolSchema]:
        """Return the tools of a first turn that names none."""
        ...


class Machinery:
    """The base of what is attached to an environment under `MACHINERY`."""


def machinery_of(env: object) -> Machinery | None:
    """Return the machinery of an environment; None for a class and for any other object."""
    found = None if isinstance(env, type) else getattr(env, MACHINERY, None)
    return found if isinstance(found, Machinery) else None
