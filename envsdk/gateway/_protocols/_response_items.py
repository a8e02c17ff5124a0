"""The items of a conversation in OpenAI Responses: which of them are one message, and what it holds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from ...messages import ImagePart, Message, ToolCall, read_arguments
from .._requests import ReceivedMessage
from ._contents import Content, content_of, read_content
from ._fields import Fields, check_unique, not_of_kind, refused, valid
from ._memory import SessionMemory
from ._wire import signed

_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_IMAGE = "input_image"
_RANKS = {"reasoning": 0, "message": 1, "function_call": 2}


class Place(NamedTuple):
    """Where an item belongs.

    Attributes:
        type: The item's type.
        rank: The place of its type in a reply; None for an item that is not of a reply.
        link: The id of the reply that it is of, if it has one.
    """

    type: Any
    rank: int | None
    link: str | None


def place_of(value: Any, index: int, where: str = "input") -> Place:
    """Return where an item of a list belongs; a message and a reference may leave out their type.

    Raises:
        RequestError: If the item is not an object.
    """
    item = Fields(value, f"{where}[{index}]").value
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if list(item) == ["id"] else None
    rank = _RANKS.get(kind) if isinstance(kind, str) else None
    if kind == "message" and item.get("role") != "assistant":
        rank = None
    return Place(kind, rank, _link(item))


def resolved(value: Any, place: Place, index: int, memory: SessionMemory) -> tuple[Any, Place]:
    """Return an item, or the one that it refers to, and where it belongs.

    Raises:
        RequestError: If the item that it refers to is not known.
    """
    if place.type != "item_reference":
        return value, place
    fields = Fields(value, f"input[{index}]")
    named = fields.required_text("id")
    found = memory.responses.item(named)
    if found is None:
        reason = f"no item {named!r:.80} is known: it was not stored, or was forgotten; give the item itself"
        raise refused(fields.name("id"), reason)
    return found, place_of(found, index)


def grouped(items: Sequence[tuple[Any, Place]]) -> tuple[list[int], list[Any]]:
    """Put the items of each reply into a list.

    Returns:
        The index of the first item of each value, and the values: lists of items, and single items.
    """
    starts: list[int] = []
    values: list[Any] = []
    reply: list[Any] = []
    link, last = None, 0
    for i, (value, place) in enumerate(items):
        if place.rank is None:
            reply = []
        elif reply and _continues(place, place.rank, link, last):
            reply.append(value)
            link, last = link or place.link, place.rank
            continue
        else:
            reply = [value]
            link, last = place.link, place.rank
        starts.append(i)
        values.append(reply or value)
    return starts, values


def _continues(place: Place, rank: int, link: str | None, last: int) -> bool:
    """Return whether an item belongs to the same reply as those before it, given their link and the last one's rank."""
    if place.link is not None and link is not None:
        return place.link == link
    return rank > last or (rank == last and rank != _RANKS["message"])


def _link(item: Mapping[str, Any]) -> str | None:
    encrypted, named = item.get("encrypted_content"), item.get("id")
    if isinstance(encrypted, str) and (link := signed(encrypted)):
        return link
    if not isinstance(named, str):
        return None
    kind, _, rest = named.partition("_")
    if kind == "fc":
        rest = rest.rpartition("_")[0]
    return rest or None if kind in ("rs", "msg", "fc") else None


def received_of(value: Any, index: int) -> ReceivedMessage:
    """Return the message that an item, or a list of items of a reply, holds; `index` is that of the first item."""
    if isinstance(value, list):
        return reply_of(cast("list[Any]", value), "input", index)
    item = Fields(value, f"input[{index}]")
    type_ = place_of(value, index).type
    if type_ == "function_call_output":
        call = item.required_text("call_id")
        content = read_content(item, "output", _PARTS, _IMAGE)
        return ReceivedMessage(valid(Message, item.path, role="tool", tool_call_id=call, content=content), value)
    if type_ == "message":
        role = item.text("role")
        if role not in ("user", "system", "developer"):
            expected = "'user', 'assistant', 'system' or 'developer'"
            raise refused(item.name("role"), f"got {role!r:.40}; expected {expected}")
        content = read_content(item, "content", _PARTS, _IMAGE if role == "user" else None)
        return ReceivedMessage(valid(Message, item.path, role=role, content=content), value)
    raise refused(item.name("type"), f"items of type {type_!r:.60} are not supported")


def reply_of(items: Sequence[Mapping[str, Any]], where: str, start: int = 0) -> ReceivedMessage:
    """Return the message that the items of a reply are.

    Args:
        items: The items.
        where: The list that contains them.
        start: The index of the first one.
    """
    reasoning: list[str] = []
    contents: list[Content] = []
    calls: list[ToolCall] = []
    for i, value in enumerate(items, start):
        item = Fields(value, f"{where}[{i}]")
        match place_of(value, i, where).type:
            case "reasoning":
                reasoning += _thinking(item)
            case "message":
                contents.append(read_content(item, "content", _PARTS) if item.get("content") is not None else "")
            case _:
                calls.append(_call(item))
    path = f"{where}[{start}]"
    check_unique([call.id for call in calls], path)
    read = valid(
        Message,
        path,
        role="assistant",
        content=_joined_contents(contents),
        reasoning="\n\n".join(reasoning) if reasoning else None,
        tool_calls=calls,
    )
    link = next(filter(None, map(_link, items)), None)
    return ReceivedMessage(read, items[0] if len(items) == 1 else items, link)


def _joined_contents(contents: Sequence[Content]) -> Content:
    texts: list[str | ImagePart] = []
    for content in contents:
        texts += [content] if isinstance(content, str) else [p["text"] if isinstance(p, dict) else p for p in content]
    return content_of(texts)


def _thinking(item: Fields) -> list[str]:
    """Return the texts of a reasoning item: its content, or else its summary."""
    for key, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = [Fields(part, f"{item.name(key)}[{i}]") for i, part in enumerate(item.items(key))]
        for part in parts:
            if part.text("type") not in (None, kind, "text"):
                raise refused(part.name("type"), f"expected {kind!r}")
        if texts := [part.text("text") or "" for part in parts]:
            return texts
    return []


def _call(item: Fields) -> ToolCall:
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise not_of_kind(item.name("arguments"), "a text", arguments)
    name, call_id = item.required_text("name"), item.required_text("call_id")
    return valid(ToolCall, item.path, id=call_id, name=name, arguments=read_arguments(arguments))
