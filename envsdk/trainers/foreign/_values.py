"""A value of a parsed log, with its place for error messages."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..._visible import brief, type_of
from ...errors import InvalidRecord
from ...limits import LARGEST

LARGEST_ID = int(np.iinfo(np.int32).max)


class LoggedValue:
    """A value of a log, with the record and the field that it is in. A value of a wrong type is an `InvalidRecord`."""

    __slots__ = ("value", "where")

    def __init__(self, value: Any, where: str) -> None:
        self.value: Any = value
        self.where = where

    def invalid(self, expected: str) -> InvalidRecord:
        """Return the error that the value is not what was expected."""
        shown = "missing" if self.value is None else brief(self.value)
        if self.value is not None and type(self.value) in (list, dict):
            shown = f"{type_of(self.value)} of {len(self.value)}"
        return InvalidRecord(f"{self.where} is {shown}; expected {expected}")

    def get(self, key: str) -> "LoggedValue":
        """Return a field of an object; its value is None if it is missing."""
        return LoggedValue(self.mapping().get(key), f"{self.where}.{key}")

    def mapping(self) -> Mapping[str, Any]:
        """Return the value as an object."""
        value = self.value
        if not isinstance(value, Mapping):
            raise self.invalid("an object")
        return cast("Mapping[str, Any]", value)

    def object(self) -> "LoggedValue":
        """Return itself if it is an object, an empty object if it is missing."""
        if self.value is None:
            return LoggedValue({}, self.where)
        self.mapping()
        return self

    def items(self) -> "list[LoggedValue]":
        """Return the items of a list; none if it is missing."""
        value: Any = [] if self.value is None else self.value
        if not isinstance(value, (list, tuple)):
            raise self.invalid("a list")
        values = cast("Sequence[Any]", value)
        return [LoggedValue(item, f"{self.where}[{i}]") for i, item in enumerate(values)]

    def text(self) -> str | None:
        """Return a string; None if it is missing."""
        if self.value is not None and not isinstance(self.value, str):
            raise self.invalid("a string")
        return self.value

    def number(self, expected: str = "a finite number", least: float = -LARGEST) -> float | None:
        """Return a finite number; None if it is missing."""
        value = self.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= LARGEST:
            raise self.invalid(expected)
        return float(value)

    def integer(self) -> int | None:
        """Return an integer from 0 to 2**31 - 1; None if it is missing."""
        if self.value is not None and (type(self.value) is not int or not 0 <= self.value <= LARGEST_ID):
            raise self.invalid("an integer from 0 to 2**31 - 1")
        return self.value

    def rewards(self) -> dict[str, float]:
        """Return rewards by name; a plain number is named `reward`. An empty dict means that there is no reward."""
        if isinstance(self.value, Mapping):
            named = {name: self.get(name).number() for name in self.mapping()}
        else:
            named = {"reward": self.number("a finite number, or numbers by name")}
        return {name: reward for name, reward in named.items() if reward is not None}

    def numbers(self, *kinds: type) -> Any:
        """Return a list of numbers of these types, or an array. NumPy would read booleans as integers."""
        value: Any = self.value
        if isinstance(value, np.ndarray):
            return cast("Any", value)
        if not isinstance(value, (list, tuple)):
            raise self.invalid("a list")
        values = cast("list[Any]", value)
        if not set(map(type, values)) <= {*kinds}:  # a record has many of them
            wrong = next(item for item in self.items() if type(item.value) not in kinds)
            raise wrong.invalid("a number" if float in kinds else "a token id")
        return values
