"""The common parts of OpenAI's two protocols: errors, tools, and choices of tools."""

from typing import Any, ClassVar

from ...errors import RequestError
from ...messages import ToolSchema
from ._fields import Fields, not_of_kind, refused, tool_schema
from ._wire import WireFormat

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class OpenAIFormat(WireFormat):
    """A protocol of OpenAI.

    Attributes:
        function_field: The field of a tool and of a choice of one that has the function; None if it is the object
            itself.
    """

    function_field: ClassVar[str | None]

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

    def _tool(self, value: Any, index: int) -> ToolSchema:
        return tool_schema(self._function(Fields(value, f"tools[{index}]")), "parameters")

    def _choice(self, fields: Fields) -> str | dict[str, str]:
        """Return the choice of a tool that has to be called."""
        fields.get("parallel_tool_calls", bool)
        choice = fields.get("tool_choice")
        if choice is None or isinstance(choice, str):
            return fields.one_of("tool_choice", ("auto", "none", "required")) or "auto"
        if not isinstance(choice, dict):
            raise not_of_kind("tool_choice", "a string or an object", choice)
        return {"name": self._function(Fields(choice, "tool_choice")).required_text("name")}

    def _function(self, tool: Fields) -> Fields:
        """Return the function of a tool or a choice, which has to be of this type."""
        if tool.text("type") != "function":
            raise refused(tool.name("type"), f"got {tool.text('type')!r:.40}; only 'function' is supported")
        key = self.function_field
        return tool if key is None else Fields(tool.get(key), tool.name(key))
