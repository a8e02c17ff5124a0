"""Sends the spans of episodes over OTLP, named after OpenTelemetry's semantic conventions for generative AI.

The conventions are in https://github.com/open-telemetry/semantic-conventions-genai. A program continues its own trace
in the gateway with the headers of W3C Trace Context, `traceparent` and `tracestate`.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from .._packages import load
from .._spans import EpisodeSpan
from .._visible import brief, shorten
from ..errors import ConfigError
from ..messages import Message, text_of
from ._reporting import Reporter

_log = logging.getLogger(__name__)
_MAX_EPISODES = 10_000
"""The maximum number of episodes that wait to be sent; the oldest ones are dropped."""
_FLUSH_SPANS = 500
"""The number of spans after which they are sent: the SDK drops those that do not fit into its queue."""
_ATTRIBUTES = {
    "call_id": "gen_ai.tool.call.id",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "context": "envsdk.context",
    "env": "envsdk.env",
    "error_kind": "envsdk.error_kind",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "group_id": "envsdk.group_id",
    "id": "envsdk.request_id",
    "max_tokens": "gen_ai.request.max_tokens",
    "method": "http.request.method",
    "policy_version": "envsdk.policy_version",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "provider": "gen_ai.provider.name",
    "reward": "envsdk.reward",
    "sampled_tokens": "gen_ai.usage.output_tokens",
    "scored_reward": "envsdk.reward",
    "seed": "envsdk.seed",
    "status": "envsdk.status",
    "stop": "gen_ai.request.stop_sequences",
    "stop_reason": "envsdk.stop_reason",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}
"""The attribute that each fact of a span becomes."""


class OtelTracker(Reporter):
    """Sends the spans of episodes over OTLP (HTTP with protobuf), as OpenTelemetry's environment variables specify.

    Args:
        where: Empty; the variables specify where the spans go.
    """

    name = "otel"
    every_s = 1.0
    end_s = 60.0

    def __init__(self, where: str) -> None:
        if where:
            raise ConfigError(
                f"log_to is 'otel:{shorten(where, 60)}'; expected 'otel': OpenTelemetry's environment variables, "
                "such as OTEL_EXPORTER_OTLP_ENDPOINT, specify where the spans go"
            )
        protocols = (os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("TRACES_PROTOCOL", "PROTOCOL"))
        protocol = next(filter(None, protocols), "http/protobuf")
        if protocol != "http/protobuf":
            raise ConfigError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {brief(protocol)}; expected 'http/protobuf', or unset it"
            )
        what, advice = "log_to='otel' needs", "pip install 'envsdk[otel]'"
        self._sdk = load("opentelemetry.sdk.trace", what, advice)
        self._export = load("opentelemetry.sdk.trace.export", what, advice)
        self._otlp = load("opentelemetry.exporter.otlp.proto.http.trace_exporter", what, advice)
        self._trace = load("opentelemetry.trace", what, advice)
        self._propagator = load("opentelemetry.trace.propagation.tracecontext", what, advice)
        captured = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").lower()
        self.spans = "content" if captured in ("true", "span_only", "span_and_event") else "timing"
        self._episodes: deque[EpisodeSpan] = deque(maxlen=_MAX_EPISODES)
        self._dropped = self._unsent = 0
        self._provider: Any = None

    @override
    def begin(self) -> None:
        """See `Reporter`."""
        resource = self._sdk.Resource.create()  # of the environment variables
        if resource.attributes["service.name"].startswith("unknown_service"):
            resource = resource.merge(self._sdk.Resource({"service.name": "envsdk"}))
        self._provider = self._sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._export.BatchSpanProcessor(self._otlp.OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("envsdk")

    @override
    def take(self, spans: Sequence[EpisodeSpan]) -> None:
        """See `Reporter`."""
        for span in spans:
            self._dropped += len(self._episodes) == _MAX_EPISODES
            self._episodes.append(span)

    @override
    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Send the spans of the episodes that have ended."""
        while self._episodes:
            span = self._episodes.popleft()
            self._send(span, {}, span)
        self._provider.force_flush()

    @override
    def end(self) -> None:
        """See `Reporter`."""
        if self._dropped:
            _log.warning(
                "otel: the spans of %d episodes were dropped: they ended faster than they were sent", self._dropped
            )
        self._provider.shutdown()

    def _send(self, span: EpisodeSpan, context: Any, episode: EpisodeSpan) -> None:
        """Make an OpenTelemetry span of a span, and of those inside it.

        Args:
            span: The span.
            context: The OpenTelemetry context of its parent.
            episode: The span of its episode.
        """
        name, kind, attributes = _described(span)
        attributes["gen_ai.conversation.id"] = episode.name
        links: list[Any] = []
        caller = self._propagator.TraceContextTextMapPropagator().extract(span.facts.get("carrier", {}), {})
        if self._trace.get_current_span(caller).get_span_context().is_valid:
            links.append(self._trace.Link(self._trace.get_current_span(context).get_span_context()))
            context = caller
        kind = self._trace.SpanKind[kind]
        began_ns = int(span.began_s * 1e9)
        made = self._tracer.start_span(name, context, kind, attributes, links, began_ns)
        inside = self._trace.set_span_in_context(made, {})
        for child in span.children:
            self._send(child, inside, episode)
        if span.error is not None:
            made.set_attribute("error.type", span.error)
            made.set_status(self._trace.StatusCode.ERROR)
        made.end(int((span.ended_s or episode.ended_s or span.began_s) * 1e9))
        self._unsent += 1
        if self._unsent >= _FLUSH_SPANS:
            self._unsent = 0
            self._provider.force_flush()


