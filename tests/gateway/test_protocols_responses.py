"""OpenAI Responses, read and written for the real `openai` package."""

import asyncio
from typing import Any

import openai
import pytest
from wire_clients import (
    CREATED,
    REPLIES,
    Wire,
    a_reply,
    as_sent_back,
    async_openai_client,
    each_reply,
    openai_client,
)

from envsdk import Message
from envsdk.errors import RequestError
from envsdk.gateway._protocols import WIRE_FORMATS, SessionMemory
from envsdk.gateway._requests import ModelReply

TOOLS: list[Any] = [
    {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": False}
]
GO_ON: list[Any] = [{"role": "user", "content": "Go on"}]


def results(reply: ModelReply) -> list[Any]:
    return [{"type": "function_call_output", "call_id": c.id, "output": "3"} for c in reply.message.tool_calls]


def read_back(reply: ModelReply) -> list[Message]:
    """The messages after the first one, where the program sends a reply back, results of its calls, and a message."""
    return [
        as_sent_back(reply),
        *(Message(role="tool", tool_call_id=call.id, content="3") for call in reply.message.tool_calls),
        Message(role="user", content="Go on"),
    ]


def check_received(response: Any, reply: ModelReply) -> None:
    assert response.output_text == reply.message.content
    thinking = [item for item in response.output if item.type == "reasoning"]
    assert "".join(part.text for item in thinking for part in item.content) == (reply.message.reasoning or "")
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.call_id, call.name) for call in calls] == [(call.id, call.name) for call in reply.message.tool_calls]
    assert response.status == ("incomplete" if reply.finish_reason == "length" else "completed")
    assert response.usage is not None and response.usage.total_tokens == 11
    assert (response.id, response.model, response.created_at) == ("resp_r1", "policy", CREATED)


@pytest.mark.matrix
@each_reply
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_the_openai_client_receives_a_reply_and_sends_it_back(reply: ModelReply, stream: bool) -> None:
    wire = Wire("responses")
    client = openai_client(wire)
    wire.answers(reply)
    response: Any
    if stream:
        with client.responses.stream(model="policy", input="Hi", tools=TOOLS) as streamed:
            events = list(streamed)
            last: Any = events[-1]
            response = last.response
    else:
        response = client.responses.create(model="policy", input="Hi", tools=TOOLS)
    check_received(response, reply)
    wire.answers(a_reply("ok", id="r2"))
    history: list[Any] = [{"role": "user", "content": "Hi"}, *response.output, *results(reply), *GO_ON]
    client.responses.create(model="policy", input=history, tools=TOOLS)
    assert [received.message for received in wire.last.messages[1:]] == read_back(reply)
    assert wire.last.messages[1].link == "r1"


@pytest.mark.matrix
@each_reply
def test_a_response_is_continued_by_its_id(reply: ModelReply) -> None:
    wire = Wire("responses")
    client = openai_client(wire)
    wire.answers(reply)
    opening: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    first = client.responses.create(model="policy", input=opening, instructions="Once.")
    assert wire.last.system == "Once.\n\nBe brief."
    wire.answers(a_reply("ok", id="r2"))
    second = client.responses.create(model="policy", input=results(reply) + GO_ON, previous_response_id=first.id)
    request = wire.last
    assert (request.previous, request.system) == ("r1", "Be brief.")
    assert [received.message for received in request.messages] == [
        Message(role="user", content="Hi"),
        *read_back(reply),
    ]
    assert request.messages[1].link == "r1" and second.previous_response_id == first.id
    wire.answers(a_reply("ok", id="r3"))
    client.responses.create(model="policy", input="More", previous_response_id=second.id)
    assert [received.message.content for received in wire.last.messages[-2:]] == ["ok", "More"]


