"""The description of a standalone gateway's routes in the form of OpenAPI 3.1."""

import importlib.metadata
from typing import Any

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
_TOKEN, _KEY = ("token", "token_header"), ("key", "key_header")
_TEXT = {"type": "string"}
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
_MESSAGES: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_MODEL = {"type": "string", "minLength": 1}


def description(opening: type[BaseModel], rewarding: type[BaseModel], *, has_token: bool) -> dict[str, Any]:
    """Return the description.

    Args:
        opening: The body of `POST /sessions`.
        rewarding: The body of `POST /sessions/{session_id}/reward`.
        has_token: Whether managing sessions requires a token.
    """
    management = _management(opening, rewarding, _TOKEN if has_token else ())
    return {
        "openapi": "3.1.0",
        "info": {"title": "envsdk gateway", "version": importlib.metadata.version("envsdk")},
        "paths": {**management, **_of_session("/v1", _KEY), **_in_path("/s/{session_id}/v1")},
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "The token of the gateway"},
                "token_header": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "The token, too",
                },
                "key": {"type": "http", "scheme": "bearer", "description": "The key of a session"},
                "key_header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The key, too"},
            },
            "schemas": {
                "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}},
            },
        },
    }


def _management(opening: type[BaseModel], rewarding: type[BaseModel], schemes: tuple[str, ...]) -> dict[str, Any]:
    created = {**_json(_CREATED), "links": _links("showSession", "rewardSession", "closeSession")}
    described, named = {200: _json(_SUMMARY)}, [_named("session_id")]
    text = {200: {"description": "The metrics", "content": {"text/plain": {"schema": _TEXT}}}}
    health = {200: _json({"type": "object", "required": ["status"], "properties": {"status": _TEXT}})}
    any_object = {200: _json({"type": "object"})}
    opened = _operation("Open a session", {201: created}, (*_OF_MANAGEMENT, *_OF_BODY, 409, 429), schemes)
    shown = _operation("Describe a session", described, (*_OF_MANAGEMENT, 404), schemes)
    rewarded = _operation("Reward a session", described, (*_OF_MANAGEMENT, *_OF_BODY, 404, 409), schemes)
    closed = _operation("End a session", described, (*_OF_MANAGEMENT, 400, 404, 409), schemes)
    return {
        "/sessions": {"post": {**opened, "requestBody": _body(opening.model_json_schema())}},
        "/sessions/{session_id}": {"parameters": named, "get": {**shown, "operationId": "showSession"}},
        "/sessions/{session_id}/reward": {
            "parameters": named,
            "post": {**rewarded, "operationId": "rewardSession", "requestBody": _body(rewarding.model_json_schema())},
        },
        "/sessions/{session_id}/close": {"parameters": named, "post": {**closed, "operationId": "closeSession"}},
        "/metrics": {"get": _operation("Return metrics for Prometheus", text, _OF_MANAGEMENT, schemes)},
        "/health": {"get": _operation("Report that the gateway runs", health, (500,))},
        "/openapi.json": {"get": _operation("Return this description", any_object, (500,))},
    }


def _of_session(base: str, schemes: tuple[str, ...]) -> dict[str, Any]:
    """Describe the routes on which programs request replies."""
    asked: dict[str, tuple[str, str, dict[str, Any]]] = {
        "chat/completions": ("Reply, as OpenAI Chat Completions", "messages", {"messages": _MESSAGES}),
        "responses": ("Reply, as OpenAI Responses", "input", {"input": {}}),
        "messages": ("Reply, as Anthropic Messages", "messages", {"messages": _MESSAGES}),
        "messages/count_tokens": ("Count the tokens of a prompt", "messages", {"messages": _MESSAGES}),
    }
    paths: dict[str, Any] = {}
    for name, (summary, required, properties) in asked.items():
        schema = {"type": "object", "required": ["model", required], "properties": {"model": _MODEL, **properties}}
        success = _json({"type": "object"})
        if not name.endswith("count_tokens"):
            success["content"]["text/event-stream"] = {"schema": _TEXT}
        operation = _operation(summary, {200: success}, _OF_MODEL, schemes)
        paths[f"{base}/{name}"] = {"post": {**operation, "requestBody": _body(schema)}}
    success = {200: _json({"type": "object"})}
    refusals = (400, 401, 404, 500)
    paths[f"{base}/responses/{{response_id}}"] = {
        "parameters": [_named("response_id")],
        "get": _operation("Return a response that the session keeps", success, refusals, schemes),
        "delete": _operation("Forget a response", success, refusals, schemes),
    }
    listed = _operation("List the model", {200: _json({"type": "object"})}, (401, 404, 500), schemes)
    return {**paths, f"{base}/models": {"get": listed}}


def _in_path(base: str) -> dict[str, Any]:
    """Describe the same routes, with the session in the path and no key."""
    return {
        path: {**item, "parameters": [_named("session_id"), *item.get("parameters", ())]}
        for path, item in _of_session(base, ()).items()
    }


def _links(*operations: str) -> dict[str, Any]:
    """Return the links from a new session to the operations on it."""
    parameters = {"session_id": "$response.body#/id"}
    return {operation: {"operationId": operation, "parameters": parameters} for operation in operations}


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _operation(
    summary: str, success: dict[int, Any], refusals: tuple[int, ...], schemes: tuple[str, ...] = ()
) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {status: {"description": _REFUSALS[status], "content": error} for status in (*refusals, 405)}
    responses = {str(status): response for status, response in sorted({**success, **refused}.items())}
    return {"summary": summary, "responses": responses, "security": [{scheme: []} for scheme in schemes]}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Success", "content": {"application/json": {"schema": schema}}}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}
