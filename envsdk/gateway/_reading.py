"""Reads the messages of a request as the messages of a recorded conversation, wherever they are the same.

Messages with the same JSON as in the conversation's last request are neither normalized nor compared again.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from ..messages import Message, ToolCall
from ._normalized import Form, RecordedMessage, entry_of, has_same_reasoning, is_same_reply, is_start
from ._requests import ModelRequest, ReceivedMessage

_ID = re.compile(r"[A-Za-z0-9_-]{6,}")  # what may be an id


@dataclass(frozen=True, slots=True)
class RequestReading:
    """A conversation as a program last sent it.

    Attributes:
        path: Its messages, as they are recorded.
        sent: The messages as the program sent them.
        asked: The number of messages of `path` in `sent`: all but the reply to it.
        starts: For each assistant message that the program sent, in order: its index in `sent` and in `path`.
        calls: The calls by the ids that the program sent instead of the gateway's.
        keep: How many messages at the start are those of the conversation that it was read against.
        named: The replies that were identified by an id, or by it and their text.
        changed: The messages in the place of replies that were identified by an id, but have other content.
    """

    path: tuple[RecordedMessage, ...] = ()
    sent: tuple[ReceivedMessage, ...] = ()
    asked: int = 0
    starts: tuple[tuple[int, int], ...] = ()
    calls: Mapping[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    keep: int = 0
    named: frozenset[RecordedMessage] = frozenset()
    changed: Mapping[RecordedMessage, RecordedMessage] = field(default_factory=dict[RecordedMessage, RecordedMessage])

    def repeated_by(self, request: ModelRequest) -> int:
        """Return how many messages at the start of a request were sent before with the same JSON."""
        pairs = zip(self.sent, request.messages, strict=False)
        same = (one is other or (one.raw is not None and one.raw == other.raw) for one, other in pairs)
        return len(list(takewhile(bool, same)))


@dataclass(eq=False, repr=False)
class Replies:
    """The replies of a session, by the ids that the gateway issued.

    Args:
        tags: The tags in which the model's family writes reasoning.
    """

    tags: tuple[str, str] | None = None
    _by_id: dict[str, RecordedMessage] = field(default_factory=dict[str, RecordedMessage])

    def add(self, entry: RecordedMessage) -> None:
        """Add a reply with its own id and those of its calls."""
        for name in (entry.reply, *(call.id for call in entry.message.tool_calls)):
            if name is not None:
                self._by_id[name] = entry

    def get(self, name: str | None) -> RecordedMessage | None:
        """Return the reply with this id, or with a call that has it."""
        return None if name is None else self._by_id.get(name)

    def named(self, received: ReceivedMessage) -> RecordedMessage | None:
        """Return the reply that a message names by a link or by the id of a call."""
        names = (received.link, *(call.id for call in received.message.tool_calls))
        return next((entry for name in names if (entry := self.get(name))), None)

    def written(self, message: Message) -> RecordedMessage | None:
        """Return the only reply whose calls, each with its id once, are written into the text."""
        if message.tool_calls:
            return None
        found = [name for name in _ID.findall(message.content) if name in self._by_id]
        entry = self.get(found[0]) if found else None
        return entry if entry and sorted(found) == sorted(call.id or "" for call in entry.message.tool_calls) else None


def read(request: ModelRequest, recorded: RequestReading, replies: Replies) -> RequestReading:
    """Return the conversation of a request, with the recorded messages of another one wherever they are the same."""
    begin = recorded.repeated_by(request)
    known, keep = len(recorded.starts), recorded.asked
    if begin < len(recorded.sent):
        # Continue from the reply before the change, which names the calls of its results.
        known = max(0, bisect_right(recorded.starts, (begin, len(recorded.path))) - 1)
        is_after_reply = recorded.starts and recorded.starts[known][0] <= begin
        begin, keep = recorded.starts[known] if is_after_reply else (0, 0)
    reader = _Reader(recorded, replies, request.stop, keep)
    for turn in _turns(request.messages[begin:], replies):
        reader.read(turn)
    return RequestReading(
        path=tuple(reader.path),
        sent=tuple(request.messages),
        asked=len(reader.path),
        starts=recorded.starts[:known] + tuple((begin + index, position) for index, position in reader.starts),
        calls={**recorded.calls, **reader.calls} if reader.calls else recorded.calls,
        keep=reader.keep,
        named=frozenset(reader.named),
        changed={**recorded.changed, **reader.changed} if reader.changed else recorded.changed,
    )


def _turns(messages: Sequence[ReceivedMessage], replies: Replies) -> Iterator[list[ReceivedMessage]]:
    """Yield messages in turns that end with a reply. Later messages do not affect how a turn is read.

    Programs split a reply into several messages that name it, perhaps after one with its text, with results in between.
    """
    turn: list[ReceivedMessage] = []
    ends: ReceivedMessage | None = None  # the last message of the turn that is a part of a reply
    after: list[ReceivedMessage] = []  # the results that follow it
    for received in _in_call_order(messages):
        if ends is not None and received.message.role == "tool":
            after.append(received)
            continue
        if ends is not None:
            reply = replies.named(received) if received.message.role == "assistant" else None
            first = replies.named(ends)
            if reply is None or not (first is reply or (first is None and not after and not ends.message.tool_calls)):
                yield turn
                turn = []
        turn += after
        turn.append(received)
        ends, after = received if received.message.role == "assistant" else None, []
    if ends is not None:
        yield turn
        turn = []
    yield turn + after


def _in_call_order(messages: Sequence[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    """Yield messages with the results of a reply in the order of its calls: programs send them as they finish."""
    order: dict[str | None, int] = {}
    for is_result, group in groupby(messages, key=lambda received: received.message.role == "tool"):
        if is_result:
            yield from sorted(group, key=lambda received: order.get(received.message.tool_call_id, len(order)))
            continue
        for received in group:
            order.update((call.id, len(order) + i) for i, call in enumerate(received.message.tool_calls))
            yield received


class _Reader:
    """Reads messages one after another, each as the recorded message at its place if it is the same."""

    def __init__(self, recorded: RequestReading, replies: Replies, stop: Sequence[str], keep: int) -> None:
        self._recorded, self._replies, self._stop = recorded, replies, stop
        self.path = list(recorded.path[:keep])
        self.keep = keep
        self.starts: list[tuple[int, int]] = []
        self.calls: dict[str, ToolCall] = {}
        self.named: set[RecordedMessage] = set()
        self.changed: dict[RecordedMessage, RecordedMessage] = {}
        self._later: dict[RecordedMessage, int] | None = None
        """After the first change: the places of the recorded messages that were left at that point."""
        self._next = 0
        """The first of these places that may still occur: messages are recognized in their order."""
        self._read = 0

    def read(self, messages: Sequence[ReceivedMessage]) -> None:
        """Read the messages of a turn."""
        index = 0
        while index < len(messages):
            if merged := self._merged(messages, index):
                index += merged
            elif messages[index].message.role == "assistant":
                index += self._reply(messages, index)
            else:
                self._append(self._other(messages[index].message))
                index += 1
        self._read += len(messages)

    @property
    def _expected(self) -> RecordedMessage | None:
        """The recorded message at this place; None after the first change, and at the end of the record."""
        return self._recorded.path[self.keep] if self._later is None and self.keep < len(self._recorded.path) else None

    def _append(self, entry: RecordedMessage) -> None:
        expected = self._expected
        if entry is expected:
            self.keep += 1
        elif expected is not None:
            self._note_change()
        if self._later is not None:
            self._next = max(self._next, self._later.get(entry, -1) + 1)
        self.path.append(entry)

    def _note_change(self) -> None:
        """Record that a message differs from the recorded one at its place."""
        self._next, path = self.keep, self._recorded.path
        self._later = {path[place]: place for place in range(self.keep, len(path))}

    def _known(self, sent: RecordedMessage) -> RecordedMessage:
        """Return the recorded message that equals a message, or the message itself."""
        if (expected := self._expected) is not None:
            if expected.form == sent.form and has_same_reasoning(sent, expected):
                return expected
            self._note_change()
        if self._later is None:
            return sent
        untagged: Form = (*sent.form[:-1], sent.tagged[1])
        for form in (sent.form, untagged) if sent.is_assistant else (sent.form,):
            left = (self._recorded.path[place] for place in range(self._next, len(self._recorded.path)))
            same = (entry for entry in left if entry.form == form and has_same_reasoning(sent, entry))
            entry = next(same, None)
            if entry is not None and (form is sent.form or is_same_reply(sent, entry)):
                return entry
        return sent

    def _reply(self, messages: Sequence[ReceivedMessage], index: int) -> int:
        """Read an assistant's message, or all parts of a reply that was split; return how many messages they are."""
        parts = [received for received in messages[index:] if received.message.role == "assistant"]
        link = next((entry for part in parts if (entry := self._replies.named(part))), None)
        if len(parts) > 1 and link is not None:
            texts = (part.message.content.strip() for part in parts)
            reasoning = dict.fromkeys(part.message.reasoning for part in parts if part.message.reasoning)
            whole = Message(
                role="assistant",
                content="\n".join(filter(None, texts)),
                reasoning="\n".join(reasoning) or None,
                tool_calls=tuple(call for part in parts for call in part.message.tool_calls),
            )
            if is_same_reply(entry_of(whole, tags=self._replies.tags), link, self._stop):
                self._append_reply(whole, link, index)
                for received in messages[index:]:
                    if received.message.role == "tool":
                        self._append(self._other(received.message))
                return len(messages) - index
        message = messages[index].message
        link = self._replies.named(messages[index]) or self._replies.written(message)
        changed = self._recorded.changed.get(link) if link else None  # the program's earlier replacement of it
        likely = (changed if changed in self._recorded.path else None, link, self._expected)
        sent = entry_of(message, tags=self._replies.tags)
        replaced = link or self._expected
        if replaced is not None and is_start(sent, replaced):  # its reasoning was complete before its text
            message = message.model_copy(update={"reasoning": replaced.message.reasoning})
            sent = entry_of(message, tags=self._replies.tags)
        same = (one for one in likely if one and one.is_assistant and is_same_reply(sent, one, self._stop))
        entry = next(same, None) or self._known(sent)
        if link is not None and entry is not link:
            self.changed[link] = entry
        self._append_reply(message, entry, index, is_named=entry is link)
        return 1

    def _append_reply(self, message: Message, entry: RecordedMessage, index: int, *, is_named: bool = True) -> None:
        """Append the recorded message of an assistant's message, and record which calls its ids name."""
        if is_named:
            self.named.add(entry)
        for call, known in zip(message.tool_calls, entry.message.tool_calls, strict=False):
            is_own = known.id == call.id and self._replies.get(call.id) is entry
            if call.id is not None and (not is_own or call.id in self._recorded.calls):
                self.calls[call.id] = known
        self.starts.append((self._read + index, len(self.path)))
        self._append(entry)

    def _other(self, message: Message) -> RecordedMessage:
        """Return the entry of a program's message; a result names its call as the program sent it."""
        if (name := message.tool_call_id) is not None and message.role == "tool":
            call = self.calls.get(name) or self._recorded.calls.get(name)
            if call is None and (reply := self._replies.get(name)) is not None:
                call = next((call for call in reply.message.tool_calls if call.id == name), None)
            if call and (call.id, call.name) != (name, message.name):
                message = message.model_copy(update={"tool_call_id": call.id, "name": call.name})
        return self._known(entry_of(message))

    def _merged(self, messages: Sequence[ReceivedMessage], index: int) -> int:
        """Read messages with the text of merged or split recorded ones, and return how many messages were read."""
        expected = self._expected
        if not expected or expected.message.images or expected.message.role in ("assistant", "tool"):
            return 0  # only the program's own messages are merged
        form, first, place, sent, recorded = expected.form[:-1], index, self.keep, "", ""
        while sent or recorded or index == first:
            if not sent:
                if index == len(messages) or (entry := entry_of(messages[index].message)).form[:-1] != form:
                    return 0
                sent, index = entry.text, index + 1
            if not recorded:
                path = self._recorded.path
                if place == len(path) or path[place].form[:-1] != form:
                    return 0
                recorded, place = path[place].text, place + 1
            if not (sent.startswith(recorded) or recorded.startswith(sent)):
                return 0
            sent, recorded = sent[len(recorded) :].lstrip(), recorded[len(sent) :].lstrip()
        for entry in self._recorded.path[self.keep : place]:
            self._append(entry)
        return index - first
