"""The parts of a message's content: texts and images, in the form of a protocol."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import ConfigError, ImageError, MissingPackage, RenderError
from ...images import Image, PixelBudget
from ...messages import ImagePart
from ._fields import Fields, not_of_kind, refused

Content: TypeAlias = "str | list[dict[str, str] | ImagePart]"
"""The content of a message, as `Message` takes it."""


@dataclass(frozen=True, slots=True)
class RequestImages:
    """How the images of one request are read: `with RequestImages(...).reading():`.

    Attributes:
        check: Called with None before an image is decoded, and with the image then. It raises `RenderError` or
            `ConfigError` if the model does not take it.
        budget: What the images may cost together.
    """

    check: Callable[[Image | None], object] = lambda image: None
    budget: PixelBudget = field(default_factory=PixelBudget)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Read the images of messages in this way, in this thread."""
        token = _images.set(self)
        try:
            yield
        finally:
            _images.reset(token)


_images: ContextVar[RequestImages | None] = ContextVar("_images", default=None)


def content_of(parts: "Sequence[str | ImagePart]") -> Content:
    """Return the content of a message with the given parts: one text is a plain text, several parts stay parts."""
    if all(isinstance(part, str) for part in parts) and len(parts) < 2:
        return "".join(str(part) for part in parts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def read_content(fields: Fields, key: str, texts: Mapping[str, str], image: str | None = None) -> Content:
    """Return the content of a message in OpenAI's form, given as a text or as a list of parts.

    Args:
        fields: The message.
        key: The field of its content.
        texts: The types of parts that are texts, each with the field that has the text.
        image: The type of parts that are images; None where images are not supported.

    Raises:
        RequestError: If a part is of another type, or an image cannot be read. The error names its index.
    """
    given = fields.get(key)
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise not_of_kind(fields.name(key), "a text or a list of parts", given)
    return content_of(
        [_read_part(item, f"{fields.name(key)}[{i}]", texts, image) for i, item in enumerate(fields.items(key))]
    )


def _read_part(value: Any, path: str, texts: Mapping[str, str], image: str | None) -> "str | ImagePart":
    part = Fields(value, path)
    kind = part.text("type")
    if kind is not None and kind == image:
        return _image_at_url(part)
    if kind is None or kind not in texts:
        expected = "only text is" if image is None else f"only text and {image!r} are"
        raise refused(path, f"a part of type {kind!r:.40} is not supported: {expected}")
    text = part.text(texts[kind])
    if text is None:
        raise refused(part.name(texts[kind]), "it is required")
    return text


def _image_at_url(part: Fields) -> ImagePart:
    """Return the image of a part in OpenAI's form: an object with a `url` in Chat Completions, a URL in Responses."""
    if part.get("file_id") is not None:
        raise refused(part.name("file_id"), "files are not stored here: give the image as a data: URL in `image_url`")
    is_object = isinstance(part.get("image_url"), dict)
    holder, key = (Fields(part.get("image_url"), part.name("image_url")), "url") if is_object else (part, "image_url")
    holder.text("detail")
    return _read_image(holder, key, Image.from_url)


def _read_image(fields: Fields, key: str, read: Callable[[str, PixelBudget], Image]) -> ImagePart:
    images, text = _images.get() or RequestImages(), fields.required_text(key)
    try:
        images.check(None)
        image = read(text, images.budget)
        images.check(image)
    except (ConfigError, ImageError, MissingPackage, RenderError) as error:
        raise refused(fields.name(key), str(error)) from error
    return ImagePart(image)


def image_of_source(block: Fields) -> ImagePart:
    """Return the image of a block in Anthropic's form.

    Raises:
        RequestError: If it is not given as base64, or cannot be read.
    """
    source = block.object("source")
    if source is None:
        raise refused(block.name("source"), "it is required")
    if source.text("type") != "base64":
        kind = source.text("type")
        reason = f"got {kind!r:.40}; only 'base64' is supported: nothing is fetched, and no files are stored here"
        raise refused(source.name("type"), reason)
    source.text("media_type")
    return _read_image(source, "data", Image.from_base64)
