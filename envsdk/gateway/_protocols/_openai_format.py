"""The common parts of OpenAI's two protocols: errors, tools, and choices of tools."""

from typing import Any, ClassVar

from ...errors import RequestError
from .._requests import GivenTool
from ._fields import Fields, not_of_kind, refused
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

    def _choice(self, fields: Fields) -> str | dict[str, Any]:
        """Return the choice of a tool; see `ModelRequest.tool_choice`."""
        fields.get("parallel_tool_calls", bool)
        choice = fields.get("tool_choice")
        if choice is None or isinstance(choice, str):
            return fields.one_of("tool_choice", ("auto", "none", "required")) or "auto"
        if not isinstance(choice, dict):
            raise not_of_kind("tool_choice", "a string or an object", choice)
        given = Fields(choice, "tool_choice")
        if given.text("type") != "allowed_tools":
            return {"name": self._name(given)}
        described = Fields(given.get("allowed_tools"), given.name("allowed_tools")) if self.is_nested else given
        tools, path = described.items("tools"), described.name("tools")
        if not tools:
            raise refused(path, "it is required: give at least one tool")
        names = [self._name(Fields(tool, f"{path}[{i}]")) for i, tool in enumerate(tools)]
        return {"mode": described.one_of("mode", ("auto", "required")) or "auto", "names": names}

    def _name(self, tool: Fields) -> str:
        """Return the name of a tool that a choice names."""
        type_ = tool.required_text("type")
        if type_ not in ("function", "custom"):  # the type of a tool that has no other name
            return type_
        return (Fields(tool.get(type_), tool.name(type_)) if self.is_nested else tool).required_text("name")
