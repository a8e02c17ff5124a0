"""Questions about a database, answered by a query."""

from contextlib import suppress
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk._visible import brief
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ConfigError, TaskError, ToolError

from .._scoring import TaskData, decline
from ._databases import TRADES, draw_names, make_database, run_script, tables_of
from ._questions import Difficulty, SqlQuestion, draw_question
from ._results import as_text, is_same
from ._worker import QueryWorker, TooManySteps
from .guarded._query import QueryLimits, QueryResult, Row

__all__ = ["SqlAnalyst", "SqlAnalystConfig", "SqlAnalystTask"]

_SYSTEM = (
    "Answer a question about a SQLite database with a query. Use the tools to look at the tables and to try queries. "
    "Then answer with one SELECT, alone or in a ```sql block. The query is judged by its result, in this database and "
    "in others with the same tables and different rows. Return the columns in the order in which the question names "
    "them. The rows may be in any order, unless the question asks for one. Do not round numbers, and give shares as "
    "numbers from 0 to 1. A period includes its first and last day, and a range includes both ends."
)
_EVENTS = (120, 200)
"""The numbers of events in the database that can be explored and in the other one, which is larger so that
more wrong queries have another result there."""
_SAMPLE_ROWS = 3
_MOST_EXPECTED_ROWS = 1_000
_MOST_QUESTIONS = 200
"""The maximum number of questions that are drawn until one can be asked."""


class SqlAnalystConfig(ToolEnvConfig):
    """The difficulty of the questions, and the limits of queries."""

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
    """The longest string that a query may compute, in bytes. Its memory is limited to 256 MiB in any case."""
    max_failed_answers: int = Field(default=2, ge=0)
    """The maximum number of answers that do not run and are answered with the error. One more ends the episode."""


class SqlAnalystTask(TaskData):
    """A question about databases that the task brings."""

    question: str = Field(min_length=1)
    query: str = Field(min_length=1)
    """A right query, which has to run within the limits of the environment."""
    databases: tuple[str, ...] = Field(min_length=1)
    """SQL scripts, each of which makes a database. The first one can be explored. The others have the same tables with
    other rows, so that a query with the answer written into it does not match."""
    is_ordered: bool = False
    """True if the question asks for rows in a certain order."""


class _Quest(NamedTuple):
    """A question, its databases, and the result of a right query."""

    question: SqlQuestion
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

    A query can only read. It runs in a separate process, which limits its steps, memory and time. A query that
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
        task: SqlAnalystTask | None = self.task
        if task is None:
            self.quest = self._draw()
        else:
            question = SqlQuestion(task.question, task.query, task.is_ordered)
            try:
                self.quest = self._solve(question, tuple(map(run_script, task.databases)))
            except ToolError as error:
                raise TaskError(f"the query of the task {brief(task.question)} does not run: {error}") from error
        self.queries = 0
        self.failed_answers = 0
        return Turn(self.quest.question.text, system=_SYSTEM)

    @tool
    def list_tables(self) -> str:
        """List the tables with their numbers of rows."""
        lines: list[str] = []
        for name in tables_of(self._database):
            count = self._run(self._database, f"SELECT COUNT(*) FROM {_quoted(name)}", 1).rows[0][0]
            lines.append(f"{name} ({count} rows)")
        return "\n".join(lines)

    @tool
    def describe_tables(self, tables: Annotated[list[str], Field(min_length=1)]) -> str:
        """Show the statements that created tables, and a few rows of each table.

        Args:
            tables: Their names.
        """
        known = tables_of(self._database)
        unknown = [table for table in tables if table not in known]
        if unknown:
            raise ToolError(f"there is no table {brief(unknown[0])}; there are {', '.join(known)}")
        parts: list[str] = []
        for table in dict.fromkeys(tables):
            rows = self._run(self._database, f"SELECT * FROM {_quoted(table)}", _SAMPLE_ROWS)
            parts.append(f"{known[table]};\n\n{as_text(rows)}")
        return "\n\n".join(parts)

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
        content = reply.content
        query = content.strip()
        if blocks := content.split("```")[1::2]:
            query = blocks[-1].strip()
            query = query[3:].strip() if query[:3].lower() == "sql" else query
        question, databases, expected = self.quest
        try:
            matches: list[bool] = []
            for database, rows in zip(databases, expected, strict=True):
                found = self._run(database, query, len(rows))
                matches.append(not found.has_more and is_same(rows, found.rows, question.is_ordered))
        except ToolError as error:
            self.failed_answers += 1
            if self.failed_answers <= self.config.max_failed_answers:
                return Turn(f"Error: {error}. Answer with one SELECT.")
            return Turn(f"Error: {error}", reward={"match": 0.0}, metrics={"queries": self.queries}, terminated=True)
        is_right = all(matches)
        verdict = "Right." if is_right else f"No. A correct query is: {question.query}"
        metrics = {"queries": self.queries, "explored_match": float(matches[0])}
        return Turn(verdict, reward={"match": float(is_right)}, metrics=metrics, terminated=True)

    def reference_reply(self) -> Message:
        """Look at the tables, try the query, and answer with it."""
        results = [message.content for message in self.messages() if message.role == "tool"]
        query = self.quest.question.query
        if not results:
            return Message.calling("list_tables", reasoning="First, I look at which tables there are.")
        if len(results) == 1:
            tables = [line.rsplit(" (", 1)[0] for line in results[0].splitlines()]
            return Message.calling("describe_tables", {"tables": tables}, reasoning="Now I look at what they contain.")
        if len(results) == 2:
            return Message.calling("run_query", {"query": query}, reasoning="I will try a query.")
        return Message(role="assistant", reasoning="The result answers the question.", content=f"```sql\n{query}\n```")

    null_reply = decline

    @property
    def _database(self) -> bytes:
        return self.quest.databases[0]

    def _run(self, database: bytes, query: str, max_rows: int) -> QueryResult:
        config: SqlAnalystConfig = self.config
        steps = config.max_steps_per_query
        limits = QueryLimits(steps, config.max_value_bytes, max_cpu_s=10 + steps // 50_000)
        return self.worker.run(database, query, limits, max_rows)

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

        for _ in range(_MOST_QUESTIONS):
            question = draw_in_split(
                config.split,
                lambda: draw_question(TRADES[trade], names, config.difficulty, self.np_random),
                lambda question: question.text,
            )
            with suppress(TooManySteps):
                quest = self._solve(question, databases)
                # It cannot be guessed: neither result is trivial, and they differ.
                is_something = all(rows and rows not in (((0,),), ((None,),)) for rows in quest.expected)
                if is_something and not is_same(quest.expected[0], quest.expected[1], is_ordered=False):
                    return quest
        raise ConfigError(
            f"none of {_MOST_QUESTIONS} questions can be asked: max_steps_per_query={config.max_steps_per_query} is "
            f"too small for {config.difficulty} questions; increase it"
        )

    def _solve(self, question: SqlQuestion, databases: tuple[bytes, ...]) -> _Quest:
        found = [self._run(image, question.query, _MOST_EXPECTED_ROWS) for image in databases]
        if any(one.has_more for one in found):
            raise ToolError(f"it finds more than {_MOST_EXPECTED_ROWS:,} rows")
        return _Quest(question, databases, tuple(tuple(one.rows) for one in found))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
