"""Messages: typed, and the same after a round trip through the OpenAI format."""

import pytest
from conversations import conversations
from hypothesis import given
from pydantic import ValidationError

from envsdk import Message, ToolCall
from envsdk.messages import check_calls


@given(conversations())
def test_messages_survive_the_openai_format(conversation: tuple) -> None:
    for data in conversation[0]:
        message = Message.from_openai(data)
        assert Message.from_openai(message.to_openai()) == message
        assert Message.model_validate_json(message.model_dump_json()) == message


def test_arguments_given_as_a_string_stay_verbatim() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1 }'}}
    message = Message.from_openai({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message.tool_calls[0].arguments == '{"a":1 }'
    assert message.to_openai()["tool_calls"] == [call]


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
        {"content": "a"},
    ],
)
def test_what_is_no_message_is_refused(data: dict) -> None:
    with pytest.raises(ValidationError):
        Message.from_openai(data)


def test_a_message_does_not_change() -> None:
    with pytest.raises(ValidationError):
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
