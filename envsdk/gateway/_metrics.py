"""What a gateway counts, for Prometheus. No content, no key and no id of a session is a label."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ._requests import ModelReply

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one gateway, in a registry of their own.

    Args:
        open_sessions: Returns how many sessions are open.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, open_sessions: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "envsdk_gateway_requests", "Requests that were answered", ["protocol", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "envsdk_gateway_request_seconds",
            "From the first byte of a request to the last one of its answer",
            ["protocol"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._prompt_tokens = Counter(
            "envsdk_gateway_prompt_tokens", "Tokens of prompts", ["protocol"], registry=self.registry
        )
        self._sampled_tokens = Counter(
            "envsdk_gateway_sampled_tokens", "Tokens of replies", ["protocol"], registry=self.registry
        )
        self._abandoned = Counter(
            "envsdk_gateway_abandoned_requests", "Requests whose client went away", ["protocol"], registry=self.registry
        )
        self._closed = Counter("envsdk_gateway_closed_sessions", "Closed sessions", ["reason"], registry=self.registry)
        gauge = Gauge("envsdk_gateway_open_sessions", "Open sessions", registry=self.registry)
        gauge.set_function(open_sessions)

    def answered(self, protocol: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(protocol, status).inc()
        self._seconds.labels(protocol).observe(seconds)

    def replied(self, protocol: str, replies: Sequence[ModelReply]) -> None:
        """Count the tokens of the replies to one request, which have one prompt."""
        if replies:
            self._prompt_tokens.labels(protocol).inc(replies[0].prompt_tokens)
            self._sampled_tokens.labels(protocol).inc(sum(len(reply.tokens) for reply in replies))

    def abandoned(self, protocol: str) -> None:
        """Count a request whose client went away before it had the whole answer."""
        self._abandoned.labels(protocol).inc()

    def closed(self, reason: str) -> None:
        """Count a closed session."""
        self._closed.labels(reason).inc()

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
