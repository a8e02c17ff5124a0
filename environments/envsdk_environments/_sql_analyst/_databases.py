"""Make databases: from a script, or made-up ones. A database is the bytes of a sqlite file, which never change.

All trades have tables of the same shape: people in areas have events, whose lines have items, which makers make. The
names of tables and columns are drawn anew for each database, so that they have to be looked up.
"""

import functools
import itertools
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel

from envsdk._visible import brief
from envsdk.errors import TaskError

from .._scoring import TaskData
from .guarded._query import Row, Value, open_image, tables_in

T = TypeVar("T")

_STEPS_BETWEEN_CHECKS = 100
_MOST_SCRIPT_CHECKS = 200_000
_FILES = dict.fromkeys((sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH), sqlite3.SQLITE_DENY)

FIRST_DAY = np.datetime64("2020-01-01")
DAYS = 4 * 365
"""The number of days, from the first day on, in which events happen."""
PRICES = (5.0, 150.0)
MOST_SCORE = 5
_AREAS, _PEOPLE, _MAKERS, _ITEMS = 8, 40, 8, 25
_LINES = (1, 2, 2, 3)
"""The numbers of lines that an event may have, with equal probability."""
_SCHEMA = """
CREATE TABLE {area} (
  {area.id} INTEGER PRIMARY KEY,
  {area.name} TEXT NOT NULL UNIQUE,
  {area.region} TEXT NOT NULL
);
CREATE TABLE {person} (
  {person.id} INTEGER PRIMARY KEY,
  {person.name} TEXT NOT NULL UNIQUE,
  {person.area} INTEGER REFERENCES {area} ({area.id}),
  {person.tier} TEXT NOT NULL,
  {person.since} TEXT NOT NULL,
  {person.sponsor} INTEGER REFERENCES {person} ({person.id})
);
CREATE TABLE {maker} (
  {maker.id} INTEGER PRIMARY KEY,
  {maker.name} TEXT NOT NULL UNIQUE,
  {maker.country} TEXT NOT NULL
);
CREATE TABLE {item} (
  {item.id} INTEGER PRIMARY KEY,
  {item.name} TEXT NOT NULL UNIQUE,
  {item.kind} TEXT NOT NULL,
  {item.price} REAL NOT NULL,
  {item.maker} INTEGER REFERENCES {maker} ({maker.id})
);
CREATE TABLE {event} (
  {event.id} INTEGER PRIMARY KEY,
  {event.person} INTEGER NOT NULL REFERENCES {person} ({person.id}),
  {event.date} TEXT NOT NULL,
  {event.status} TEXT NOT NULL,
  {event.score} INTEGER
);
CREATE TABLE {line} (
  {line.event} INTEGER NOT NULL REFERENCES {event} ({event.id}),
  {line.item} INTEGER NOT NULL REFERENCES {item} ({item.id}),
  {line.quantity} INTEGER NOT NULL,
  {line.price} REAL NOT NULL,
  PRIMARY KEY ({line.event}, {line.item})
);
"""


@functools.lru_cache(maxsize=64)
def run_script(script: str) -> bytes:
    """Return the database that a script makes. It may neither read nor write files, and has to end.

    Raises:
        TaskError: If it does not run, opens a file, or takes too many steps.
    """
    checks = itertools.count()
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.set_authorizer(
                lambda action, _a, _b, _c, _d: sqlite3.SQLITE_DENY if action in _FILES else sqlite3.SQLITE_OK
            )
            connection.set_progress_handler(lambda: next(checks) >= _MOST_SCRIPT_CHECKS, _STEPS_BETWEEN_CHECKS)
            connection.executescript(script)
            connection.set_authorizer(None)
            return connection.serialize()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise TaskError(f"the script of a database does not run: {error} (it begins {brief(script)})") from error


@functools.lru_cache(maxsize=64)
def tables_of(image: bytes) -> Mapping[str, str]:
    """Return the statements that created the tables and views, by name, in the order of creation."""
    with closing(open_image(image)) as connection:
        return tables_in(connection)


# Made-up databases.


class TableName(str):
    """The name of a table. The names of its columns are attributes, for formats with `{event}` and `{event.date}`."""


class Trade(TaskData):
    """The words of a trade."""

    words: dict[str, str]
    """The words in questions."""
    tables: dict[str, tuple[str, ...]]
    """For each table, the word for one row, followed by possible names of the table."""
    columns: dict[str, tuple[str, ...]]
    """Possible names of columns."""
    values: dict[str, tuple[str, ...]]
    """The values of columns."""
    nouns: tuple[str, ...]
    """Names of items, which follow an adjective."""


class _DomainWords(BaseModel):
    """The parts of all names. The fields that a trade does not have are the same for all trades."""

    trades: tuple[Trade, ...]
    columns: dict[str, tuple[str, ...]]
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    places: tuple[str, ...]
    regions: tuple[str, ...]
    countries: tuple[str, ...]
    adjectives: tuple[str, ...]
    firms: tuple[str, ...]


