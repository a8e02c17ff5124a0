"""What the toy policies of tests declare."""

from collections.abc import Callable
from typing import Any, TypeVar

from envsdk.policies._vocabularies import ANY_TOKENIZER

_Policy = TypeVar("_Policy", bound=Callable[..., Any])


def in_any_vocabulary(policy: _Policy) -> _Policy:
    """Declare that a policy answers in any vocabulary, also in one that nobody chose."""
    policy.tokenizer = ANY_TOKENIZER  # type: ignore[attr-defined]
    return policy
