"""The bytes of the images of records: each image once, in the record itself or in a folder next to it."""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from .._visible import brief
from ..errors import InvalidRecord
from ..images import Image
from .records import storing, whole_file

MEDIA = "media"
"""The folder of a run in which the images are, each in a file that is named by its hash."""


def embedded(images: Iterable[Image]) -> dict[str, str]:
    """Return the bytes of images in base64 by their hashes."""
    return {image.sha256: base64.b64encode(image.data).decode() for image in dict.fromkeys(images)}


def read_embedded(value: Any) -> dict[str, bytes]:
    """Read what `embedded` returned.

    Raises:
        InvalidRecord: If it is damaged; the message names the hash.
    """
    if not isinstance(value, dict):
        raise InvalidRecord(f"images is {brief(value)}; expected bytes in base64 by their hashes")
    found: dict[str, bytes] = {}
    for sha256, text in cast("Mapping[str, Any]", value).items():
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise InvalidRecord(f"the image {brief(sha256)} is not base64: {error}") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InvalidRecord(f"the image {brief(sha256)} has bytes that differ from its hash")
        found[sha256] = data
    return found


def write_images(images: Iterable[Image], folder: Path) -> None:
    """Write images to a folder, those that are not there yet; a file with other bytes, such as a part, is replaced.

    Raises:
        StorageError: If one cannot be written.
    """
    for image in dict.fromkeys(images):
        path = folder / image.file_name
        data = image.data
        with storing(path):
            if path.is_file() and path.read_bytes() == data:
                continue
            folder.mkdir(exist_ok=True)
            with whole_file(path) as unfinished:
                unfinished.write_bytes(data)
