"""Samples as tables with one row for each sample: Parquet files and Hugging Face datasets, in both directions."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import orjson

from .._arguments import explain_arguments
from .._packages import load
from .._untrusted import parse_json
from .._visible import type_of
from ..errors import InvalidRecord, InvalidSample
from ..trajectories._fragments import fragment
from ..trajectories._samples import Sample
from ..trajectories._stored import dump_media, pack
from ..trajectories.records import SCHEMA_VERSION, build, check_version, storing, whole_file
from ._capability import Capability
from ._checks import check_samples
from ._rows import IGNORED, BatchLayout, check_lengths, check_max_length, labels

__all__ = ["from_row", "read_parquet", "to_dataset", "write_parquet"]

CAPABILITY = Capability(
    "Parquet and Hugging Face datasets",
    several_samples=True,
    loss_weight="A column, not applied: multiply by it if the loss is averaged per row, not if it is a sum.",
    images="Columns: `images`, the files (`bytes`, `path`), each image once; `media`, JSON with the range of each.",
)

_LISTS = {
    "tokens": "int32",
    "mask": "bool_",
    "logprobs": "float32",
    "step_ids": "int32",
    "part_ids": "int32",
    "advantage": "float32",
    "step_rewards": "float32",
    "temperature": "float32",
    "policy_version": "int32",
}
_PADDED = {"input_ids": "int32", "labels": "int32", "attention_mask": "int8"}
_VALUES = {
    "reward": "float64",
    "loss_weight": "float64",
    "context": "string",
    "role": "string",
    "parent": "string",
    "trajectory_id": "string",
    "group_id": "string",
    "segment_index": "int32",
    "n_segments": "int32",
    "stop_reason": "string",
    "truncated": "bool_",
}
_JSON = ("breaks", "extra", "metadata")  # columns of JSON text
_OPTIONAL = ("roles", "stream_weights", "media")  # columns of JSON text, or null
_OPTIONAL_LISTS = {"reference_logprobs": "float32"}  # tables that were written before the optional columns lack them
# The exceptions that pyarrow raises for a file that it cannot read. Its own errors are subclasses of these.
_DAMAGED = (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError, OverflowError, MemoryError)
_ROWS = 1000  # rows of a row group, which is the number of samples in memory at a time


def write_parquet(
    path: Path | str,
    samples: Iterable[Sample],
    *,
    max_length: int | None = None,
    pad_token_id: int = 0,
    truncate: bool = False,
) -> int:
    """Write samples to a Parquet file, and return the number of samples.

    The columns are the fields of `Sample`. Array fields are lists; `breaks`, `extra`, `metadata`, `roles`,
    `stream_weights` and `media` are JSON text. `images` has the files of the sample's images, each image once, as the
    image columns of Hugging Face datasets do: `bytes`, and as `path` the hash and `.png` or `.jpg`. The advantage has
    one value for each token. Without samples, the table has no rows.
    The file is replaced only when it is complete.

    Args:
        path: The path of the file.
        samples: The samples; they may come from a generator.
        max_length: If given, the table also has the columns that Hugging Face trainers read: `input_ids`, `labels`
            (-100 where mask is False) and `attention_mask`, padded on the right to this length. The other columns stay
            whole.
        pad_token_id: The token id that pads `input_ids`.
        truncate: Whether the padded columns of a longer sample are cut, instead of the sample being refused.

    Raises:
        InvalidSample: If a sample is invalid, is longer than `max_length`, or has a value that cannot be written. The
            error names the sample.
        ConfigError: If `max_length` is invalid.
        StorageError: If the file cannot be written. An existing file stays unchanged.
        MissingPackage: If pyarrow is not installed.
    """
    check_max_length(max_length)
    padding = None if max_length is None else _Padding(max_length, pad_token_id, truncate)
    parquet, schema, count = _package("pyarrow.parquet"), _schema(padding), 0
    with whole_file(path) as unfinished:
        with storing(path):
            writer = parquet.ParquetWriter(unfinished, schema, write_page_checksum=True)
        try:
            for table in _tables(samples, padding):
                with storing(path):
                    writer.write_table(table)
                count += table.num_rows
        finally:
            with storing(path):
                writer.close()
    return count


def read_parquet(path: Path | str) -> Iterator[Sample]:
    """Yield the samples of a Parquet file that `write_parquet` wrote. One row group is in memory at a time.

    Raises:
        InvalidRecord: If the table has other columns or another schema version, or the file is damaged. The error names
            the file and the row.
        InvalidSample: If a sample is invalid.
        MissingPackage: If pyarrow is not installed.
    """
    for number, row in enumerate(_rows(path)):
        try:
            sample = from_row(row)
        except (InvalidRecord, InvalidSample) as error:
            raise type(error)(f"{path}, row {number}: {error}") from error
        yield sample


def _rows(path: Path | str) -> Iterator[dict[str, Any]]:
    parquet, count = _package("pyarrow.parquet"), 0
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_ROWS):
                yield from batch.to_pylist()
                count += len(batch)
            if count != file.metadata.num_rows:  # page offsets have no checksum
                raise InvalidRecord(f"{path} is damaged: {count} of its {file.metadata.num_rows} rows can be read")
    except (FileNotFoundError, PermissionError, InvalidRecord):
        raise
    except _DAMAGED as error:
        raise InvalidRecord(f"{path} is not a Parquet file of samples, or it is damaged: {error}") from error


def to_dataset(
    samples: Iterable[Sample], *, max_length: int | None = None, pad_token_id: int = 0, truncate: bool = False
) -> Any:
    """Make a `datasets.Dataset` with the columns of `write_parquet`. `from_row` converts its rows back to samples.

    Args:
        samples: The samples.
        max_length: See `write_parquet`, as for the others.
        pad_token_id: The token id that pads `input_ids`.
        truncate: Whether longer samples are cut.

    Raises:
        InvalidSample: If a sample is invalid, is longer than `max_length`, or has a value that cannot be written. The
            error names the sample.
        ConfigError: If `max_length` is invalid.
        MissingPackage: If datasets or pyarrow is not installed.
    """
    check_max_length(max_length)
    padding = None if max_length is None else _Padding(max_length, pad_token_id, truncate)
    datasets = _package("datasets")
    return datasets.Dataset(
        _package("pyarrow").Table.from_batches(
            [batch for table in _tables(samples, padding) for batch in table.to_batches()], _schema(padding)
        )
    )


def from_row(row: Mapping[str, Any]) -> Sample:
    """Convert the row of a table to a sample, and validate it.

    Args:
        row: The values by column name.

    Raises:
        InvalidRecord: If a column is missing, or the row has another schema version.
        InvalidSample: If the sample is invalid.
    """
    if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"the row is {type_of(row)}; expected a mapping from column names to values")
    if missing := {*_LISTS, *_VALUES, *_JSON, "schema"} - set(row):
        raise InvalidRecord(
            f"the row has no {', '.join(sorted(missing))}; expected the columns of write_parquet or to_dataset"
        )
    check_version(_plain(row["schema"]))
    fields = {name: _plain(row[name]) for name in (*_LISTS, *_VALUES)}
    given = {name: _plain(row[name]) for name in _OPTIONAL_LISTS if row.get(name) is not None}
    texts = [*_JSON, *(name for name in _OPTIONAL if row.get(name) is not None)]
    sample = build(Sample, {**fields, **given, **{name: _parsed(name, row[name]) for name in texts}}).validate()
    column: Any = row.get("images") if sample.media else None
    files: list[Any] = [] if column is None else list(column)
    if any(type(file) is not dict or not isinstance(file.get("bytes"), bytes) for file in files):
        raise InvalidRecord("the column images has something other than files with bytes: do not decode it")
    embedded: dict[str, bytes] = {hashlib.sha256(file["bytes"]).hexdigest(): file["bytes"] for file in files}
    for placed in sample.media:
        placed.image.find_in(None, embedded)
    return sample


def _parsed(name: str, text: Any) -> Any:
    try:
        return parse_json(_plain(text))  # orjson would round long integers
    except InvalidRecord as error:
        raise InvalidRecord(f"the column {name} is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Return a value of a row, converted from numpy if the dataset has the numpy format."""
    return cast("Any", value).tolist() if isinstance(value, (np.ndarray, np.generic)) else value


