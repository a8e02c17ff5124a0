"""Run a query that a model wrote: it only reads, within limits, and always gives the same result.

A database is an image: the bytes of a sqlite file. Each query opens its own copy in memory, so nothing that it does
lasts.
"""

import functools
import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Value, ...]

MAX_QUERY_CHARS = 5_000
TOO_LARGE = "the query is too large; make it simpler"
_LIMITS: Mapping[int, int] = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_QUERY_CHARS,  # in bytes
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_STEPS_BETWEEN_CHECKS = 100
_OF_ROWS = (
    "avg count group_concat max min sum total "
    "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"
)
_OF_VALUES = (
    "abs ceil ceiling coalesce floor ifnull iif instr length like lower ltrim mod nullif pow power replace round rtrim "
    "sign sqrt substr substring trim typeof unicode upper date datetime julianday strftime time unixepoch"
)
_FUNCTIONS = frozenset(f"{_OF_ROWS} {_OF_VALUES}".split())
"""The functions that a query may call: the same arguments give the same value, and no call is expensive."""
_TIMES = ("date", "datetime", "julianday", "strftime", "time", "unixepoch")
_METERED: tuple[tuple[str, int], ...] = (
    *(("like", n) for n in (2, 3)),
    *(("instr", 2), ("replace", 3), ("trim", 2), ("ltrim", 2), ("rtrim", 2)),
    *((name, -1) for name in _TIMES),
)
"""Functions, with their numbers of arguments, whose time depends on the arguments or whose value may depend on the
clock."""
_PRAGMAS = frozenset({"foreign_key_list", "index_info", "index_list", "table_info", "table_list", "table_xinfo"})
_SCHEMA_TABLES = frozenset({"sqlite_master", "sqlite_schema"})
_ONLY_READS = "only a SELECT that reads the tables is allowed"


class QueryRefused(Exception):
    """A query is not allowed, does not run, or exceeds a limit.

    Args:
        text: What the model reads.
        is_too_long: Whether it took more steps than it may.
    """

    def __init__(self, text: str, *, is_too_long: bool = False) -> None:
        super().__init__(text)
        self.is_too_long = is_too_long


class QueryLimits(NamedTuple):
    """The limits of a query."""

    max_steps: int
    """Instructions of sqlite's virtual machine. Functions that search in strings count as more, by the lengths."""
    max_value_bytes: int
    """The longest string, and the longest row that is sorted or grouped."""
    max_cpu_s: int = 20
    """CPU time in seconds after which the process is killed: for what sqlite does without counting steps."""


class QueryResult(NamedTuple):
    """The result of a query."""

    columns: tuple[str, ...]
    rows: list[Row]
    has_more: bool
    """True if there are more rows, which were not fetched."""


def open_image(image: bytes) -> sqlite3.Connection:
    """Open a copy of a database in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
    connection.deserialize(image)
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
    return connection


def tables_in(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the statements that created the tables and views, by name, in the order of creation."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid")
    return {name: sql for name, sql in found if not name.startswith("sqlite_")}


def run_query(image: bytes, query: str, limits: QueryLimits, max_rows: int) -> QueryResult:
    """Run a query on a database.

    Args:
        image: The database.
        query: One SELECT, or a PRAGMA that describes the schema.
        limits: How much the query may do.
        max_rows: The maximum number of rows to fetch.

    Raises:
        QueryRefused: If it is not such a query, or exceeds a limit.
    """
    if len(query) > MAX_QUERY_CHARS:
        raise QueryRefused(f"the query has {len(query):,} characters; the limit is {MAX_QUERY_CHARS:,}")
    with closing(open_image(image)) as connection, closing(sqlite3.connect(":memory:", isolation_level=None)) as plain:
        guard = _Guard(connection, plain, limits)
        try:
            cursor = connection.execute(query)
            rows: list[Row] = cursor.fetchmany(max_rows + 1)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            text = guard.refusal or _what_is_wrong(error, limits)
            raise QueryRefused(text, is_too_long=guard.steps > limits.max_steps) from error
        except MemoryError as error:  # it needs more memory, or its program has more instructions, than it may
            raise QueryRefused(TOO_LARGE) from error
        if not cursor.description:
            raise QueryRefused(_ONLY_READS)
        columns = tuple(column[0] for column in cursor.description)
        return QueryResult(columns, rows[:max_rows], len(rows) > max_rows)


class ClocklessFunctions:
    """Sqlite's functions for dates and times, restricted to calls whose value depends only on the arguments.

    Which arguments make a function read the clock or the time zone depends on the version of sqlite: `date()`,
    `date('now')`, `date('subsec')`, `date('2020-01-01', 'localtime')`. So sqlite itself decides: it refuses every such
    call in a generated column (https://www.sqlite.org/deterministic.html).

    Args:
        connection: A connection to an empty database in memory, in autocommit mode.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._statements: dict[tuple[str, int], tuple[str, str]] = {}
        connection.execute("PRAGMA journal_mode = OFF")

    def call(self, name: str, arguments: Sequence[object]) -> Any:
        """Return the value of a function.

        Args:
            name: The name of the function.
            arguments: Its arguments.

        Raises:
            sqlite3.OperationalError: If the call reads the clock or the time zone (see `reads_the_clock`), or fails.
        """
        key = name, len(arguments)
        if key not in self._statements:
            # A table of one row whose last column is the value, and the statements that fill and read it.
            table, columns = f"{name}_{len(arguments)}", [f"a{index}" for index in range(len(arguments))]
            value = f"value GENERATED ALWAYS AS ({name}({', '.join(columns)}))"
            self._connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {', '.join([*columns, value])})")
            self._connection.execute(f"INSERT INTO {table} (id) VALUES (1)")
            assignments = ", ".join(["id = 1", *(f"{column} = ?" for column in columns)])
            self._statements[key] = f"UPDATE {table} SET {assignments}", f"SELECT value FROM {table}"
        update, select = self._statements[key]
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(update, arguments)
            return cursor.execute(select).fetchone()[0]


