"""What an episode asks its driver for, and the generator that asks."""

from collections.abc import Callable, Generator
from typing import Any, Literal, NamedTuple, TypeAlias

from ._agent import Agent
from ._environment import StepResult
from ._handoff import HandoffResult

Method: TypeAlias = Literal["start", "respond", "resume"] | Callable[[Any], Any]


class Call(NamedTuple):
    """Call a method of an agent's environment, or a function of its history policy. The answer is what it returns."""

    agent: Agent
    method: Method
    argument: Any = None


class Join(NamedTuple):
    """Let the environment of a sub-agent begin its part of the episode. The answer is None."""

    agent: Agent
    seed: int | None


class RunChildren(NamedTuple):
    """Run sub-agents side by side. The answer is the list of their results."""

    agents: list[Agent]


Request: TypeAlias = Call | Join | RunChildren
EpisodeGenerator: TypeAlias = "Generator[Request, Any, StepResult | HandoffResult]"
"""Yields requests and receives answers until an action is due or the agent has ended."""
