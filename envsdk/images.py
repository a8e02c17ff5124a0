"""Images in messages: read once, checked, and identified by the hash of their bytes.

This module knows nothing about tokens. An image is stored as PNG or JPEG. Images that only Pillow can read as they are
(CMYK, 16 bits, a rotation in the EXIF data) are converted to eight bits and stored as PNG, so that the stored bytes
decode to exactly the pixels that models see. A file is decoded only after its header has shown that it is within the
limits.
"""

import base64
import binascii
import hashlib
import io
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, Union, cast

import numpy as np

from ._arguments import explain_arguments
from ._packages import load
from ._untrusted import open_file, read_file
from ._visible import brief, type_of
from .errors import ImageError, InvalidRecord

__all__ = ["Image", "ImageSource", "PlacedImage"]

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as PILImage

MAX_BYTES = 2**25
"""The size of the largest image file that is read: 32 MiB."""
MAX_PIXELS = 2**26
"""The number of pixels of the largest PNG or JPEG that is read: 67 million, which are 270 MB of memory."""
MAX_CONVERTED_PIXELS = 2**24
"""The same for images that are converted to PNG: other formats, CMYK, 16 bits. A pixel takes about 20 bytes."""
MAX_METADATA_BYTES = 2**16
"""The size of the largest EXIF block that is read, which is the largest one of a JPEG."""

ImageSource: TypeAlias = Union["Image", bytes, bytearray, memoryview, Path, str, "PILImage", "NDArray[np.uint8]"]
"""The sources of an image: the bytes of a file, a path, an image of Pillow, or uint8 of shape (height, width, 3)."""

_SUFFIXES: Mapping[str, str] = {"image/png": "png", "image/jpeg": "jpg"}
_AS_IS = frozenset((*(("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")), ("JPEG", "L"), ("JPEG", "RGB")))
"""The formats and modes of files whose bytes are stored as they are, unless the file is rotated."""
_PROGRAMS = ("EPS",)  # formats that Pillow runs another program for
_RECEIVED = ("PNG", "JPEG", "WEBP")  # the formats of images that programs send
_METADATA = ("exif", "Raw profile type exif")  # where Pillow finds the rotation
_MAX_SCANS = 32  # of a progressive JPEG: each goes through all pixels, and encoders write about ten
_LEAST_COUNTED = 2**17  # pixels that the smallest image counts for in a budget: decoding costs more than its pixels
_BAND, _BAND_BYTES = 16, 2048  # how many rows and bytes, at least, are tried to find out whether pixels compress
_DEEP = ("I", "F")  # how Pillow's names of modes with more than eight bits begin
T = TypeVar("T")


@dataclass(eq=False, repr=False)
class RecentValues(Generic[T]):
    """A thread-safe cache of the most recently used values, with a limit in bytes.

    Args:
        max_bytes: The limit on the total size of the values. A larger value is not kept.
        size: Returns the size of a value in bytes.
    """

    _max_bytes: int
    _size: Callable[[T], int]
    _values: OrderedDict[str, T] = field(default_factory=OrderedDict[str, T])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    nbytes: int = 0
    """The total size of the cached values."""

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value of a key; make it if it is not cached."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        self.put(key, value)
        return value

    def put(self, key: str, value: T) -> None:
        """Cache a value, and drop the least recently used ones if there are too many bytes."""
        with self._lock:
            if key in self._values:
                return
            self._values[key] = value
            self.nbytes += self._size(value)
            while self.nbytes > self._max_bytes:
                self.nbytes -= self._size(self._values.popitem(last=False)[1])


@dataclass(eq=False, repr=False)
class PixelBudget:
    """A limit on the pixels of all images in one request; an image counts as at least 131,072 pixels.

    Args:
        pixels: The limit for all images together.
        each: The limit for one image.
    """

    pixels: int = 2**26
    each: int = 2**24
    _spent: int = 0

    def spend(self, width: int, height: int, what: str) -> None:
        """Subtract an image from the budget.

        Raises:
            ImageError: If the image, or all images together, have too many pixels.
        """
        if width * height > self.each:
            raise ImageError(
                f"{what} has {width} x {height} pixels; at most {self.each:,} are read. Resize it before you send it"
            )
        self._spent += max(width * height, _LEAST_COUNTED)
        if self._spent > self.pixels:
            raise ImageError(
                f"the images of the request have more than {self.pixels:,} pixels together, where each counts for at "
                f"least {_LEAST_COUNTED:,}; send fewer or smaller ones"
            )


