"""Image files that are small and cost a lot: each with the words of the error that refuses it.

`python image_attacks.py` reads each of them, and the largest images that are not refused, with 500 MiB of memory.
"""

import io
import resource
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image as Pillow

from envsdk.errors import ImageError
from envsdk.images import MAX_BYTES, Image

_START = b"\x89PNG\r\n\x1a\n"
MOST_MEMORY = 500 * 2**20


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_header(width: int, height: int) -> bytes:
    """A file that promises a huge image, and has nearly no data."""
    return png(width, height, chunk(b"IDAT", zlib.compress(b"")))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return _START + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IEND", b"")


def blank(width: int, height: int, file_format: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Pillow.new(mode, (width, height)).save(file, file_format, **options)
    return file.getvalue()


def many_scans(count: int) -> bytes:
    """A progressive JPEG of 16 million pixels that repeats its last scan, which the decoder applies to all of them."""
    data = blank(4096, 4096, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def entries_that_share(size: int, count: int) -> bytes:
    """A PNG whose EXIF has many entries that refer to the same bytes, of which a reader makes a copy for each."""
    entries = [struct.pack("<HHII", tag, 7, size, 0) for tag in range(1, count + 1)]
    exif = b"II*\0" + struct.pack("<IH", 8, count) + b"".join(entries) + bytes(size)
    pixels = zlib.compress(bytes(4))
    return png(1, 1, chunk(b"eXIf", exif), chunk(b"IDAT", pixels))


ATTACKS: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "size": (lambda: bytes(MAX_BYTES + 1), "at most 33,554,432 are read"),
    "pixels of a PNG": (lambda: png_header(2**20, 65), "at most 67,108,864 are read"),
    "pixels of a WebP": (lambda: blank(4097, 4096, "WEBP", method=0), "at most 16,777,216 of its format are read"),
    "pixels of a bitmap": (lambda: blank(8192, 4000, "BMP", "L"), "at most 16,777,216 of its format are read"),
    "pixels that its data lack": (lambda: png_header(8192, 8192), "cannot be read"),
    "expansion of a text": (
        lambda: png(1, 1, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**26)))),
        "cannot be read",
    ),
    "expansion of a profile": (
        lambda: png(1, 1, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**26)))),
        "cannot be read",
    ),
    "scans of a JPEG": (lambda: many_scans(4000), "scans; at most 32 are read"),
    "entries of EXIF that share their bytes": (lambda: entries_that_share(2**20, 4000), "of EXIF; at most 65,536"),
    "frames": (
        lambda: blank(64, 64, "WEBP", save_all=True, append_images=[Pillow.new("RGB", (64, 64), i) for i in range(64)]),
        "frames; give one of them",
    ),
    "empty chunks": (lambda: png(1, 1, chunk(b"IDAT", b"") * 200_000), "cannot be read"),
}
LARGEST: Mapping[str, Callable[[], bytes]] = {
    "PNG": lambda: blank(8192, 8192, "PNG", "RGBA", compress_level=1),
    "JPEG": lambda: blank(8192, 8192, "JPEG"),
    "WebP": lambda: blank(4096, 4096, "WEBP", "RGBA", method=0),
    "sixteen bits": lambda: blank(4096, 4096, "PNG", "I;16", compress_level=1),
}
"""The largest images that are read."""


def main() -> None:
    """Read all of them within the limit of memory, then the named largest ones. Print the attacks that are read."""
    made = {name: make() for name, (make, _) in ATTACKS.items()}
    largest = [LARGEST[name]() for name in sys.argv[1:]]
    Image.read(blank(8, 8, "WEBP"))  # imports what it needs
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_MEMORY,) * 2)
    for name, data in made.items():
        try:
            Image.read(data)
        except ImageError:
            continue
        sys.stdout.write(f"{name}\n")
    for data in largest:
        Image.read(data)


if __name__ == "__main__":
    main()
