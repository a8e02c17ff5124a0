"""A word game: find the secret word by what is said of each letter of a guess.

The words are in `words.txt`: common English words of five letters, written down for envsdk letter by letter of the
alphabet, and copied from no list.
"""

import string
from collections.abc import Sequence
from importlib.resources import files
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn
from envsdk.authoring.tasks import Split, split_of

Mark: TypeAlias = Literal["right", "elsewhere", "absent"]

WORDS: tuple[str, ...] = tuple(
    files("envsdk_environments.word_game").joinpath("words.txt").read_text(encoding="utf-8").split()
)
SOLVED, PROGRESS = 0.8, 0.2
_SECRETS: dict[Split, list[str]] = {
    "train": [word for word in WORDS if split_of(word) == "train"],
    "test": [word for word in WORDS if split_of(word) == "test"],
}
_SYSTEM = (
    "Find the secret word. Each guess is a word of the list that you are shown, and you are told about each of its "
    "letters: `right` is where it is in the secret word, `elsewhere` is at another place in it, `absent` is not in it. "
    "A letter is marked at most as often as it is in the secret word; where it is guessed more often, the others are "
    "`absent`. Answer with one word; a reply that ends with no word of the list uses up a guess, too."
)


class WordGuessConfig(EnvConfig):
    """How many words there are to choose from, and how many guesses."""

    split: Split = "train"
    """No word is the secret in both splits."""
    difficulty: Literal["easy", "medium", "hard"] = "medium"
    """20 words and 6 guesses, 50 words and 5 guesses, or 100 words and 4 guesses."""


class WordGuessTask(BaseModel):
    """The words to choose from, the one that is meant, and how often may be guessed."""

    model_config = ConfigDict(frozen=True)

    words: tuple[str, ...] = Field(min_length=1, max_length=1000)
    secret: str
    guesses: int = Field(ge=1, le=100)

    @model_validator(mode="after")
    def _is_a_game(self) -> "WordGuessTask":
        wrong = [word for word in self.words if not (word.isascii() and word.isalpha() and word.islower())]
        if wrong:
            raise ValueError(f"{wrong[0]!r:.80} is no word of the letters a to z, all of them small")
        if len(set(self.words)) < len(self.words) or len({len(word) for word in self.words}) > 1:
            raise ValueError("the words are not all different and of one length")
        if self.secret not in self.words:
            raise ValueError(f"the secret {self.secret!r:.80} is not one of the words")
        return self


class WordGuess(Env):
    """Find a secret word among those of a list, by what is said of each letter of the words that are guessed.

    Exercises: putting together what several answers say, and choosing a guess that tells much. The last word of a reply
    is the guess; one that is not in the list uses up a guess.

    Reward: at the end, `solved` is 0.8 for the word, and `progress` is 0.2 for it, or else the share of its letters
    that the best guess had at their place. A task, if there is one, is
    `{"words": ["stone", "store"], "secret": "store", "guesses": 2}`. The reference policy guesses the first word that
    fits; the random tasks are those that it solves.
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
        """Take a guess, and mark its letters."""
        self.left -= 1
        guess = _last_word(reply.content)
        is_legal = guess in self.words
        if is_legal:
            self.guessed.append(guess)
        answer = _told(guess, self.game.secret) if is_legal else "That is no word of the list."
        if self.left and guess != self.game.secret:
            return Turn(f"{answer} You have {self._guesses_left()}.", metrics={"illegal": not is_legal})
        return self._end(answer, is_legal=is_legal)

    def reference_reply(self) -> Message:
        """Guess the first word that fits what was said."""
        fitting = _fitting(self.game.words, self.guessed, self.game.secret)
        return Message(role="assistant", reasoning=f"{len(fitting)} of the words fit.", content=fitting[0])

    def null_reply(self) -> str:
        """Decline."""
        return "I do not know."

    def _end(self, answer: str, *, is_legal: bool) -> Turn:
        secret = self.game.secret
        is_solved = secret in self.guessed
        most = max((marks(guess, secret).count("right") for guess in self.guessed), default=0)
        reward = {"solved": SOLVED * is_solved, "progress": PROGRESS * most / len(secret)}
        return Turn(
            f"{answer} {'You found it.' if is_solved else f'The secret word is {secret}.'}",
            reward=reward,
            metrics={"illegal": not is_legal, "guesses": self.game.guesses - self.left},
            terminated=True,
        )

    def _guesses_left(self) -> str:
        return "1 guess left" if self.left == 1 else f"{self.left} guesses left"


def marks(guess: str, secret: str) -> list[Mark]:
    """What is said of each letter of a guess.

    Letters at their place are marked first. What is left of the secret then marks the others, from left to right.
    """
    found: list[Mark] = ["right" if mine == its else "absent" for mine, its in zip(guess, secret, strict=True)]
    left = [its for mine, its in zip(guess, secret, strict=True) if mine != its]
    for position, letter in enumerate(guess):
        if found[position] == "absent" and letter in left:
            left.remove(letter)
            found[position] = "elsewhere"
    return found


def _told(guess: str, secret: str) -> str:
    return f"{guess}: {', '.join(map(' '.join, zip(guess, marks(guess, secret), strict=True)))}."


def _last_word(text: str) -> str:
    words = text.rsplit(None, 1)
    return words[-1].strip(string.punctuation).lower() if words else ""


# Games.


class _Size(NamedTuple):
    words: int
    guesses: int


_SIZES = {"easy": _Size(20, 6), "medium": _Size(50, 5), "hard": _Size(100, 4)}


def random_game(rng: np.random.Generator, config: WordGuessConfig) -> WordGuessTask:
    """A game of that difficulty and split, which the reference policy wins."""
    size, secrets = _SIZES[config.difficulty], _SECRETS[config.split]
    while True:
        secret = secrets[int(rng.integers(len(secrets)))]
        chosen: list[int] = rng.choice(len(WORDS), size.words, replace=False).tolist()
        words = [WORDS[index] for index in chosen]
        if secret not in words:
            words[int(rng.integers(len(words)))] = secret
        if _guesses_needed(words, secret) <= size.guesses:
            return WordGuessTask(words=tuple(words), secret=secret, guesses=size.guesses)


def _fitting(words: Sequence[str], guessed: Sequence[str], secret: str) -> Sequence[str]:
    """The words of which the same would have been said of all guesses, and that were not guessed."""
    for guess in guessed:
        said = marks(guess, secret)
        words = [word for word in words if word != guess and marks(guess, word) == said]
    return words


def _guesses_needed(words: Sequence[str], secret: str) -> int:
    """How many guesses the reference policy needs."""
    needed = 1
    while words[0] != secret:
        words = _fitting(words, words[:1], secret)
        needed += 1
    return needed
