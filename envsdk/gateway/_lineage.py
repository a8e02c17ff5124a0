"""What the headers and fields of a request say about who sent it: its session, the session above it, its role."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import ConfigError
from ._requests import ModelRequest

_SESSION_HEADERS = (
    *("x-session-id", "session-id", "session_id", "thread-id", "x-claude-code-session-id", "x-claude-code-agent-id"),
)
_PARENT_HEADERS = ("x-parent-session-id", "x-claude-code-parent-agent-id")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The ids by which a program names its session, and the session that started it.

    Sub-agents often share the session of their parent, so ids narrow a choice, and never decide what a request is.

    Attributes:
        ids: The ids by the header or field that has them.
        parent: The id of the session above, or None.
    """

    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    parent: str | None = None

    @staticmethod
    def of(request: ModelRequest) -> "Lineage":
        """Return the lineage of a request."""
        given: dict[str, Any] = {name: request.headers.get(name) for name in _SESSION_HEADERS}
        for key, inner in (("prompt_cache_key", ""), ("conversation", "id"), ("metadata", "user_id")):
            value = _field(request.body, key)
            given[key] = _field(value, inner) if isinstance(value, dict) else value
        parents = (request.headers.get(name) for name in _PARENT_HEADERS)
        return Lineage(
            {name: value for name, value in given.items() if isinstance(value, str) and value},
            next((parent for parent in parents if parent), None),
        )

    def shares_session(self, other: "Lineage") -> bool:
        """Return whether all ids that both have are equal, and there is one."""
        shared = self.ids.keys() & other.ids.keys()
        return bool(shared) and all(self.ids[name] == other.ids[name] for name in shared)

    def why_child_of(self, other: "Lineage") -> str | None:
        """Return why its session is below another one, as a phrase; None if nothing says so."""
        if self.parent is not None and self.parent in other.ids.values():
            return "a header names its session"
        own = self.ids.keys() - other.ids.keys()
        return f"its session, with {min(own)}" if own and self.shares_session(other) else None


def _field(value: Any, name: str) -> Any:
    """Return a field of a JSON object; None without it, or if the value is no object."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def role_rules(rules: Mapping[str, str]) -> Callable[[ModelRequest], str | None]:
    """Return a function that gives a request the role of the first rule that it meets, or None.

    Args:
        rules: For each role, a rule `FIELD:REGEX`: the expression is searched in the field. Fields are `system` (the
            text of the system message), `tools` (the names of the tools, separated by spaces: `tools:^$` means none),
            `model` (the name of the model), and any other word is a header, such as `x-agent:search`.

    Raises:
        ConfigError: If a rule is not valid.
    """
    parsed: list[tuple[str, str, re.Pattern[str]]] = []
    for role, rule in rules.items():
        name, colon, expression = rule.partition(":")
        try:
            if not (role and name and colon):
                raise ValueError("it has no field")
            parsed.append((role, name.lower(), re.compile(expression)))
        except (ValueError, re.error) as error:
            raise ConfigError(
                f"the role {role!r} has the rule {rule!r}: {error}; expected FIELD:REGEX with the field system, tools, "
                "model, or the name of a header, such as system:(?i)title"
            ) from None

    def role_of(request: ModelRequest) -> str | None:
        names = [str(tool.get("function", tool).get("name")) for tool in request.tools]
        model = str(_field(request.body, "model") or "")
        fields = {"system": request.system or "", "tools": " ".join(names), "model": model}
        return next(
            (role for role, name, rule in parsed if rule.search(fields.get(name, request.headers.get(name, "")))), None
        )

    return role_of
