"""Checks that a request can become a turn: the model family can express it, and it may fit into its context."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..contexts._context import Context
from ..episodes._turn import Turn
from ..errors import RenderError, RequestError, TokenizerError, message_of
from ..messages import Message
from ..rendering.emission import Emission
from ..rendering.family import FamilyRenderer
from ..rendering.renderer import Renderer, check_image, refuse_images
from ._conversations import Continues, Opens

_SCAFFOLD = 64  # tokens of a model family around a message, and for the next reply


def inexpressible(error: RenderError | TokenizerError) -> RequestError:
    """Return the error of a request that a model family cannot express."""
    return RequestError(f"the model family cannot express the request: {message_of(error)}")


def check_expressible(
    renderer: Renderer, placed: Continues | Opens, messages: Sequence[Message], contexts: Mapping[str, Context]
) -> None:
    """Check that a renderer can express a request. Nothing is tokenized, and a continuation costs O(new messages).

    For a renderer of whole conversations, only images are checked, because it would render at each request.

    Args:
        renderer: The renderer.
        placed: The place of the request in the conversations.
        messages: Its messages after those that are kept.
        contexts: The contexts of the episode.

    Raises:
        RequestError: If it cannot be expressed.
    """
    name = placed.base if isinstance(placed, Opens) else placed.context
    known = [] if name is None else contexts[name].conversation
    if isinstance(placed, Continues) and placed.system is None:
        system = [message for message in known[:1] if message.role == "system"]
    else:
        system = [Message(role="system", content=placed.system)] if placed.system else []
    first = len(system) if name is None else len(known) if placed.keep is None else placed.keep
    try:
        refuse_images(renderer, messages, first)
        for image in (image for message in messages for image in message.images):
            check_image(renderer, image)  # the processor's results are cached
        if not isinstance(renderer, FamilyRenderer):
            return
        out = Emission(renderer.encoder)
        if _only_adds(placed):
            renderer.emit_conversation(out, [known[-1], *messages], first=1)
            return
        kept = known[: placed.keep]
        rest = kept[1:] if kept and kept[0].role == "system" else kept
        tools = contexts[placed.context].tools if placed.tools is None else placed.tools
        renderer.emit_conversation(out, [*system, *rest, *messages], tools=tools)
    except RenderError as error:
        raise inexpressible(error) from error


def most_tokens(placed: Continues | Opens, turn: Turn, contexts: Mapping[str, Context], renderer: Renderer) -> int:
    """Return an upper bound of the tokens of a prompt. It costs O(new messages), or O(messages) if the request edits.

    A string has at most as many tokens as bytes. Messages that the model sees already are counted exactly.

    Args:
        placed: The place of the request in the conversations.
        turn: Its turn.
        contexts: The contexts of the episode.
        renderer: The renderer, whose processor counts the tokens of images.
    """
    name = placed.base if isinstance(placed, Opens) else placed.context
    known = None if name is None else contexts[name]
    if known is not None and _only_adds(placed):
        exact, new, rest = len(known), list(turn.messages), ""
    else:
        counts = {} if known is None else known.token_counts()
        messages = [*([] if known is None else known.conversation[: placed.keep]), *turn.messages]
        exact = sum(counts.get(id(message), 0) for message in messages)
        new = [message for message in messages if id(message) not in counts]
        tools: Any = placed.tools if placed.tools is not None or known is None else known.tools
        rest = json.dumps([placed.system, tools], ensure_ascii=False)
    texts = sum(_SCAFFOLD + len(message.model_dump_json().encode()) for message in new)
    images = [image for message in new for image in message.images]
    if images and (vision := renderer.vision) is not None:
        for processed in map(vision.process, images):
            texts += processed.count + len(processed.text.replace(vision.placeholder, "").encode())
    return exact + _SCAFFOLD + texts + len(rest.encode())


def _only_adds(placed: Continues | Opens) -> bool:
    """Return whether a request only adds messages to its context."""
    return isinstance(placed, Continues) and placed.keep is None and placed.system is None and placed.tools is None
