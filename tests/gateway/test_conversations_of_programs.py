"""Random programs, whose conversations are known: each request has to be placed where it belongs."""

import copy
import json
from itertools import count
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from program_requests import TOOLS, Session, as_sent, result, to_request, user

from envsdk import Message
from envsdk.gateway.conversations import Continues, Opens
from envsdk.gateway.requests import ModelReply

FACTOR = 20  # with the profile's examples: 500 programs, and 2,000 in a full run


class Thread:
    """A conversation as the program has it, and as it should be recorded."""

    def __init__(self, system: str | None, tools: list[Any], context: str | None = None) -> None:
        self.system, self.tools, self.context = system, tools, context
        self.sent: list[dict[str, Any]] = []
        self.truth: list[Message] = []  # without the system message
        self.asked = 0  # messages of the last request

    def copy(self) -> "Thread":
        twin = Thread(self.system, self.tools, self.context)
        twin.sent, twin.truth, twin.asked = list(self.sent), list(self.truth), self.asked
        return twin

    def say(self, message: dict[str, Any], name: str | None = None) -> None:
        self.sent.append(message)
        self.truth.append(Message.from_openai({**message, "name": name} if name else message))

    def cut(self, start: int, stop: int | None = None) -> None:
        del self.sent[start:stop], self.truth[start:stop]


