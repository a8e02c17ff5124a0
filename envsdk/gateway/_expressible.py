"""Whether a model family can express what a request asks, before it becomes a turn of the episode."""

from collections.abc import Mapping, Sequence

from ..contexts._context import Context
from ..errors import RenderError, RequestError, TokenizerError, message_of
from ..messages import Message, ToolSchema
from ..rendering.emission import Emission
from ..rendering.family import FamilyRenderer
from ..rendering.renderer import Renderer, check_image, refuse_images
from ._conversations import Continues, Opens


def inexpressible(error: RenderError | TokenizerError) -> RequestError:
    """Return the error of a request that a model family cannot express."""
    return RequestError(f"the model family cannot express the request: {message_of(error)}")


def check_expressible(
    renderer: Renderer, placed: Continues | Opens, messages: Sequence[Message], contexts: Mapping[str, Context]
) -> None:
    """Check that a renderer can express a request. Nothing is tokenized, and a continuation costs O(new messages).

    Of a renderer of whole conversations, only images are checked: it would render at each request.

    Args:
        renderer: The renderer.
        placed: What the request is.
        messages: Its messages after those that are kept.
        contexts: The contexts of the episode.

    Raises:
        RequestError: If it cannot.
    """
    try:
        _check_images(renderer, messages, _first_new(placed, contexts))
        if not isinstance(renderer, FamilyRenderer):
            return
        out = Emission(renderer.encoder)
        if isinstance(placed, Continues) and placed.keep is None and placed.system is None and placed.tools is None:
            known = contexts[placed.context].conversation
            renderer.emit_conversation(out, [known[-1], *messages], first=1)
            return
        whole, tools = _whole(placed, messages, contexts)
        renderer.emit_conversation(out, whole, tools=tools)
    except RenderError as error:
        raise inexpressible(error) from error


def _first_new(placed: Continues | Opens, contexts: Mapping[str, Context]) -> int:
    """Return the index of the first message that is not kept, counted with the system message."""
    if isinstance(placed, Opens):
        return placed.keep if placed.base is not None else int(bool(placed.system))
    return len(contexts[placed.context].conversation) if placed.keep is None else placed.keep


def _check_images(renderer: Renderer, messages: Sequence[Message], first: int) -> None:
    """Check that a renderer can write the images of messages. The processor's results are cached."""
    refuse_images(renderer, messages, first)
    for image in (image for message in messages for image in message.images):
        check_image(renderer, image)


def _whole(
    placed: Continues | Opens, messages: Sequence[Message], contexts: Mapping[str, Context]
) -> tuple[list[Message], Sequence[ToolSchema]]:
    """Return the whole conversation that a request makes, and its tools."""
    name = placed.base if isinstance(placed, Opens) else placed.context
    known = [] if name is None else contexts[name].conversation
    kept = known[: placed.keep]
    if isinstance(placed, Continues) and placed.system is None:
        system = [message for message in known[:1] if message.role == "system"]
    else:
        system = [Message(role="system", content=placed.system)] if placed.system else []
    rest = kept[1:] if kept and kept[0].role == "system" else kept
    tools = contexts[placed.context].tools if placed.tools is None else placed.tools
    return [*system, *rest, *messages], tools
