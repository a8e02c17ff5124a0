"""Replace images in messages by a notice."""

from collections.abc import Iterable, Sequence

from ...images import Image
from ...messages import ImagePart, Message, TextPart, text_of

DROPPED_IMAGE = "[An image was dropped to save space.]"


def without_images(message: Message, count: int) -> Message:
    """Return a message without its first `count` images, or itself if it has none."""
    if message.parts is None or not message.images or not count:
        return message
    left, parts = count, list[TextPart | ImagePart]()
    for part in message.parts:
        is_dropped = left > 0 and isinstance(part, ImagePart)
        parts.append(TextPart(text=DROPPED_IMAGE) if is_dropped else part)
        left -= is_dropped
    return message.model_copy(update={"parts": tuple(parts), "content": text_of(parts)})


def without_old_images(messages: Sequence[Message], keep: int) -> list[Message]:
    """Return messages without their images, except the last `keep` images."""
    left = max(0, sum(len(message.images) for message in messages) - keep)
    shown: list[Message] = []
    for message in messages:
        dropped = min(left, len(message.images))
        shown.append(without_images(message, dropped))
        left -= dropped
    return shown


def names_of(images: Iterable[Image]) -> str:
    """Return the end of a break's detail, which names the dropped images once each; empty if there are none."""
    names = [image.sha256[:12] for image in dict.fromkeys(images)]
    return f"; dropped image{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""
