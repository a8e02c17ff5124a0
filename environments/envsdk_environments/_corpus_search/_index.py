"""The search engine for the articles: sqlite's full-text search in memory, built once per process."""

import os
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import NamedTuple

from envsdk.errors import EnvsdkError

from ._world import get_world

PAGE_SIZE = 5
_TITLE_WEIGHT = 8.0
_MOST_MATCHES = 1_000
"""The maximum number of articles that are ranked for a query, which bounds its time. A word that is in more articles is
not searched for."""
_WORD = re.compile(r"[^\W_]+")


class FullTextSearchUnavailable(EnvsdkError):
    """The sqlite of this Python was built without full-text search (FTS5)."""


class SearchHit(NamedTuple):
    """An article that a query found."""

    title: str
    snippet: str
    """The article's sentence with the most words of the query."""


class Page(NamedTuple):
    """One page of the results of a query."""

    hits: list[SearchHit]
    has_more: bool


@cache
def check_full_text_search() -> None:
    """Check that sqlite has full-text search.

    Raises:
        FullTextSearchUnavailable: If it does not.
    """
    try:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
    except sqlite3.Error as error:
        raise FullTextSearchUnavailable(
            f"the sqlite of this Python ({sqlite3.sqlite_version}) has no full-text search: {error}. Use a Python "
            "whose sqlite was built with FTS5, as those of python.org, conda and most Linux distributions are"
        ) from error


class Index:
    """Find articles by title and by words. An index never changes, and any thread may use it.

    Args:
        names: The titles of the articles.
        articles: The sentences of each article, in the same order.
    """

    def __init__(self, names: Sequence[str], articles: Sequence[Sequence[str]]) -> None:
        self._articles = dict(zip(names, articles, strict=True))
        self._titles = {name.casefold(): name for name in names}
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        texts = (" ".join(sentences) for sentences in articles)
        self._connection.executescript(
            "CREATE VIRTUAL TABLE articles USING fts5(title, text, tokenize = 'unicode61');"
            "CREATE VIRTUAL TABLE words USING fts5vocab(articles, row);"
        )
        rows = enumerate(zip(names, texts, strict=True), start=1)
        self._connection.executemany(
            "INSERT INTO articles (rowid, title, text) VALUES (?, ?, ?)", ((number, *row) for number, row in rows)
        )
        self._connection.execute("INSERT INTO articles (articles) VALUES ('optimize')")
        self._connection.commit()
        self._frequencies: Mapping[str, int] = dict(self._connection.execute("SELECT term, doc FROM words"))

    def text(self, title: str) -> str | None:
        """Return the article with a title, in upper or lower case, or None if there is no such article."""
        name = self._titles.get(title.strip().casefold())
        return None if name is None else " ".join(self._articles[name])

    def search(self, query: str, page: int = 1) -> Page:
        """Return the articles that have words of a query, ranked by BM25.

        Args:
            query: Any text. Words that are in no article, or in very many, find nothing.
            page: The number of the page of results, from 1.
        """
        frequencies = {word: self._frequencies.get(word, 0) for word in _words(query)}
        words, left = dict[str, None](), _MOST_MATCHES
        for word in sorted(frequencies, key=lambda word: (frequencies[word], word)):  # the rarest words first
            if 0 < frequencies[word] <= left:
                words[word] = None
                left -= frequencies[word]
        if not words:
            return Page([], has_more=False)
        # Quoted, so that no word of a query is an operator.
        match = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            found: list[tuple[int]] = self._connection.execute(
                "SELECT rowid FROM articles WHERE articles MATCH ? ORDER BY bm25(articles, ?, 1.0), rowid "
                "LIMIT ? OFFSET ?",
                (match, _TITLE_WEIGHT, PAGE_SIZE + 1, PAGE_SIZE * (page - 1)),
            ).fetchall()
        hits: list[SearchHit] = []
        for (row,) in found[:PAGE_SIZE]:
            title = self._names[row - 1]
            best = max(self._articles[title], key=lambda sentence: len(words.keys() & _words(sentence).keys()))
            hits.append(SearchHit(title, best))
        return Page(hits, has_more=len(found) > PAGE_SIZE)


_indexes: dict[int, Index] = {}
_locks: dict[int, threading.Lock] = {}


def get_index() -> Index:
    """Return the index of the world's articles, which is built on first use.

    A forked process builds its own: it must not use the parent's connection, or a lock that another thread held.
    """
    process = os.getpid()
    if process not in _indexes:
        with _locks.setdefault(process, threading.Lock()):
            if process not in _indexes:
                world = get_world()
                _indexes[process] = Index(world.names, world.articles)
    return _indexes[process]


def _words(text: str) -> dict[str, None]:
    """Return the distinct words of a string as the index stores them: in lower case, without accents."""
    if not text.isascii():
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return dict.fromkeys(_WORD.findall(text.casefold()))
