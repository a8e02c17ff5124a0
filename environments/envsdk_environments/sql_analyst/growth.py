"""How large a query grows before it runs.

sqlite copies a subquery for each use of it, and an expression for each use of its name in the SELECT around it. So a
short query can take forever to prepare, when sqlite looks at none of its limits. `growth` tells beforehand, from the
text alone.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<name>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]|[\w$\x80-\U0010ffff]+)"
    r"|(?P<sign>\S)",
    re.DOTALL,
)
_KEYWORDS = (
    "all and as between case distinct else exists from group having in is join limit not null on or order select then "
    "using values when where"
)
_RESERVED = frozenset(_KEYWORDS.split())
"""Words that stand often in queries, and that are no names unless they are quoted."""
_OPENS_SELECT = frozenset({"select", "with", "values"})


class _Token(NamedTuple):
    kind: str
    text: str


@dataclass(eq=False)
class _Select:
    """A SELECT, with its WITH if it has one."""

    names: Counter[str] = field(default_factory=Counter[str])
    """How often each name stands in it, and not in a SELECT inside it."""
    inside: "list[_Select]" = field(default_factory=list["_Select"])
    """The SELECTs inside it that have no name."""


def growth(query: str) -> int:
    """How many SELECTs and expressions a query has once all is copied: more, if anything, than it really has."""
    outermost, named = _read(query)
    return _Growth(named).of(outermost)


class _Growth:
    def __init__(self, named: dict[str, list[_Select]]) -> None:
        self._named = named
        self._known: dict[int, int] = {}

    def of(self, select: _Select) -> int:
        if id(select) not in self._known:
            self._known[id(select)] = 0  # what uses itself, as a recursive query does, is not copied
            used = sum(map(self.of, select.inside))
            for name, count in select.names.items():
                used += count * sum(map(self.of, self._named.get(name, ())))
            self._known[id(select)] = 1 + used * max(select.names.values(), default=1)
        return self._known[id(select)]


def _read(query: str) -> tuple[_Select, dict[str, list[_Select]]]:
    """The outermost SELECT, and those that have a name, by name."""
    tokens = [_Token(str(m.lastgroup), m.group().lower()) for m in _TOKEN.finditer(query) if m.lastgroup != "comment"]
    outermost = _Select()
    named: dict[str, list[_Select]] = {}
    around = [outermost]
    for index, token in enumerate(tokens):
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if token.text == "(":
            around.append(_opened(tokens, index, around[-1], named) if following in _OPENS_SELECT else around[-1])
        elif token.text == ")" and len(around) > 1:
            around.pop()
        elif token.kind == "name" and token.text not in _RESERVED and following not in (".", "("):
            around[-1].names[_unquoted(token.text)] += 1
    return outermost, named


def _opened(tokens: list[_Token], index: int, around: _Select, named: dict[str, list[_Select]]) -> _Select:
    """The SELECT behind a bracket: what `WITH` gives a name to, or a part of the one around it."""
    select = _Select()
    while index and tokens[index - 1].text in ("not", "materialized"):
        index -= 1
    if index < 2 or tokens[index - 1].text != "as":
        around.inside.append(select)
        return select
    index -= 2
    if tokens[index].text == ")":  # the names of its columns stand between
        while index and tokens[index].text != "(":
            index -= 1
        index -= 1
    named.setdefault(_unquoted(tokens[index].text), []).append(select)
    return select


def _unquoted(name: str) -> str:
    return name[1:-1] if name[0] in "'\"`[" else name
