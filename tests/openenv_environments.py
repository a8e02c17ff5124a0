"""Environments of OpenEnv, written with its own classes: text, fields, tools, an async one, and one that fails."""

import random
from enum import StrEnum
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

from envsdk import Message
from envsdk.adapters import OpenEnv


class WordAction(Action):
    """One word."""

    word: str


class WordObservation(Observation):
    """What is known of the word."""

    text: str = ""


class GuessWord(Environment[WordAction, WordObservation, State]):
    """Guess one of four words; the answer says whether the guess comes before or after it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> WordObservation:
        self.word = options.get("word") or random.Random(seed).choice(("apple", "melon", "peach", "plum"))
        self.guesses = 0
        return WordObservation(text="Guess my word: apple, melon, peach or plum.")

    def step(self, action: WordAction, timeout_s: float | None = None, **_: Any) -> WordObservation:
        self.guesses += 1
        guess = action.word.strip()
        if len(guess) > 40:
            raise ValueError("a word has at most 40 letters")
        if guess == self.word:
            return WordObservation(text="Right.", done=True, reward=1.0)
        where = "before" if guess < self.word else "after"
        return WordObservation(text=f"{guess} comes {where} my word.", reward=0.0, done=self.guesses == 10)

    @property
    def state(self) -> State:
        return State(step_count=self.guesses)


class Direction(StrEnum):
    """Where to go."""

    UP = "up"
    DOWN = "down"


class ClimbAction(Action):
    """A step on a ladder."""

    where: Direction


class Climb(Environment[ClimbAction, Observation, State]):
    """Climb two steps. Its action is a member of an Enum."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self.height = 0
        return Observation(metadata={"height": 0})

    def step(self, action: ClimbAction, timeout_s: float | None = None, **_: Any) -> Observation:
        self.height += 1 if action.where == Direction.UP else -1
        return Observation(metadata={"height": self.height}, reward=float(self.height == 2), done=self.height == 2)

    @property
    def state(self) -> State:
        return State()


class MoveAction(Action):
    """A step on a line."""

    direction: int
    note: str | None = None


class LineObservation(Observation):
    """The position on the line."""

    position: int = 0


class WalkLine(Environment[MoveAction, LineObservation, State]):
    """Walk to the position 3; its methods are async."""

    def reset(self, seed: int | None = None, **_: Any) -> LineObservation:
        raise NotImplementedError

    def step(self, action: MoveAction, **_: Any) -> LineObservation:
        raise NotImplementedError

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> LineObservation:
        self.position = 0
        return LineObservation(position=0)

    async def step_async(self, action: MoveAction, timeout_s: float | None = None, **_: Any) -> LineObservation:
        self.position += 1 if action.direction > 0 else -1
        is_there = self.position == 3
        return LineObservation(position=self.position, done=is_there, reward=float(is_there))

    @property
    def state(self) -> State:
        return State()


class Notebook(MCPEnvironment):
    """Tools of MCP: add notes, and list them."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server, self.notes = FastMCP("notebook"), list[str]()

        @server.tool
        def add_note(text: str) -> str:
            """Add a note."""
            if not text:
                raise ValueError("the note is empty")
            self.notes.append(text)
            return f"There are {len(self.notes)} notes."

        @server.tool
        def list_notes() -> list[str]:
            """List the notes."""
            return self.notes

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self.notes.clear()
        return Observation(metadata={"task": "Take two notes."}, reward=0.0)

    def step(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        observation = super().step(action, timeout_s=timeout_s, **options)
        return self._scored(observation)

    async def step_async(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        observation = await super().step_async(action, timeout_s=timeout_s, **options)
        return self._scored(observation)

    def _scored(self, observation: Observation) -> Observation:
        observation.reward, observation.done = float(len(self.notes) == 2), len(self.notes) == 2
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError(f"{type(action).__name__} is not an action of the notebook")

    @property
    def state(self) -> State:
        return State(step_count=len(self.notes))


SERVED: dict[str, tuple[Any, Any, Any]] = {
    "GuessWord": (GuessWord, WordAction, WordObservation),
    "WalkLine": (WalkLine, MoveAction, LineObservation),
    "Notebook": (Notebook, CallToolAction, CallToolObservation),
}
"""Each environment with the classes of its actions and observations."""


class PlaysGuessWord(OpenEnv):
    """Its first observation is the same for every seed, as are those of the others."""

    n_tasks = 1
    reward_range = (0.0, 1.0)

    def __init__(self, source: Any = GuessWord, **options: Any) -> None:
        super().__init__(source, **options)


class PlaysClimb(PlaysGuessWord):
    def __init__(self, **options: Any) -> None:
        super().__init__(Climb, **options)

    def reference_reply(self) -> str:
        return "up"


def to_the_right(reply: Message) -> dict[str, int]:
    return {"direction": 1 if "right" in reply.content else -1}


class PlaysWalkLine(PlaysGuessWord):
    def __init__(self, **options: Any) -> None:
        super().__init__(WalkLine, action=to_the_right, **options)

    def reference_reply(self) -> str:
        return "right"


class PlaysNotebook(PlaysGuessWord):
    def __init__(self, **options: Any) -> None:
        super().__init__(Notebook, prompt="Take two notes.", **options)

    def reference_reply(self) -> Any:
        return Message.calling("add_note", {"text": "a"})
