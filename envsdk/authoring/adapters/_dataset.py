"""An environment for data sets: each row is a single-turn task, and a function scores the reply."""

import inspect
import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, ClassVar, cast

from pydantic import Field, ImportString, field_serializer, field_validator

from ..._visible import brief
from ...episodes._turn import Turn
from ...errors import ConfigError, TaskError
from ...limits import Limits
from ...messages import Message
from .._env import Env, EnvConfig

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class DatasetConfig(EnvConfig):
    """The columns of the data set, and the scoring function."""

    score: ImportString[Callable[..., Any]]
    """A function `score(reply, answer)`, or its import path (`"my_package.scoring:score"`). It gets the text of the
    reply and the answer of the row, and the whole row if it has a parameter `row`. It returns a number, a dict of named
    numbers, or None for a reply that is not scored. It may be `async def`."""
    question: str = "question"
    """The column of the question, which is a string or a list of chat messages; or a format string with columns in
    braces, as in `str.format`: `"{context}\\n\\n{question}"`."""
    answer: str | None = "answer"
    """The column of the answer. None if rows have no answer; the scoring function is then called as `score(reply)`."""
    system: str | None = None
    """The system message."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The maximum number of tokens in the reply."""

    @field_validator("score")
    @classmethod
    def _is_a_function(cls, score: Any) -> Any:
        if isinstance(score, type):
            raise ValueError("it is a class; expected a function, or an instance of the class in a module of yours")
        return score

    @field_validator("question")
    @classmethod
    def _is_a_template(cls, question: str) -> str:
        _ = list(Formatter().parse(question))  # raises a ValueError
        return question

    @field_serializer("score")
    def _where(self, score: Any) -> str:
        return path_of(score)


class Dataset(Env):
    """Answer the question of a row in one reply: `Dataset(tasks="gsm8k.jsonl", score=my_score)`.

    Exercises: the skills that the data set tests. Reward: the result of the scoring function. If the function raises,
    the episode fails and has no reward.
    """

    Config: ClassVar[type[EnvConfig]] = DatasetConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=1)

    def start(self) -> Turn:
        """Ask the question."""
        if self.task is None:
            raise ConfigError("task data is missing; expected tasks=<rows, the path of a JSONL file, or a data set>")
        config: DatasetConfig = self.config
        if "{" in config.question:
            try:
                question: Any = config.question.format_map(self.task)
            except (LookupError, AttributeError, TypeError, ValueError) as error:
                raise self._misses(repr(config.question), error) from error
        else:
            question = self._value(config.question)
        if question is None:
            raise TaskError(
                f"the row {brief(self.task, 200)} has None in its column {config.question!r}, not a question"
            )
        messages = cast("Any", question if isinstance(question, list) else str(question))
        return Turn(messages, system=config.system, max_tokens=config.max_tokens)

    async def respond(self, reply: Message) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Score the reply."""
        config: DatasetConfig = self.config
        answer = () if config.answer is None else (self._value(config.answer),)
        try:
            takes_row = "row" in inspect.signature(config.score).parameters
        except ValueError:  # a built-in function without a signature
            takes_row = False
        reward = config.score(reply.content, *answer, **({"row": self.task} if takes_row else {}))
        return Turn(reward=await reward if inspect.isawaitable(reward) else reward, terminated=True)

    def reference_reply(self) -> str:
        """Return the answer of the row."""
        if self.config.answer is None:
            raise NotImplementedError("a reference reply needs an answer, but the rows have no column with an answer")
        return str(self._value(self.config.answer))

    def _envsdk_waits(self) -> bool:
        score = self.config.score
        return any(map(inspect.iscoroutinefunction, (score, type(score).__call__)))

    def _value(self, column: str) -> Any:
        try:
            return cast("Mapping[str, Any]", self.task)[column]
        except (LookupError, TypeError) as error:
            raise self._misses(f"the column {column!r}", error) from error

    def _misses(self, what: str, error: Exception) -> TaskError:
        return TaskError(
            f"the row {brief(self.task, 200)} does not fit {what} ({type(error).__name__}: {error}). Name the "
            "columns with the options `question` and `answer`"
        )


def path_of(function: Any) -> str:
    """Return the import path of a function, or the repr of another object, such as a partial."""
    name: str | None = getattr(function, "__qualname__", None)
    return _ADDRESS.sub("", repr(function)) if name is None else f"{function.__module__}:{name}"
