"""Messages: typed, and the same after a round trip through the OpenAI format."""

import json
import pickle

import pytest
from conversations import conversations
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envsdk import Message, ToolCall
from envsdk.messages import check_calls, to_messages

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
JSON_OBJECTS = st.dictionaries(TEXTS, JSON, max_size=4)


@given(conversations())
def test_messages_survive_the_openai_format(conversation: tuple) -> None:
    for data in conversation[0]:
        message = Message.from_openai(data)
        assert Message.from_openai(message.to_openai()) == message
        assert Message.model_validate_json(message.model_dump_json()) == message


def in_every_form(arguments: str) -> list[Message]:
    """A message with a call, in each form that may come in."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    flat = {"name": "f", "arguments": arguments, "id": "1"}
    said = {"role": "assistant", "content": None}
    return [
        *(Message.from_openai({**said, "tool_calls": [form]}) for form in (call, flat)),
        *(to_messages([{**said, "tool_calls": (form,)}])[0] for form in (call, flat)),
        Message(role="assistant", tool_calls=[call]),
        Message(role="assistant", tool_calls=[ToolCall.from_openai(call)]),
    ]


@given(JSON_OBJECTS, st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}]))
def test_arguments_given_as_json_text_are_read(arguments: dict, style: dict) -> None:
    for message in in_every_form(json.dumps(arguments, **style)):
        assert json.dumps(message.tool_calls[0].arguments) == json.dumps(arguments)
        (written,) = message.to_openai()["tool_calls"]
        assert written == {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        assert Message.from_openai(message.to_openai()) == message


DEEP = ('{"a": ' * 100 + "1" + "}" * 100, '{"a": ' * 100_000, '{"a": ' + "9" * 5000 + "}")
NOT_OBJECTS = ("", "x", "[1]", '"a"', "null", "3", '{"a": 1', '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}')


@pytest.mark.parametrize("text", [*NOT_OBJECTS, '{"a": "\\ud800"}', *DEEP])
def test_arguments_that_are_not_the_json_text_of_an_object_stay_text(text: str) -> None:
    for message in in_every_form(text):
        assert message.tool_calls[0].arguments == text
        assert Message.from_openai(message.to_openai()) == message


def test_a_stored_call_keeps_its_text() -> None:
    sampled = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments='{"a": 1}'),))
    assert sampled.tool_calls[0].arguments == '{"a": 1}'
    assert Message.model_validate_json(sampled.model_dump_json()) == sampled
    assert Message.model_validate(sampled.model_dump()) == sampled


@pytest.mark.parametrize("call", [*({"function": given} for given in ({}, 3, None, {"name": 3})), {}, 3])
def test_what_is_not_a_call_is_refused(call: object) -> None:
    with pytest.raises(ValidationError):
        Message.from_openai({"role": "assistant", "tool_calls": [call]})


def test_parts_of_text_are_the_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = Message.from_openai({"role": "user", "content": parts})
    assert message.content == "ab"
    assert message.to_openai()["content"] == parts


@pytest.mark.parametrize(
    "data",
    [
        {"role": "wizard", "content": "a"},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": 7},
        {"role": "user", "content": "a", "mood": "good"},
        {"role": "user", "content": "a", "reasoning": "b"},
        {"role": "tool", "tool_calls": [{"name": "f"}]},
        {"role": "user", "content": "a", "parts": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "\udfff"},
        {"role": "user", "content": "a", "name": "\udfff"},
        {"role": "tool", "content": "a", "tool_call_id": "\udfff"},
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}, "id": "\udfff"}]},
        {"content": "a"},
    ],
)
def test_what_is_no_message_is_refused(data: dict) -> None:
    with pytest.raises(ValidationError):
        Message.from_openai(data)


def test_a_message_does_not_change() -> None:
    with pytest.raises(ValueError, match="a Message is immutable"):
        Message(role="user", content="a").content = "b"


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"required": ["a", "b"]}}}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (ToolCall(name="add", arguments={"a": 1, "b": 2}), None),
        (ToolCall(name="add", arguments={"a": 1}), "add: missing argument b"),
        (ToolCall(name="sub", arguments={}), "unknown tool 'sub'; known: add"),
        (ToolCall(name="", arguments="{", error="not JSON"), "not JSON"),
    ],
)
def test_calls_are_checked_against_the_tools(call: ToolCall, error: str | None) -> None:
    message = check_calls(Message(role="assistant", tool_calls=(call,)), [TOOL])
    assert message.tool_calls[0].error == error


def test_a_message_that_calls_a_tool() -> None:
    message = Message.calling("search", {"query": "bees"}, reasoning="Where?")
    assert (message.role, message.content, message.reasoning) == ("assistant", "", "Where?")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("search", {"query": "bees"})]
    assert Message.calling("list_tables").tool_calls[0].arguments == {}


@given(TEXTS)
def test_a_reply_for_the_author_is_equal_and_has_its_new_text(text: str) -> None:
    call = ToolCall(name="f", arguments={"a": [1]})
    message = Message(role="assistant", content="Well.", tool_calls=(call,))
    reply = message.as_reply(text)
    assert reply == message and hash(Message(role="user")) == hash(Message(role="user"))
    assert (reply.new_text, pickle.loads(pickle.dumps(reply)).new_text, message.new_text) == (text, text, "Well.")
    assert reply.model_dump_json() == message.model_dump_json()
    reply.tool_calls[0].arguments["a"].append(2)
    assert message.tool_calls[0].arguments == {"a": [1]}


def test_a_string_with_an_unpaired_surrogate_is_not_a_message() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        to_messages("\ud800")
