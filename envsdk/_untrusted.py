"""Read files from untrusted sources: only regular files in their folder, with limits on size, depth and expansion.

Every reader of records, run folders, tokenizers and logs uses these functions, so that no file in a folder can block a
program, exhaust its memory, or make it fail with an untyped error. A limit applies to a line, or to a file that is read
as a whole: a file that is read line by line may have any length.
"""

import ipaddress
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from ._visible import brief
from .errors import InvalidRecord

MIB = 1 << 20
MAX_DESCRIPTION_BYTES = 16 * MIB
"""The most bytes of a small file that describes something: `run.json`, `manifest.json`, a tokenizer's options."""
MAX_VOCABULARY_BYTES = 64 * MIB
"""The most bytes of the vocabulary of a tokenizer. Gemma's has 33 MiB."""
MAX_DEPTH = 200
"""The most levels of lists and objects in JSON that is read. Python can also write values of this depth."""
MAX_RECORD_MIB = "ENVSDK_MAX_RECORD_MIB"
"""The environment variable that sets the largest size of a line, in MiB; 64 by default."""
_MAX_MEMORY = 6
"""The memory that the values of a line may take, as a multiple of the most bytes of a line."""
_BYTES_PER = {b"{": 240, b"[": 64, b",": 36, b'"': 28}
"""The most bytes that Python takes for a value that begins or ends with each character."""


def max_line_bytes() -> int:
    """Return the largest size in bytes of a line, and of a document that is read as a whole."""
    given = os.environ.get(MAX_RECORD_MIB, "64")
    if not given.isdecimal() or not int(given):
        raise InvalidRecord(f"{MAX_RECORD_MIB} is {brief(given, 40)}; expected a whole number of MiB")
    return int(given) * MIB


# Files.


def open_file(path: Path | str, inside: Path | str | None = None) -> BinaryIO:
    """Open a regular file to read it, never a pipe, a device or a folder.

    Args:
        path: The file, or a link to it.
        inside: The folder that the file has to be in, after all links are followed; None for anywhere.

    Raises:
        InvalidRecord: If it is not a regular file, or is outside of the folder.
        OSError: If it cannot be opened.
    """
    if inside is not None and not Path(path).resolve().is_relative_to(Path(inside).resolve()):
        raise InvalidRecord(
            f"{str(path)!r} is a link to {str(Path(path).resolve())!r}, which is outside of {str(inside)!r}. Copy the "
            "file into the folder if you trust it"
        )
    # A pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115 - Path has no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidRecord(f"{str(path)!r} is a pipe, a device or a socket; expected a regular file")
    return file


def read_file(path: Path | str, limit: int | None = None, inside: Path | str | None = None) -> bytes:
    """Return the bytes of a regular file; see `open_file`.

    Args:
        path: The file.
        limit: The most bytes that it may have; None for the limit of a line.
        inside: See `open_file`.

    Raises:
        InvalidRecord: If it is larger than the limit; see also `open_file`.
        OSError: If it cannot be read.
    """
    most = max_line_bytes() if limit is None else limit
    with open_file(path, inside) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InvalidRecord(f"{str(path)!r} has more than {most // MIB:,} MiB, the most that is read{_raise(limit)}")
    return content


def read_lines(file: "IO[bytes]") -> Iterator[bytes]:
    """Yield the lines of a file with their line ends, as iterating over it does.

    Raises:
        InvalidRecord: If a line is too long.
    """
    most = max_line_bytes()
    while line := file.readline(most + 1):
        if len(line) > most:
            raise InvalidRecord(f"a line has more than {most // MIB:,} MiB, the most that is read{_raise()}")
        yield line


def _raise(limit: int | None = None) -> str:
    return f". Set {MAX_RECORD_MIB} to read more" if limit is None else ""


# JSON.


def parse_json(text: bytes | str, **hooks: Any) -> Any:
    """Return the value of JSON text; `hooks` are those of `json.loads`.

    Raises:
        InvalidRecord: If it is not JSON, is nested too deeply, or has values that take too much memory.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        check_values(data)
        value = json.loads(data.decode(), **hooks)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidRecord):
            raise
        raise InvalidRecord(f"not JSON: {error}") from error
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = [cast("dict[str, Any]", one).values() if type(one) is dict else one for one in level]
        level = [one for values in inner for one in values if type(one) in (dict, list)]
        if not level:
            return value
    raise InvalidRecord(f"not JSON that is read: it has more than {MAX_DEPTH} levels of lists and objects")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, and cannot be reached from others."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_values(data: bytes) -> None:
    """Check an upper bound of the memory that the values of JSON text will take, before it is parsed.

    Raises:
        InvalidRecord: If they may take too much.
    """
    most = _MAX_MEMORY * max_line_bytes()
    if len(data) * max(_BYTES_PER.values()) < most:
        return
    width = 1 if data.isascii() else 4 if re.search(rb"[\xf0-\xff]", data) else 2  # bytes of a character in Python
    found = len(data) * (1 + 2 * width) + sum(data.count(mark) * size for mark, size in _BYTES_PER.items())
    if found > most:
        raise InvalidRecord(
            f"its {len(data):,} bytes of JSON may take up to {found // MIB:,} MiB of memory when parsed; the limit is "
            f"{most // MIB:,} MiB{_raise()}"
        )
