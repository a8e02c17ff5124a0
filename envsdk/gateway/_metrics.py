"""The metrics of a gateway, for Prometheus. No label has content, a key, or the id of a session."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ._requests import ModelReply

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one gateway, in a separate registry.

    Args:
        open_sessions: Returns how many sessions are open.

    Attributes:
        registry: The registry of the metrics.
        requests: The requests that were answered, by protocol and status.
        seconds: From the first byte of a request to the last one of its answer, by protocol.
        abandoned: The requests whose client disconnected before it received the whole answer, by protocol.
        closed: The closed sessions, by the reason.
    """

    def __init__(self, open_sessions: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        protocol, prefix = ["protocol"], "envsdk_gateway"
        self.requests = Counter(
            f"{prefix}_requests", "Requests that were answered", ["protocol", "status"], registry=registry
        )
        self.seconds = Histogram(
            f"{prefix}_request_seconds",
            "From the first byte of a request to the last one of its answer",
            protocol,
            buckets=_SECONDS,
            registry=registry,
        )
        self._prompt_tokens = Counter(f"{prefix}_prompt_tokens", "Tokens of prompts", protocol, registry=registry)
        self._sampled_tokens = Counter(f"{prefix}_sampled_tokens", "Tokens of replies", protocol, registry=registry)
        self.abandoned = Counter(
            f"{prefix}_abandoned_requests", "Requests whose client disconnected", protocol, registry=registry
        )
        self.closed = Counter(f"{prefix}_closed_sessions", "Closed sessions", ["reason"], registry=registry)
        gauge = Gauge(f"{prefix}_open_sessions", "Open sessions", registry=registry)
        gauge.set_function(open_sessions)

    def replied(self, protocol: str, replies: Sequence[ModelReply]) -> None:
        """Count the tokens of the replies to one request, which share a prompt."""
        if replies:
            self._prompt_tokens.labels(protocol).inc(replies[0].prompt_tokens)
            self._sampled_tokens.labels(protocol).inc(sum(len(reply.tokens) for reply in replies))
