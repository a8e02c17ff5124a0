"""Self-play: two players of one model in separate contexts, with a reward and a baseline for each role.

The game is Nim: players take one to three of ten sticks in turn, and whoever takes the last one wins. Run it with
`python examples/self_play.py`.
"""

from typing import ClassVar

import numpy as np

from envsdk import Env, Limits, Message, Turn, credit
from envsdk.rollouts import rollout_many

PLAYERS = ("first", "second")


class Nim(Env):
    """Play Nim against yourself."""

    default_limits: ClassVar[Limits] = Limits(max_steps=20)

    def start(self) -> Turn:
        """Begin with ten sticks."""
        self.sticks, self.player = 10, 0
        return self.ask()

    def ask(self) -> Turn:
        """Address the player whose turn it is, in the context of that player."""
        return Turn(f"There are {self.sticks} sticks. How many do you take: 1, 2 or 3?", context=PLAYERS[self.player])

    def respond(self, reply: Message) -> Turn:
        """Take sticks. An illegal move loses the game."""
        move = reply.content.strip()
        is_legal = move in ("1", "2", "3") and int(move) <= self.sticks
        self.sticks -= int(move) if is_legal else 0
        if is_legal and self.sticks:
            self.player = 1 - self.player
            return self.ask()
        winner = self.player if is_legal else 1 - self.player
        rewards = {name: 1.0 if index == winner else -1.0 for index, name in enumerate(PLAYERS)}
        return Turn(context_rewards=rewards, terminated=True)

    def reference_reply(self) -> str:
        """Leave a multiple of four, and take one stick where that is not possible."""
        return str(self.sticks % 4 or 1)

    def null_reply(self) -> str:
        """Take a random number of sticks."""
        return str(self.np_random.integers(1, min(3, self.sticks) + 1))


def main() -> None:
    """Let the players meet in eight games, and print what each role earned."""
    policies = {"first": "reference", "second": "null"}
    games = rollout_many(lambda: Nim(tokenizer="embedded"), policies, seeds=range(8))
    samples = [sample for game in games for sample in game.samples()]
    for name in PLAYERS:
        earned = [sample.reward for sample in samples if sample.context == name]
        print(f"{name}: {len(earned)} samples, mean reward {np.mean(earned):g}")
    samples, baselines = credit.role_advantages(samples)
    print(
        "baselines for the next batch:",
        {role: round(value, 2) for role, value in next(iter(baselines.values())).items()},
    )


if __name__ == "__main__":
    main()
