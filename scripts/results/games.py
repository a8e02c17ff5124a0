"""The two games that the model learns, in which each reply begins with thinking that later prompts do not show."""

from pathlib import Path
from typing import Any, NamedTuple

from envsdk_environments import GuessNumber

from envsdk import Env, Message, Renderer, ToolEnv, Turn, get_renderer, tool

TEMPLATE = Path(__file__).with_name("template.jinja")


class Guess(GuessNumber):
    """Guess a number from 1 to 7 in three guesses. The reference policy often passes, and guesses at random."""

    def reference_reply(self) -> Message:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Think of the remaining range; then pass, or guess a number in it."""
        guess = str(self.np_random.integers(self.low, self.high + 1))
        content = guess if self.np_random.random() < 0.5 else "Pass."
        return Message(role="assistant", reasoning=f"{self.low} to {self.high}", content=content)


class Shelves(ToolEnv):
    """Find a parcel on one of five shelves with a tool, then answer. A task is `{"shelf": 4}`.

    Reward: 1 for the right answer. The reference policy often answers before it has found the parcel.
    """

    def start(self) -> Turn:
        """Hide the parcel."""
        self.low, self.high = 1, 5
        return Turn("The parcel is on a shelf from 1 to 5. Which one?", system="Call [look(at=N)], or answer.")

    @tool
    def look(self, at: int) -> str:
        """Look at a shelf.

        Args:
            at: The number of the shelf.
        """
        shelf = self.task["shelf"]
        self.low = max(self.low, at + (shelf > at)) if shelf >= at else self.low
        self.high = min(self.high, at - (shelf < at)) if shelf <= at else self.high
        return "Here." if at == shelf else "Higher." if shelf > at else "Lower."

    def finish(self, reply: Message) -> Turn:
        """Compare the answer with the shelf."""
        return Turn(reward=float(reply.content.strip() == str(self.task["shelf"])), terminated=True)

    def reference_reply(self) -> Message:
        """Think of the remaining range; then look, or answer, at random."""
        reasoning, shelf = f"{self.low} to {self.high}", int(self.np_random.integers(self.low, self.high + 1))
        if self.np_random.random() < 0.5:
            return Message(role="assistant", reasoning=reasoning, content=str(shelf))
        return Message.calling("look", {"at": shelf}, reasoning=reasoning)


class Game(NamedTuple):
    """A game as it is trained."""

    env: type[Env]
    history: str
    """The history policy of the arms whose thinking is dropped."""
    tasks: list[dict[str, Any]]
    max_steps: int
    options: dict[str, Any]


GAMES = {
    "guess": Game(Guess, "strip", [{"secret": number} for number in range(1, 8)], 3, {"high": 7}),
    "shelves": Game(Shelves, "compact:every=2", [{"shelf": number} for number in range(1, 6)], 3, {}),
}


def renderer_of(folder: Path) -> Renderer:
    """Return the renderer of a model in a folder."""
    return get_renderer("fixed_base", folder, template=TEMPLATE.read_text(encoding="utf-8"))


def make_env(game: Game, renderer: Renderer, history: str) -> Env:
    """Make the environment of a game. The seeds from 0 have each task once."""
    limits = {"max_steps": game.max_steps}
    return game.env(renderer=renderer, history=history, limits=limits, tasks=game.tasks, **game.options)