def pillow_module(name: str) -> Any:
    """Import a module of Pillow, such as `Image`, and return it.

    Raises:
        MissingPackage: If Pillow is not installed.
    """
    return load(f"PIL.{name}", "images need", "pip install 'envsdk[vision]'")


class Image:
    """An immutable image: its bytes as PNG or JPEG, its hash, and its size.

    Attributes:
        sha256: The SHA-256 of the bytes, in hexadecimal. Images with the same bytes are equal.
        media_type: `image/png` or `image/jpeg`.
        width: In pixels.
        height: In pixels.
    """

    __slots__ = ("_held", "height", "media_type", "sha256", "width")

    def __init__(self, sha256: str, media_type: str, width: int, height: int, held: bytes | Path | None = None) -> None:
        self.sha256, self.media_type, self.width, self.height = sha256, media_type, width, height
        self._held = held

    @classmethod
    def read(cls, source: ImageSource) -> "Image":
        """Read an image and check it.

        Args:
            source: The bytes of a file in a format that Pillow reads, the path of one, an image of Pillow, or an array:
                uint8 of shape (height, width, 3) in RGB. An `Image` is returned as it is.

        Raises:
            ImageError: If it is not an image, is truncated, has several frames, has more than `MAX_BYTES` or
                `MAX_PIXELS`, or is a URL, which is never fetched.
            MissingPackage: If Pillow is not installed.
        """
        if isinstance(source, Image):
            return source
        pillow = pillow_module("Image")
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls._of_bytes(bytes(source), "the image")
        if isinstance(source, (str, Path)):
            return cls._of_bytes(_file(source), f"the image {brief(str(source), 200)}")
        if isinstance(source, np.ndarray):
            if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
                raise ImageError(
                    f"an image is given as an array of {source.dtype} with the shape {source.shape}; expected uint8 "
                    "with the shape (height, width, 3)"
                )
            _check_size(source.shape[1], source.shape[0], "the image")
            return cls._of_rgb(pillow.fromarray(np.ascontiguousarray(source), mode=None))
        if isinstance(source, pillow.Image):
            return cls._of_rgb(_eight_bits(_still(source, "the image")))
        raise ImageError(
            f"an image is given as {type_of(source)}; expected bytes, a path, an image of Pillow, or an array "
            "of uint8 with the shape (height, width, 3)"
        )

    @classmethod
    def from_url(cls, url: str, budget: PixelBudget | None = None) -> "Image":
        """Read an image from a `data:` URL with base64.

        Args:
            url: The URL.
            budget: See `from_base64`.

        Raises:
            ImageError: If it is any other URL (which is never fetched), or does not contain an image.
        """
        head, comma, text = url.partition(",")
        if not head.startswith("data:"):
            raise ImageError(
                f"the image is at the URL {brief(url)}, which is not fetched: fetch it yourself and give its bytes, or "
                "a data: URL"
            )
        if not comma or not head.endswith(";base64"):
            raise ImageError(
                f"the data: URL begins with {brief(head)}; expected 'data:image/png;base64,' and the bytes"
            )
        return cls.from_base64(text, budget)

    @classmethod
    def from_base64(cls, text: str, budget: PixelBudget | None = None) -> "Image":
        """Read an image from its bytes in base64.

        Args:
            text: The bytes in base64.
            budget: The budget of an image that another program sent. The image must be PNG, JPEG or WebP then.

        Raises:
            ImageError: If `text` is not base64, the bytes are not an image, or the image exceeds the budget.
        """
        if len(text) > MAX_BYTES * 4 // 3 + 4:
            raise ImageError(f"the image has more than {MAX_BYTES:,} bytes, the most that are read")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ImageError(f"the image is not base64: {error}") from error
        return cls._of_bytes(data, "the image", budget)

    @classmethod
    def _of_bytes(cls, data: bytes, what: str, budget: PixelBudget | None = None) -> "Image":
        """Read an image from the bytes of a file; keep these bytes if no conversion is needed."""
        if len(data) > MAX_BYTES:
            raise ImageError(f"{what} has {len(data):,} bytes; at most {MAX_BYTES:,} are read")
        opened = _opened(data, what, budget)
        pixels = _still(opened, what)
        if (opened.format, opened.mode) not in _AS_IS or pixels is not opened:
            return cls._of_rgb(_eight_bits(pixels))
        media_type = f"image/{opened.format.lower()}"
        image = cls(hashlib.sha256(data).hexdigest(), media_type, pixels.width, pixels.height, data)
        if _pixel_bytes(pixels) <= _MAX_DECODED_BYTES:
            _decoded.put(image.sha256, _rgb(pixels))
        return image

    @classmethod
    def _of_rgb(cls, shown: "PILImage") -> "Image":
        """Store an image of Pillow in RGB as PNG."""
        data = _png(np.asarray(shown))
        image = cls(hashlib.sha256(data).hexdigest(), "image/png", shown.width, shown.height, data)
        _decoded.put(image.sha256, shown)
        return image

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        return f"<Image {self.width}x{self.height} {self.media_type} {self.sha256[:12]}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Image":
        return self

    @property
    def file_name(self) -> str:
        """The name of its file in the `media/` folder of a run: the hash and `.png` or `.jpg`."""
        return f"{self.sha256}.{_SUFFIXES[self.media_type]}"

    @property
    def data(self) -> bytes:
        """The bytes of the file.

        Raises:
            ImageError: If the image was read from a record, and its file is missing or was changed.
        """
        if isinstance(self._held, bytes):
            return self._held
        if self._held is None:
            raise ImageError(
                f"{self!r} was read from a record without its image files: read the record from its run folder, which "
                "has the images in media/"
            )
        try:
            data = read_file(self._held, MAX_BYTES, inside=self._held.parent)
        except (OSError, InvalidRecord) as error:
            why = getattr(error, "strerror", None) or error
            raise ImageError(f"the file of {self!r} cannot be read: {str(self._held)!r}: {why}") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ImageError(f"the file of {self!r} was changed: {str(self._held)!r} has another SHA-256")
        return data

    @property
    def pixels(self) -> "PILImage":
        """The image in RGB with eight bits, as models see it: an image of Pillow, a copy.

        Raises:
            ImageError: See `data`.
        """
        pixels = _decoded.get(self.sha256, lambda: _rgb(_opened(self.data, repr(self))))
        return pixels.copy() if _pixel_bytes(pixels) <= _MAX_DECODED_BYTES else pixels

    @property
    def url(self) -> str:
        """The image as a `data:` URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"

    def reference(self) -> dict[str, Any]:
        """Return the fields that a record stores: everything except the bytes."""
        return {"sha256": self.sha256, "media_type": self.media_type, "width": self.width, "height": self.height}

    @classmethod
    def from_reference(cls, reference: Mapping[str, Any]) -> "Image":
        """Return the image that a record refers to. Its bytes are missing until `find_in` finds them.

        Raises:
            ImageError: If the reference is damaged.
        """
        kinds = {"sha256": str, "media_type": str, "width": int, "height": int}
        if reference.keys() != kinds.keys() or any(type(reference[name]) is not kind for name, kind in kinds.items()):
            raise ImageError(
                f"the reference of an image is damaged: {brief(reference, 200)}; expected {', '.join(kinds)}, as in "
                "records. A new image is given as bytes, a path, an image of Pillow, or an array"
            )
        image = cls(**cast("Any", reference))
        is_hash = len(image.sha256) == 64 and not set(image.sha256) - set("0123456789abcdef")
        if not is_hash or image.media_type not in _SUFFIXES or min(image.width, image.height) < 1:
            raise ImageError(f"the reference of an image is damaged: {brief(reference, 200)}")
        return image

    def find_in(self, folder: Path | None, embedded: Mapping[str, bytes]) -> None:
        """Find the bytes of an image that was read from a record: embedded in the record, or in a folder."""
        if self._held is None:
            held = embedded.get(self.sha256)
            self._held = held if held is not None or folder is None else folder / self.file_name


def rgb_image(image: Image) -> Image:
    """Return the image if its file is opaque RGB, or else a PNG of the pixels that models see.

    Trainers and servers read other files in different ways: some show a background through transparent parts, or do
    not accept gray images.

    Raises:
        ImageError: If the bytes of the image are missing.
    """
    with pillow_module("Image").open(io.BytesIO(image.data)) as opened:
        is_plain = opened.mode == "RGB" and "transparency" not in opened.info
    return image if is_plain else _rgb_files.get(image.sha256, lambda: Image.read(image.pixels))


def _pixel_bytes(pixels: "PILImage") -> int:
    return 4 * pixels.width * pixels.height  # Pillow has four bytes for each pixel in RGB


_MAX_DECODED_BYTES = 2**26
_decoded: "RecentValues[PILImage]" = RecentValues(_MAX_DECODED_BYTES, _pixel_bytes)
"""The pixels of recently read images, by hash: an environment's image is rendered right after it is read."""
_rgb_files: RecentValues[Image] = RecentValues(_MAX_DECODED_BYTES, lambda image: len(image.data))
"""The RGB files that were recently made of other files, by the hash of the original."""


