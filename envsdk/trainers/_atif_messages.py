"""The messages of an ATIF document."""

from typing import Any

from pydantic import ValidationError

from ..errors import InvalidRecord, what_is_invalid
from ..messages import Message, ToolCall
from ._log_fields import Found

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def message_of_step(step: Found) -> Message:
    """Return the message of a step, without its observation.

    Raises:
        InvalidRecord: If it is damaged; the message names the field.
    """
    source = step.get("source")
    role = _ROLES.get(source.text() or "")
    if role is None:
        raise source.invalid(f"one of {tuple(_ROLES)}")
    fields: dict[str, Any] = {"content": _content(step.get("message"), is_required=True)}
    if role == "assistant":
        fields["reasoning"] = step.get("reasoning_content").text()
        fields["tool_calls"] = [_call(call) for call in step.get("tool_calls").items()]
    return _message(step, role=role, **fields)


def message_of_result(step: Found, result: Found) -> Message | None:
    """Return the message of a result of a step: a tool's, or a user's if the step has no calls; None without content.

    Raises:
        InvalidRecord: If it is damaged; the message names the field.
    """
    if result.get("content").value is None:
        return None
    content, extra = _content(result.get("content"), is_required=False), result.get("extra").or_empty()
    call = result.get("source_call_id").text() or extra.get("tool_call_id").text()
    name = extra.get("name").text()
    if call or name or step.get("tool_calls").items():
        return _message(result, role="tool", content=content, tool_call_id=call, name=name)
    return _message(result, role="user", content=content)


def _content(found: Found, *, is_required: bool) -> Any:
    """Return a text, or the parts of a content: texts and images."""
    if isinstance(found.value, (list, tuple)):
        return [_part(part) for part in found.items()]
    if found.value is None and is_required:
        raise found.invalid("a text")
    return found.text() or ""


def _part(found: Found) -> dict[str, Any]:
    kind = found.get("type").value
    if kind == "text":
        return {"type": "text", "text": found.get("text").text() or ""}
    if kind != "image":
        raise found.get("type").invalid("'text' or 'image': other media are not supported")
    path = found.get("source").or_empty().get("path")
    if not (path.text() or "").startswith("data:"):
        raise path.invalid("a data: URL; nothing is fetched, and no file of a document is opened")
    return {"type": "image_url", "image_url": {"url": path.text()}}


def _call(found: Found) -> ToolCall:
    arguments, extra = found.get("arguments"), found.get("extra").or_empty()
    given = extra.get("arguments").text()
    try:
        return ToolCall(
            name=found.get("function_name").text() or "",
            arguments=dict(arguments.mapping()) if given is None else given,
            id=found.get("tool_call_id").text(),
            error=extra.get("error").text(),
        )
    except ValidationError as error:
        raise InvalidRecord(f"{found.where}: {what_is_invalid(error)}") from error


def _message(found: Found, **fields: Any) -> Message:
    try:
        return Message(**fields)
    except ValidationError as error:
        raise InvalidRecord(f"{found.where}: {what_is_invalid(error)}") from error