_WORDS = _DomainWords.model_validate_json(Path(__file__).with_name("words.json").read_bytes())
TRADES = _WORDS.trades
COUNTRIES = _WORDS.countries
_PEOPLE_NAMES = [f"{first} {last}" for first in _WORDS.first_names for last in _WORDS.last_names]
_MAKER_NAMES = [firm.format(name) for firm in _WORDS.firms for name in _WORDS.last_names]
_REFERENCES = {
    "person.area": "area",
    "item.maker": "maker",
    "event.person": "person",
    "line.event": "event",
    "line.item": "item",
}
"""Columns that are named after the table that they refer to."""


def draw_names(trade: Trade, rng: np.random.Generator) -> dict[str, TableName]:
    """Draw the names of the tables and columns of a database, by their role."""

    def one_of(choices: Sequence[str]) -> str:
        return choices[int(rng.integers(len(choices)))]

    word = {role: words[0] for role, words in trade.tables.items()}
    tables = {role: TableName(one_of(words[1:])) for role, words in trade.tables.items()}
    key, name = one_of(("id", "{}_id", "{}_no")), one_of(("name", "{}_name", "label"))
    reference = one_of(("{}_id", "{}_ref", "{}_key"))
    columns = {
        f"{role}.{column}": form.format(word[role]) for role in word for column, form in (("id", key), ("name", name))
    }
    columns |= {column: reference.format(word[target]) for column, target in _REFERENCES.items()}
    columns |= {column: one_of(choices) for column, choices in (*_WORDS.columns.items(), *trade.columns.items())}
    for full_name, called in columns.items():
        role, column = full_name.split(".")
        vars(tables[role])[column] = called
    return tables


@functools.lru_cache(maxsize=64)
def make_database(trade_index: int, names_seed: int, rows_seed: int, events: int) -> bytes:
    """Return a database of a trade. Databases with the same `names_seed` differ only in their rows."""
    trade = TRADES[trade_index]
    names = draw_names(trade, np.random.default_rng(names_seed))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(f"BEGIN;{_SCHEMA.format_map(names)}")
        for role, lines in _draw_rows(trade, events, np.random.default_rng(rows_seed)).items():
            marks = ", ".join("?" * len(lines[0]))
            connection.executemany(f"INSERT INTO {names[role]} VALUES ({marks})", lines)
        connection.execute("COMMIT")
        return connection.serialize()


def day(index: int) -> str:
    """Return a day of `DAYS` as databases store it."""
    return str(FIRST_DAY + np.timedelta64(index, "D"))


def _draw_rows(trade: Trade, events: int, rng: np.random.Generator) -> dict[str, list[Row]]:
    """Draw the rows of each table. A reference to an area, a person or a maker is NULL in one of eight rows."""

    def some(values: Sequence[T], count: int) -> list[T]:
        return [values[i] for i in rng.integers(len(values), size=count).tolist()]

    def ids(most: int, count: int) -> list[int | None]:
        return [i or None for i in (rng.integers(1, most + 1, size=count) * (rng.random(count) > 1 / 8)).tolist()]

    def different(values: Sequence[T], count: int) -> list[T]:
        return [values[i] for i in rng.permutation(len(values))[:count].tolist()]

    def days(first: int, last: int, count: int) -> Sequence[Value]:
        since = rng.integers(first, last, size=count).astype("timedelta64[D]")
        return np.datetime_as_string(FIRST_DAY + since).tolist()

    people, makers = different(_PEOPLE_NAMES, _PEOPLE), different(_MAKER_NAMES, _MAKERS)
    items = different([f"{adjective} {noun}" for adjective in _WORDS.adjectives for noun in trade.nouns], _ITEMS)
    prices: list[float] = rng.uniform(*PRICES, size=_ITEMS).round(2).tolist()
    values = trade.values
    sponsors = [sponsor if sponsor != own else None for own, sponsor in enumerate(ids(_PEOPLE, _PEOPLE), start=1)]
    chosen: list[list[int]] = (rng.random((events, _ITEMS)).argsort(axis=1) + 1).tolist()
    lines = [
        (event, item) for event, count in enumerate(some(_LINES, events), start=1) for item in chosen[event - 1][:count]
    ]
    quantities, discounts = some(range(1, 7), len(lines)), some((1.0, 1.0, 0.9, 0.8), len(lines))
    return {
        "area": _numbered(different(_WORDS.places, _AREAS), some(_WORDS.regions, _AREAS)),
        "person": _numbered(
            people,
            ids(_AREAS - 1, _PEOPLE),
            some(values["person.tier"], _PEOPLE),
            days(-2 * 365, DAYS, _PEOPLE),
            sponsors,
        ),
        "maker": _numbered(makers, some(COUNTRIES, _MAKERS)),
        "item": _numbered(items, some(values["item.kind"], _ITEMS), prices, ids(_MAKERS, _ITEMS)),
        "event": _numbered(
            some(range(1, _PEOPLE + 1), events),
            days(0, DAYS, events),
            some(values["event.status"], events),
            ids(MOST_SCORE, events),
        ),
        "line": [
            (event, item, quantity, round(prices[item - 1] * discount, 2))
            for (event, item), quantity, discount in zip(lines, quantities, discounts, strict=True)
        ],
    }


def _numbered(*columns: Sequence[Value]) -> list[Row]:
    """Return rows whose first column counts from 1."""
    return list(zip(range(1, len(columns[0]) + 1), *columns, strict=True))