class PlacedImage(NamedTuple):
    """An image and the range of its tokens in a sequence (an observation, a prompt, the log of a context, a sample)."""

    image: Image
    """The image."""
    start: int
    """The position of its first placeholder token."""
    stop: int
    """The position after its last placeholder token."""

    def moved(self, by: int) -> "PlacedImage":
        """Return the image with its range of tokens shifted by `by`."""
        return PlacedImage(self.image, self.start + by, self.stop + by)


def keyed(tokens: "NDArray[np.integer[Any]]", media: Sequence[PlacedImage]) -> "NDArray[np.int64]":
    """Return tokens in which the placeholders of each image are a negative number that is unique to the image.

    Two sequences are equal exactly if they have the same tokens and the same images: int64, shape (n,).
    """
    keys = np.array(tokens, dtype=np.int64)
    for placed in media:
        keys[placed.start : placed.stop] = -1 - int(placed.image.sha256[:15], 16)
    return keys


def within(media: Sequence[PlacedImage], start: int, stop: int) -> list[PlacedImage]:
    """Return the images whose tokens are all in the range from `start` to `stop`."""
    return [placed for placed in media if start <= placed.start and placed.stop <= stop]


def _file(source: str | Path) -> bytes:
    if isinstance(source, str) and "://" in source[:20]:
        Image.from_url(source)
    if isinstance(source, str) and source.startswith("data:"):
        raise ImageError("an image is given as a data: URL; read it with Image.from_url")
    try:
        with open_file(source) as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ImageError(f"the image {brief(str(source), 200)} cannot be read: {why}") from error


