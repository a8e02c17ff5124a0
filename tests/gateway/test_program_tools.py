"""Tools that are not functions: they are functions of the model, and the program gets its calls in its own form."""

import contextlib
import json
from typing import Any, ClassVar

import anthropic
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from wire_clients import CREATED, SETTINGS, Wire, a_call, a_reply, anthropic_client, openai_client

from envsdk import Message, rollout
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._protocols import WIRE_FORMATS
from envsdk.messages import ToolCall

OBJECT: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "string"}}}
WAIT: dict[str, Any] = {"type": "function", "name": "wait", "description": "Wait.", "parameters": OBJECT}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "patch",
    "description": "Patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CODEX: list[Any] = [
    {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [WAIT, PATCH]},
    PATCH,
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client", "description": "Search.", "parameters": OBJECT},
]
SERVER: list[Any] = [
    {"type": "web_search", "external_web_access": True},
    {"type": "mcp", "server_label": "docs", "server_url": "https://example.com"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
]
CALLS: list[tuple[ToolCall, dict[str, Any]]] = [
    (
        a_call("call_1", "agents__wait", {"id": "a"}),
        {"type": "function_call", "name": "wait", "namespace": "agents", "arguments": '{"id":"a"}'},
    ),
    (
        a_call("call_2", "agents__patch", {"input": "*** x\n"}),
        {"type": "custom_tool_call", "name": "patch", "namespace": "agents", "input": "*** x\n"},
    ),
    (a_call("call_3", "patch", {"input": ""}), {"type": "custom_tool_call", "name": "patch", "input": ""}),
    (
        a_call("call_4", "local_shell", {"command": ["ls"]}),
        {"type": "local_shell_call", "action": {"type": "exec", "env": {}, "command": ["ls"]}},
    ),
    (
        a_call("call_5", "shell", {"commands": ["ls"], "timeout_ms": 1}),
        {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 1}},
    ),
    (
        a_call("call_6", "apply_patch", {"type": "delete_file", "path": "a"}),
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
    ),
    (
        a_call("call_7", "tool_search", {"query": "x"}),
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
    ),
    (
        a_call("call_9", "patch", {"patch": "x"}),
        {"type": "custom_tool_call", "name": "patch", "input": '{"patch":"x"}'},
    ),
    (a_call("call_10", "patch", "x"), {"type": "custom_tool_call", "name": "patch", "input": "x"}),
    (a_call("call_8", "unknown", {}), {"type": "function_call", "name": "unknown", "arguments": "{}"}),
]


@pytest.mark.parametrize("is_streamed", [pytest.param(False, marks=pytest.mark.full), True], ids=["plain", "streamed"])
def test_calls_have_the_form_of_their_tools_and_are_read_back(is_streamed: bool) -> None:
    wire = WIRE_FORMATS["responses"]
    body = {"model": "m", "input": "Hi", "tools": [*CODEX, *SERVER]}
    request = wire.read(body, {})
    assert [tool["function"]["name"] for tool in request.tools] == [call.name for call, _ in CALLS[:-3]]
    assert request.left_out == ["web_search", "mcp", "shell", "tool_search"]
    reply = a_reply("ok", reasoning="r", calls=[call for call, _ in CALLS])
    if is_streamed:
        events = [event.partition(b"data: ")[2] for event in wire.events(request, body, [reply], CREATED)]
        for event in events:
            TypeAdapter[Any](ResponseStreamEvent).validate_json(event)
        output = json.loads(events[-1])["response"]["output"]
        done = [json.loads(event) for event in events if b'"response.output_item.done"' in event]
        assert [event["item"] for event in done] == output
    else:
        output = wire.write(request, body, [reply], CREATED)["output"]
    written = output[2:]
    assert [call["call_id"] for call in written] == [call.id for call, _ in CALLS]
    assert [{key: call[key] for key in shown} for call, (_, shown) in zip(written, CALLS, strict=True)] == [
        shown for _, shown in CALLS
    ]
    back = wire.read({**body, "input": [{"role": "user", "content": "Hi"}, *output]}, {})
    assert back.messages[1].message == reply.message and back.messages[1].link == "r1"


def test_results_of_all_calls_are_results_of_tools() -> None:
    outputs: list[Any] = [
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "local_shell_call_output", "id": "c2", "output": "files"},
        {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a", "stderr": ""}]},
        {"type": "apply_patch_call_output", "call_id": "c4", "status": "failed", "output": "no such file"},
        {"type": "tool_search_output", "call_id": "c5", "tools": CODEX[:1]},
    ]
    request = WIRE_FORMATS["responses"].read({"model": "m", "input": outputs}, {})
    results = [received.message for received in request.messages]
    assert [(result.role, result.tool_call_id) for result in results] == [("tool", f"c{i}") for i in range(1, 6)]
    assert [result.content for result in results[:4]] == [
        "done",
        "files",
        '[{"stdout": "a", "stderr": ""}]',
        "failed\nno such file",
    ]
    assert [tool["name"] for tool in json.loads(results[4].content)] == ["agents__wait", "agents__patch"]
    assert request.tools == [] and request.given_tools["agents__wait"].namespace == "agents"


