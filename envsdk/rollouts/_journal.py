"""The file of a run's trajectories: lines are appended in batches, and a batch is on disk before it is reported.

It knows nothing about trajectories. A batch of a compressed file is one Zstandard frame with a checksum, so that a
batch that was cut off is recognized there, too.
"""

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .._packages import load
from .._untrusted import MAX_RECORD_MIB, MIB, max_line_bytes, open_file, read_lines
from ..errors import InvalidRecord

PLAIN, COMPRESSED = "trajectories.jsonl", "trajectories.jsonl.zst"
_CHUNK = 1 << 16
_FED = 1 << 10
"""How many bytes are decompressed at once: they may become 32 MiB."""
_MAX_LINES = 4096
"""The most lines of a frame that is read."""
_FRAME = b"\x28\xb5\x2f\xfd"
"""What each frame begins with (RFC 8878)."""


class Batch(NamedTuple):
    """Lines that were read from a file, in order.

    Attributes:
        lines: The lines, without line ends.
        stop: The position in the file after them, in bytes.
    """

    lines: list[bytes]
    stop: int


def read_batches(path: Path, start: int = 0, inside: Path | None = None) -> Iterator[Batch]:
    """Read the whole batches of a file. What follows the last one was cut off, and is not yielded.

    Args:
        path: The file. It is compressed if its name ends with `.zst`.
        start: Where a batch begins, in bytes: 0, or the `stop` of a batch.
        inside: The folder that the file has to be in; None for anywhere.

    Raises:
        InvalidRecord: If a frame of a compressed file is damaged, a line or a frame is too long (see
            `ENVSDK_MAX_RECORD_MIB`), or it is not a regular file in the folder.
        MissingPackage: If the file is compressed and the package for that is not installed.
    """
    with open_file(path, inside) as file:
        file.seek(start)
        yield from (_read_frames if path.suffix == ".zst" else _read_lines)(file, start)


def _read_lines(file: BinaryIO, start: int) -> Iterator[Batch]:
    stop = start
    for line in read_lines(file):
        if not line.endswith(b"\n"):
            return
        stop += len(line)
        yield Batch([line[:-1]], stop)


def _read_frames(file: BinaryIO, start: int) -> Iterator[Batch]:
    zstandard, rest = _zstandard(), b""
    while True:
        frame, content, lines, length = zstandard.ZstdDecompressor().decompressobj(), bytearray(), 0, 0
        while not frame.eof and (chunk := rest or file.read(_FED)):
            try:
                part = frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise InvalidRecord(f"the frame at byte {start} is damaged: {error}") from error
            content += part
            lines += part.count(b"\n")
            if len(content) > max_line_bytes() or lines > _MAX_LINES:
                raise InvalidRecord(
                    f"the frame at byte {start} expands to more than {max_line_bytes() // MIB:,} MiB or "
                    f"{_MAX_LINES:,} lines, the most that is read. Set {MAX_RECORD_MIB} to read longer ones"
                )
            length, rest = length + len(chunk), b""
        if not frame.eof:
            _check_cut_off(file, start, zstandard)
            return
        rest = frame.unused_data
        start += length - len(rest)
        yield Batch(bytes(content).splitlines(), start)


def _check_cut_off(file: BinaryIO, start: int, zstandard: Any) -> None:
    """Check that a frame that does not end was cut off: a damaged one may seem longer, but then others follow it.

    Raises:
        InvalidRecord: If a whole frame follows, or more data than one frame has.
    """
    file.seek(start)
    most = 2 * max_line_bytes()  # a frame that cannot be compressed is hardly longer than its content
    data, work = file.read(most + 1), 0
    at = data.find(_FRAME, 1)
    while at > 0 and work <= most:
        frame, place = zstandard.ZstdDecompressor().decompressobj(), at
        with suppress(zstandard.ZstdError):  # the same bytes inside a frame
            while not frame.eof and place < len(data) and work <= most:
                work += len(frame.decompress(data[place : place + _FED])) + _FED
                place += _FED
            if frame.eof:
                raise InvalidRecord(f"the frame at byte {start} is damaged: it does not end before the next one")
        at = data.find(_FRAME, at + 1)
    if max(len(data), work) > most:
        raise InvalidRecord(f"the frame at byte {start} is damaged: it does not end within {most // MIB:,} MiB")


def digest_of(path: Path, length: int, inside: Path | None = None) -> Any:
    """Return the SHA-256 of a file's first `length` bytes, as an object of `hashlib` that can be updated."""
    digest, left = hashlib.sha256(), length
    with open_file(path, inside) as file:
        while left and (chunk := file.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    return digest


class Journal:
    """A file that is open for appending.

    Args:
        path: The file; it is created.
        length: Where to append, in bytes; what follows is cut off.

    Raises:
        OSError: If it cannot be opened.
        MissingPackage: If it is to be compressed and the package for that is not installed.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.length = length
        self.digest = digest_of(path, length) if length else hashlib.sha256()
        self._path = path
        self._compressor: Any = None
        if path.name == COMPRESSED:
            self._compressor = _zstandard().ZstdCompressor(write_checksum=True)
        self._file = path.open("ab", buffering=0)
        self._file.truncate(length)
        os.fsync(self._file.fileno())

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines and wait until they are on disk.

        Raises:
            OSError: If they cannot be written. The file is then as it was, if it can be cut off at all.
        """
        data = b"".join([line + b"\n" for line in lines])
        if self._compressor is not None:
            data = b"".join(map(self._compressor.compress, _frames(lines)))
        if os.fstat(self._file.fileno()).st_size != self.length:
            raise OSError(errno.EIO, "it has another end than it should have, such as lines that could not be cut off")
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
            self.check_place()
        except OSError:
            with suppress(OSError):
                self._file.truncate(self.length)
                os.fsync(self._file.fileno())
            raise
        self.length += len(data)
        self.digest.update(data)

    def check_place(self) -> None:
        """Refuse a file that has been removed or replaced: it can be written, but it is lost when it is closed.

        Raises:
            OSError: If it has been.
        """
        if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
            raise OSError(errno.ESTALE, "another file has taken its place")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _frames(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the contents of frames, each with as many lines as are read again, or one line."""
    content = bytearray()
    for line in lines:
        if content and len(content) + len(line) >= max_line_bytes():
            yield bytes(content)
            content.clear()
        content += line + b"\n"
    yield bytes(content)


def _zstandard() -> Any:
    return load("zstandard", "A compressed run folder needs", "pip install 'envsdk[zstd]'")
