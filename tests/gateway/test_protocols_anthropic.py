"""Anthropic Messages, read and written for the real `anthropic` package."""

import asyncio
from typing import Any

import anthropic
import pytest
from wire_clients import (
    REPLIES,
    Wire,
    a_call,
    a_reply,
    anthropic_client,
    as_sent_back,
    async_anthropic_client,
    each_reply,
)

from envsdk import Message
from envsdk.errors import RequestError
from envsdk.gateway._protocols import WIRE_FORMATS, SessionMemory
from envsdk.gateway._requests import ModelReply

TOOLS: list[Any] = [{"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {}}}]
HI: list[Any] = [{"role": "user", "content": "Hi"}]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
SETTINGS: dict[str, Any] = {"model": "policy", "max_tokens": 100, "tools": TOOLS, "thinking": THINKING}
REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def check_received(received: anthropic.types.Message, reply: ModelReply) -> None:
    found = {kind: [block for block in received.content if block.type == kind] for kind in ("thinking", "text")}
    assert "".join(block.text for block in found["text"]) == reply.message.content
    assert "".join(block.thinking for block in found["thinking"]) == (reply.message.reasoning or "")
    calls = [block for block in received.content if block.type == "tool_use"]
    assert [(call.id, call.name) for call in calls] == [(call.id, call.name) for call in reply.message.tool_calls]
    assert [call.input for call in calls] == [
        {"INVALID_JSON": call.arguments} if isinstance(call.arguments, str) else call.arguments
        for call in reply.message.tool_calls
    ]
    assert received.stop_reason == REASONS[reply.finish_reason]
    assert (received.usage.input_tokens, received.usage.output_tokens) == (7, 4)
    assert (received.id, received.model) == ("msg_r1", "policy")


def check_sent_back(wire: Wire, content: Any, reply: ModelReply) -> None:
    wire.answers(a_reply("ok"))
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "3"} for call in reply.message.tool_calls]
    more: list[Any] = [
        {"role": "assistant", "content": content},
        {"role": "user", "content": [*results, {"type": "text", "text": "Go on"}]},
    ]
    anthropic_client(wire).messages.create(**SETTINGS, messages=HI + more)
    assert [received.message for received in wire.last.messages[1:]] == [
        as_sent_back(reply),
        *(Message(role="tool", tool_call_id=call.id, content="3") for call in reply.message.tool_calls),
        Message(role="user", content="Go on"),
    ]
    assert wire.last.messages[1].link == (reply.id if reply.message.reasoning else None)
    assert wire.last.messages[-1].raw == more[1]


@pytest.mark.matrix
@each_reply
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_the_anthropic_client_receives_a_reply_and_sends_it_back(reply: ModelReply, is_streamed: bool) -> None:
    wire = Wire("anthropic")
    wire.answers(reply)
    if is_streamed:
        with anthropic_client(wire).messages.stream(**SETTINGS, messages=HI) as stream:
            received = stream.get_final_message()
    else:
        received = anthropic_client(wire).messages.create(**SETTINGS, messages=HI)
    check_received(received, reply)
    check_sent_back(wire, received.content, reply)


def test_the_client_reads_the_stop_string_that_ended_a_reply() -> None:
    wire = Wire("anthropic")
    wire.answers(a_reply("Hello", stop_sequence="\n\n"))
    received = anthropic_client(wire).messages.create(**SETTINGS, messages=HI)
    assert (received.stop_reason, received.stop_sequence) == ("stop_sequence", "\n\n")


def test_events_come_in_the_order_that_clients_expect() -> None:
    wire = Wire("anthropic")
    wire.answers(REPLIES["text and two calls"])

    async def types() -> list[str]:
        client = async_anthropic_client(wire)
        return [event.type async for event in await client.messages.create(**SETTINGS, messages=HI, stream=True)]

    found = asyncio.run(types())
    assert found[0] == "message_start" and found[-2:] == ["message_delta", "message_stop"]
    assert [type_ for type_ in found[1:-2] if type_ != "content_block_delta"] == [
        *("content_block_start", "content_block_stop") * 4
    ]
    assert wire.events[1].startswith(b"event: ping\n")


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
def test_a_program_that_did_not_ask_for_thinking_gets_text_first(thinking: Any) -> None:
    wire = Wire("anthropic")
    wire.answers(REPLIES["reasoning"])
    settings = {**SETTINGS, "thinking": thinking} if thinking else {"model": "policy", "max_tokens": 5}
    received = anthropic_client(wire).messages.create(**settings, messages=HI)
    assert [block.type for block in received.content] == ["text"]


