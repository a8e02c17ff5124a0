"""Questions about a database, answered by a query."""

import sqlite3
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ConfigError, TaskError, ToolError

from . import guarded
from .domains import TRADES, draw_names, make_database
from .guarded import QueryLimits, Row, TooManySteps, make_image, run_script, tables_of
from .questions import Difficulty, Question, draw_question
from .results import as_text, is_same

__all__ = ["SqlAnalyst", "SqlAnalystConfig", "SqlAnalystTask"]

_SYSTEM = (
    "You answer a question about a database (SQLite) with a query. Look at the tables and try queries with the tools; "
    "then answer with one SELECT, alone or in a ```sql block. What counts is what it finds, here and in databases with "
    "the same tables and other rows. Give the columns in the order in which the question names them, and rows in any "
    "order if it asks for none. Do not round numbers; a share is from 0 to 1. A period includes its first and its last "
    "day, a range its ends."
)
_EVENTS = (120, 200)
"""How many events the database has that can be explored, and the other one: where there are more, more goes wrong."""
_SAMPLE_ROWS = 3
_MOST_EXPECTED_ROWS = 1_000
_MOST_QUESTIONS = 200
"""So many are drawn until one is worth asking and its query takes no more steps than it may."""


class SqlAnalystConfig(ToolEnvConfig):
    """How hard the questions are, and what queries may do."""

    split: Split = "train"
    """No question of one split is a question of the other."""
    difficulty: Difficulty = "medium"
    """`easy`: one table; `medium`: joins and groups; `hard`: several steps, such as the best of each group."""
    max_rows: int = Field(default=30, ge=1, le=1_000)
    """So many rows of a result are shown."""
    max_steps_per_query: int = Field(default=500_000, ge=1_000)
    """Instructions of the machine of sqlite. A right query takes some thousands; these take a fraction of a second.
    Questions whose right query takes more are not asked."""
    max_value_bytes: int = Field(default=1_000, ge=1_000, le=1_000_000)
    """The longest text in a result; memory in a query is bounded by this times some 100,000."""
    max_failed_answers: int = Field(default=2, ge=0)
    """So many answers that are no query which runs are answered with what is wrong; one more ends the episode."""


class SqlAnalystTask(BaseModel):
    """A question about a database of one's own."""

    model_config = ConfigDict(frozen=True)

    question: str = Field(min_length=1)
    query: str = Field(min_length=1)
    """A query that finds the answer, and that the limits of the environment allow."""
    databases: tuple[str, ...] = Field(min_length=1)
    """SQL scripts, each of which makes a database. The first can be explored; the others have the same tables with
    other rows, so that an answer cannot be written into the query."""
    is_ordered: bool = False
    """Whether the question asks for an order of rows."""


class _Quest(NamedTuple):
    """A question, and what a right query finds."""

    question: Question
    databases: tuple[bytes, ...]
    expected: tuple[tuple[Row, ...], ...]
    """The rows that are found in each database."""


