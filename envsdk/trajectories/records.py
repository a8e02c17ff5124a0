"""Records on disk: one JSON object per line, with a schema version. The same record gives the same bytes."""

import json
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from .._arguments import explain_arguments
from .._describing import what_is_invalid
from .._untrusted import open_file, parse_json, read_lines
from .._visible import brief, type_of
from ..errors import ConfigError, InvalidRecord, StorageError
from ._stored import StoredRecord

__all__ = ["read_jsonl", "write_jsonl"]

SCHEMA_VERSION = 2
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Record(Protocol):
    """A type of record that can be written: `Trajectory` or `Sample`."""

    def to_json(self) -> bytes:
        """Return one line."""
        ...

    @classmethod
    def from_json(cls, line: bytes | str) -> "Record":
        """Read one line."""
        ...


R = TypeVar("R", bound=Record)
S = TypeVar("S", bound=StoredRecord)


def dump(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return fields as one line of JSON, without the line end. Arrays become lists, NaN becomes null.

    Raises:
        InvalidRecord: If a field has a value that is not JSON, such as an object in a tool's schema.
    """
    try:
        return orjson.dumps({"schema": SCHEMA_VERSION, "kind": kind, **fields}, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidRecord(f"the record cannot be written: {error}") from error


def load(line: bytes | str, kind: str) -> dict[str, Any]:
    """Read the fields of a line.

    Raises:
        InvalidRecord: If it is not a JSON object, has a key twice, is another kind of record, or has another schema
            version; or exceeds a limit (`ENVSDK_MAX_RECORD_MIB`).
    """
    # orjson would round long integers, and take the last of two values with the same key.
    value = parse_json(line, object_pairs_hook=_object, parse_constant=_refuse_constant)
    if _SURROGATE.search(line if isinstance(line, bytes) else line.encode()):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except ValueError as error:  # an unpaired surrogate is not valid Unicode
            raise InvalidRecord(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRecord("not a record: expected a JSON object")
    fields = cast("dict[str, Any]", value)
    check_version(fields.pop("schema", None))
    found = fields.pop("kind", None)
    if found != kind:
        raise InvalidRecord(f"the record is a {brief(found)}, not a {kind!r}")
    return fields


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {brief(twice)} occurs twice")
    return fields


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


_adapter = cache(TypeAdapter[Any])


def build(kind: type[S], fields: Mapping[str, Any]) -> S:
    """Make an object from the fields of a record, and check each of them.

    Raises:
        InvalidRecord: If a field is missing, unknown, or not of its type; the message names the fields.
    """
    try:
        return _adapter(kind).validate_python(fields)
    except ValidationError as error:
        raise InvalidRecord(f"the {kind.__name__.lower()} is damaged: {what_is_invalid(error)}") from error


def check_version(version: object) -> None:
    """Check the schema version of a record.

    Raises:
        InvalidRecord: If it is not the version that this package reads; the message names both.
    """
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InvalidRecord(f"the record has schema version {version!r}; this version of envsdk reads {SCHEMA_VERSION}")


@contextmanager
def storing(path: Path | str, unfinished: Path | None = None, count: int = 0) -> Generator[None]:
    """Turn an error of the file system into a `StorageError` that names the file of records.

    Args:
        path: The file.
        unfinished: The file that has the records written so far.
        count: How many these are.

    Raises:
        StorageError: In place of each `OSError`.
    """
    try:
        yield
    except OSError as error:
        kept = f" The first {count} records are in {str(unfinished)!r}." if count else ""
        why = error.strerror or str(error)
        raise StorageError(
            error.errno, f"{str(path)!r} cannot be written: {why}.{kept} Free space there, or choose another place"
        ) from error


@contextmanager
def whole_file(path: Path | str) -> Generator[Path]:
    """Yield a temporary path to write: it becomes `path` at the end, and is deleted after an error.

    Raises:
        StorageError: If it cannot be renamed to `path`.
    """
    unfinished = Path(f"{path}.unfinished")
    try:
        yield unfinished
        with storing(path):
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_jsonl(path: Path | str, records: Iterable[Record]) -> int:
    """Write records, one per line, and return how many. The file is complete, or as it was before.

    Raises:
        InvalidRecord: If a record cannot be written; the message names it.
        StorageError: If the file cannot be written. The records written so far stay in a file next to it, which the
            message names.
    """
    unfinished, count = Path(f"{os.fspath(path)}.unfinished"), 0
    with storing(path):
        file = unfinished.open("wb", buffering=0)
    try:
        for record in records:
            try:
                if not hasattr(record, "to_json"):
                    raise InvalidRecord(f"it is {type_of(record)}; expected a Trajectory or a Sample")
                line = record.to_json() + b"\n"
            except InvalidRecord as error:
                raise InvalidRecord(f"record {count}: {error}") from error
            with storing(path, unfinished, count):
                _append(file, line)
            count += 1
        with storing(path, unfinished, count):
            os.fsync(file.fileno())
            unfinished.replace(path)
    except StorageError:
        raise
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        file.close()
    return count


def _append(file: FileIO, line: bytes) -> None:
    """Write a whole line, or nothing."""
    start, left = file.tell(), memoryview(line)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with suppress(OSError):  # a device cannot be truncated
            file.truncate(start)
        raise


def read_jsonl(path: Path | str, kind: type[R]) -> Iterator[R]:
    """Read records of a kind, `Trajectory` or `Sample`.

    Raises:
        InvalidRecord: If a line is not such a record; the message names the line.
        ConfigError: If it is another kind.
    """
    if not hasattr(kind, "from_json"):
        raise ConfigError(f"the kind of the records is {brief(kind)}; expected Trajectory or Sample")
    number = 0
    with open_file(path) as file:
        try:
            for number, line in enumerate(read_lines(file), start=1):  # noqa: B007 - for the error
                yield cast("R", kind.from_json(line))
        except InvalidRecord as error:
            raise InvalidRecord(f"{path}, line {number}: {error}") from error


explain_arguments(globals())
