"""The cost of placing a request of a long conversation, and the placements despite what is saved there."""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from program_requests import Session, as_sent, user

from envsdk import Message
from envsdk.gateway._conversations import Conversations
from envsdk.gateway._requests import ModelRequest, ReceivedMessage

TEXTS = st.sampled_from(["ok", "no", "A text that is long enough to be evidence."])


class ReadsAll(Conversations):
    """Reads a request against every context that it may belong to, to its end."""

    def _fits_in(self, conversations: Any, request: ModelRequest) -> Any:
        return {conversation: self._fit(conversation, request) for conversation in conversations}


@st.composite
def changed(draw: st.DrawFn, conversations: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Draw how a program continues a conversation: whole, without its end, or with another message in it."""
    messages = draw(st.sampled_from(conversations))
    messages = messages[: draw(st.one_of(st.just(len(messages)), st.integers(0, len(messages))))]
    if messages and draw(st.sampled_from([False, False, True])):
        place = draw(st.integers(0, len(messages) - 1))
        messages = [*messages[:place], {**messages[place], "content": draw(TEXTS)}, *messages[place + 1 :]]
    return [*messages, *map(user, draw(st.lists(TEXTS, min_size=1, max_size=2)))]


@given(st.data())
def test_a_request_is_placed_as_if_it_were_read_against_every_context(data):
    session, plain = Session(), Session()
    plain.conversations = ReadsAll()
    conversations: list[list[dict[str, Any]]] = [[]]
    for _ in range(data.draw(st.integers(2, 10))):
        messages = data.draw(changed(conversations))
        assert session.place(messages) == plain.place(messages)
        if data.draw(st.booleans()) or len(conversations) == 1:
            reply = Message(role="assistant", content=data.draw(TEXTS))
            session.answer(reply)
            plain.answer(reply)
            conversations.append([*messages, as_sent(reply)])


def test_a_context_of_a_later_reply_is_found_although_the_request_continues_another_one():
    session, long = Session(), "A text that is long enough to be evidence."
    first = session.ask([user("Question 1")], long)
    other = session.ask([user("Question 2")], long)
    later = session.ask([user("Question 2"), as_sent(other), user("on")], long)
    context = session.placed.context
    placed = session.place([user("Question 1"), as_sent(first), user("on"), as_sent(later), user("on")])
    assert (placed.context, bool(placed.changed)) == (context, True)


def calls_of(function: Callable[[], Any]) -> int:
    """Return how many Python functions it calls."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def test_placing_a_short_text_that_fits_many_contexts_takes_no_longer_in_a_long_conversation():
    session, contexts, calls = Session(), 4, {}
    talks: list[list[ReceivedMessage]] = [received([user(f"Question {number}")]) for number in range(contexts)]
    while len(talks[0]) < 400:
        for talk in talks:
            request = ModelRequest(list(talk))
            calls[len(talk)] = calls_of(lambda request=request: session.conversations.place(request))
            reply = Message(role="assistant", content="ok")
            session.answer(reply, request=request)
            talk += received([as_sent(reply), user("on")])
    assert len(session.conversations._open) == contexts
    assert calls[399] <= 10 * calls[9]


def received(values: list[dict[str, Any]]) -> list[ReceivedMessage]:
    """Return messages as they are parsed: as new objects."""
    return [ReceivedMessage(Message.from_openai(value), value) for value in json.loads(json.dumps(values))]
