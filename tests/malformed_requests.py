"""Requests that no client should send: drawn from a description of routes, and mutated from real ones."""

import copy
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from protocol_bodies import BODIES

REAL: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", BODIES["chat"]),
    ("/v1/responses", BODIES["responses"]),
    ("/v1/responses", BODIES["responses with other tools"]),
    ("/v1/messages", BODIES["anthropic"]),
    ("/v1beta/models/m:generateContent", BODIES["google"]),
    ("/v1beta/models/m:streamGenerateContent?alt=sse", BODIES["google"]),
]
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 1e308, 5e-324, 0.5, -0.0),
    *("", " ", "\x00", "\ud800", "é" * 300, "a" * 20_000, "<|im_start|>system\n", "<tool_call>\n{", "</think>", "{}"),
    *("user", "system", "tool", "assistant", "auto", "none", "required", "call_1", "../../etc/passwd", "%s%n"),
    *([], {}, [[]], [None], [{}], {"": None}, {"type": "text"}, {"type": "image_url", "image_url": {"url": "data:,"}}),
    *({"role": "user"}, {"role": "tool", "content": "x"}, {"type": "function"}, {"type": "tool_result"}),
]
TYPES = ["application/json"] * 40 + [
    "",
    "text/plain",
    "application/json; charset=latin-1",
    "multipart/form-data",
    "a" * 200,
]
METHODS = ["POST"] * 60 + ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"]


@dataclass(frozen=True)
class Malformed:
    """A request, which may be valid in spite of all.

    Attributes:
        method: The method.
        path: The path.
        content: The body.
        headers: The headers.
    """

    method: str
    path: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Mutations:
    """Draws requests.

    Args:
        random: What draws.
        paths: The templates of the paths of a description, each with its operations.
    """

    def __init__(self, random: Random, paths: dict[str, Any]) -> None:
        self.random, self.paths = random, paths

    def request(self, session_id: str, key: str) -> Malformed:
        """Return a request to a session, or to something else."""
        draw = self.random
        if draw.random() < 0.3:
            return self._described(session_id, key)
        route, body = draw.choice(REAL)
        if draw.random() < 0.1:
            route = route.replace("/v1/messages", "/v1/messages/count_tokens").replace(
                "m:generateContent", "m:countTokens"
            )
        value = copy.deepcopy(body)
        for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
            value = self._mutated(value)
        content = self._bytes(value)
        headers = {"content-type": draw.choice(TYPES), **self._extra_headers()}
        return Malformed(draw.choice(METHODS), f"/s/{session_id}{route}", content, headers)

    def _described(self, session_id: str, key: str) -> Malformed:
        """A request of the description, with a body of its schema, or of none."""
        draw = self.random
        path = draw.choice(sorted(self.paths))
        operations = [method for method in self.paths[path] if method != "parameters"]
        method = draw.choice(operations)
        schema = self.paths[path][method].get("requestBody", {}).get("content", {}).get("application/json", {})
        value = self._of_schema(schema["schema"]) if schema and draw.random() < 0.7 else self._value(3)
        named = draw.choice([session_id, "unknown", "%00", "..", "a" * 3000, "é", "%2e%2e%2f", session_id + "x"])
        if path.endswith("/close"):
            named = "unknown"  # the session is needed
        headers = {"content-type": draw.choice(TYPES), **self._extra_headers()}
        if draw.random() < 0.5:
            headers["authorization"] = draw.choice([f"Bearer {key}", "Bearer", "Basic eDp5", "Bearer " + "x" * 9000])
        full = path.replace("{session_id}", named).replace("{response_id}", draw.choice(["resp_x", "%00", "a" * 3000]))
        full = full.replace("{model}", draw.choice(["m", "a/b", ":", "%00", "x:generateContent"]))
        return Malformed(draw.choice([method.upper()] * 5 + METHODS), full, self._bytes(value), headers)

    def _extra_headers(self) -> dict[str, str]:
        draw = self.random
        names = ["x-envsdk-context", "x-envsdk-role", "anthropic-version", "anthropic-beta", "content-encoding", "host"]
        values = ["", "main", "a/b", "x" * 5000, "\xe9", "gzip", "0", "evil.example"]
        return {draw.choice(names): draw.choice(values)} if draw.random() < 0.15 else {}

    def _bytes(self, value: Any) -> bytes:
        draw = self.random
        content = json.dumps(value).encode()
        if draw.random() < 0.15 and content:
            at = draw.randrange(len(content))
            content = draw.choice(
                [
                    content[:at],
                    content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
                    content[:at] + content[at // 2 :],
                    content + b"}",
                    b"\xef\xbb\xbf" + content,
                    content.replace(b'"', b"'"),
                    b"[" * 3000 + content,
                    b"",
                ]
            )
        return content

    def _value(self, depth: int) -> Any:
        draw = self.random
        if depth == 0 or draw.random() < 0.5:
            return draw.choice(ODD)
        if draw.random() < 0.5:
            return [self._value(depth - 1) for _ in range(draw.randrange(4))]
        return {str(draw.choice(ODD)): self._value(depth - 1) for _ in range(draw.randrange(4))}

    def _of_schema(self, schema: dict[str, Any]) -> Any:
        """A value that a schema describes, or nearly."""
        draw = self.random
        if draw.random() < 0.15:
            return draw.choice(ODD)
        if choices := schema.get("anyOf"):
            return self._of_schema(draw.choice(choices))
        kind = schema.get("type")
        if kind == "object":
            properties, required = schema.get("properties", {}), schema.get("required", ())
            named = [name for name in properties if (name in required and draw.random() < 0.9) or draw.random() < 0.5]
            return {name: self._of_schema(properties[name]) for name in named} or self._value(2)
        if kind == "array":
            return [self._of_schema(schema.get("items", {})) for _ in range(draw.randrange(3))]
        return {"string": "text", "integer": 3, "number": 0.5, "boolean": True}.get(kind) if kind else self._value(2)

    def _mutated(self, value: Any) -> Any:
        """A value with one change, somewhere."""
        draw = self.random
        if isinstance(value, (dict, list)) and value and draw.random() < 0.8:
            keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
            key = draw.choice(keys)
            change = draw.random()
            if change < 0.65:
                value[key] = self._mutated(value[key])
            elif change < 0.8:
                del value[key]
            elif isinstance(value, dict):
                value[draw.choice([f"{key}s", "", "type", "content", "role", "id"])] = value.pop(key)
            else:
                value.insert(draw.randrange(len(value) + 1), copy.deepcopy(value[key]))
            return value
        return copy.deepcopy(self._value(2))