def test_tools_among_the_items_are_tools_and_messages_of_agents_are_those_of_a_user() -> None:
    items = [
        {"type": "additional_tools", "role": "developer", "tools": [CODEX[0], SERVER[0]]},
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"type": "web_search_call", "id": "ws_1", "action": {}},
        {"type": "compaction", "encrypted_content": "x"},
        {
            "type": "agent_message",
            "author": "/root",
            "recipient": "/root/t",
            "content": [
                {"type": "input_text", "text": "New task:\n"},
                {"type": "encrypted_content", "encrypted_content": "Count"},
            ],
        },
    ]
    request = WIRE_FORMATS["responses"].read({"model": "m", "input": items, "tools": [PATCH]}, {})
    assert [tool["function"]["name"] for tool in request.tools] == ["patch", "agents__wait", "agents__patch"]
    assert request.system == "Be brief."
    assert [(one.message.role, one.message.content) for one in request.messages] == [("user", "New task:\nCount")]
    assert request.left_out == ["web_search_call", "compaction", "web_search"]


def test_a_custom_tool_of_chat_completions_is_called_with_its_input() -> None:
    wire = Wire("chat")
    client: Any = openai_client(wire)
    tool = {"type": "custom", "custom": {key: PATCH[key] for key in ("name", "description")}}
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    reply = a_reply(calls=[a_call("call_1", "patch", {"input": "a\nb"}), a_call("call_2", "patch", "broken")])
    wire.answers(reply)
    message = client.chat.completions.create(**asked).choices[0].message
    assert [call.custom.input for call in message.tool_calls] == ["a\nb", "broken"]
    wire.answers(a_reply("ok"))
    client.chat.completions.create(**{**asked, "messages": [*asked["messages"], message]})
    assert wire.last.messages[1].message.tool_calls[0] == reply.message.tool_calls[0]
    assert wire.last.tools[0]["function"]["parameters"]["required"] == ["input"]
    events = [event.removeprefix(b"data: ") for event in wire.format.events(wire.last, asked, [reply], CREATED)]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    inputs = ["".join(call["custom"]["input"] for call in calls if call["index"] == index) for index in (0, 1)]
    assert inputs == ["a\nb", "broken"] and [call["id"] for call in calls if "id" in call] == ["call_1", "call_2"]


def test_tools_of_anthropic_that_the_program_runs_are_functions_and_those_of_its_server_are_left_out() -> None:
    wire = Wire("anthropic")
    client = anthropic_client(wire)
    wire.answers(a_reply(calls=[a_call("call_1", "bash", {"command": "ls"})]))
    content: list[Any] = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "Found."},
        {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls"}},
    ]
    document: Any = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }
    found: Any = {"type": "search_result", "title": "S", "source": "s.txt", "content": [{"type": "text", "text": "x"}]}
    result: Any = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "tool_reference", "tool_name": "f"}]}
    tools: list[Any] = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    message = client.messages.create(
        model="m",
        max_tokens=9,
        tools=tools,
        messages=[
            {"role": "user", "content": [document, found]},
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result]},
        ],
        extra_body={"mcp_servers": [{"type": "url", "name": "docs", "url": "https://example.com"}]},
    )
    assert isinstance(message.content[0], anthropic.types.ToolUseBlock) and message.content[0].name == "bash"
    assert [tool["function"]["name"] for tool in wire.last.tools] == ["bash", "str_replace_based_edit_tool"]
    items = ["server_tool_use", "web_search_tool_result"]
    assert wire.last.left_out == ["web_search_20250305", "code_execution_20250825", *items, "mcp_servers"]
    read = [received.message for received in wire.last.messages]
    assert (read[0].content, read[1].content) == ("T\nDS\ns.txt\nx", "Found.")
    assert read[2].content == "The tool f is available."


def test_what_was_left_out_and_what_was_asked_is_recorded_with_the_reply() -> None:
    class Searching(ProgramEnv):
        sampling: ClassVar[Any] = {"temperature": 1.0}

        def run(self, model: Endpoint) -> float:
            settings = {**SETTINGS, "base_url": model.base_url, "api_key": model.api_key}
            with openai.OpenAI(**settings) as client:
                asked: list[Any] = [{"role": "user", "content": "Hi"}]
                for _ in range(2):
                    tools: Any = [*CODEX, *SERVER]
                    response = client.responses.create(model="m", input=asked, tools=tools, temperature=0.2)
                    assert response.usage is not None
                    encode = self.renderer.tokenizer.encode  # the dot is in one token with the line's end
                    assert response.usage.output_tokens_details.reasoning_tokens == len(encode("Hm"))
                    call = response.output[-1]
                    assert call.type == "custom_tool_call" and (call.namespace, call.input) == ("agents", "abc")
                    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "-"}
                    asked += [*response.output, result]
            return 1.0

        def null_reply(self) -> Message:
            call = ToolCall(name="agents__patch", arguments={"input": "abc"})
            return Message(role="assistant", content="", reasoning="Hm.", tool_calls=[call])

    with contextlib.closing(Searching(renderer="qwen3", tokenizer="embedded")) as env:
        trajectory = rollout(env, "null", seed=0)
    assert trajectory.reward == 1.0, trajectory.error
    notes = {"left_out": ["web_search", "mcp", "shell", "tool_search"], "sampling": {"temperature": 0.2}}
    assert [step.parts[-1].extra for step in trajectory.steps] == [{"request": notes}] * 2
    assert trajectory.breaks == [] and len(trajectory.samples()) == 1
