"""Questions about a database, answered by a query."""

import sqlite3
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ConfigError, TaskError, ToolError

from ._domains import TRADES, draw_names, make_database
from ._images import make_image, run_script, tables_of
from ._questions import Difficulty, Question, draw_question
from ._results import as_text, is_same
from ._worker import QueryWorker, TooManySteps
from .guarded._query import Found, QueryLimits, Row

__all__ = ["SqlAnalyst", "SqlAnalystConfig", "SqlAnalystTask"]

_SYSTEM = (
    "You answer a question about a database (SQLite) with a query. Look at the tables and try queries with the tools; "
    "then answer with one SELECT, alone or in a ```sql block. What counts is what it finds, here and in databases with "
    "the same tables and other rows. Give the columns in the order in which the question names them, and rows in any "
    "order if it asks for none. Do not round numbers; a share is from 0 to 1. A period includes its first and its last "
    "day, a range its ends."
)
_EVENTS = (120, 200)
"""The numbers of events in the database that can be explored and in the other one, which is larger so that
more wrong queries have another result there."""
_SAMPLE_ROWS = 3
_MOST_EXPECTED_ROWS = 1_000
_MOST_QUESTIONS = 200
"""The maximum number of questions that are drawn until one can be asked."""


class SqlAnalystConfig(ToolEnvConfig):
    """How hard the questions are, and the limits of queries."""

    split: Split = "train"
    """No question is in both splits."""
    difficulty: Difficulty = "medium"
    """`easy` questions need one table, `medium` ones joins and groups, `hard` ones several steps, such as the best row
    of each group."""
    max_rows: int = Field(default=30, ge=1, le=1_000)
    """The maximum number of rows of a result that are shown."""
    max_steps_per_query: int = Field(default=500_000, ge=1_000)
    """The maximum number of instructions of sqlite's virtual machine. A right query takes some thousands; 500,000 take
    a fraction of a second. Questions whose right query takes more are not asked."""
    max_value_bytes: int = Field(default=1_000, ge=1_000, le=1_000_000)
    """The longest text that a query may compute, in bytes. Its memory is limited to 256 MiB in any case."""
    max_failed_answers: int = Field(default=2, ge=0)
    """The maximum number of answers that do not run and are answered with the error. One more ends the episode."""


class SqlAnalystTask(BaseModel):
    """A question about databases that the task brings."""

    model_config = ConfigDict(frozen=True)

    question: str = Field(min_length=1)
    query: str = Field(min_length=1)
    """A right query, which has to run within the limits of the environment."""
    databases: tuple[str, ...] = Field(min_length=1)
    """SQL scripts, each of which makes a database. The first one can be explored. The others have the same tables with
    other rows, so that a query with the answer written into it does not match."""
    is_ordered: bool = False
    """Whether the question asks for rows in a certain order."""


class _Quest(NamedTuple):
    """A question, its databases, and the result of a right query."""

    question: Question
    databases: tuple[bytes, ...]
    expected: tuple[tuple[Row, ...], ...]
    """The rows that a right query finds in each database."""


