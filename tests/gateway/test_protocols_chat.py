"""Chat Completions, read and written for the real `openai` package."""

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from wire_clients import REPLIES, Wire, a_reply, as_sent_back, each_reply, openai_client

from envsdk import Message
from envsdk.errors import RequestError
from envsdk.gateway._protocols import WIRE_FORMATS
from envsdk.gateway._requests import ModelReply

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
    }
]
HI: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def check_received(completion: ChatCompletion, reply: ModelReply) -> None:
    choice = completion.choices[0]
    assert (choice.message.content or "") == reply.message.content
    assert getattr(choice.message, "reasoning_content", None) == reply.message.reasoning
    assert [call.id for call in choice.message.tool_calls or []] == [call.id for call in reply.message.tool_calls]
    assert choice.finish_reason == reply.finish_reason
    assert completion.usage is not None and completion.usage.total_tokens == 11
    assert completion.id == "chatcmpl-r1" and completion.model == "policy"


def check_sent_back(wire: Wire, message: Any, reply: ModelReply, client: openai.OpenAI) -> None:
    wire.answers(a_reply("ok"))
    results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in reply.message.tool_calls]
    more: list[Any] = [message, *results, {"role": "user", "content": "Go on"}]
    client.chat.completions.create(model="policy", messages=HI + more, tools=TOOLS)
    assert [received.message for received in wire.last.messages[1:-1]] == [
        as_sent_back(reply),
        *(Message(role="tool", tool_call_id=call.id, content="3") for call in reply.message.tool_calls),
    ]


@each_reply
def test_the_openai_client_receives_a_reply_and_sends_it_back(reply: ModelReply) -> None:
    wire = Wire("chat")
    client = openai_client(wire)
    wire.answers(reply)
    completion = client.chat.completions.create(model="policy", messages=HI, tools=TOOLS)
    check_received(completion, reply)
    check_sent_back(wire, completion.choices[0].message, reply, client)


@pytest.mark.matrix
@each_reply
def test_the_openai_client_puts_a_streamed_reply_together(reply: ModelReply) -> None:
    wire = Wire("chat")
    wire.answers(reply)
    with openai_client(wire).chat.completions.stream(
        model="policy", messages=HI, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        if reply.finish_reason == "length":
            with pytest.raises(openai.LengthFinishReasonError):
                stream.get_final_completion()
            return
        completion = stream.get_final_completion()
    message = completion.choices[0].message
    assert (message.content or "") == reply.message.content
    assert completion.choices[0].finish_reason == reply.finish_reason
    assert [(call.id, call.function.name) for call in message.tool_calls or []] == [
        (call.id, call.name) for call in reply.message.tool_calls
    ]
    assert completion.usage is not None and completion.usage.total_tokens == 11


def test_several_replies_are_choices() -> None:
    wire = Wire("chat")
    client = openai_client(wire)
    for stream in (False, True):
        wire.answers(a_reply("one"), a_reply("two", id="r2"))
        received: Any = client.chat.completions.create(model="policy", messages=HI, n=2, stream=stream)
        assert wire.last.n == 2
        if stream:
            texts = ["", ""]
            for chunk in received:
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        else:
            texts = [choice.message.content for choice in received.choices]
            assert received.usage.completion_tokens == 8
        assert texts == ["one", "two"]
    assert wire.events[-1] == b"data: [DONE]\n\n"
    assert all(b"usage" not in event for event in wire.events)


def test_log_probabilities_are_those_of_the_sampled_tokens() -> None:
    wire = Wire("chat")
    client = openai_client(wire)
    reply = a_reply("one two", logprobs=[-0.5, -1.25, float("-inf"), 0.0], texts=["one", " ", "two", "<|im_end|>"])
    expected = [("one", -0.5), (" ", -1.25), ("two", -9999.0), ("<|im_end|>", 0.0)]
    wire.answers(reply)
    completion = client.chat.completions.create(model="policy", messages=HI, logprobs=True)
    logprobs = completion.choices[0].logprobs
    assert wire.last.logprobs and logprobs is not None
    assert [(token.token, token.logprob) for token in logprobs.content or []] == expected
    wire.answers(reply)
    with client.chat.completions.stream(model="policy", messages=HI, logprobs=True) as stream:
        logprobs = stream.get_final_completion().choices[0].logprobs
    assert logprobs is not None and [(token.token, token.logprob) for token in logprobs.content or []] == expected


def test_parameters_are_read() -> None:
    wire = Wire("chat")
    wire.answers(a_reply("ok"))
    openai_client(wire).chat.completions.create(
        model="policy",
        messages=HI,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "add"}},
        parallel_tool_calls=False,
        stop=["END", "\n\n"],
        max_completion_tokens=99,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        presence_penalty=0.1,
        frequency_penalty=0,
        response_format={"type": "text"},
        metadata={"a": "b"},
        user="u",
        store=True,
        prompt_cache_key="k",
        top_logprobs=0,
        extra_headers={"X-Envsdk-Context": "main", "x-envsdk-role": " planner "},
        extra_body={"top_k": 5, "unknown": [1]},
    )
    request = wire.last
    assert request.system == "Be brief." and [received.message.content for received in request.messages] == ["Hi"]
    assert request.tools == TOOLS and request.tool_choice == {"name": "add"}
    assert (request.stop, request.max_tokens, request.n) == (("END", "\n\n"), 99, 1)
    assert request.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0,
    }
    assert (request.context, request.role) == ("main", "planner")