class Program:
    """A program that does something random, and checks where each of its requests was placed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.session = Session()
        self.conversations = self.session.conversations
        self.numbers = count(1)
        self.records: dict[str, tuple[str | None, list[Message]]] = {}
        self.threads: list[Thread] = []

    def text(self, what: str) -> str:
        return f"{what} number {next(self.numbers):04d}, said only once"

    # How a client sends what it has.

    def written(self, message: dict[str, Any]) -> dict[str, Any]:
        message, chance = copy.deepcopy(message), self.random.random
        if chance() < 0.3:
            message["content"] = f" {message['content'].strip()}\n"
        if chance() < 0.3:
            message["content"] = [{"type": "text", "text": message["content"]}]
        if message["role"] == "assistant":
            if chance() < 0.5:
                message.pop("reasoning_content", None)
            for call in message.get("tool_calls", ()):
                arguments = json.loads(call["function"]["arguments"])
                forms = (dict(reversed(arguments.items())), {key: float(value) for key, value in arguments.items()}, {})
                call["function"]["arguments"] = json.dumps(self.random.choice([arguments, *forms]))
        return message

    def sent(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages in other forms; ids are renamed, and results of one reply shuffled, now and then."""
        if self.random.random() < 0.3:
            return copy.deepcopy(messages)
        written = [self.written(message) for message in messages]
        if self.random.random() < 0.2:
            for message in written:
                self._rename(message)
        start = 0
        while start < len(written):
            stop = start
            while stop < len(written) and written[stop]["role"] == "tool":
                stop += 1
            batch = written[start:stop]
            self.random.shuffle(batch)
            written[start:stop] = batch
            start = stop + 1
        return written

    def _rename(self, message: dict[str, Any]) -> None:
        if "tool_call_id" in message:
            message["tool_call_id"] = f"own-{message['tool_call_id']}"
        for call in message.get("tool_calls", ()):
            call["id"] = f"own-{call['id']}"
            arguments = next(
                c.arguments for t in self.threads for m in t.truth for c in m.tool_calls if f"own-{c.id}" == call["id"]
            )
            call["function"]["arguments"] = json.dumps(arguments)  # without the id, they identify the call

    # What it does.

    def request(self, thread: Thread, **options: Any) -> Any:
        return to_request(self.sent(thread.sent), system=thread.system, tools=thread.tools, **options)

    def ask(self, thread: Thread) -> Any:
        """Place a thread's request, check what it became, and answer it."""
        request = self.request(thread)
        placed = self.conversations.place(request)
        if self.random.random() < 0.1:
            self.conversations.fail(request)
            assert self.conversations.place(request) == placed
        self.check(thread, placed)
        calls = [
            (name, {"x": next(self.numbers), "y": 1000000}) for name in ("look", "add")[: self.random.randrange(3)]
        ]
        reply = self.session.reply("" if calls and self.random.random() < 0.5 else self.text("reply"), calls)
        self.conversations.answer(request, [ModelReply(f"reply_{next(self.numbers):06d}", reply, "stop", 0, ())])
        thread.asked = len(thread.sent)
        thread.sent.append(as_sent(reply))
        thread.truth.append(reply)
        self.records[placed.context] = thread.system, list(thread.truth)
        return placed

    def check(self, thread: Thread, placed: Any) -> None:
        if isinstance(placed, Opens):
            assert placed.context not in self.records
            assert (placed.system, list(placed.tools)) == (thread.system, thread.tools)
            system, record = self.records.get(placed.base or "", (None, []))
            keep = placed.keep - (placed.base is not None and system is not None)
        else:
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
            if fields[0] != fields[1] or (a.role == "assistant" and a is not b):
                break
            same += 1
        return same

    def answer_calls(self, thread: Thread) -> None:
        """Append what follows a reply."""
        calls = thread.truth[-1].tool_calls
        for call in calls:
            thread.say(result(call.id or "", self.text("result")), call.name)
        if not calls or self.random.random() < 0.3:
            thread.say(user(self.text("question")))

    def opens(self) -> None:
        """Start another agent, perhaps with a question that others got, too."""
        number = next(self.numbers)
        tools = [{"type": "function", "function": {"name": f"tool_{number}", "parameters": {}}}, *TOOLS]
        thread = Thread(f"You are agent {number}." if self.random.random() < 0.8 else None, tools)
        thread.say(user("Hi" if self.random.random() < 0.5 else self.text("task")))
        placed = self.ask(thread)
        assert isinstance(placed, Opens)
        assert placed.base is None
        thread.context = placed.context
        self.threads.append(thread)

    def grows(self, thread: Thread) -> None:
        self.answer_calls(thread)
        placed = self.ask(thread)
        assert isinstance(placed, Continues)
        assert (placed.context, placed.keep, placed.was_choice) == (thread.context, None, False)

    def leaves_out_the_reply(self, thread: Thread) -> None:
        thread.cut(thread.asked)
        thread.say(user(self.text("error")))
        placed = self.ask(thread)
        assert isinstance(placed, Continues)
        assert (placed.context, "left out" in placed.changed) == (thread.context, True)

    def drops_messages(self, thread: Thread) -> None:
        """Leave out a reply and what followed, neither the first message nor the last reply."""
        starts = [i for i, message in enumerate(thread.truth) if message.role == "assistant"]
        if len(starts) < 3:
            return self.grows(thread)
        start = self.random.randrange(len(starts) - 1)
        self.answer_calls(thread)
        thread.cut(starts[start], starts[self.random.randrange(start + 1, len(starts))])
        placed = self.ask(thread)
        assert isinstance(placed, Continues)
        assert (placed.context, "left out" in placed.changed) == (thread.context, True)
        return None

    def changes_a_message(self, thread: Thread) -> None:
        places = [i for i, m in enumerate(thread.truth) if m.role != "assistant" and i < len(thread.truth) - 1]
        place = self.random.choice(places)
        if len(thread.truth) == 2:
            return self.grows(thread)  # the same reply to another question is no evidence
        text = self.text("changed")
        self.answer_calls(thread)
        thread.sent[place] = {**thread.sent[place], "content": text}
        thread.truth[place] = thread.truth[place].model_copy(update={"content": text})
        placed = self.ask(thread)
        assert isinstance(placed, Continues)
        assert (placed.context, "differs" in placed.changed) == (thread.context, True)
        return None

    def goes_back(self, thread: Thread) -> None:
        """Fork: go on from an earlier reply in another way."""
        starts = [i for i, message in enumerate(thread.truth) if message.role == "assistant"]
        if len(starts) < 2:
            return self.grows(thread)
        fork = thread.copy()
        fork.cut(self.random.choice(starts[:-1]) + 1)
        self.answer_calls(fork)
        placed = self.ask(fork)
        assert isinstance(placed, Opens)
        assert placed.base is not None
        assert placed.keep - (thread.system is not None) >= self.common(
            self.records[thread.context or ""][1], fork.truth[: fork.asked]
        )
        fork.context = placed.context
        self.threads.append(fork)
        return None

    def asks_aside(self, thread: Thread) -> Message:
        side = thread.copy()
        side.tools = []
        self.answer_calls(side)
        side.say(user(self.text("summarize")))
        placed = self.ask(side)
        assert isinstance(placed, Opens)
        assert (placed.role, placed.base) == ("side", thread.context)
        assert placed.keep - (thread.system is not None) == len(thread.truth)
        return side.truth[-1]

    def compacts(self, thread: Thread) -> None:
        summary = self.asks_aside(thread).content
        if not summary:
            return
        thread.cut(0)
        thread.say(user(f"What happened so far:\n{summary}\nGo on."))
        placed = self.ask(thread)
        assert isinstance(placed, Continues)
        assert (placed.context, placed.changed.startswith("compacted")) == (thread.context, True)

    def asks_twice_at_once(self, thread: Thread) -> None:
        self.answer_calls(thread)
        first, second = self.request(thread), self.request(thread)
        placed = self.conversations.place(first)
        assert isinstance(placed, Continues)
        assert placed.context == thread.context
        branch = self.conversations.place(second)
        assert isinstance(branch, Opens)
        assert (branch.base, branch.messages) == (thread.context, ())
        self.conversations.fail(second)
        self.conversations.fail(first)
        assert self.ask(thread).context == thread.context

    def run(self, steps: int) -> None:
        actions = [
            *[self.grows] * 4,
            self.leaves_out_the_reply,
            self.drops_messages,
            self.changes_a_message,
            self.goes_back,
            self.asks_aside,
            self.compacts,
            self.asks_twice_at_once,
        ]
        self.opens()
        for _ in range(steps):
            if self.random.random() < 0.15:
                self.opens()
            else:
                self.random.choice(actions)(self.random.choice(self.threads))


@settings(max_examples=FACTOR * settings().max_examples)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_each_request_of_a_program_is_placed_where_it_belongs(seed, steps):
    Program(Random(seed)).run(steps)
