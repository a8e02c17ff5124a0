"""A guessing game: the smallest multi-turn environment."""

from typing import ClassVar

from pydantic import BaseModel, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn, errors
from envsdk.authoring.tasks import Split, draw_in_split

from ._scoring import TaskData


class GuessNumberConfig(EnvConfig):
    """The range of the hidden number."""

    low: int = 1
    """The smallest number."""
    high: int = 100
    """The largest number."""
    split: Split = "train"
    """No hidden number is in both splits. Numbers in `tasks` are used as they are."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "GuessNumberConfig":
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; expected low <= high")
        return self


class GuessNumberTask(TaskData):
    """The number to guess."""

    secret: int


class GuessNumber(Env):
    """Guess a hidden integer from 1 to 100; the environment answers higher or lower.

    Exercises: using the answers so far, and keeping to a format. Reward: 1 for the right number, and -0.1 for each
    reply that is not a number. A task, if given, is `{"secret": 42}`.
    """

    Config: ClassVar[type[EnvConfig]] = GuessNumberConfig
    Task: ClassVar[type[BaseModel] | None] = GuessNumberTask
    default_limits: ClassVar[Limits] = Limits(max_steps=10)
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    n_tasks: ClassVar[int | None] = 100

    def start(self) -> Turn:
        """Draw the number."""
        config: GuessNumberConfig = self.config
        low, high = self.low, self.high = config.low, config.high
        if self.task and not low <= self.task.secret <= high:
            raise errors.TaskError(f"the secret of the task is {self.task.secret}; expected {low} to {high}")
        self.secret = (
            self.task.secret
            if self.task
            else draw_in_split(config.split, lambda: int(self.np_random.integers(low, high + 1)))
        )
        return Turn(f"I am thinking of a number from {low} to {high}. Guess it.", system="Answer with one number.")

    def respond(self, reply: Message) -> Turn:
        """Compare the guess with the hidden number."""
        try:
            guess = int(reply.content)
        except ValueError:
            return Turn("Please answer with one number.", reward=-0.1)
        if guess == self.secret:
            return Turn("Correct.", reward=1.0, terminated=True)
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
            return Turn("Higher.")
        self.high = min(self.high, guess - 1)
        return Turn("Lower.")

    def reference_reply(self) -> str:
        """Guess the middle of the remaining range."""
        return str((self.low + self.high) // 2)
