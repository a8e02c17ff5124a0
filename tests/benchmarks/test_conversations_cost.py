"""What it costs to decide where a request belongs, as its conversation grows."""

import gc
import json
from time import perf_counter
from typing import Any

import pytest
from program_requests import TOOLS, Session, as_sent, result, user

from envsdk import Message
from envsdk.gateway._requests import ModelRequest, ReceivedMessage

LENGTHS = (10, 200, 1000)
NEW_WORDS = 200
NEAR = 10  # messages around each length


def costs(prose, kind: str, lengths: tuple[int, ...]) -> tuple[dict[int, float], dict[int, float]]:
    """The seconds that it takes to place a request of each length, and to read its JSON: the fastest of some."""
    session, sent = Session(), received([user("Find out all about it.")])
    placing, reading = dict.fromkeys(lengths, 1.0), dict.fromkeys(lengths, 1.0)
    while len(sent) <= lengths[-1] + NEAR:
        step = len(sent)
        length = next((length for length in lengths if 0 <= step - length <= NEAR), None)
        messages = list(sent)
        if kind == "in another form":  # such as a mark for a cache
            messages[-1:] = received([{**sent[-1].raw, "content": [{"type": "text", "text": sent[-1].raw["content"]}]}])
        elif length and kind == "parsed anew":
            text = json.dumps([message.raw for message in sent])
            started = perf_counter()
            values = json.loads(text)
            reading[length] = min(reading[length], perf_counter() - started)
            messages = received(values)
        request = ModelRequest(messages, tools=TOOLS)
        started = perf_counter()
        session.conversations.place(request)
        if length:
            placing[length] = min(placing[length], perf_counter() - started)
        reply = session.reply(prose.words(NEW_WORDS, start=step), [("look", {"step": step})])
        session.answer(reply, request=request)
        answer = result(reply.tool_calls[0].id or "", prose.words(NEW_WORDS, start=step + 7))
        sent += received([as_sent(reply), answer])
    return placing, reading


def received(values: list[dict[str, Any]]) -> list[ReceivedMessage]:
    return [ReceivedMessage(Message.from_openai(value), value) for value in values]


@pytest.mark.parametrize("kind", ["unchanged", "in another form", "parsed anew"])
def test_a_request_of_a_long_conversation_is_placed_as_fast_as_one_of_a_short_one(benchmark, report, prose, kind):
    gc.disable()
    try:
        placing, reading = benchmark.pedantic(costs, (prose, kind, LENGTHS if benchmark.enabled else LENGTHS[:1]))
    finally:
        gc.enable()
    if not benchmark.enabled:
        return
    short, middle, long = (placing[length] for length in LENGTHS)
    what, note = f"place(), old messages {kind}", f"{1e6 * short:.0f} and {1e6 * long:.0f} us"
    if kind == "parsed anew":  # the whole JSON is compared, unless the messages are the same objects
        report(f"{what}: beside reading 1,000 of them", long / reading[LENGTHS[-1]], "x", at_most=2, note=note)
    else:
        report(f"{what}: message 200 beside 10", middle / short, "x", at_most=2)
        report(f"{what}: message 1,000 beside 10", long / short, "x", at_most=3, note=note)