def test_a_response_can_be_continued_twice() -> None:
    wire = Wire("responses")
    client = openai_client(wire)
    wire.answers(a_reply("one"))
    client.responses.create(model="policy", input="Hi")
    for reply in ("r2", "r3"):
        wire.answers(a_reply("two", id=reply))
        client.responses.create(model="policy", input=reply, previous_response_id="resp_r1")
        assert [received.message.content for received in wire.last.messages] == ["Hi", "one", reply]


def test_items_can_be_sent_back_as_references() -> None:
    wire = Wire("responses")
    client = openai_client(wire)
    reply = REPLIES["text and two calls"]
    wire.answers(reply)
    first = client.responses.create(model="policy", input="Hi")
    wire.answers(a_reply("ok", id="r2"))
    references: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    references[-1] = {"id": references[-1]["id"]}
    client.responses.create(model="policy", input=[*GO_ON, *references, *results(reply), *GO_ON])
    assert [received.message for received in wire.last.messages[1:]] == read_back(reply)
    assert wire.last.body["input"][1] == references[0]


def test_without_storing_encrypted_reasoning_identifies_the_reply() -> None:
    wire = Wire("responses")
    client = openai_client(wire)
    wire.answers(REPLIES["reasoning"])
    first = client.responses.create(
        model="policy", input="Hi", store=False, include=["reasoning.encrypted_content"], reasoning={"summary": "auto"}
    )
    wire.answers(a_reply("ok", id="r2"))
    reasoning, text = (item.model_dump(exclude={"id", "content"}, exclude_none=True) for item in first.output)
    again: list[Any] = [*GO_ON, reasoning, {**text, "content": "Answer."}, *GO_ON]
    client.responses.create(model="policy", input=again)
    assert wire.last.messages[1].link == "r1"
    assert wire.last.messages[1].message == as_sent_back(REPLIES["reasoning"])
    with pytest.raises(openai.BadRequestError) as found:
        client.responses.create(model="policy", input="Go on", previous_response_id=first.id)
    assert (found.value.code, found.value.param) == ("previous_response_not_found", "previous_response_id")


def test_items_are_one_message_as_long_as_they_can_be_of_one_reply() -> None:
    def thinking(id: str | None = None) -> dict[str, Any]:
        return {"type": "reasoning", "id": id, "summary": [{"type": "summary_text", "text": "t"}]}

    def text(content: str, id: str | None = None) -> dict[str, Any]:
        return {"role": "assistant", "content": content, "id": id}

    def call(name: str, id: str | None = None) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}", "id": id}

    items = [
        *(thinking(), text("1"), call("a"), call("b")),
        *(text("2"),),
        *(text("3"), call("c")),
        *(thinking(), thinking(), call("d")),
        *(thinking("rs_r_1"), call("e"), call("f", "fc_r_1_1")),
        *(call("g", "fc_r2_0"),),
        *(text("4", "msg_r3"), thinking("rs_r3")),
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]},
        {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "5"}], "id": "msg_r4"},
        {"role": "developer", "content": "later"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "z"}]},
    ]
    request = WIRE_FORMATS["responses"].read({"model": "m", "input": items}, {})
    found = [
        (m.message.content, m.message.reasoning, "".join(call.name for call in m.message.tool_calls), m.link)
        for m in request.messages
    ]
    assert found == [
        ("1", "t", "ab", None),
        ("2", None, "", None),
        ("3", None, "c", None),
        ("", "t\n\nt", "d", None),
        ("", "t", "ef", "r_1"),
        ("", None, "g", "r2"),
        ("4", "t", "", "r3"),
        ("xy", None, "", None),
        ("5", None, "", "r4"),
        ("later", None, "", None),
        ("z", None, "", None),
    ]
    assert request.messages[0].raw == items[:4] and request.messages[7].raw == items[16]