def _opened(data: bytes, what: str, budget: PixelBudget | None = None) -> Any:
    """Open the bytes of a file, check its header, and decode all of it."""
    pillow = pillow_module("Image")
    try:
        opened = pillow.open(io.BytesIO(data), formats=None if budget is None else _RECEIVED)
        if opened.format in _PROGRAMS:
            raise ImageError(f"{what} is {opened.format}, which is a program: convert it to PNG before you give it")
        if budget is not None:
            budget.spend(opened.width, opened.height, what)
        most = MAX_PIXELS if (opened.format, opened.mode) in _AS_IS else MAX_CONVERTED_PIXELS
        _check_size(opened.width, opened.height, what, most)
        if opened.format == "JPEG" and (scans := data.count(b"\xff\xda")) > _MAX_SCANS:
            raise ImageError(f"{what} has {scans} scans; at most {_MAX_SCANS} are read. Save it again")
        opened.load()
    except ImageError:
        raise
    except pillow.UnidentifiedImageError as error:
        known = "PNG, JPEG or WebP" if budget is not None else "one that Pillow reads"
        raise ImageError(f"{what} cannot be read as an image: its format is not {known}") from error
    except Exception as error:  # Pillow raises errors of many types: each of its plug-ins its own
        raise ImageError(f"{what} cannot be read as an image: {type(error).__name__}: {error}") from error
    return opened


