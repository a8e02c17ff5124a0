"""Whether a request may be too long for its context, without a tokenizer: to know it exactly costs a rendering."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..contexts._context import Context
from ..episodes._turn import Turn
from ..images import Image
from ..messages import Message
from ..rendering._vision import Vision
from ..rendering.renderer import Renderer
from ._conversations import Continues, Opens

_SCAFFOLD = 64  # tokens of a model family around a message, and for the next reply


def most_tokens(placed: Continues | Opens, turn: Turn, contexts: Mapping[str, Context], renderer: Renderer) -> int:
    """Return how many tokens a prompt has at most. It costs O(new messages), or O(messages) if the request edits.

    A text has at most as many tokens as bytes. Messages that the model sees already are counted exactly.

    Args:
        placed: What the request is.
        turn: Its turn.
        contexts: The contexts of the episode.
        renderer: The renderer, whose processor counts the tokens of images.
    """
    name = placed.base if isinstance(placed, Opens) else placed.context
    known = None if name is None else contexts[name]
    if (
        known is not None
        and isinstance(placed, Continues)
        and (placed.keep, placed.system, placed.tools) == (None,) * 3
    ):
        return len(known) + _of_messages(turn.messages, renderer)
    counts = {} if known is None else known.token_counts()
    kept = [] if known is None else known.conversation[: placed.keep]
    new = [message for message in (*kept, *turn.messages) if id(message) not in counts]
    exact = sum(counts.get(id(message), 0) for message in (*kept, *turn.messages))
    tools = placed.tools if placed.tools is not None or known is None else known.tools
    return exact + _of_messages(new, renderer) + _bytes(placed.system) + _bytes(tools)


def _of_messages(messages: Sequence[Message], renderer: Renderer) -> int:
    texts = sum(_SCAFFOLD + len(message.model_dump_json().encode()) for message in messages)
    images = [image for message in messages for image in message.images]
    vision = renderer.vision if images else None
    return _SCAFFOLD + texts + (0 if vision is None else sum(_of_image(image, vision) for image in images))


def _of_image(image: Image, vision: Vision) -> int:
    processed = vision.process(image)
    return processed.count + len(processed.text.replace(vision.placeholder, "").encode())


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
