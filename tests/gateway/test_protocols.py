"""What holds for each protocol: any body is read or refused, and a conversation that was written reads the same."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_bodies import BODIES
from wire_clients import CREATED, a_reply

from envsdk import Message
from envsdk.errors import RequestError
from envsdk.gateway._protocols import WIRE_FORMATS, SessionMemory, WireFormat
from envsdk.gateway._requests import ModelReply, ModelRequest
from envsdk.messages import ToolCall

PROTOCOLS = ("chat", "responses", "anthropic")
each_protocol = pytest.mark.parametrize("name", PROTOCOLS)

texts = st.text(st.characters(), max_size=8)  # with halves of surrogate pairs
odd = st.sampled_from(
    [
        "auto",
        "text",
        "function",
        "assistant",
        "item_reference",
        "tool_result",
        "",
        "\ud800",
        10**30,
        10**4100,
        -1,
        1e308,
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
NESTED: Any = "deep"
for _ in range(600):
    NESTED = {"a": [NESTED]}


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON value, apart from itself."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((*path, key), *places_of(value[key], (*path, key)))]


def change(body: Any, path: tuple[Any, ...], how: str, new: Any) -> None:
    """Replace, remove, repeat or rename the value at a place."""
    for key in path[:-1]:
        body = body[key]
    if how == "replace":
        body[path[-1]] = new
    elif how == "repeat" and isinstance(body, list):
        body.insert(path[-1], copy.deepcopy(body[path[-1]]))
    elif how == "rename" and isinstance(body, dict) and isinstance(new, str):
        body[new] = body.pop(path[-1])
    else:
        del body[path[-1]]


def check_read_or_refused(read: Callable[[], ModelRequest], wire: WireFormat) -> None:
    """A request is read, and can be answered; or it is refused with an error that can be sent."""
    try:
        request = read()
    except RequestError as error:
        assert 400 <= error.status < 500
        json.dumps(wire.error(error)).encode()
        assert wire.error_event(error).endswith(b"\n\n")
        return
    assert isinstance(request.body, dict)
    for received in request.messages:
        received.message.model_dump_json()
    replies = [a_reply("ok", reasoning="r", calls=[ToolCall(id="c", name="add")])]
    json.dumps(wire.write(request, request.body, replies, CREATED)).encode()
    b"".join(wire.events(request, request.body, replies, CREATED))


@each_protocol
@given(body=values)
def test_any_json_value_is_read_or_refused(name: str, body: Any) -> None:
    wire = WIRE_FORMATS[name]
    check_read_or_refused(lambda: wire.read(body, {}), wire)


@each_protocol
@given(data=st.data())
def test_a_changed_request_is_read_or_refused_also_after_others(name: str, data: st.DataObject) -> None:
    wire, memory = WIRE_FORMATS[name], SessionMemory()
    body = copy.deepcopy(BODIES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        if not (places := places_of(body)):
            break
        how = data.draw(st.sampled_from(["replace", "replace", "remove", "repeat", "rename"]))
        change(body, data.draw(st.sampled_from(places)), how, data.draw(values))
        check_read_or_refused(lambda body=body: wire.read(copy.deepcopy(body), {}, memory), wire)
        with_memory, without = (read_or_error(wire, body, kept) for kept in (memory, None))
        assert with_memory == without


def read_or_error(wire: WireFormat, body: Any, memory: SessionMemory | None) -> Any:
    """What was read, in a form that distinguishes `1` and `True`; or the error."""
    try:
        request = wire.read(copy.deepcopy(body), {}, memory)
    except RequestError as error:
        return str(error)
    return repr(([m.message for m in request.messages], [m.link for m in request.messages], request.tools))


@pytest.mark.matrix
@each_protocol
@pytest.mark.parametrize("where", [(), ("unknown",), ("tools", 0), ("messages", 0, "x"), ("input", 0, "x")], ids=str)
def test_deep_nesting_is_refused(name: str, where: tuple[Any, ...]) -> None:
    wire, body = WIRE_FORMATS[name], copy.deepcopy(BODIES[name])
    if not where:
        body = NESTED
    elif where[0] in (*body, "unknown"):
        change(body, where, "replace", NESTED)
    else:
        return
    with pytest.raises(RequestError):
        wire.read(body, {})


@each_protocol
@pytest.mark.parametrize("headers", [{"x-envsdk-role": "a" * 1000}, {"x-envsdk-context": "a\x00b"}])
def test_odd_headers_are_refused(name: str, headers: dict[str, str]) -> None:
    with pytest.raises(RequestError) as found:
        WIRE_FORMATS[name].read(BODIES[name], headers)
    assert found.value.field in headers


def test_the_headers_of_a_request_are_kept_without_credentials() -> None:
    keys = dict.fromkeys(("Authorization", "x-api-key", "x-goog-api-key", "cookie"), "secret")
    request = WIRE_FORMATS["chat"].read(BODIES["chat"], {**keys, "X-Agent": "search"})
    assert request.headers == {"x-agent": "search"}


# ---------------------------------------------------------------- conversations that are written, and read again

safe = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | safe,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(safe, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(safe, json_values, max_size=3) | st.sampled_from(['{"a":', "", "[1]", "none"])


@st.composite
def replies_of_a_model(draw: st.DrawFn) -> list[ModelReply]:
    """The replies of a conversation, with unique ids."""
    found: list[ModelReply] = []
    for i in range(draw(st.integers(1, 4))):
        calls = tuple(
            ToolCall(id=f"call_{i}_{k}", name=draw(st.sampled_from(["add", "sub"])), arguments=draw(arguments))
            for k in range(draw(st.integers(0, 3)))
        )
        message = Message(
            role="assistant", content=draw(safe), reasoning=draw(st.none() | safe.filter(bool)), tool_calls=calls
        )
        finish = draw(st.sampled_from(["tool_calls" if calls else "stop", "length"]))
        found.append(ModelReply(f"r_{i}", message, finish, prompt_tokens=3, tokens=[1, 2]))
    return found


def turn_of_program(name: str, reply: ModelReply, text: str) -> list[Any]:
    """What a program adds after a reply: the results of its calls, and a message."""
    ids = [call.id for call in reply.message.tool_calls]
    if name == "chat":
        return [{"role": "tool", "tool_call_id": call, "content": text} for call in ids] + [user(text)]
    if name == "responses":
        return [{"type": "function_call_output", "call_id": call, "output": text} for call in ids] + [user(text)]
    results = [{"type": "tool_result", "tool_use_id": call, "content": text} for call in ids]
    return [{"role": "user", "content": [*results, {"type": "text", "text": text}]}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def sent_back(name: str, written: dict[str, Any]) -> list[Any]:
    """What a program that keeps everything sends back of a response."""
    if name == "chat":
        return [written["choices"][0]["message"]]
    return written["output"] if name == "responses" else [{"role": "assistant", "content": written["content"]}]


@each_protocol
@given(replies=replies_of_a_model(), text=safe)
def test_a_conversation_reads_as_it_was_written(name: str, replies: list[ModelReply], text: str) -> None:
    wire, memory = WIRE_FORMATS[name], SessionMemory()
    body: dict[str, Any] = {"model": "m", "max_tokens": 5, "thinking": {"type": "adaptive"}}
    history: list[Any] = [user("Hi")]
    expected = [Message(role="user", content="Hi")]
    key = "input" if name == "responses" else "messages"
    for reply in replies:
        request = wire.read({**body, key: history}, {}, memory)
        written = json.loads(json.dumps(wire.write(request, body, [reply], CREATED)))
        history = [*history, *sent_back(name, written), *turn_of_program(name, reply, text)]
        expected.append(reply.message)
        expected += [Message(role="tool", tool_call_id=call.id, content=text) for call in reply.message.tool_calls]
        expected.append(user_message(text))
        request = wire.read({**body, key: copy.deepcopy(history)}, {}, memory)
        assert [received.message for received in request.messages] == expected
        fresh = wire.read({**body, key: history}, {})
        assert [received.message for received in fresh.messages] == expected
    links = [received.link for received in request.messages if received.message.role == "assistant"]
    if name == "responses":
        assert links == [reply.id for reply in replies]
    elif name == "anthropic":
        assert links == [reply.id if reply.message.reasoning else None for reply in replies]


def user_message(text: str) -> Message:
    return Message(role="user", content=text)


@each_protocol
@given(replies=replies_of_a_model())
def test_the_deltas_of_a_stream_add_up_to_the_response(name: str, replies: list[ModelReply]) -> None:
    wire, body = WIRE_FORMATS[name], BODIES[name]
    request, reply = wire.read(body, {}), replies[-1]
    events = b"".join(wire.events(request, body, [reply], CREATED)).decode().split("\n\n")
    data = [json.loads(event.partition("data: ")[2]) for event in events if "{" in event]
    content, reasoning, calls = {"chat": add_chat, "responses": add_responses, "anthropic": add_anthropic}[name](data)
    message = reply.message
    assert (content, reasoning) == (message.content, message.reasoning or "")
    assert calls == [
        call.arguments if name != "anthropic" or isinstance(call.arguments, dict) else {"INVALID_JSON": call.arguments}
        for call in message.tool_calls
    ]


def read_arguments(text: str) -> Any:
    return ToolCall.from_openai({"name": "f", "arguments": text}).arguments


def add_chat(chunks: list[Any]) -> tuple[str, str, list[Any]]:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    found: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        found[call["index"]] = found.get(call["index"], "") + call["function"]["arguments"]
    return (
        "".join(delta.get("content") or "" for delta in deltas),
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        [read_arguments(text) for text in found.values()],
    )


def add_responses(events: list[Any]) -> tuple[str, str, list[Any]]:
    def deltas(kind: str) -> list[Any]:
        return [event for event in events if event["type"] == f"response.{kind}.delta"]

    indices = [event["output_index"] for event in events if event["type"] == "response.function_call_arguments.done"]
    found = dict.fromkeys(indices, "")
    for event in deltas("function_call_arguments"):
        found[event["output_index"]] += event["delta"]
    return (
        "".join(event["delta"] for event in deltas("output_text")),
        "".join(event["delta"] for event in deltas("reasoning_text")),
        [read_arguments(text) for text in found.values()],
    )


def add_anthropic(events: list[Any]) -> tuple[str, str, list[Any]]:
    found: dict[str, list[str]] = {"text": [], "thinking": [], "partial_json": [], "signature": []}
    calls: list[str] = []
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append("")
        if event["type"] == "content_block_delta":
            [(kind, text)] = [item for item in event["delta"].items() if item[0] != "type"]
            found[kind].append(text)
            if kind == "partial_json":
                calls[-1] += text
    return "".join(found["text"]), "".join(found["thinking"]), [json.loads(call) for call in calls]


# ---------------------------------------------------------------- what is read only once


def test_only_values_that_no_recent_request_had_at_their_place_are_read() -> None:
    memory, was_read = SessionMemory(), list[Any]()

    def reads(*values: Any) -> int:
        was_read.clear()
        kept, results = memory.read("chat", "messages", values, lambda value, index: was_read.append(value) or index)
        assert (kept, results) == ([*values], list(range(len(values))))
        return len(was_read)

    a, b, c = {"content": "a"}, {"content": "b"}, {"content": ["c", {"x": 1}]}
    assert reads(a, b) == 2
    assert reads(a, b, c) == 1
    assert reads(a, c) == 1  # another conversation with the same beginning
    assert reads(a, b, c, a, b) == 2
    assert reads(a, b, {"content": ["c", {"x": True}]}) == 1
    assert reads(a, b, {"content": ["c", {"x": 1.0}]}) == 1
    for _ in range(16):
        assert reads(b) == (1 if _ == 0 else 0)
    assert reads(a) == 1  # forgotten


@each_protocol
def test_a_session_keeps_a_message_only_once(name: str) -> None:
    wire, memory = WIRE_FORMATS[name], SessionMemory()
    first = wire.read(copy.deepcopy(BODIES[name]), {}, memory)
    second = wire.read(copy.deepcopy(BODIES[name]), {}, memory)
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=True))
    key = "input" if name == "responses" else "messages"
    assert all(one is other for one, other in zip(first.body[key], second.body[key], strict=True))
    assert first.body == second.body == {k: v for k, v in BODIES[name].items() if k not in ("stream", "stream_options")}


def test_the_usage_has_the_tokens_of_the_cache_and_of_the_reasoning_in_each_protocol() -> None:
    reply = a_reply("x", reasoning="r", cached_tokens=5, reasoning_tokens=3)
    usages: dict[str, dict[str, Any]] = {}
    for name, wire in WIRE_FORMATS.items():
        body = {"model": "m", **BODIES[name], "n": 1, "generationConfig": {}}
        written = wire.write(wire.read(body, {}), body, [reply], CREATED)
        usages[name] = written["usageMetadata" if name == "google" else "usage"]
    assert usages["chat"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert usages["chat"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert usages["responses"]["input_tokens_details"]["cached_tokens"] == 5
    assert usages["responses"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert (usages["anthropic"]["input_tokens"], usages["anthropic"]["cache_read_input_tokens"]) == (2, 5)
    google = ("promptTokenCount", "cachedContentTokenCount", "thoughtsTokenCount", "candidatesTokenCount")
    assert [usages["google"][key] for key in google] == [7, 5, 3, 1]