class SqlAnalyst(ToolEnv):
    """Explore a database, and answer a question about it with a query.

    Exercises: finding out how data is laid out, writing SQL (joins, groups, windows, empty values), and trying before
    answering. A question is such as "Which 3 products have the highest number of units in orders from 2021-03-05 to
    2022-01-20? Give the name and the number of units, the highest first. ...". Databases, and the names of their tables
    and columns, are made up anew for each.

    Reward: `match`, 1 if the query that is the answer finds the same as the right one: the same columns in order and
    the same rows as often, in the same order if the question asks for one. Integers have to be the same exactly; where
    one of two numbers is real, they may differ by a millionth of the larger one, or of 1. Names of columns do not
    matter. It has to match in the database that can be explored and in another one, which has the same tables and other
    rows.

    A query can do nothing but read: it is stopped after a number of steps, and what takes much memory, writes, opens
    files, or has another result each time is refused with what is wrong.

    A task, if there is one, is `{"question": "...", "query": "SELECT ...", "databases": ["CREATE TABLE ...; INSERT
    ...;", ...], "is_ordered": false}`.
    """

    Config: ClassVar[type[EnvConfig]] = SqlAnalystConfig
    Task: ClassVar[type[BaseModel] | None] = SqlAnalystTask
    default_limits: ClassVar[Limits] = Limits(max_steps=24)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

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
        return as_text(guarded.run_query(self._database, query, self._query_limits, self.config.max_rows))

    def finish(self, reply: Message) -> Turn:
        """Compare what the query finds with what it should."""
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
        told = [message.content for message in self.messages() if message.role == "tool"]
        query = self.quest.question.query
        if not told:
            return Message.calling("list_tables", reasoning="First I look at which tables there are.")
        if len(told) == 1:
            tables = [line.rsplit(" (", 1)[0] for line in told[0].splitlines()]
            return Message.calling("describe_tables", {"tables": tables}, reasoning="Now I look at what is in them.")
        if len(told) == 2:
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
        return QueryLimits(config.max_steps_per_query, config.max_value_bytes)

    def _described(self, table: str) -> str:
        query = f"SELECT * FROM {_quoted(table)}"
        rows = guarded.run_query(self._database, query, self._query_limits, _SAMPLE_ROWS)
        return f"{tables_of(self._database)[table]};\n\n{as_text(rows)}"

    def _count(self, table: str) -> object:
        count = f"SELECT COUNT(*) FROM {_quoted(table)}"
        return guarded.run_query(self._database, count, self._query_limits, 1).rows[0][0]

    def _matches(self, query: str, index: int) -> bool:
        """Whether a query finds in one of the databases what it should."""
        expected = self.quest.expected[index]
        found = guarded.run_query(self.quest.databases[index], query, self._query_limits, len(expected))
        return not found.has_more and is_same(expected, found.rows, self.quest.question.is_ordered)

    def _fail(self, error: ToolError) -> Turn:
        self.failed_answers += 1
        if self.failed_answers > self.config.max_failed_answers:
            return Turn(f"Error: {error}", reward={"match": 0.0}, metrics={"queries": self.queries}, terminated=True)
        return Turn(f"Error: {error}. Answer with one SELECT.")

    def _draw(self) -> _Quest:
        """A question of the split that is worth asking, and two databases that differ in their rows.

        Raises:
            ConfigError: If the queries of all questions that are drawn take too many steps.
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
            f"of {_MOST_QUESTIONS} questions none can be asked: max_steps_per_query={config.max_steps_per_query} is "
            f"too small for {config.difficulty} questions, make it larger"
        )

    def _read(self, task: SqlAnalystTask) -> _Quest:
        question = Question(task.question, task.query, task.is_ordered)
        try:
            return self._solve(question, tuple(map(_image_of_script, task.databases)))
        except ToolError as error:
            raise TaskError(f"the query of the task {task.question!r:.80} does not run: {error}") from error

    def _solve(self, question: Question, databases: tuple[bytes, ...]) -> _Quest:
        found = [
            guarded.run_query(image, question.query, self._query_limits, _MOST_EXPECTED_ROWS) for image in databases
        ]
        if any(one.has_more for one in found):
            raise ToolError(f"it finds more than {_MOST_EXPECTED_ROWS:,} rows")
        return _Quest(question, databases, tuple(tuple(one.rows) for one in found))


def _is_telling(expected: tuple[tuple[Row, ...], ...]) -> bool:
    """Whether nobody finds that by chance: there is something in each database, and not the same."""
    is_something = all(rows and rows not in (((0,),), ((None,),)) for rows in expected)
    return is_something and not is_same(expected[0], expected[1], is_ordered=False)


@lru_cache(maxsize=64)
def _image_of_script(script: str) -> bytes:
    try:
        return make_image(lambda connection: run_script(connection, script))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise TaskError(f"the script of a database does not run: {error} (it begins {script!r:.80})") from error


def _query_in(content: str) -> str:
    """The query of an answer: what stands in its last block, or all of it."""
    blocks = content.split("```")[1::2]
    query = blocks[-1].strip() if blocks else content.strip()
    return query[3:].strip() if blocks and query[:3].lower() == "sql" else query


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
