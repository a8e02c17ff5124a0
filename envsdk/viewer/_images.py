"""The images of an episode for any front end: what is known of each, by its hash, and its bytes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import ImageError, UnknownName
from ..messages import ImagePart, Message
from ..trajectories._trajectory import Trajectory

_SIGNATURES: Mapping[str, bytes] = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
_HASH_CHARS = 12


class ImageFile(NamedTuple):
    """An image as a file."""

    media_type: str
    """`image/png` or `image/jpeg`."""
    data: bytes
    """Its bytes."""


def image_facts(trajectory: Trajectory) -> dict[str, dict[str, Any]]:
    """Return what is known of each image, by its hash: `media_type`, `width`, `height`, `file` and `tokens`.

    `file` is its name in the folder `media/` of a run. `tokens` is the number of its placeholders; None if it is not
    in a log.
    """
    placed = (own for log in trajectory.contexts.values() for own in log.media)
    tokens = {own.image.sha256: own.stop - own.start for own in placed}
    return {
        image.sha256: {
            "media_type": image.media_type,
            "width": image.width,
            "height": image.height,
            "file": image.file_name,
            "tokens": tokens.get(image.sha256),
        }
        for image in trajectory.images
    }


def image_name(sha256: str, facts: Mapping[str, Any]) -> str:
    """Return an image in words: its size, format, number of tokens, and the beginning of its hash."""
    tokens = "" if facts["tokens"] is None else f", {facts['tokens']:,} tokens"
    kind = facts["media_type"].removeprefix("image/").upper()
    return f"image {facts['width']} x {facts['height']} {kind}{tokens}, {sha256[:_HASH_CHARS]}"


def parts_of(message: Message) -> list[dict[str, str]] | None:
    """Return the parts of a message with images, each `{"text": ...}` or `{"image": HASH}`; None without images."""
    if not message.images:
        return None
    return [
        {"image": part.data.sha256} if isinstance(part, ImagePart) else {"text": part.text}
        for part in message.parts or ()
    ]


def image_file(trajectory: Trajectory, sha256: str) -> ImageFile:
    """Return the file of an image of an episode. The hash only chooses among its images: it is no part of a path.

    Raises:
        UnknownName: If the episode has no such image.
        ImageError: If its bytes are missing, were changed, or are not those of its format.
    """
    image = next((own for own in trajectory.images if own.sha256 == sha256), None)
    if image is None:
        raise UnknownName(
            f"{trajectory.id!r:.80} has no image {sha256!r:.80}; expected the SHA-256 of one of its images"
        )
    data = image.data
    if not data.startswith(_SIGNATURES[image.media_type]):
        raise ImageError(f"the file of {image!r} is not {image.media_type}, as its record specifies")
    return ImageFile(image.media_type, data)
