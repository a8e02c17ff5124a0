"""Random conversations with images, as far as a family's chat template takes them."""

from collections.abc import Sequence
from functools import cache
from random import Random

from template_conversations import TEXTS, called, result
from vision_families import VisionFamily
from vision_models import picture

from envsdk.messages import ContentPart, ImagePart, Message, TextPart

MAX_IMAGES = 5
SIZES = (
    *((28, 28), (64, 48), (33, 97), (200, 30), (30, 200), (2, 2), (57, 56), (140, 141), (224, 112), (60, 500)),
    *((5, 3), (300, 300), (128, 64), (90, 90), (31, 62), (256, 40)),
)
"""Widths and heights."""
_TEXTS = (*TEXTS, "What is in it?", " first ", "\n\nsecond\n\n", "a\n\n", "\n\nb")


@cache
def pictures() -> tuple[ImagePart, ...]:
    """Return the pictures that conversations hold, of many sizes."""
    return tuple(picture(seed, *size) for seed, size in enumerate(SIZES))


def random_conversation(rng: Random, family: VisionFamily) -> list[Message]:
    """Draw a conversation that ends with a user's message or the result of a tool, with at most five images."""
    left = rng.randint(0, MAX_IMAGES)
    messages: list[Message] = []
    if family.system and rng.random() < 0.5:
        count = min(left, rng.choice((0, 1))) if family.system == "images" else 0
        left -= count
        system = _content(rng, count, text="Look closely.") if count else rng.choice(_TEXTS) + "Look closely."
        messages.append(Message(role="system", content=system))
    rounds = rng.randint(1, 3)
    for round_ in range(rounds):
        is_last = round_ == rounds - 1
        count = left if is_last else rng.randint(0, left)
        left -= count
        has_call = family.tools and rng.random() < 0.5
        given = rng.randint(0, count) if has_call and family.tools == "images" else 0
        messages.append(Message(role="user", content=_content(rng, count - given, text="Well?")))
        if has_call:
            reply = called("search")
            results = [reply.model_copy(update={"content": rng.choice(("", "I look."))}), *_results(rng, reply, given)]
            messages += results
        if not is_last:
            messages.append(Message(role="assistant", content=rng.choice(("A plot.", "Nothing.", "é 你好"))))
    return messages


def _results(rng: Random, reply: Message, count: int) -> list[Message]:
    answer = result(reply.tool_calls[0])
    return [answer.model_copy(update=_fields(_content(rng, count, text="found")))]


def _fields(content: "str | list[ContentPart]") -> dict[str, object]:
    message = Message(role="tool", content=content)
    return {"content": message.content, "parts": message.parts}


def _content(rng: Random, images: int, *, text: str) -> "str | list[ContentPart]":
    """Draw a content: texts before, between and after the images, or none."""
    if not images and rng.random() < 0.5:
        return rng.choice(_TEXTS) + text
    parts: list[ContentPart] = []
    for _ in range(images):
        parts += _some_text(rng)
        parts.append(rng.choice(pictures()))
    parts += _some_text(rng)
    return parts if any(isinstance(part, TextPart) for part in parts) else [*parts, TextPart(text=text)]


def _some_text(rng: Random) -> Sequence[TextPart]:
    return [TextPart(text=rng.choice(_TEXTS)) for _ in range(rng.choice((0, 1, 1, 2)))]