def _described(span: EpisodeSpan) -> tuple[str, str, dict[str, Any]]:
    """Return the name, the kind and the attributes of an OpenTelemetry span."""
    name, kind, facts = span.name, "INTERNAL", {**span.facts.get("sampling", {}), **span.facts}
    own: dict[str, Any] = {}
    match span.kind:
        case "episode" | "agent":
            agent = facts["env"] if span.kind == "episode" else name
            own = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
            name = f"invoke_agent {agent}"
        case "step":
            name, own = "step", {"envsdk.context": name}
        case "policy":
            own = {"gen_ai.operation.name": "chat", "gen_ai.request.model": name}
            if "finish_reason" in facts:
                own["gen_ai.response.finish_reasons"] = [facts["finish_reason"]]
            if "input" in facts:
                own["gen_ai.input.messages"] = json.dumps([_as_json(message) for message in facts["input"]])
            if "output" in facts:
                output = {**_as_json(facts["output"]), "finish_reason": facts["finish_reason"]}
                own["gen_ai.output.messages"] = json.dumps([output])
            name, kind = f"chat {name}", "CLIENT"
        case "tool":
            own = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
            if "result" in facts:
                result = facts["result"]
                own["gen_ai.tool.call.arguments"] = json.dumps(facts["arguments"])
                own["gen_ai.tool.call.result"] = result if isinstance(result, str) else text_of(result)
            name = f"execute_tool {name}"
        case "request":
            own = {"http.route": name, "http.response.status_code": facts.pop("status", None)}
            name, kind = f"{facts['method']} {name}", "SERVER"
        case "method":
            own, name = {"code.function.name": name}, f"{facts['env']}.{name}"
        case "program":
            name = f"program {name}"
    own |= {_ATTRIBUTES[fact]: value for fact, value in facts.items() if fact in _ATTRIBUTES}
    for attribute, value in own.items():
        if isinstance(value, int) and abs(value) >= 2**63:  # OTLP has no larger integers
            own[attribute] = str(value)
    return name, kind, {attribute: value for attribute, value in own.items() if value not in (None, (), [])}


def _as_json(message: Message) -> dict[str, Any]:
    """Return a message in the form of `gen_ai.input.messages`."""
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    elif message.content:
        parts.append({"type": "text", "content": message.content})
    parts += [{"type": "image"} for _ in message.images]
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}