def test_requests_that_differ_in_streaming_only_have_equal_bodies() -> None:
    chat = WIRE_FORMATS["chat"]
    body = {"model": "m", "messages": HI}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    assert chat.read(body, {}).body == chat.read(streamed, {}).body == body


def test_messages_are_read_in_each_form() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": parts},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": None, "reasoning": "think", "refusal": None},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "reasoning_content": ""},
            {"role": "assistant", "refusal": "never"},
            {"role": "system", "content": "later"},
            {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "3"}]},
            {"role": "tool", "tool_call_id": "y", "content": None},
        ],
    }
    request = WIRE_FORMATS["chat"].read(body, {})
    assert request.system == "ab\n\nd"
    assert [received.message for received in request.messages] == [
        Message(role="user", content=parts, name="ann"),
        Message(role="assistant", reasoning="think"),
        Message(role="assistant", content="no", reasoning=""),
        Message(role="assistant", content="never"),
        Message(role="system", content="later"),
        Message(role="tool", tool_call_id="x", content="3"),
        Message(role="tool", tool_call_id="y"),
    ]
    assert [received.raw for received in request.messages] == body["messages"][2:]


CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def user(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def assistant(**fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", **fields}]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (user(None), "messages[0].content"),
        (
            user([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]),
            "messages[0].content[1].image_url.url",
        ),
        (user([{"type": "input_audio"}]), "messages[0].content[0]"),
        (user([{"type": "text"}]), "messages[0].content[0].text"),
        (user("half \ud800"), "messages[0]"),
        (assistant(function_call={"name": "f"}), "messages[0].tool_calls[0].function.arguments"),
        (assistant(tool_calls=[CALL, CALL]), "messages[0].tool_calls"),
        (assistant(tool_calls=[{**CALL, "type": "custom"}]), "messages[0].tool_calls[0].custom"),
        (assistant(tool_calls=[{**CALL, "function": {"name": "f"}}]), "messages[0].tool_calls[0].function.arguments"),
        ({"tools": [{"type": "my tool"}]}, "tools[0].type"),
        ({"tools": TOOLS + TOOLS}, "tools[1]"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"functions": ["f"]}, "tools[0].function"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"unknown": 10**5000}, "unknown"),
    ],
)
def test_what_is_wrong_or_unsupported_is_refused_and_named(change: dict[str, Any], field: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **change}
    with pytest.raises(RequestError) as found:
        WIRE_FORMATS["chat"].read(body, {})
    assert (found.value.status, found.value.field) == (400, field)
    assert str(found.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_an_error_is_an_exception_of_the_client(status: int, kind: type[openai.APIStatusError]) -> None:
    wire = Wire("chat")
    wire.error = RequestError("too long", status, "context_length_exceeded", "messages")
    with pytest.raises(kind) as found:
        openai_client(wire).chat.completions.create(model="policy", messages=HI)
    assert (found.value.code, found.value.param) == ("context_length_exceeded", "messages")
    assert "too long" in str(found.value)


def test_an_error_within_a_stream_ends_it_with_an_exception() -> None:
    wire = Wire("chat")
    wire.answers(REPLIES["text"])
    wire.error, wire.cut_after = RequestError("the policy failed", 500, "server_error"), 3
    stream = openai_client(wire).chat.completions.create(model="policy", messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="the policy failed"):
        list(stream)


def test_the_client_lists_models() -> None:
    assert [model.id for model in openai_client(Wire("chat")).models.list()] == ["policy"]
