"""The messages of a conversation in Anthropic's form: a list of blocks may be one message or several."""

from collections.abc import Sequence
from typing import Any

from ...messages import ImagePart, Message, ToolCall
from .._requests import INVALID_JSON, ReceivedMessage
from ._contents import content_of, image_of_source
from ._fields import Fields, check_unique, not_of_kind, refused, valid
from ._wire import signed


def received_of(value: Any, index: int) -> Sequence[ReceivedMessage]:
    """Return the messages that a value of `messages` holds."""
    fields = Fields(value, f"messages[{index}]")
    role = fields.text("role")
    if role == "user":
        return [ReceivedMessage(received, value) for received in _user(fields)]
    if role == "assistant":
        received, link = _assistant(fields)
        return [ReceivedMessage(received, value, link)]
    if role == "system":
        texts = [text_of(block, "system messages") for block in blocks_of(fields, "content")]
        return [ReceivedMessage(valid(Message, fields.path, role=role, content=content_of(texts)), value)]
    raise refused(fields.name("role"), f"got {role!r:.40}; expected 'user', 'assistant' or 'system'")


def blocks_of(fields: Fields, key: str) -> list[Fields]:
    """Return the blocks of a content, which may be a text."""
    given = fields.get(key)
    if isinstance(given, str):
        return [Fields({"type": "text", "text": given}, fields.name(key))]
    if not isinstance(given, list):
        raise not_of_kind(fields.name(key), "a text or a list of blocks", given)
    return [Fields(block, f"{fields.name(key)}[{i}]") for i, block in enumerate(fields.items(key))]


def text_of(block: Fields, where: str) -> str:
    """Return the text of a block; `where` it is names the error if it is of another type."""
    if block.text("type") != "text":
        raise refused(block.path, f"a block of type {block.text('type')!r:.40} is not supported in {where}")
    text = block.text("text")
    if text is None:
        raise refused(block.name("text"), "it is required")
    return text


def _user(fields: Fields) -> list[Message]:
    """Return the messages in a user message: one for each tool's result, and one for each run of texts and images."""
    blocks = blocks_of(fields, "content")
    if not blocks:
        raise refused(fields.name("content"), "expected a text, or at least one block")
    check_unique([b.text("tool_use_id") for b in blocks if b.text("type") == "tool_result"], fields.name("content"))
    messages: list[Message] = []
    parts: list[str | ImagePart] = []
    for block in blocks:
        if block.text("type") != "tool_result":
            parts.append(_part_of(block, "user messages"))
            continue
        messages += _of_parts(fields.path, parts)
        parts = []
        messages.append(_result(block))
    return messages + _of_parts(fields.path, parts)


def _of_parts(path: str, parts: "list[str | ImagePart]") -> list[Message]:
    return [valid(Message, path, role="user", content=content_of(parts))] if parts else []


def _part_of(block: Fields, where: str) -> "str | ImagePart":
    return image_of_source(block) if block.text("type") == "image" else text_of(block, where)


def _result(block: Fields) -> Message:
    block.boolean("is_error")
    call = block.required_text("tool_use_id")
    blocks = [] if block.get("content") is None else blocks_of(block, "content")
    parts = [_part_of(part, "results of tools") for part in blocks]
    return valid(Message, block.path, role="tool", tool_call_id=call, content=content_of(parts))


def _assistant(fields: Fields) -> tuple[Message, str | None]:
    """Return an assistant message, and the id of the reply that its thinking identifies, if it is only one."""
    thinking: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    links: set[str] = set()
    for block in blocks_of(fields, "content"):
        match block.text("type"):
            case "thinking":
                thinking.append(block.text("thinking") or "")
                links |= {*filter(None, [signed(block.text("signature"))])}
            case "redacted_thinking":
                links |= {*filter(None, [signed(block.text("data"))])}
            case "tool_use":
                calls.append(_call(block))
            case _:
                texts.append(text_of(block, "assistant messages"))
    check_unique([call.id for call in calls], fields.name("content"))
    reasoning = "\n\n".join(filter(None, thinking)) or None
    content = content_of(texts)
    read = valid(Message, fields.path, role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    return read, links.pop() if len(links) == 1 else None


def _call(block: Fields) -> ToolCall:
    given = block.object("input")
    if given is None:
        raise refused(block.name("input"), "it is required: give an object")
    arguments: Any = given.value
    if arguments.keys() == {INVALID_JSON} and isinstance(arguments[INVALID_JSON], str):
        arguments = arguments[INVALID_JSON]
    return valid(
        ToolCall, block.path, id=block.required_text("id"), name=block.required_text("name"), arguments=arguments
    )
