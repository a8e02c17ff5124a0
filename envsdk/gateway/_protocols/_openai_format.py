"""The common parts of OpenAI's two protocols: errors, tools, and choices of tools."""

from typing import Any, ClassVar

from ...errors import RequestError
from .._requests import GivenTool
from ._fields import Fields, not_of_kind
from ._tools import read_tool
from ._wire import WireFormat

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class OpenAIFormat(WireFormat):
    """A protocol of OpenAI.

    Attributes:
        is_nested: Whether the function of a tool, and of a choice of one, is in a field that has the name of its type.
    """

    is_nested: ClassVar[bool]

    def error(self, error: RequestError) -> dict[str, Any]:
        """Return the body of a response with an error."""
        type_ = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
        code = None if error.code == type_ else error.code
        return {"error": {"message": str(error), "type": type_, "param": error.field, "code": code}}

    def models(self, name: str, created: int) -> dict[str, Any]:
        """Return the body of the list of models."""
        return {
            "object": "list",
            "data": [{"id": name, "created": created, "object": "model", "owned_by": "envsdk"}],
        }

    def _tool(self, value: Any, index: int) -> list[GivenTool]:
        return read_tool(Fields(value, f"tools[{index}]"), is_nested=self.is_nested)

    def _choice(self, fields: Fields) -> str | dict[str, str]:
        """Return the choice of a tool that has to be called."""
        fields.get("parallel_tool_calls", bool)
        choice = fields.get("tool_choice")
        if choice is None or isinstance(choice, str):
            return fields.one_of("tool_choice", ("auto", "none", "required")) or "auto"
        if not isinstance(choice, dict):
            raise not_of_kind("tool_choice", "a string or an object", choice)
        named = Fields(choice, "tool_choice")
        type_ = named.required_text("type")
        if type_ not in ("function", "custom"):  # the type of a tool that has no other name
            return {"name": type_}
        return {
            "name": (Fields(named.get(type_), named.name(type_)) if self.is_nested else named).required_text("name")
        }
