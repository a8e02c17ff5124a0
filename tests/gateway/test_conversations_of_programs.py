"""Random programs, whose conversations are known: each request has to be placed where it belongs."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from program_requests import Session
from random_programs import ANY, Expected, RandomProgram, Thread

from envsdk import Message
from envsdk.gateway._conversations import Continues, Opens
from envsdk.gateway._requests import ModelReply

PROGRAMS = 2000 if settings().max_examples >= 100 else 80  # in a full run, and in a short one


class PlacedProgram(RandomProgram):
    """A program that checks where each of its requests was placed."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.conversations = Session().conversations
        self.records: dict[str, tuple[str | None, list[Message]]] = {}

    def ask(self, thread: Thread, expected: Expected) -> None:
        request = self.request(thread)
        placed = self.conversations.place(request)
        if self.random.random() < 0.1:
            self.conversations.fail(request)
            assert self.conversations.place(request) == placed
        self.check(thread, placed, expected)
        made = self.reply()
        calls = [call.model_copy(update={"id": f"call_{next(self.numbers):06d}"}) for call in made.tool_calls]
        reply = made.model_copy(update={"tool_calls": tuple(calls)})
        reply_id = f"reply_{next(self.numbers):06d}"
        self.conversations.answer(request, [ModelReply(reply_id, reply, "stop", 0, ())])
        thread.hear(reply, reply_id)
        thread.context = placed.context
        self.records[placed.context] = thread.system, list(thread.truth)

    def check(self, thread: Thread, placed: Any, expected: Expected) -> None:
        if isinstance(placed, Opens):
            assert expected.context is None and placed.context not in self.records
            assert (placed.system, list(placed.tools)) == (thread.system, thread.tools)
            assert (placed.base is not None) if expected.base == ANY else placed.base == expected.base
            assert expected.role in (None, placed.role)
            system, record = self.records.get(placed.base or "", (None, []))
            keep = placed.keep - (placed.base is not None and system is not None)
            assert keep >= expected.shared
        else:
            assert isinstance(placed, Continues) and placed.context == expected.context
            assert bool(placed.changed) == bool(expected.changed) and expected.changed in placed.changed
            assert not placed.was_choice or placed.changed
            system, record = self.records[placed.context]
            keep = len(record) if placed.keep is None else placed.keep - (system is not None)
            assert keep == self.common(record, thread.truth)
            assert (placed.keep is None) == (not placed.changed) == (keep == len(record))
        whole = [*record[:keep], *placed.messages]
        assert self.common(whole, thread.truth) == len(whole) == len(thread.truth)

    def common(self, one: list[Message], other: list[Message]) -> int:
        same = 0
        for a, b in zip(one, other, strict=False):
            fields = [(m.role, m.content.strip(), m.tool_call_id, m.name) for m in (a, b)]
            if fields[0] != fields[1] or (a.role == "assistant" and not self.is_same_reply(a, b)):
                break
            same += 1
        return same

    def is_same_reply(self, one: Message, other: Message) -> bool:
        """Whether both are the same reply, or the message in its place that the program wrote."""
        is_changed = any(other is changed for changed in self.changed)
        return one is other or (
            is_changed
            and (one.content.strip(), one.reasoning, one.tool_calls)
            == (other.content, other.reasoning, other.tool_calls)
        )

    def ask_again(self, thread: Thread) -> None:
        first, second = self.request(thread), self.request(thread)
        placed = self.conversations.place(first)
        assert isinstance(placed, Continues)
        assert placed.context == thread.context
        branch = self.conversations.place(second)
        assert isinstance(branch, Opens)
        assert (branch.base, branch.messages) == (thread.context, ())
        self.conversations.fail(second)
        self.conversations.fail(first)
        self.ask(thread, Expected(thread.context))


@settings(max_examples=PROGRAMS)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_each_request_of_a_program_is_placed_where_it_belongs(seed, steps):
    PlacedProgram(Random(seed)).run(steps)