def test_omitted_thinking_still_identifies_the_reply() -> None:
    wire = Wire("anthropic")
    wire.answers(REPLIES["reasoning"])
    settings = {**SETTINGS, "thinking": {"type": "adaptive", "display": "omitted"}}
    received = anthropic_client(wire).messages.create(**settings, messages=HI)
    [thinking, _] = received.content
    assert thinking.type == "thinking" and thinking.thinking == ""
    wire.answers(a_reply("ok"))
    anthropic_client(wire).messages.create(
        **settings, messages=[*HI, {"role": "assistant", "content": received.content}, *HI]
    )
    assert wire.last.messages[1].link == "r1" and wire.last.messages[1].message.reasoning is None


def test_parameters_are_read() -> None:
    wire = Wire("anthropic")
    wire.answers(a_reply("ok"))
    cached: Any = {"cache_control": {"type": "ephemeral"}}
    anthropic_client(wire).messages.create(
        **{**SETTINGS, "tools": [{**TOOLS[0], **cached}]},
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi", **cached}]}],
        system=[{"type": "text", "text": "Be brief.", **cached}, {"type": "text", "text": "Be kind."}],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5},
        extra_headers={"x-envsdk-context": "main", "X-Envsdk-Role": "planner"},
    )
    request = wire.last
    assert request.system == "Be brief.\n\nBe kind."
    assert [received.message for received in request.messages] == [Message(role="user", content="Hi")]
    function = {"name": "add", "description": "Add.", "parameters": TOOLS[0]["input_schema"]}
    assert request.tools == [{"type": "function", "function": function}]
    assert (request.tool_choice, request.stop, request.max_tokens) == ({"name": "add"}, ("END",), 100)
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    assert (request.context, request.role) == ("main", "planner")


@pytest.mark.parametrize(("given", "read"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_choices_of_tools_are_read(given: str, read: str) -> None:
    body = {**SETTINGS, "messages": HI, "tool_choice": {"type": given}}
    assert WIRE_FORMATS["anthropic"].read(body, {}).tool_choice == read


def test_messages_are_read_in_each_form() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": texts},
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": "opaque"},
                    {"type": "thinking", "thinking": "one", "signature": "SIG"},
                    {"type": "thinking", "thinking": "two", "signature": ""},
                    *texts,
                    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": texts, "is_error": True},
                    {"type": "tool_result", "tool_use_id": "toolu_2"},
                    {"type": "text", "text": "Go on"},
                ],
            },
            {"role": "assistant", "content": []},
            {"role": "system", "content": "later"},
        ],
    }
    request = WIRE_FORMATS["anthropic"].read(body, {})
    assert [received.message for received in request.messages] == [
        Message(role="user", content=texts),
        Message(role="assistant", content=texts, reasoning="one\n\ntwo", tool_calls=(a_call("toolu_1", arguments={}),)),
        Message(role="tool", tool_call_id="toolu_1", content=texts),
        Message(role="tool", tool_call_id="toolu_2"),
        Message(role="user", content="Go on"),
        Message(role="assistant"),
        Message(role="system", content="later"),
    ]
    assert [received.link for received in request.messages] == [None] * 7


def user(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*blocks]}]}


