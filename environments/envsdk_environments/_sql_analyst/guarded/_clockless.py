"""Call sqlite's functions for dates and times, but let none of them read the clock or the time zone.

Which arguments make a function read them depends on the version of sqlite: `date()`, `date('now')`, `date('subsec')`,
`date('2020-01-01', 'localtime')`. So sqlite itself decides: it refuses every such call in a generated column
(https://www.sqlite.org/deterministic.html).
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any


class ClocklessFunctions:
    """Sqlite's functions for dates and times, restricted to calls whose value depends only on the arguments.

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
