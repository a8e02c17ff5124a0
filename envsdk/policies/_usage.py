"""Counts what a policy's requests to its servers took."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Usage:
    """The requests of a policy since it was created."""

    requests: int = 0
    """Requests that were sent, retries included."""
    retries: Counter[str] = field(default_factory=Counter[str])
    """Retries by cause: `connection`, `timeout`, `partial` (a response that is not complete JSON), or the status of the
    response, such as `429`."""
    prompt_tokens: int = 0
    """Prompt tokens of answered requests."""
    cached_tokens: int | None = None
    """Those of them that the servers read from their caches; None until a server has reported any."""
    sampled_tokens: int = 0
    """Tokens that the servers sampled in answered requests."""
    seconds: float = 0.0
    """The total duration of all requests."""
    price: float = 0.0
    """What the tokens cost, if prices were given."""
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def sent(self, seconds: float) -> None:
        """Count a request that has ended, in any way."""
        with self._lock:
            self.requests += 1
            self.seconds += seconds

    def answered(
        self, prompt_tokens: int, sampled_tokens: int, price: float = 0.0, cached_tokens: int | None = None
    ) -> None:
        """Count an answer."""
        with self._lock:
            self.prompt_tokens += prompt_tokens
            self.sampled_tokens += sampled_tokens
            self.price += price
            if cached_tokens is not None:
                self.cached_tokens = (self.cached_tokens or 0) + cached_tokens

    def retried(self, cause: str) -> None:
        """Count a retry."""
        with self._lock:
            self.retries[cause] += 1

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as a dict, for JSON."""
        names = ("requests", "retries", "prompt_tokens", "cached_tokens", "sampled_tokens", "seconds", "price")
        with self._lock:
            return {name: dict(self.retries) if name == "retries" else getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        return Usage, ()  # a copy in another process counts its own requests
