"""Environment classes in TRL's form, and ours, which another process can import."""

import random

from envsdk import Message, ToolCall, ToolEnv, Turn, tool
from envsdk.adapters import TRLEnvironment

CODES = {"ada": "seven", "bob": "three"}


class Codes(ToolEnv):
    """Say the code of a person, which a tool knows."""

    def start(self) -> Turn:
        self.person = sorted(CODES)[int(self.np_random.integers(2))]
        return Turn(f"What is the code of {self.person}?", system="Look it up.")

    @tool
    def code_of(self, person: str) -> str:
        """Return a person's code.

        Args:
            person: The name.
        """
        return CODES[person]

    def finish(self, reply: Message) -> Turn:
        return Turn(reward={"correct": float(CODES[self.person] in reply.content)}, terminated=True)


class Hot:
    """A number to guess, in TRL's form: it uses the global random generator, and raises for the model."""

    rolls = 0

    def reset(self, *, high: int = 9, **row: object) -> str:
        self.secret, self.found, self.calls = random.randint(1, high), False, 0
        return f" Guess a number from 1 to {high}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        if self.found:
            raise ValueError("The game is over.")
        self.calls += 1
        self.found = number == self.secret
        return "Correct." if self.found else "Higher." if number < self.secret else "Lower."

    def get_reward(self) -> float:
        return float(self.found)


class Slow(Hot):
    """The same with an async tool, and without a reward of its own."""

    get_reward = None  # pyright: ignore[reportAssignmentType]

    async def guess(self, number: int) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Guess the number.

        Args:
            number: The guess.
        """
        return {"answer": Hot.guess(self, number)}


def found(
    *, environments: list[Hot], completions: list[list[dict[str, object]]], high: list[int], **_: object
) -> list[float]:
    """A reward function of TRL that reads the environment, the messages and a column."""
    return [
        float(env.found and len(said) >= 1 and limit > 0)
        for env, said, limit in zip(environments, completions, high, strict=True)
    ]


class PlaysHot(TRLEnvironment):
    def __init__(self, **options: object) -> None:
        super().__init__(**{"env": Hot, **options})

    def reference_reply(self) -> Message | str:
        if self.environment.found:
            return "Done."
        call = ToolCall(name="guess", arguments={"number": self.environment.secret})
        return Message(role="assistant", tool_calls=(call,))


class PlaysSlow(PlaysHot):
    def __init__(self, **options: object) -> None:
        rows = [{"prompt": [{"role": "user", "content": "Play."}], "high": high} for high in range(5, 12)]
        super().__init__(**{"env": Slow, "tasks": rows, "reward_funcs": [found], **options})
