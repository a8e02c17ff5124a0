"""Make databases. A database is an image: the bytes of a sqlite file, which never change."""

import functools
import itertools
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing

from .guarded._query import open_image, tables_in

_STEPS_BETWEEN_CHECKS = 100
_MOST_SCRIPT_CHECKS = 200_000
_FILES = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})


def make_image(fill: Callable[[sqlite3.Connection], object]) -> bytes:
    """Return a database that a function fills."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fill(connection)
        return connection.serialize()


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run a script that makes tables. It may neither read nor write files, and has to end.

    Raises:
        sqlite3.Error: If it does not run, opens a file, or takes too many steps.
    """
    checks = itertools.count()

    def authorize(action: int, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if action in _FILES else sqlite3.SQLITE_OK

    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_authorizer(authorize)
    connection.set_progress_handler(lambda: next(checks) >= _MOST_SCRIPT_CHECKS, _STEPS_BETWEEN_CHECKS)
    connection.executescript(script)
    connection.set_authorizer(None)


@functools.lru_cache(maxsize=64)
def tables_of(image: bytes) -> Mapping[str, str]:
    """Return the statements that created the tables and views, by name, in the order of creation."""
    with closing(open_image(image)) as connection:
        return tables_in(connection)
