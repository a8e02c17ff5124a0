"""OpenTelemetry: what the SDK's exporter sends to a receiver of OTLP over HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from envsdk import Action
from envsdk.errors import ConfigError
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.rollouts import Rollouts

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TRACE_ID, SPAN_ID = bytes.fromhex("a" * 32), bytes.fromhex("b" * 16)
SECRET = "swordfish"


class Receiver:
    """Takes spans over OTLP, and keeps them with the resources that they came with."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                receiver.headers.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
                for resource in request.resource_spans:
                    receiver.resources.append(attributes_of(resource.resource))
                    receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def attributes_of(holder: Any) -> dict[str, Any]:
    def value(any_value: AnyValue) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(each) for each in found.values] if kind == "array_value" else found

    return {each.key: value(each.value) for each in holder.attributes}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.delenv(CAPTURE, raising=False)
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


def run(env: Any = "envsdk/Calculator-v1", policy: Any = "reference", **options: Any) -> Any:
    return Rollouts(env, policy, **{"seeds": [0], "log_to": "otel", **options}).run()


def test_the_spans_of_an_episode_have_the_names_and_attributes_of_the_conventions(receiver: Receiver) -> None:
    (trajectory,) = run()
    (episode,) = receiver.named("invoke_agent envsdk/Calculator-v1")
    found = attributes_of(episode)
    assert (found["gen_ai.operation.name"], found["gen_ai.agent.name"]) == ("invoke_agent", "envsdk/Calculator-v1")
    assert (found["envsdk.reward"], found["envsdk.status"], found["envsdk.seed"]) == (1.0, "terminated", 0)
    assert {span.trace_id for span in receiver.spans} == {episode.trace_id}
    assert {attributes_of(span)["gen_ai.conversation.id"] for span in receiver.spans} == {trajectory.id}
    by_id = {span.span_id: span for span in receiver.spans}
    for span in receiver.spans:
        if span is not episode:
            parent = by_id[span.parent_span_id]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    steps, chats = receiver.named("step"), receiver.named("chat ReplyPolicy")
    assert len(steps) == len(chats) == len(trajectory.steps)
    for chat, step in zip(chats, trajectory.steps, strict=True):
        found = attributes_of(chat)
        assert (chat.kind, found["gen_ai.operation.name"]) == (Span.SPAN_KIND_CLIENT, "chat")
        assert found["gen_ai.usage.output_tokens"] == step.stop - step.action_start
        assert found["gen_ai.usage.input_tokens"] > 0
        assert (found["gen_ai.response.finish_reasons"], found["gen_ai.request.temperature"]) == (["stop"], 1.0)
        assert by_id[chat.parent_span_id] in steps
    calls = receiver.named("execute_tool calculate")
    assert len(calls) == sum(step.metrics["tool_calls"] for step in trajectory.steps)
    assert attributes_of(calls[0])["gen_ai.tool.name"] == "calculate"
    assert {by_id[call.parent_span_id].name for call in calls} == {"envsdk/Calculator-v1.respond"}


@pytest.mark.parametrize("value", [None, "false", "NO_CONTENT"])
def test_content_is_not_sent(value: str | None, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(CAPTURE, value)
    run()
    assert receiver.spans
    assert not [
        name for span in receiver.spans for name in attributes_of(span) if name.endswith((".messages", "result"))
    ]


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY"])
def test_content_is_sent_on_request(value: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, value)
    run()
    found = attributes_of(receiver.named("chat ReplyPolicy")[1])
    roles = [message["role"] for message in json.loads(found["gen_ai.input.messages"])]
    assert roles == ["system", "user", "assistant", "tool"]
    (output,) = json.loads(found["gen_ai.output.messages"])
    assert [part["type"] for part in output["parts"]] == ["reasoning", "tool_call"]
    call = attributes_of(receiver.named("execute_tool calculate")[1])
    assert json.loads(call["gen_ai.tool.call.arguments"]) == output["parts"][1]["arguments"]
    assert call["gen_ai.tool.call.result"]


def test_the_variables_of_opentelemetry_configure_it(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-run")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "wandb.entity=team,wandb.project=p")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/agents/otel/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mlflow-experiment-id=7")
    run()
    assert {(head["path"], head["x-mlflow-experiment-id"]) for head in receiver.headers} == {
        ("/agents/otel/v1/traces", "7")
    }
    assert {(each["service.name"], each["wandb.entity"]) for each in receiver.resources} == {("my-run", "team")}


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="expected 'http/protobuf'"):
        run()


def test_no_span_is_lost_when_many_episodes_end_together(receiver: Receiver) -> None:
    trajectories = run("envsdk/GuessNumber-v1", seeds=range(150), max_concurrency=150)
    assert len(receiver.named("step")) == sum(len(one.steps) for one in trajectories)
    assert len(receiver.named("invoke_agent envsdk/GuessNumber-v1")) == 150


def failing(prompt: np.ndarray, **_: object) -> Action:
    raise ValueError(SECRET)


failing.tokenizer = "any"  # type: ignore[attr-defined]


def test_an_error_has_its_type_and_no_text(receiver: Receiver) -> None:
    (trajectory,) = run(policy=failing)
    assert SECRET in trajectory.error
    (chat,) = receiver.named("chat failing")
    assert chat.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(chat)["error.type"] == "ValueError"
    assert not any(SECRET in str(span) for span in receiver.spans)


def test_a_receiver_that_fails_does_not_fail_an_episode(receiver: Receiver) -> None:
    receiver.status = 400
    (trajectory,) = run()
    assert trajectory.status == "terminated"
    assert receiver.headers


class Program(ProgramEnv):
    def run(self, model: Endpoint) -> float:
        traceparent = f"00-{TRACE_ID.hex()}-{SPAN_ID.hex()}-01"
        headers = {"authorization": f"Bearer {model.api_key}", "traceparent": traceparent}
        body = {"messages": [{"role": "user", "content": SECRET}], "model": "m"}
        for sent in (headers, {**headers, "traceparent": "nonsense"}):
            response = httpx.post(f"{model.base_url}/chat/completions", json=body, headers=sent)
            response.raise_for_status()
        return 1.0


def test_a_request_continues_the_trace_of_its_client(receiver: Receiver) -> None:
    run(Program, "random", env_options={"tokenizer": "embedded"})
    continued, own = receiver.named("POST /s/{session_id}/v1/chat/completions")
    (episode,) = receiver.named("invoke_agent Program")
    (program,) = receiver.named("program Program")
    assert (continued.trace_id, continued.parent_span_id, continued.kind) == (TRACE_ID, SPAN_ID, Span.SPAN_KIND_SERVER)
    assert [(link.trace_id, link.span_id) for link in continued.links] == [(episode.trace_id, program.span_id)]
    assert (own.trace_id, own.parent_span_id) == (episode.trace_id, program.span_id)
    assert attributes_of(continued)["http.response.status_code"] == 200
    chats = [span for span in receiver.spans if span.name.startswith("chat ")]
    assert [chat.parent_span_id for chat in chats] == [continued.span_id, own.span_id]
    assert not any(SECRET in str(span) for span in receiver.spans)