def assistant(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": [*blocks]}, *HI]}


RESULT = {"type": "tool_result", "tool_use_id": "c"}
USE = {"type": "tool_use", "id": "c", "name": "add", "input": {}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "assistant", "content": [USE]}]}, "messages[1]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (user(), "messages[0].content"),
        (user({"type": "text", "text": "x"}, {"type": "image", "source": {}}), "messages[0].content[1].source.type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user(RESULT, RESULT), "messages[0].content"),
        (user({**RESULT, "tool_use_id": 5}), "messages[0].content[0].tool_use_id"),
        (user({**RESULT, "content": [{"type": "image"}]}), "messages[0].content[0].content[0].source"),
        (assistant(USE, USE), "messages[0].content"),
        (assistant({**USE, "input": "{}"}), "messages[0].content[0].input"),
        (assistant({**USE, "input": {"x": float("nan")}}), "messages[0].content[0]"),
        (user({"type": "document", "source": {"type": "url"}}), "messages[0].content[0].source"),
        (assistant({"type": "a\nb_tool_result"}), "messages[0].content[0].type"),
        (assistant({"type": "thinking", "thinking": "x", "signature": 3}), "messages[0].content[0].signature"),
        ({"tools": [{"type": "bash 2", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
        ({"tools": None, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"output_config": {"effort": "low", "format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"compaction": {}}, "compaction"),
        ({"thread": {"type": "fork"}}, "thread.type"),
        ({"thread": {"type": "continue"}}, "thread.previous_message_id"),
        ({"system": [{"type": "image"}]}, "system[0]"),
    ],
)
def test_what_is_wrong_or_unsupported_is_refused_and_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as found:
        WIRE_FORMATS["anthropic"].read({**SETTINGS, "messages": HI, **change}, {})
    assert (found.value.status, found.value.field) == (400, field)


def test_tokens_are_counted_without_a_limit() -> None:
    wire = Wire("anthropic")
    counted = anthropic_client(wire).messages.count_tokens(
        model="policy", messages=[*HI, {"role": "assistant", "content": "x"}], system="Be brief.", tools=TOOLS
    )
    assert counted.input_tokens == 42
    assert (wire.last.system, len(wire.last.messages), wire.last.max_tokens) == ("Be brief.", 2, None)


@pytest.mark.parametrize(
    ("status", "kind", "type_"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (413, anthropic.APIStatusError, "request_too_large"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_an_error_is_an_exception_of_the_client(status: int, kind: type[anthropic.APIStatusError], type_: str) -> None:
    wire = Wire("anthropic")
    wire.error = RequestError("9 tokens, but at most 8", status, "context_length_exceeded")
    with pytest.raises(kind) as found:
        anthropic_client(wire).messages.create(**SETTINGS, messages=HI)
    assert found.value.type == type_
    assert found.value.api_message == "prompt is too long: 9 tokens, but at most 8"


def test_an_error_within_a_stream_ends_it_with_an_exception() -> None:
    wire = Wire("anthropic")
    wire.answers(REPLIES["text"])
    wire.error, wire.cut_after = RequestError("the policy failed", 500), 4
    stream = anthropic_client(wire).messages.create(**SETTINGS, messages=HI, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="the policy failed"):
        list(stream)


def test_the_client_lists_models() -> None:
    assert [model.id for model in anthropic_client(Wire("anthropic")).models.list()] == ["policy"]


# Message threads: the tool runner sends only what is new.


def runner_of(wire: Wire) -> Any:
    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Add."""
        return str(a + b)

    messages = anthropic_client(wire).beta.messages
    return messages.tool_runner(model="policy", max_tokens=9, system="Be brief.", tools=[add], messages=HI)


def test_a_thread_has_the_messages_the_system_prompt_and_the_tools_of_its_first_request() -> None:
    wire = Wire("anthropic")
    wire.answers(a_reply("Let me.", calls=[a_call("call_1")]))
    wire.answers(a_reply("Once more.", id="r2", calls=[a_call("call_2", arguments={"a": 3, "b": 4})]))
    wire.answers(a_reply("3 and 7"))
    assert runner_of(wire).until_done().content[0].text == "3 and 7"
    assert [len(request.body["messages"]) for request in wire.requests] == [1, 1, 1]
    assert [(request.previous, request.system) for request in wire.requests] == [
        (None, "Be brief."),
        ("r1", "Be brief."),
        ("r2", "Be brief."),
    ]
    assert wire.last.tools == wire.requests[0].tools
    assert wire.last.tools
    assert [(one.message.role, one.message.content, one.link) for one in wire.last.messages] == [
        ("user", "Hi", None),
        ("assistant", "Let me.", "r1"),
        ("tool", "3", None),
        ("assistant", "Once more.", "r2"),
        ("tool", "7", None),
    ]


def test_a_thread_that_is_not_known_is_begun_anew_with_the_whole_conversation() -> None:
    wire = Wire("anthropic")
    wire.answers(a_reply(calls=[a_call("call_1")]))
    wire.answers(a_reply("3"))
    runner = runner_of(wire)
    next(iter(runner))
    wire.memory = SessionMemory()
    assert runner.until_done().content[0].text == "3"
    assert [one.message.role for one in wire.last.messages] == ["user", "assistant", "tool"]
    assert wire.last.body["thread"] == {"type": "create"}


def test_a_thread_keeps_what_it_was_created_with() -> None:
    wire = Wire("anthropic")
    wire.answers(a_reply("Hello"))
    create = anthropic_client(wire).beta.messages.create
    create(**SETTINGS, messages=HI, thread={"type": "create"})
    with pytest.raises(anthropic.BadRequestError, match="tools: a thread keeps"):
        create(**SETTINGS, messages=HI, thread={"type": "continue", "previous_message_id": "msg_r1"})
