"""The description of a standalone gateway's routes in the form of OpenAPI 3.1."""

import importlib.metadata
import re
from typing import Any, NamedTuple

from pydantic import BaseModel

_REFUSALS = {
    400: "The body is not JSON, or a field is invalid",
    401: "The key or the token is missing or wrong",
    403: "Without a token, sessions are managed as localhost only",
    404: "There is no such session, response or route",
    405: "The route does not have this method",
    408: "The body did not arrive in time",
    409: "The session is closed, or cannot be rewarded",
    413: "The body is too large",
    415: "The content type is not JSON",
    429: "A limit was reached",
    500: "The gateway failed",
    502: "The policy failed",
    503: "The gateway is shutting down",
    504: "The policy did not answer in time",
}
_OF_BODY = (400, 408, 413, 415)
_OF_MODEL = (401, 404, *_OF_BODY, 429, 500, 502, 503, 504)
_OF_MANAGEMENT = (401, 403, 500)
_PLAIN, _JSON, _STREAMED = ("text/plain",), ("application/json",), ("application/json", "text/event-stream")
_TEXT, _OBJECT = {"type": "string"}, {"type": "object"}
_SUMMARY: dict[str, Any] = {
    "type": "object",
    "required": ["id", "status"],
    "properties": {
        "id": _TEXT,
        "status": {"enum": ["open", "closed"]},
        "opened": {"type": "integer", "description": "In seconds since 1970"},
        "requests": {"type": "integer", "description": "The number of requests for a reply"},
        "waiting": {"type": "integer", "description": "The number of requests that are being answered"},
        "idle_s": {"type": "number"},
        "reason": {"enum": ["closed", "idle", "shutdown"]},
        "summary": {"type": "object", "description": "The summary of the episode, once it is closed"},
    },
}
_CREATED: dict[str, Any] = {
    "type": "object",
    "required": ["id", "key", "openai_base_url", "anthropic_base_url"],
    "properties": {"id": _TEXT, "key": _TEXT, "openai_base_url": _TEXT, "anthropic_base_url": _TEXT},
}
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "The token of the gateway"},
    "token_header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The token, too"},
    "key": {"type": "http", "scheme": "bearer", "description": "The key of a session"},
    "key_header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The key, too"},
}


class _Operation(NamedTuple):
    """An operation on a route: its summary, its responses, the schema of its body, and what it requires."""

    method: str
    path: str
    summary: str
    refusals: tuple[int, ...]
    secured_by: str = ""
    response: dict[str, Any] = _OBJECT
    body: dict[str, Any] | None = None
    status: int = 200
    media_types: tuple[str, ...] = _JSON


def description(opening: type[BaseModel], rewarding: type[BaseModel], *, has_token: bool) -> dict[str, Any]:
    """Return the description.

    Args:
        opening: The body of `POST /sessions`.
        rewarding: The body of `POST /sessions/{session_id}/reward`.
        has_token: Whether managing sessions requires a token.
    """
    token, session = "token" if has_token else "", "/sessions/{session_id}"
    bodies = opening.model_json_schema(), rewarding.model_json_schema()
    opened, shown = (*_OF_MANAGEMENT, *_OF_BODY, 409, 429), (*_OF_MANAGEMENT, 404)
    rewarded = (*shown, *_OF_BODY, 409)
    operations = [
        _Operation("post", "/sessions", "Open a session", opened, token, _CREATED, bodies[0], 201),
        _Operation("get", session, "Describe a session", shown, token, _SUMMARY),
        _Operation("post", f"{session}/reward", "Reward a session", rewarded, token, _SUMMARY, bodies[1]),
        _Operation("post", f"{session}/close", "End a session", (*shown, 400, 409), token, _SUMMARY),
        _Operation("get", "/metrics", "Return metrics for Prometheus", _OF_MANAGEMENT, token, _TEXT, None, 200, _PLAIN),
        _Operation("get", "/health", "Report that the gateway runs", (500,)),
        _Operation("get", "/openapi.json", "Return this description", (500,)),
        *_of_session("/v1", "key"),
        *_of_session("/s/{session_id}/v1", ""),
    ]
    paths: dict[str, dict[str, Any]] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for each in operations:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in re.findall(r"{(\w+)}", each.path)
        ]
        content = {media_type: {"schema": each.response} for media_type in each.media_types}
        responses = {status: {"description": _REFUSALS[status], "content": error} for status in (*each.refusals, 405)}
        responses[each.status] = {"description": "Success", "content": content}
        schemes = [each.secured_by, f"{each.secured_by}_header"] if each.secured_by else []
        operation: dict[str, Any] = {
            "summary": each.summary,
            "responses": {str(status): responses[status] for status in sorted(responses)},
            "security": [{scheme: []} for scheme in schemes],
        }
        if each.body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": each.body}}}
        item = paths.setdefault(each.path, {"parameters": parameters} if parameters else {})
        item[each.method] = operation
    schemas = {"Error": {"type": "object", "required": ["error"], "properties": {"error": _OBJECT}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "envsdk gateway", "version": importlib.metadata.version("envsdk")},
        "paths": paths,
        "components": {"securitySchemes": _SECURITY, "schemas": schemas},
    }


def _of_session(base: str, secured_by: str) -> list[_Operation]:
    """Return the operations on the routes on which programs request replies."""
    several = {"type": "array", "minItems": 1, "items": _OBJECT}
    bodies = {
        key: {
            "type": "object",
            "required": ["model", key],
            "properties": {"model": {"type": "string", "minLength": 1}, key: schema},
        }
        for key, schema in {"messages": several, "input": {}}.items()
    }
    contents = {"type": "object", "required": ["contents"], "properties": {"contents": several}}
    response, refusals = f"{base}/responses/{{response_id}}", (400, 401, 404, 500)
    operations = [
        _Operation("get", response, "Return a response that the session keeps", refusals, secured_by),
        _Operation("delete", response, "Forget a response", refusals, secured_by),
        _Operation("get", f"{base}/models", "List the model", (401, 404, 500), secured_by),
        _Operation("get", f"{base}/models/{{model}}", "Describe a model", (401, 404, 500), secured_by),
    ]
    for name, summary, body, media_types in (
        ("chat/completions", "Reply, as OpenAI Chat Completions", bodies["messages"], _STREAMED),
        ("responses", "Reply, as OpenAI Responses", bodies["input"], _STREAMED),
        ("messages", "Reply, as Anthropic Messages", bodies["messages"], _STREAMED),
        ("messages/count_tokens", "Count the tokens of a prompt", bodies["messages"], _JSON),
        ("models/{model}:generateContent", "Reply, as Google's generateContent", contents, _JSON),
        ("models/{model}:countTokens", "Count the tokens of a prompt", contents, _JSON),
    ):
        path = f"{base}/{name}"
        operations.append(
            _Operation("post", path, summary, _OF_MODEL, secured_by, _OBJECT, body, media_types=media_types)
        )
    return operations
