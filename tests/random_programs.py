"""Random programs: what they send, and what each of their requests is, which is known by construction.

They start conversations, go on with them, fork, edit and drop messages and replies, ask aside and compact, and send
what they have in other forms: without reasoning, or with it in the text, with renamed ids, other white space and
other arguments.
"""

import copy
import json
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from program_requests import TOOLS, as_sent, result, to_request, user

from envsdk import Message, ToolCall
from envsdk.gateway._requests import ModelRequest

ANY = "any"
"""The base of a conversation that begins with what several have."""


class Thread:
    """A conversation as the program has it, and as it should be recorded."""

    def __init__(self, system: str | None, tools: list[Any]) -> None:
        self.system, self.tools = system, tools
        self.context: str | None = None
        self.sent: list[dict[str, Any]] = []
        self.truth: list[Message] = []  # without the system message
        self.asked = 0  # messages of the last request
        self.has_twin = False  # whether another conversation differs in the last reply only

    def copy(self) -> "Thread":
        twin = Thread(self.system, self.tools)
        twin.sent, twin.truth, twin.asked = list(self.sent), list(self.truth), self.asked
        return twin

    def say(self, message: dict[str, Any], name: str | None = None) -> None:
        self.sent.append(message)
        self.truth.append(Message.from_openai({**message, "name": name} if name else message))

    def hear(self, reply: Message, reply_id: str | None = None) -> None:
        self.asked, self.has_twin = len(self.sent), False
        self.sent.append({**as_sent(reply), "reply_id": reply_id})
        self.truth.append(reply)

    def cut(self, start: int, stop: int | None = None) -> None:
        del self.sent[start:stop], self.truth[start:stop]


@dataclass(frozen=True)
class Expected:
    """What a request should be.

    Attributes:
        context: The context that it continues; None if it opens one.
        changed: A part of what it should say that changed; empty if nothing did.
        base: The context that the one that it opens begins with.
        role: The role of the one that it opens; None for any.
        shared: At least how many messages it shares with the base, without the system message.
    """

    context: str | None
    changed: str = ""
    base: str | None = None
    role: str | None = None
    shared: int = 0


