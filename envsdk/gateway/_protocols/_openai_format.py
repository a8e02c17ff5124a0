"""The common parts of OpenAI's two protocols: sampling, choices of tools, errors, and log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from openai.types import Model

from ...errors import RequestError
from ...messages import ToolSchema
from .._requests import ModelReply
from ._fields import Fields, not_of_kind, refused, tool_schema
from ._wire import LARGEST, WireFormat

NO_GRAMMAR = "replies cannot be constrained here: leave it out, and describe the form in the prompt"
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
        return {"error": described(error)}

    def models(self, names: Sequence[str], created: int) -> dict[str, Any]:
        """Return the body of the list of models."""
        models = [Model(id=name, created=created, object="model", owned_by="envsdk") for name in names]
        return {"object": "list", "data": [model.model_dump(exclude_unset=True) for model in models]}

    def _tool(self, value: Any, index: int) -> ToolSchema:
        return tool_schema(self._function(Fields(value, f"tools[{index}]")), "parameters")

    def _choice(self, fields: Fields) -> str | dict[str, str]:
        """Return the choice of a tool that has to be called."""
        choice = fields.get("tool_choice")
        if choice is None:
            return "auto"
        if isinstance(choice, str):
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


def described(error: RequestError) -> dict[str, Any]:
    """Return the `error` object of a response."""
    type_ = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    code = None if error.code == type_ else error.code
    return {"message": str(error), "type": type_, "param": error.field, "code": code}


def read_sampling(fields: Fields) -> dict[str, Any]:
    """Return the parameters of sampling that a request names, OpenAI's and those that vLLM and SGLang add.

    Raises:
        RequestError: If one is out of its range.
    """
    found = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1, above_low=True),
        "top_k": fields.integer("top_k", -1, LARGEST),
        "min_p": fields.number("min_p", 0, 1),
        "repetition_penalty": fields.number("repetition_penalty", 0, 10, above_low=True),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "seed": fields.integer("seed", -(2**63), 2**63 - 1),
    }
    return {name: value for name, value in found.items() if value is not None}


def check_supported(fields: Fields, unsupported: Mapping[str, str]) -> None:
    """Check that a request does not ask for features that are not supported.

    Args:
        fields: The request.
        unsupported: The fields that must not have a value other than null, false, or an empty list or object, with the
            reason, and what to do instead.

    Raises:
        RequestError: If it does, or if it asks for log-probabilities of tokens that were not sampled.
    """
    for key, reason in unsupported.items():
        if fields.get(key) not in (None, False, [], {}):
            raise refused(fields.name(key), reason)
    if fields.integer("top_logprobs", 0, 20):
        raise refused("top_logprobs", "only the log-probability of the sampled token is known: leave it out, or give 0")


def token_logprobs(reply: ModelReply) -> list[dict[str, Any]] | None:
    """Return the log-probabilities of the sampled tokens; None if they are not known."""
    if reply.logprobs is None or len(reply.texts) != len(reply.logprobs):
        return None
    return [  # clients cannot read minus infinity
        {"token": text, "logprob": max(float(logprob), -9999.0), "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in zip(reply.texts, reply.logprobs, strict=True)
    ]
