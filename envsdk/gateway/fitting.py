"""Whether a request may be too long for its context, without a tokenizer: to know it exactly costs a rendering."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..contexts.context import Context
from ..episodes.turn import Turn
from ..messages import Message
from .placements import Continues, Opens

_SCAFFOLD = 64  # tokens of a model family around a message, and for the next reply


def most_tokens(placed: Continues | Opens, turn: Turn, contexts: Mapping[str, Context]) -> int:
    """Return how many tokens a prompt has at most. It costs O(new messages), or O(messages) if the request edits.

    A text has at most as many tokens as bytes. Messages that the model sees already are counted exactly.

    Args:
        placed: What the request is.
        turn: Its turn.
        contexts: The contexts of the episode.
    """
    name = placed.base if isinstance(placed, Opens) else placed.context
    known = None if name is None else contexts[name]
    if (
        known is not None
        and isinstance(placed, Continues)
        and (placed.keep, placed.system, placed.tools) == (None,) * 3
    ):
        return len(known) + _of_texts(turn.messages)
    counts = {} if known is None else known.token_counts()
    kept = [] if known is None else known.conversation[: placed.keep]
    new = [message for message in (*kept, *turn.messages) if id(message) not in counts]
    exact = sum(counts.get(id(message), 0) for message in (*kept, *turn.messages))
    tools = placed.tools if placed.tools is not None or known is None else known.tools
    return exact + _of_texts(new) + _bytes(placed.system) + _bytes(tools)


def _of_texts(messages: Sequence[Message]) -> int:
    return _SCAFFOLD + sum(_SCAFFOLD + len(message.model_dump_json().encode()) for message in messages)


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