class RandomProgram:
    """A program that does something random. Subclasses ask, and check what each request was taken for."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.numbers = count(1)
        self.threads: list[Thread] = []
        self.changed: list[Message] = []
        """The replies that the program changed, as it means them."""
        self._changed: set[int] = set()  # those replies as they are sent, by identity
        self._rethought: set[tuple[str, str]] = set()  # the contents and calls of those with other reasoning
        self._said: set[int] = set()  # messages that were sent before, by identity
        self._kept: list[Any] = []  # so that identities stay unique

    def ask(self, thread: Thread, expected: Expected) -> None:
        """Send a thread's request, check what it is, add the reply to the thread, and set its context."""
        raise NotImplementedError

    def ask_again(self, thread: Thread) -> None:
        """Send a request that is being answered, or was just answered, once more."""
        raise NotImplementedError

    def text(self, what: str) -> str:
        return f"{what} number {next(self.numbers):04d}, said only once"

    def reply(self, *, has_tools: bool = True) -> Message:
        """A new reply; its calls have no ids yet."""
        made = [
            ToolCall(name=name, arguments={"x": next(self.numbers), "y": 1000000})
            for name in ("look", "add")[: self.random.randrange(3) if has_tools else 0]
        ]
        content = "" if made and self.random.random() < 0.5 else self.text("reply")
        return Message(role="assistant", content=content, tool_calls=tuple(made), reasoning=self.text("thought"))

    # How a client sends what it has.

    def written(self, message: dict[str, Any]) -> dict[str, Any]:
        is_known = id(message) in self._said  # what is new is recorded as it is sent first
        is_reply = message["role"] == "assistant" and (is_known or not self.is_changed(message))  # it is recorded
        # Two forks may differ in the reasoning of a reply only.
        is_reasoned = (message.get("content"), str(message.get("tool_calls"))) in self._rethought
        message, chance = copy.deepcopy(message), self.random.random
        if is_known and chance() < 0.3:
            message["content"] = f" {message['content'].strip()}\n"
        if is_reply and "reasoning_content" in message and not is_reasoned and chance() < 0.2:
            message["content"] = f"<think>\n{message.pop('reasoning_content')}\n</think>\n\n{message['content']}"
        if chance() < 0.3:
            message["content"] = [{"type": "text", "text": message["content"]}]
        if is_reply:
            if not is_reasoned and chance() < 0.5:
                message.pop("reasoning_content", None)
            for call in message.get("tool_calls", ()):
                arguments = json.loads(call["function"]["arguments"])
                forms = (dict(reversed(arguments.items())), {key: float(value) for key, value in arguments.items()})
                call["function"]["arguments"] = json.dumps(self.random.choice([arguments, *forms]))
        return message

    def is_changed(self, message: dict[str, Any]) -> bool:
        """Whether a message is a reply as the program changed it."""
        return id(message) in self._changed

    def sent(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages in other forms; ids are renamed, and results of one reply shuffled, now and then."""
        written = [self.written(message) for message in messages]
        self._said.update(map(id, messages))
        self._kept += messages
        if self.random.random() < 0.3:
            return copy.deepcopy(messages)
        if self.random.random() < 0.2 and not any(map(self.is_changed, messages)):  # whose ids are recorded as sent
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

    def request(self, thread: Thread, **options: Any) -> ModelRequest:
        return to_request(self.sent(thread.sent), system=thread.system, tools=thread.tools, **options)

    # What it does.

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
        self.threads.append(thread)
        self.ask(thread, Expected(None))

    def grows(self, thread: Thread) -> None:
        self.answer_calls(thread)
        self.ask(thread, Expected(thread.context))

    def leaves_out_the_reply(self, thread: Thread) -> None:
        if thread.has_twin:
            return self.grows(thread)
        thread.cut(thread.asked)
        thread.say(user(self.text("error")))
        return self.ask(thread, Expected(thread.context, "left out"))

    def drops_messages(self, thread: Thread) -> None:
        """Leave out a reply and what followed, neither the first message nor the last reply."""
        starts = [i for i, message in enumerate(thread.truth) if message.role == "assistant"]
        if len(starts) < 3:
            return self.grows(thread)
        start = self.random.randrange(len(starts) - 1)
        self.answer_calls(thread)
        thread.cut(starts[start], starts[self.random.randrange(start + 1, len(starts))])
        return self.ask(thread, Expected(thread.context, "left out"))

    def changes_a_message(self, thread: Thread) -> None:
        places = [i for i, m in enumerate(thread.truth) if m.role != "assistant" and i < len(thread.truth) - 1]
        place = self.random.choice(places)
        if len(thread.truth) == 2:
            return self.grows(thread)  # the same reply to another question is no evidence
        text = self.text("changed")
        self.answer_calls(thread)
        thread.sent[place] = {**thread.sent[place], "content": text}
        thread.truth[place] = thread.truth[place].model_copy(update={"content": text})
        return self.ask(thread, Expected(thread.context, "differs"))

    def changes_a_reply(self, thread: Thread) -> None:
        """Change what a reply says; its other calls keep their ids. Without ids, another last reply is a fork."""
        places = [i for i, message in enumerate(thread.truth) if message.role == "assistant"]
        place = self.random.choice(places)
        reply, is_last = thread.truth[place], place == len(thread.truth) - 1
        if thread.has_twin:
            return self.grows(thread)
        changed = self.changed_reply(reply, is_last=is_last)
        sent = {**as_sent(changed), "reply_id": thread.sent[place].get("reply_id")}
        thread.truth[place], thread.sent[place] = changed, sent
        self._changed.add(id(sent))
        if changed.reasoning:
            self._rethought.add((sent["content"], str(sent.get("tool_calls"))))
        self._kept.append(sent)
        kept = {call.id: call for call in changed.tool_calls}
        answered = {call.id for call in reply.tool_calls}
        for i in reversed(range(place, len(thread.truth))):
            of = thread.truth[i].tool_call_id
            if of in kept:
                thread.sent[i] = dict(thread.sent[i])  # recorded anew if the call has another name now
                thread.truth[i] = thread.truth[i].model_copy(update={"name": kept[of].name})
            elif of in answered:
                thread.cut(i, i + 1)
        if not is_last:
            self.answer_calls(thread)
            return self.ask(thread, Expected(thread.context, "differs"))
        fork = thread if kept or (reply.content and reply.content in changed.content) else thread.copy()
        self.answer_calls(fork)
        if fork is thread:
            return self.ask(thread, Expected(thread.context, "differs"))
        self.threads.remove(thread)
        self.threads.append(fork)
        return self.ask(fork, Expected(None, base=ANY, shared=place))

    def changed_reply(self, reply: Message, *, is_last: bool) -> Message:
        calls = list(reply.tool_calls)
        changes = ["text", "more text", "reasoning", *(["a joiner"] if reply.content else [])]
        if calls:
            changes += ["arguments", "name"]
            changes += ["call"] if is_last or len(calls) > 1 else []  # else two replies are one in Responses
            is_own = all(reply is not changed for changed in self.changed)  # else it might be as it was
            changes += ["no text"] if reply.content and is_own else []
        content, reasoning = reply.content, None
        match self.random.choice(changes):
            case "text":
                content = self.text("changed reply")
            case "more text":
                content = f"{content} {self.text('more')}".strip()
            case "a joiner":
                content = f"{content[:-4]}\u200d{content[-4:]}"
            case "no text":
                content = ""
            case "reasoning":
                reasoning = self.text("changed thought")
            case "arguments":
                calls[0] = calls[0].model_copy(update={"arguments": {"x": next(self.numbers), "y": 1000000}})
            case "name":
                calls[0] = calls[0].model_copy(update={"name": f"find_{next(self.numbers)}"})
            case _:
                gone = self.random.randrange(len(calls))
                if gone == len(calls) - 1 and (content or gone):
                    reasoning = reply.reasoning  # the start of a reply keeps its reasoning, which came before it
                del calls[gone]
                content = content or self.text("no call")
        changed = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))
        self.changed.append(changed)
        return changed

    def goes_back(self, thread: Thread) -> None:
        """Fork: go on from an earlier reply in another way."""
        starts = [i for i, message in enumerate(thread.truth) if message.role == "assistant"]
        if len(starts) < 2:
            return self.grows(thread)
        fork = thread.copy()
        fork.cut(self.random.choice(starts[:-1]) + 1)
        shared = len(fork.truth)
        self.answer_calls(fork)
        self.threads.append(fork)
        return self.ask(fork, Expected(None, base=ANY, shared=shared))

    def asks_aside(self, thread: Thread) -> Message:
        side = thread.copy()
        side.tools = []
        self.answer_calls(side)
        side.say(user(self.text("summarize")))
        self.ask(side, Expected(None, base=thread.context, role="side", shared=len(thread.truth)))
        return side.truth[-1]

    def compacts(self, thread: Thread) -> None:
        summary = self.asks_aside(thread).content
        if not summary:
            return
        thread.cut(0)
        thread.say(user(f"What happened so far:\n{summary}\nGo on."))
        self.ask(thread, Expected(thread.context, "compacted"))

    def compacts_in_other_words(self, thread: Thread) -> None:
        """Replace the beginning with words of its own; the end stays."""
        starts = [i for i, message in enumerate(thread.truth) if message.role == "assistant"]
        if len(starts) < 3:
            return self.grows(thread)
        thread.cut(0, starts[-2])
        summary = user(self.text("summary in other words"))
        thread.sent.insert(0, summary)
        thread.truth.insert(0, Message.from_openai(summary))
        self.answer_calls(thread)
        return self.ask(thread, Expected(thread.context, "compacted"))

    def resumes(self, thread: Thread) -> None:
        """Go on later: a sentence of the system message and the description of a tool are new."""
        number = next(self.numbers)
        if thread.system is not None:
            thread.system = f"{thread.system.partition(' It is day')[0]} It is day {number}."
        first, *others = thread.tools
        function = {"name": first["function"]["name"], "description": f"Look at day {number}.", "parameters": {}}
        thread.tools = [{**first, "function": function}, *others]
        self.answer_calls(thread)
        self.ask(thread, Expected(thread.context, "new "))

    def receives_a_part(self, thread: Thread) -> None:
        """Go on after the start of a reply, without its end and its calls."""
        reply = thread.truth[-1]
        if not reply.content or thread.has_twin:
            return self.grows(thread)
        begun = Message(role="assistant", content=reply.content[:-6], reasoning=reply.reasoning)
        sent = {"role": "assistant", "content": begun.content, "reply_id": thread.sent[-1].get("reply_id")}
        thread.truth[-1], thread.sent[-1] = begun, sent
        self.changed.append(begun)
        self._changed.add(id(sent))
        self._kept.append(sent)
        thread.say(user(self.text("question")))
        return self.ask(thread, Expected(thread.context, "was cut"))

    def asks_twice(self, thread: Thread) -> None:
        self.answer_calls(thread)
        self.ask_again(thread)

    def run(self, steps: int) -> None:
        actions = [
            *[self.grows] * 4,
            self.leaves_out_the_reply,
            self.drops_messages,
            self.changes_a_message,
            *[self.changes_a_reply] * 2,
            self.goes_back,
            self.asks_aside,
            self.compacts,
            self.compacts_in_other_words,
            self.resumes,
            self.receives_a_part,
            self.asks_twice,
        ]
        self.opens()
        for _ in range(steps):
            if self.random.random() < 0.15:
                self.opens()
            else:
                self.random.choice(actions)(self.random.choice(self.threads))
