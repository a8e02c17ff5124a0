"""A word game: find the secret word from the marks for the letters of each guess.

The words are in `words.txt`: common English words of five letters, which were written for envsdk and not copied from a
list.
"""

import string
from collections.abc import Sequence
from importlib.resources import files
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, Field, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn
from envsdk._visible import brief
from envsdk.authoring.tasks import Split, split_of

from .._scoring import TaskData, decline, last_word

Mark: TypeAlias = Literal["right", "elsewhere", "absent"]

WORDS: tuple[str, ...] = tuple(
    files("envsdk_environments._word_game").joinpath("words.txt").read_text(encoding="utf-8").split()
)
SOLVED, PROGRESS = 0.8, 0.2
_SECRETS: dict[Split, list[str]] = {
    "train": [word for word in WORDS if split_of(word) == "train"],
    "test": [word for word in WORDS if split_of(word) == "test"],
}
_SYSTEM = (
    "Find the secret word. Guess a word from the list that you are shown. Each letter of your guess is then marked: "
    "`right` if the secret word has it in the same place, `elsewhere` if the secret word has it in another place, and "
    "`absent` if the secret word does not have it. A letter is marked `right` or `elsewhere` at most as often as it "
    "occurs in the secret word; the rest are `absent`. Answer with one word. A reply that does not end with a word "
    "from the list also uses up a guess."
)


class WordGuessConfig(EnvConfig):
    """The number of words to choose from, and the number of guesses."""

    split: Split = "train"
    """No word is the secret in both splits."""
    difficulty: Literal["easy", "medium", "hard"] = "medium"
    """Easy, medium and hard games have 20 words and 6 guesses, 50 words and 5, and 100 words and 4."""


class WordGuessTask(TaskData):
    """The words to choose from, the secret one, and the number of guesses."""

    words: tuple[str, ...] = Field(min_length=1, max_length=1000)
    secret: str
    guesses: int = Field(ge=1, le=100)

    @model_validator(mode="after")
    def _is_a_game(self) -> "WordGuessTask":
        wrong = [word for word in self.words if not (word.isascii() and word.isalpha() and word.islower())]
        if wrong:
            raise ValueError(f"the word {brief(wrong[0])} has characters that are not lower-case letters from a to z")
        if len(set(self.words)) < len(self.words) or len({len(word) for word in self.words}) > 1:
            raise ValueError("the words have to be distinct and of the same length")
        if self.secret not in self.words:
            raise ValueError(f"the secret {brief(self.secret)} is not one of the words")
        return self


class WordGuess(Env):
    """Find the secret word of a list from the marks for the letters of each guess.

    Exercises: combining several answers, and choosing an informative guess. The last word of a reply is the guess; a
    word that is not in the list uses up a guess.

    Reward, at the end: `solved`, 0.8 for the secret word, and `progress`, 0.2 times the share of letters that the best
    guess had at the right place. A task, if given, is `{"words": ["stone", "store"], "secret": "store", "guesses": 2}`.
    The reference policy guesses the first word that fits all marks. Random tasks are drawn such that it solves them.
    """

    Config: ClassVar[type[EnvConfig]] = WordGuessConfig
    Task: ClassVar[type[BaseModel] | None] = WordGuessTask
    default_limits: ClassVar[Limits] = Limits()
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Show the words."""
        self.game: WordGuessTask = self.task or random_game(self.np_random, self.config)
        self.words = set(self.game.words)
        self.left = self.game.guesses
        self.guessed: list[str] = []
        words = ", ".join(self.game.words)
        return Turn(f"The secret word is one of these: {words}. You have {self._guesses_left()}.", system=_SYSTEM)

    def respond(self, reply: Message) -> Turn:
        """Mark the letters of a guess."""
        self.left -= 1
        secret, guess = self.game.secret, last_word(reply.content).strip(string.punctuation).lower()
        is_legal = guess in self.words
        answer = "That word is not in the list."
        if is_legal:
            self.guessed.append(guess)
            answer = f"{guess}: {', '.join(map(' '.join, zip(guess, marks(guess, secret), strict=True)))}."
        if self.left and guess != secret:
            return Turn(f"{answer} You have {self._guesses_left()}.", metrics={"illegal": not is_legal})
        is_solved = secret in self.guessed
        most = max((marks(guess, secret).count("right") for guess in self.guessed), default=0)
        return Turn(
            f"{answer} {'You found it.' if is_solved else f'The secret word is {secret}.'}",
            reward={"solved": SOLVED * is_solved, "progress": PROGRESS * most / len(secret)},
            metrics={"illegal": not is_legal, "guesses": self.game.guesses - self.left},
            terminated=True,
        )

    def reference_reply(self) -> Message:
        """Guess the first word that fits all marks."""
        fitting = _fitting(self.game.words, self.guessed, self.game.secret)
        return Message(role="assistant", reasoning=f"Words that fit all marks: {len(fitting)}.", content=fitting[0])

    null_reply = decline

    def _guesses_left(self) -> str:
        return "1 guess left" if self.left == 1 else f"{self.left} guesses left"


def marks(guess: str, secret: str) -> list[Mark]:
    """Return the mark of each letter of a guess.

    Letters at the right place are marked first. The other letters of the secret then mark the rest of the guess, from
    left to right.
    """
    found: list[Mark] = ["right" if mine == its else "absent" for mine, its in zip(guess, secret, strict=True)]
    left = [its for mine, its in zip(guess, secret, strict=True) if mine != its]
    for position, letter in enumerate(guess):
        if found[position] == "absent" and letter in left:
            left.remove(letter)
            found[position] = "elsewhere"
    return found


# Games.


_SIZES = {"easy": (20, 6), "medium": (50, 5), "hard": (100, 4)}
"""The numbers of words and guesses."""


def random_game(rng: np.random.Generator, config: WordGuessConfig) -> WordGuessTask:
    """Draw a game of the configured difficulty and split that the reference policy wins."""
    (count, guesses), secrets = _SIZES[config.difficulty], _SECRETS[config.split]
    while True:
        secret = secrets[int(rng.integers(len(secrets)))]
        chosen: list[int] = rng.choice(len(WORDS), count, replace=False).tolist()
        words = [WORDS[index] for index in chosen]
        if secret not in words:
            words[int(rng.integers(len(words)))] = secret
        left: Sequence[str] = words
        for _ in range(guesses):  # as the reference policy plays
            if left[0] == secret:
                return WordGuessTask(words=tuple(words), secret=secret, guesses=guesses)
            left = _fitting(left, left[:1], secret)


def _fitting(words: Sequence[str], guessed: Sequence[str], secret: str) -> Sequence[str]:
    """Return the words that were not guessed and for which all guesses would have had the same marks."""
    for guess in guessed:
        said = marks(guess, secret)
        words = [word for word in words if word != guess and marks(guess, word) == said]
    return words