def test_events_are_those_of_the_package_in_the_order_that_clients_expect() -> None:
    wire = Wire("responses")
    wire.answers(REPLIES["text and two calls"])

    async def events() -> list[Any]:
        client = async_openai_client(wire)
        created = await client.responses.create(
            model="policy", input="Hi", stream=True, tools=TOOLS, reasoning={"summary": "concise"}
        )
        return [event async for event in created]

    found = asyncio.run(events())
    assert [event.sequence_number for event in found] == list(range(len(found)))
    kinds = [event.type.removeprefix("response.") for event in found]
    assert list(dict.fromkeys(kinds)) == [
        *("created", "in_progress", "output_item.added"),
        *("reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done"),
        *("reasoning_summary_part.done", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done", "output_text.delta", "output_text.done"),
        *("function_call_arguments.delta", "function_call_arguments.done", "completed"),
    ]
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 4


def test_log_probabilities_are_those_of_the_sampled_tokens() -> None:
    wire = Wire("responses")
    wire.answers(a_reply("one two", logprobs=[-0.5, -1.0, float("-inf")], texts=["one", " ", "two"]))
    response: Any = openai_client(wire).responses.create(
        model="policy", input="Hi", include=["message.output_text.logprobs"]
    )
    assert wire.last.logprobs
    found = response.output[0].content[0].logprobs
    assert [(token.token, token.logprob) for token in found] == [("one", -0.5), (" ", -1.0), ("two", -9999.0)]


def test_parameters_are_read() -> None:
    wire = Wire("responses")
    wire.answers(a_reply("ok"))
    response = openai_client(wire).responses.create(
        model="policy",
        input="Hi",
        instructions="Be brief.",
        tools=TOOLS,
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        max_output_tokens=99,
        temperature=0.5,
        top_p=0.9,
        text={"format": {"type": "text"}, "verbosity": "low"},
        truncation="auto",
        reasoning={"effort": "low"},
        metadata={"a": "b"},
        prompt_cache_key="k",
        extra_headers={"x-envsdk-context": "main"},
    )
    request = wire.last
    assert request.system == "Be brief." and request.messages[0].raw == "Hi"
    function = {key: TOOLS[0][key] for key in ("name", "description", "parameters")}
    assert request.tools == [{"type": "function", "function": function}]
    assert (request.tool_choice, request.max_tokens, request.context) == ({"name": "add"}, 99, "main")
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9}
    assert (response.parallel_tool_calls, response.max_output_tokens) == (False, 99)


CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [{"type": "compaction_trigger"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [*GO_ON, CALL, {**CALL, "arguments": {}}]}, "input[2].arguments"),
        ({"input": [*GO_ON, CALL, CALL]}, "input[1]"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "image"}]}]}, "input[0].summary[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"instructions": [{"role": "system"}]}, "instructions"),
        ({"tools": [{"type": "Web search"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"store": "yes"}, "store"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_is_wrong_or_unsupported_is_refused_and_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as found:
        WIRE_FORMATS["responses"].read({"model": "m", "input": "Hi", **change}, {})
    assert (found.value.status, found.value.field) == (400, field)


def test_an_error_within_a_stream_ends_it_with_an_exception() -> None:
    wire = Wire("responses")
    wire.answers(REPLIES["text"])
    wire.error, wire.cut_after = RequestError("the policy failed", 500, "server_error"), 4
    stream = openai_client(wire).responses.create(model="policy", input="Hi", stream=True)
    with pytest.raises(openai.APIError, match="the policy failed"):
        list(stream)


def test_the_response_that_was_not_used_for_the_longest_time_is_forgotten_with_its_items() -> None:
    wire, memory = WIRE_FORMATS["responses"], SessionMemory(max_responses=2)

    def respond(id: str) -> None:
        body = {"model": "m", "input": id}
        wire.remember(wire.read(body, {}, memory), [a_reply(id, id=id)], memory, CREATED)

    respond("r1")
    respond("r2")
    assert memory.item("msg_r1") is not None
    respond("r3")
    assert memory.response("resp_r2") is None and memory.item("msg_r2") is None
    assert memory.response("resp_r1") is not None and memory.item("msg_r3") is not None
