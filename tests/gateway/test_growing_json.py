"""A body that begins as the last one did has the value that it has alone, whatever is in it."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.errors import RequestError
from envsdk.gateway._growing_json import ParsedBody, parse
from envsdk.gateway._protocols import WireFormat, load_protocol
from envsdk.gateway._protocols._memory import SessionMemory

TRAPS = ['"', "\\", '\\"', "]", "}", '"]}', '],"messages":[{"role":"', '{"a":[', "é", "\u2028", "", "a longer text"]
TEXTS = st.lists(st.sampled_from(TRAPS), max_size=4).map("".join)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(0, 200), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
MESSAGES = st.one_of(st.fixed_dictionaries({"role": TEXTS, "content": VALUES}), VALUES)
NAMES = st.sampled_from(["messages", "input", "tools", "model", "a"])


def written(fields: list[tuple[str, Any]], draw: Any) -> bytes:
    """An object as JSON, in which a name may come twice, in one of the forms that clients write."""
    indent = draw(st.sampled_from([None, 1]))
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")]))
    ascii_ = draw(st.booleans())
    parts = [
        f"{json.dumps(name)}: {json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_)}"
        for name, value in fields
    ]
    return ("{" + ", ".join(parts) + "}").encode()


@given(st.data())
def test_a_body_after_another_one_has_the_value_that_it_has_alone(data):
    draw, last = data.draw, None
    fields = draw(st.lists(st.tuples(NAMES, st.lists(MESSAGES, max_size=4)), min_size=1, max_size=4))
    for _ in range(4):
        body = written(fields, draw)
        last = parse(body, last)
        assert exact(last.value) == exact(orjson.loads(body))
        changed = draw(st.integers(0, len(fields) - 1))
        name, values = fields[changed]
        kept = values[: draw(st.one_of(st.just(len(values)), st.integers(0, len(values))))]
        fields[changed] = name, kept + draw(st.lists(MESSAGES, max_size=2))


@given(st.data())
def test_any_text_after_a_body_is_parsed_or_refused_as_alone(data):
    draw = data.draw
    last = parse(written([("model", "m"), ("messages", draw(st.lists(MESSAGES, max_size=4)))], draw))
    again = parse(last.body, last)
    for known in (last, again):
        cut = draw(st.integers(0, len(known.body)))
        end = draw(st.sampled_from([b"]}", b',{"a":1}]}', b"}]}", b'"}]}', b'],"messages":[1]}', b"3]}", b"e5]}", b""]))
        body = known.body[:cut] + end
        try:
            expected = exact(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            with pytest.raises(orjson.JSONDecodeError) as refused:
                parse(body, known)
            assert str(refused.value) == str(error)
        else:
            assert exact(parse(body, known).value) == expected


def exact(value: Any) -> str:
    """A value as a text that has the order of keys, and the types of numbers."""
    return json.dumps(value)


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("more", [{}, {"tools": [{"name": "look"}]}])
def test_only_what_is_new_is_parsed_and_what_is_known_is_the_same_object(separators, more):
    last: ParsedBody | None = None
    messages: list[Any] = []
    for step in range(50):
        messages += [{"role": "user", "content": [{"type": "text", "text": f'"{step}" ]}}'}]}, {"role": "assistant"}]
        body = json.dumps({"model": "m", "messages": messages, **more}, separators=separators).encode()
        parsed = parse(body, last)
        if last is not None:
            known = last.value["messages"]
            assert all(one is other for one, other in zip(known, parsed.value["messages"], strict=False))
            assert parsed.new_bytes < 300
        last = parsed


def test_a_mark_that_moves_with_the_last_message_does_not_make_all_new():
    last: ParsedBody | None = None
    for step in range(2, 50):
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": str(i)}]} for i in range(step)]
        messages[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        last = parse(json.dumps({"model": "m", "messages": messages}).encode(), last)
        assert step == 2 or last.new_bytes < 300


ROLES = st.sampled_from(["user", "system", "assistant"])
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}))
CHAT_MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": ROLES, "content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("user"), "content": PARTS}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": TEXTS}),
    MESSAGES,
)


@given(st.data())
def test_a_request_after_others_is_read_or_refused_as_alone(data):
    draw, wire, memory = data.draw, load_protocol("chat"), SessionMemory()
    last: ParsedBody | None = None
    messages = draw(st.lists(CHAT_MESSAGES, min_size=1, max_size=4))
    for _ in range(4):
        fields = [("model", "m"), ("messages", messages)]
        body = written(fields if draw(st.booleans()) else fields[::-1], draw)
        place = draw(st.integers(-3 * len(body), len(body) - 1))
        if place >= 0:  # one byte differs
            body = body[:place] + draw(st.sampled_from([b" ", b'"', b"]", b"1", b"x"])) + body[place + 1 :]
        try:
            alone = orjson.loads(body)
        except orjson.JSONDecodeError:
            with pytest.raises(orjson.JSONDecodeError):
                parse(body, last)
            continue
        last = parse(body, last)
        assert outcome(wire, last.value, memory) == outcome(wire, alone, None)
        kept = messages[: draw(st.one_of(st.just(len(messages)), st.integers(0, len(messages))))]
        messages = kept + draw(st.lists(CHAT_MESSAGES, min_size=1, max_size=2))


def outcome(wire: WireFormat, body: Any, memory: SessionMemory | None) -> Any:
    """A request, or why it is refused."""
    try:
        return wire.read(body, {}, memory)
    except RequestError as error:
        return str(error), error.status, error.code, error.field