def _rgb(pixels: Any) -> "PILImage":
    """Return an image in RGB; one that is already in RGB is not copied, since it may take much memory."""
    return pixels if pixels.mode == "RGB" else pixels.convert("RGB")


def _still(image: Any, what: str) -> Any:
    """Return an image with the rotation that its file specifies, after checking that it has only one frame."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise ImageError(f"{what} has {frames} frames; give one of them, such as a frame that Pillow converted to RGB")
    _check_size(image.width, image.height, what)
    metadata = max(len(image.info.get(name) or b"") for name in _METADATA)
    if metadata > MAX_METADATA_BYTES:  # each of its entries may refer to all of it
        raise ImageError(f"{what} has {metadata:,} bytes of EXIF; at most {MAX_METADATA_BYTES:,} are read. Remove them")
    try:
        if image.getexif().get(0x0112, 1) in (0, 1):
            image.load()
            return image
        rotated = pillow_module("ImageOps").exif_transpose(image)
        rotated.load()
    except Exception as error:  # see _opened
        raise ImageError(f"{what} cannot be read as an image: {type(error).__name__}: {error}") from error
    return rotated


def _check_size(width: int, height: int, what: str, most: int = MAX_PIXELS) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{what} has no pixels: it is {width} x {height}")
    if width * height > most:
        kind = " of its format" if most < MAX_PIXELS else ""
        raise ImageError(
            f"{what} has {width} x {height} pixels; at most {most:,}{kind} are read. Resize it before you give it"
        )


def _eight_bits(image: Any) -> Any:
    """Return an image in RGB with eight bits. Sixteen-bit values are scaled: Pillow's own conversion clips them."""
    if not image.mode.startswith(_DEEP):
        return image.convert("RGB")
    values = np.asarray(image)
    if image.mode == "F" and not np.isfinite(values).all():
        raise ImageError("the image has values that are not finite")
    largest = float(values.max(initial=0))
    if float(values.min(initial=0)) < 0 or largest > 65535:
        raise ImageError(f"the image has values from {values.min()} to {largest}; expected 0 to 65535")
    is_deep = image.mode != "F" or largest > 255
    scaled = np.floor(values / np.float32(257) + np.float32(0.5)) if is_deep else np.round(values)
    pillow = pillow_module("Image")
    return pillow.fromarray(scaled.astype(np.uint8)).convert("RGB")


def _png(values: "NDArray[np.uint8]") -> bytes:
    """Return an image in RGB, an array of shape (height, width, 3), as PNG (ISO/IEC 15948).

    Pixels that can hardly be compressed, such as noise, are stored uncompressed. An environment may return an image at
    each step, and Pillow takes longer to compress it than a model's processor takes to process it, since Pillow tries
    all filters for each row. Here, either each row is the difference from the row above it, or the values are stored.
    """
    height, width, _ = values.shape
    rows = values.reshape(height, -1)
    middle = height // 2
    band = rows[middle : middle + max(_BAND, _BAND_BYTES // rows.shape[1])]
    if 2 * len(_compressed(band)) < band.size + len(band):
        data = _compressed(rows)
    else:
        stored = np.zeros((height, 1 + rows.shape[1]), np.uint8)  # the filter 0 is the values themselves
        stored[:, 1:] = rows
        data = zlib.compress(stored.data, 0)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = [b"\x89PNG\r\n\x1a\n"]
    for name, content in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
        checksum = zlib.crc32(content, zlib.crc32(name))
        file += [struct.pack(">I", len(content)), name, content, struct.pack(">I", checksum)]
    return b"".join(file)


def _compressed(values: "NDArray[np.uint8]") -> bytes:
    """Compress rows, each as the number of its filter and its difference from the row above (the filter 2)."""
    rows = np.empty((len(values), 1 + values.shape[1]), np.uint8)
    rows[:, 0], rows[0, 1:] = 2, values[0]
    np.subtract(values[1:], values[:-1], out=rows[1:, 1:])
    compressor = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return compressor.compress(rows.data) + compressor.flush()


explain_arguments(globals())