class SqlAnalyst(ToolEnv):
    """Explore a database, and answer a question about it with a query.

    Exercises: finding out how data is laid out, writing SQL (joins, groups, windows, NULL values), and trying a query
    before answering. An example of a question is "Which 3 products have the highest number of units in orders from
    2021-03-05 to 2022-01-20? Give the name and the number of units, the highest first. ...". The databases, and the
    names of their tables and columns, are drawn anew for each episode.

    Reward: `match`, 1 if the query in the answer has the same result as the right one: the same columns in order, and
    the same rows equally often, in the same order if the question asks for one. Integers are compared exactly. Where
    one of two numbers is real, they may differ by a millionth of the larger one, or of 1. Names of columns do not
    matter. The results have to match in the database that can be explored and in another one, which has the same tables
    and other rows.

    A query can only read. It runs in a process of its own, which limits its steps, memory and time. A query that
    exceeds a limit, writes, opens files, or depends on the time of day or on chance is answered with an error.

    A task, if given, is `{"question": "...", "query": "SELECT ...", "databases": ["CREATE TABLE ...; INSERT ...;",
    ...], "is_ordered": false}`.
    """

    Config: ClassVar[type[EnvConfig]] = SqlAnalystConfig
    Task: ClassVar[type[BaseModel] | None] = SqlAnalystTask
    default_limits: ClassVar[Limits] = Limits(max_steps=24)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.worker = QueryWorker()

    def close(self) -> None:
        """End the process that runs queries. It may be called again."""
        self.worker.close()
        super().close()

    def start(self) -> Turn:
        """Ask the question."""
        self.quest = self._read(self.task) if self.task else self._draw()
        self.queries = 0
        self.failed_answers = 0
        return Turn(self.quest.question.text, system=_SYSTEM)

    @tool
    def list_tables(self) -> str:
        """List the tables, with the number of rows of each."""
        return "\n".join(f"{name} ({self._count(name)} rows)" for name in tables_of(self._database))

    @tool
    def describe_tables(self, tables: Annotated[list[str], Field(min_length=1)]) -> str:
        """Show how tables were created, and a few rows of each.

        Args:
            tables: Their names.
        """
        known = tables_of(self._database)
        unknown = [table for table in tables if table not in known]
        if unknown:
            raise ToolError(f"there is no table {unknown[0]!r:.80}; there are {', '.join(known)}")
        return "\n\n".join(map(self._described, dict.fromkeys(tables)))

    @tool
    def run_query(self, query: str) -> str:
        """Run a query.

        Args:
            query: One SELECT.
        """
        self.queries += 1
        return as_text(self._run(self._database, query, self.config.max_rows))

    def finish(self, reply: Message) -> Turn:
        """Compare the result of the query with the right one."""
        query = _query_in(reply.content)
        try:
            matches = [self._matches(query, index) for index in range(len(self.quest.databases))]
        except ToolError as error:
            return self._fail(error)
        is_right = all(matches)
        verdict = "Right." if is_right else f"No. A right query is: {self.quest.question.query}"
        metrics = {"queries": self.queries, "explored_match": float(matches[0])}
        return Turn(verdict, reward={"match": float(is_right)}, metrics=metrics, terminated=True)

    def reference_reply(self) -> Message:
        """Look at the tables, try the query, and answer with it."""
        results = [message.content for message in self.messages() if message.role == "tool"]
        query = self.quest.question.query
        if not results:
            return Message.calling("list_tables", reasoning="First I look at which tables there are.")
        if len(results) == 1:
            tables = [line.rsplit(" (", 1)[0] for line in results[0].splitlines()]
            return Message.calling("describe_tables", {"tables": tables}, reasoning="Now I look at what is in them.")
        if len(results) == 2:
            return Message.calling("run_query", {"query": query}, reasoning="I try a query.")
        return Message(role="assistant", reasoning="That is what was asked for.", content=f"```sql\n{query}\n```")

    def null_reply(self) -> str:
        """Decline."""
        return "I do not know."

    @property
    def _database(self) -> bytes:
        return self.quest.databases[0]

    @property
    def _query_limits(self) -> QueryLimits:
        config: SqlAnalystConfig = self.config
        steps = config.max_steps_per_query
        return QueryLimits(steps, config.max_value_bytes, max_cpu_s=10 + steps // 50_000)

    def _run(self, database: bytes, query: str, max_rows: int) -> Found:
        return self.worker.run(database, query, self._query_limits, max_rows)

    def _described(self, table: str) -> str:
        query = f"SELECT * FROM {_quoted(table)}"
        rows = self._run(self._database, query, _SAMPLE_ROWS)
        return f"{tables_of(self._database)[table]};\n\n{as_text(rows)}"

    def _count(self, table: str) -> object:
        count = f"SELECT COUNT(*) FROM {_quoted(table)}"
        return self._run(self._database, count, 1).rows[0][0]

    def _matches(self, query: str, index: int) -> bool:
        """Return whether a query has the right result in one of the databases."""
        expected = self.quest.expected[index]
        found = self._run(self.quest.databases[index], query, len(expected))
        return not found.has_more and is_same(expected, found.rows, self.quest.question.is_ordered)

    def _fail(self, error: ToolError) -> Turn:
        self.failed_answers += 1
        if self.failed_answers > self.config.max_failed_answers:
            return Turn(f"Error: {error}", reward={"match": 0.0}, metrics={"queries": self.queries}, terminated=True)
        return Turn(f"Error: {error}. Answer with one SELECT.")

    def _draw(self) -> _Quest:
        """Draw two databases with the same tables, and a question of the split whose answer cannot be guessed.

        Raises:
            ConfigError: If the right query of every question that was drawn takes too many steps.
        """
        config: SqlAnalystConfig = self.config
        trade = int(self.np_random.integers(len(TRADES)))
        names_seed, *rows_seeds = self.np_random.integers(2**62, size=3).tolist()
        databases = tuple(
            make_database(trade, names_seed, seed, events) for seed, events in zip(rows_seeds, _EVENTS, strict=True)
        )
        names = draw_names(TRADES[trade], np.random.default_rng(names_seed))

        def draw() -> Question:
            return draw_question(TRADES[trade], names, config.difficulty, self.np_random)

        for _ in range(_MOST_QUESTIONS):
            question = draw_in_split(config.split, draw, lambda question: question.text)
            with suppress(TooManySteps):
                quest = self._solve(question, databases)
                if _is_telling(quest.expected):
                    return quest
        raise ConfigError(
            f"none of {_MOST_QUESTIONS} questions can be asked: max_steps_per_query={config.max_steps_per_query} is "
            f"too small for {config.difficulty} questions; increase it"
        )

    def _read(self, task: SqlAnalystTask) -> _Quest:
        question = Question(task.question, task.query, task.is_ordered)
        try:
            return self._solve(question, tuple(map(_image_of_script, task.databases)))
        except ToolError as error:
            raise TaskError(f"the query of the task {task.question!r:.80} does not run: {error}") from error

    def _solve(self, question: Question, databases: tuple[bytes, ...]) -> _Quest:
        found = [self._run(image, question.query, _MOST_EXPECTED_ROWS) for image in databases]
        if any(one.has_more for one in found):
            raise ToolError(f"it finds more than {_MOST_EXPECTED_ROWS:,} rows")
        return _Quest(question, databases, tuple(tuple(one.rows) for one in found))


def _is_telling(expected: tuple[tuple[Row, ...], ...]) -> bool:
    """Return whether the results cannot be guessed: neither is trivial, and they differ."""
    is_something = all(rows and rows not in (((0,),), ((None,),)) for rows in expected)
    return is_something and not is_same(expected[0], expected[1], is_ordered=False)


@lru_cache(maxsize=64)
def _image_of_script(script: str) -> bytes:
    try:
        return make_image(lambda connection: run_script(connection, script))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise TaskError(f"the script of a database does not run: {error} (it begins {script!r:.80})") from error


def _query_in(content: str) -> str:
    """Return the query of an answer: its last code block, or all of it."""
    blocks = content.split("```")[1::2]
    query = blocks[-1].strip() if blocks else content.strip()
    return query[3:].strip() if blocks and query[:3].lower() == "sql" else query


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
