"""A data set as single-turn tasks: a question from a row, and a function that scores the reply."""

import inspect
import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, ClassVar, cast

from pydantic import Field, ImportString, field_serializer, field_validator

from ..authoring.env import Env
from ..authoring.machinery import DRIVERS, EnvConfig, EnvDriver
from ..episodes.turn import Turn
from ..errors import ConfigError, TaskError
from ..limits import Limits
from ..messages import Message

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class DatasetConfig(EnvConfig):
    """Which columns are what, and how a reply is scored."""

    score: ImportString[Callable[..., Any]]
    """A function, or where it is (`"my_package.scoring:score"`): `score(reply, answer)` with the reply's text and the
    row's answer; if it has a parameter `row`, that is given the whole row. It returns a number, named ones, or None for
    a reply that is not scored. It may be `async def`."""
    question: str = "question"
    """A column that holds a text or a list of chat messages; or a text with columns in braces, as `str.format` reads
    it: `"{context}\\n\\n{question}"`."""
    answer: str | None = "answer"
    """A column; None if rows have no answer: then `score(reply)` is called."""
    system: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    """How many tokens the reply may have."""

    @field_validator("score")
    @classmethod
    def _is_a_function(cls, score: Any) -> Any:
        if isinstance(score, type):
            raise ValueError("it is a class; make an object of it in a module of yours, and say where that is")
        return score

    @field_validator("question")
    @classmethod
    def _is_a_template(cls, question: str) -> str:
        _ = list(Formatter().parse(question))  # raises a ValueError
        return question

    @field_serializer("score")
    def _where(self, score: Any) -> str:
        """Where the function is; of an object, such as a partial, what it is."""
        name: str | None = getattr(score, "__qualname__", None)
        return _ADDRESS.sub("", repr(score)) if name is None else f"{score.__module__}:{name}"


class Dataset(Env):
    """Answer the question of a row, in one reply: `Dataset(tasks="gsm8k.jsonl", score=my_score)`.

    Exercises: what the data set does. Reward: what the function says. What the function raises is an error of the
    episode, and no reward.
    """

    Config: ClassVar[type[EnvConfig]] = DatasetConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=1)

    def start(self) -> Turn:
        """Ask the question."""
        if self.task is None:
            raise ConfigError("there is no row: give tasks=, which is rows, the path of a JSONL file, or a data set")
        config: DatasetConfig = self.config
        question = self._filled(config.question) if "{" in config.question else self._value(config.question)
        if question is None:
            raise TaskError(f"the row {self.task!r:.200} has nothing in its column {config.question!r}")
        messages = cast("Any", question if isinstance(question, list) else str(question))
        return Turn(messages, system=config.system, max_tokens=config.max_tokens)

    async def respond(self, reply: Message) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Score the reply."""
        config: DatasetConfig = self.config
        answer = () if config.answer is None else (self._value(config.answer),)
        row = {"row": self.task} if _takes_row(config.score) else {}
        reward = config.score(reply.content, *answer, **row)
        return Turn(reward=await reward if inspect.isawaitable(reward) else reward, terminated=True)

    def reference_reply(self) -> str:
        """The row's answer."""
        if self.config.answer is None:
            raise NotImplementedError("the rows have no column with an answer")
        return str(self._value(self.config.answer))

    def _filled(self, template: str) -> str:
        try:
            return template.format_map(self.task)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise self._misses(repr(template), error) from error

    def _value(self, column: str) -> Any:
        try:
            return cast("Mapping[str, Any]", self.task)[column]
        except (LookupError, TypeError) as error:
            raise self._misses(f"the column {column!r}", error) from error

    def _misses(self, what: str, error: Exception) -> TaskError:
        return TaskError(
            f"the row {self.task!r:.200} does not fit {what} ({type(error).__name__}: {error}); say with `question` "
            "and `answer` which columns are what"
        )


class _DatasetDriver(EnvDriver):
    def waits(self) -> bool:
        score = self.config.score
        return any(map(inspect.iscoroutinefunction, (score, type(score).__call__)))


DRIVERS[Dataset] = _DatasetDriver


def _takes_row(function: Callable[..., Any]) -> bool:
    try:
        return "row" in inspect.signature(function).parameters
    except ValueError:  # a built-in function does not tell
        return False
