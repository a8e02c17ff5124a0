"""History policies: which part of the past stays visible to the model.

A policy examines the messages that were added since its last call, and either keeps the past or declares a rewrite of
it. Policies are immutable; their state is in the context, so one object serves many contexts.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..._specifications import specification
from ...errors import ConfigError, unknown_name, what_is_invalid
from .._history_policy import History as History
from .._history_policy import HistoryPolicy as HistoryPolicy
from .._history_policy import Rewrite as Rewrite
from .._history_policy import SummaryRequest as SummaryRequest
from ._budget import DROPPED_RESULT as DROPPED_RESULT
from ._budget import Budget as Budget
from ._images import DROPPED_IMAGE as DROPPED_IMAGE
from ._summarize import Summarize as Summarize
from ._thinking import Compact as Compact
from ._thinking import Keep as Keep
from ._thinking import Strip as Strip

_POLICIES: dict[str, type[HistoryPolicy]] = {
    policy.name: policy for policy in (Keep, Strip, Compact, Budget, Summarize)
}


def is_named(policy: HistoryPolicy) -> bool:
    """Return whether `get_history` can make the policy from its name."""
    return _POLICIES.get(policy.name) is type(policy)


def get_history(value: "str | Mapping[str, Any] | HistoryPolicy") -> HistoryPolicy:
    """Return a history policy, given as an object, a name, or a name with options.

    Args:
        value: A policy; a name (`"keep"`); or a name with options (`{"name": "compact", "every": 10}`, or
            `"compact:every=10"`).

    Raises:
        UnknownName: If no policy has that name.
        ConfigError: If an option is missing, unknown or out of range.
    """
    if isinstance(value, HistoryPolicy):
        return value
    if not isinstance(value, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"history is {value!r:.80}; expected a name, a name with options, or a HistoryPolicy object")
    given = specification(value) if isinstance(value, str) else value
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if name not in _POLICIES:
        raise unknown_name(
            "history policy", name, _POLICIES, "Pass a policy of your own as an object: history=MyPolicy(...)"
        )
    try:
        return _POLICIES[name](**options)
    except ValidationError as error:
        known = ", ".join(_POLICIES[name].model_fields) or "none"
        raise ConfigError(f"history policy {name!r}: {what_is_invalid(error)}. Its options: {known}") from error