def reads_the_clock(error: Exception) -> bool:
    """Return whether a call was refused because it reads the clock or the time zone."""
    return str(error).startswith("non-deterministic use of ")


class _Guard:
    """Watch one query, and note why it was refused, which sqlite does not report."""

    def __init__(self, connection: sqlite3.Connection, plain: sqlite3.Connection, limits: QueryLimits) -> None:
        self.refusal = ""
        self.steps = 0
        self._limits = limits
        self._tables = _SCHEMA_TABLES | tables_in(connection).keys()  # this reads the schema before there are limits
        self._plain = plain
        self._time_functions = ClocklessFunctions(plain)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        for name, count in _METERED:
            connection.create_function(name, count, functools.partial(self._metered, name), deterministic=True)
        for one in (connection, plain):
            one.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.max_value_bytes)
        for limit, most in _LIMITS.items():
            connection.setlimit(limit, most)
        connection.set_progress_handler(lambda: self._charge(_STEPS_BETWEEN_CHECKS), _STEPS_BETWEEN_CHECKS)
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, _schema: Any, _inner: Any) -> int:
        first, second = first or "", second or ""
        refusal = _ONLY_READS
        match action:
            case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_RECURSIVE:
                refusal = ""
            case sqlite3.SQLITE_READ:
                reads_nothing = not second  # it counts rows, perhaps of a subquery
                refusal = "" if reads_nothing or first in self._tables else f"the table {first!r} may not be read"
            case sqlite3.SQLITE_FUNCTION:
                refusal = "" if second.lower() in _FUNCTIONS else f"the function {second} is not available"
            case sqlite3.SQLITE_PRAGMA:
                refusal = "" if first.lower() in _PRAGMAS else f"{_ONLY_READS}, no PRAGMA {first}"
            case _:
                pass
        self.refusal = self.refusal or refusal
        return sqlite3.SQLITE_DENY if refusal else sqlite3.SQLITE_OK

    def _charge(self, steps: int) -> bool:
        """Count steps; return whether there were too many."""
        self.steps += steps
        if self.steps <= self._limits.max_steps:
            return False
        self.refusal = f"the query takes more than {self._limits.max_steps:,} steps; make it simpler"
        return True

    def _metered(self, name: str, *arguments: Value) -> Value:
        """Call one of sqlite's functions, unless that takes too long or reads the clock."""
        lengths = [len(value) for value in arguments if isinstance(value, (str, bytes))]
        if self._charge(50 + math.prod(lengths) // 16):
            raise ValueError(self.refusal)
        try:
            if name in _TIMES:
                return self._time_functions.call(name, arguments)
            marks = ", ".join("?" * len(arguments))
            return self._plain.execute(f"SELECT {name}({marks})", arguments).fetchone()[0]
        except sqlite3.Error as error:  # sqlite itself would only report that there was an error
            asks_for_now = f"{name} may not use the current time, which changes; give a date"
            self.refusal = asks_for_now if reads_the_clock(error) else _what_is_wrong(error, self._limits)
            raise


def _what_is_wrong(error: Exception, limits: QueryLimits) -> str:
    is_too_long = isinstance(error, sqlite3.DataError)
    return f"a string is longer than {limits.max_value_bytes:,} bytes" if is_too_long else str(error)