class _Padding(NamedTuple):
    """The padding of the columns for Hugging Face trainers."""

    max_length: int
    pad_token_id: int
    truncate: bool


def _tables(samples: Iterable[Sample], padding: _Padding | None) -> Iterator[Any]:
    if not isinstance(samples, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_samples(samples)  # raises the error for this type
    rest, first = iter(samples), 0
    while group := list(itertools.islice(rest, _ROWS)):
        valid = check_samples(group, logprobs=False, first=first, no_images=None)
        if padding is not None and not padding.truncate:
            check_lengths(valid, padding.max_length, first)
        yield _table(valid, first, padding)
        first += len(group)


def _table(samples: Sequence[Sample], first: int, padding: _Padding | None) -> Any:
    """Return the table of valid samples. If a value cannot be written, try each sample alone to name the wrong one."""
    try:
        return _package("pyarrow").table(_columns(samples, padding), _schema(padding))
    except (ValueError, TypeError, OverflowError) as error:
        if len(samples) == 1:
            raise InvalidSample(
                f"sample {first}, of trajectory {samples[0].trajectory_id!r}, has a value that cannot be written: "
                f"{error}"
            ) from error
        for number, sample in enumerate(samples, start=first):
            _table([sample], number, padding)
        raise


def _columns(samples: Sequence[Sample], padding: _Padding | None) -> dict[str, list[Any]]:
    names = (*_LISTS, *_OPTIONAL_LISTS, *_VALUES)
    columns: dict[str, list[Any]] = {name: [getattr(s, name) for s in samples] for name in names}
    columns["advantage"] = [
        None if s.advantage is None else np.broadcast_to(np.asarray(s.advantage, np.float32), s.tokens.shape)
        for s in samples
    ]
    texts = [(s.breaks, fragment(pack(s.extra)), fragment(s.metadata)) for s in samples]
    for index, name in enumerate(_JSON):
        columns[name] = [orjson.dumps(text[index]).decode() for text in texts]
    for name in _OPTIONAL:
        values = [dump_media(s.media) if name == "media" else getattr(s, name) for s in samples]
        columns[name] = [
            orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode() if value else None for value in values
        ]
    columns["images"] = [
        [{"bytes": image.data, "path": image.file_name} for image in dict.fromkeys(p.image for p in s.media)]
        for s in samples
    ]
    if padding is not None:
        layout = BatchLayout([min(len(s), padding.max_length) for s in samples], padding.max_length)
        columns["input_ids"] = list(layout.array([s.tokens for s in samples], np.int32, padding.pad_token_id))
        columns["labels"] = list(layout.array([labels(s) for s in samples], np.int32, IGNORED))
        columns["attention_mask"] = list(layout.array([1] * len(samples), np.int8))
    return {**columns, "schema": [SCHEMA_VERSION] * len(samples)}


def _schema(padding: _Padding | None) -> Any:
    arrow = _package("pyarrow")
    lengths = {} if padding is None else _PADDED
    lists = [
        (name, arrow.list_(getattr(arrow, kind)())) for name, kind in {**_LISTS, **_OPTIONAL_LISTS, **lengths}.items()
    ]
    values = [(name, getattr(arrow, kind)()) for name, kind in _VALUES.items()]
    images = arrow.list_(arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())]))
    return arrow.schema(
        [
            *lists,
            *values,
            *((name, arrow.string()) for name in (*_JSON, *_OPTIONAL)),
            ("images", images),
            ("schema", arrow.int32()),
        ]
    )


def _package(name: str) -> Any:
    return load(name, "tables of samples need", f"pip install {name.partition('.')[0]}")


explain_arguments(globals())
