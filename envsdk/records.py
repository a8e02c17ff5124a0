"""Records on disk: one JSON object a line, with a schema version. The same record gives the same bytes."""

import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import orjson

from .errors import InvalidRecord, StorageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


def dump(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Write fields as one line, without the line end. Arrays become lists, NaN null.

    Raises:
        InvalidRecord: If a field holds something that is no JSON, such as an object in a tool's schema.
    """
    try:
        return orjson.dumps({"schema": SCHEMA_VERSION, "kind": kind, **fields}, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidRecord(f"the record cannot be written: {error}") from error


def fragment(value: Any) -> orjson.Fragment:
    """JSON as it comes: integers of any length, numpy's values as plain ones, and what is no JSON as its `repr`.

    Raises:
        InvalidRecord: For keys that are no texts, values that hold themselves, and texts that are no Unicode.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
        return orjson.Fragment(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("Any", value).tolist()
    return repr(value)


def pack(extra: Mapping[str, Any]) -> orjson.Fragment | dict[str, Any]:
    """Data beside tokens as JSON, from which `unpack` makes arrays of the same dtype again."""
    if not extra:
        return {}
    arrays = {key: _packed(cast("Any", value)) for key, value in extra.items() if isinstance(value, np.ndarray)}
    return fragment({"arrays": arrays, "values": {key: extra[key] for key in extra if key not in arrays}})


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `pack` wrote.

    Raises:
        ValueError: If it is damaged.
    """
    if not packed:
        return {}
    return {**packed["values"], **{key: _unpacked(array) for key, array in packed["arrays"].items()}}


def _packed(array: "NDArray[Any]") -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": array.shape, "values": array.ravel().tolist()}


def _unpacked(packed: Mapping[str, Any]) -> "NDArray[Any]":
    return np.array(packed["values"], dtype=packed["dtype"]).reshape(packed["shape"])


def load(line: bytes | str, kind: str) -> dict[str, Any]:
    """Read the fields of a line.

    Raises:
        InvalidRecord: If it is no JSON object, of another kind, or of another schema version.
    """
    try:
        value = json.loads(line)  # orjson would round long integers
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRecord("not a record: it is no JSON object")
    fields = cast("dict[str, Any]", value)
    check_version(fields.pop("schema", None))
    found = fields.pop("kind", None)
    if found != kind:
        raise InvalidRecord(f"the record is a {found}, not a {kind}")
    return fields


def check_version(version: object) -> None:
    """Refuse another schema version than ours.

    Raises:
        InvalidRecord: It names both.
    """
    if version != SCHEMA_VERSION:
        raise InvalidRecord(f"the record has schema version {version!r}; this version of envsdk reads {SCHEMA_VERSION}")


@contextmanager
def storing(path: Path | str, unfinished: Path | None = None, count: int = 0) -> Generator[None]:
    """Raise an error of the file system as what it means for a file of records.

    Args:
        path: The file.
        unfinished: Where its first records are.
        count: How many those are.

    Raises:
        StorageError: For every `OSError`.
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
    """A place to write a file in: it becomes `path` when it is finished, and is gone after an error.

    Raises:
        StorageError: If it cannot become `path`.
    """
    unfinished = Path(f"{path}.unfinished")
    try:
        yield unfinished
        with storing(path):
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_jsonl(path: Path | str, records: Iterable[Record]) -> int:
    """Write records, one a line; returns how many. The file is there whole, or as it was.

    Raises:
        InvalidRecord: If a record holds what cannot be written; it names which.
        StorageError: If the file cannot be written. What was written so far stays in a file next to it, which the
            message names.
    """
    unfinished, count = Path(f"{path}.unfinished"), 0
    with storing(path):
        file = unfinished.open("wb", buffering=0)
    try:
        for record in records:
            try:
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
    """Write all of a line, or nothing of it."""
    start, left = file.tell(), memoryview(line)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with suppress(OSError):  # a device cannot be cut
            file.truncate(start)
        raise


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
