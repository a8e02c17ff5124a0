"""Records on disk: one JSON object a line, with a schema version. The same record gives the same bytes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import orjson

from .errors import InvalidRecord

SCHEMA_VERSION = 1


class Record(Protocol):
    """What can be written: trajectories and samples."""

    def to_json(self) -> bytes:
        """One line."""
        ...

    @classmethod
    def from_json(cls, line: bytes | str) -> "Record":
        """Read such a line."""
        ...


R = TypeVar("R", bound=Record)


def dump(fields: Mapping[str, Any]) -> bytes:
    """Write fields as one line, without the line end. Arrays become lists, NaN null.

    Raises:
        InvalidRecord: If a field holds something that is no JSON, such as a task that is an object.
    """
    try:
        return orjson.dumps({"schema": SCHEMA_VERSION, **fields}, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidRecord(f"the record cannot be written: {error}") from error


def fragment(value: Any) -> orjson.Fragment:
    """JSON with integers of any length, which models write and orjson does not."""
    return orjson.Fragment(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def load(line: bytes | str) -> dict[str, Any]:
    """Read the fields of a line.

    Raises:
        InvalidRecord: If it is no JSON object, or of another schema version.
    """
    try:
        value = json.loads(line)  # orjson would round long integers
    except ValueError as error:
        raise InvalidRecord(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRecord("not a record: it is no JSON object")
    fields = cast("dict[str, Any]", value)
    version = fields.pop("schema", None)
    if version != SCHEMA_VERSION:
        raise InvalidRecord(f"the record has schema version {version!r}; this version of envsdk reads {SCHEMA_VERSION}")
    return fields


def write_jsonl(path: Path | str, records: Iterable[Record]) -> int:
    """Write records, one a line; returns how many."""
    count = 0
    with Path(path).open("wb") as file:
        for record in records:
            file.write(record.to_json() + b"\n")
            count += 1
    return count


def read_jsonl(path: Path | str, kind: type[R]) -> Iterator[R]:
    """Read records of a kind, `Trajectory` or `Sample`.

    Raises:
        InvalidRecord: For a line that is none; it names the line.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield cast("R", kind.from_json(line))
            except InvalidRecord as error:
                raise InvalidRecord(f"{path}, line {number}: {error}") from error
