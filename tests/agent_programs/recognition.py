"""Places the recorded requests of many runs in one session, and counts how many are placed where they belong."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from envsdk import Message
from envsdk.gateway._conversations import Conversations, Opens, Repeats

from .cases import Asked, Run, key_of, opening_of

Conversation = tuple[str, str, int]
"""What a request belongs to: its case, the conversation of the case's script, and which one of them."""


@dataclass
class Recognized:
    """How requests were placed.

    Attributes:
        continuations: How many requests continue a conversation.
        found: How many of these were placed in the context of their conversation.
        twins: How many were placed in the context of another conversation whose messages are all the same, without a
            call whose id would tell them apart.
        missed: Those that opened a context, with its name.
        merged: The requests that were placed in the context of another conversation that differs, with which.
    """

    continuations: int = 0
    found: int = 0
    twins: int = 0
    missed: list[tuple[Conversation, str]] = field(default_factory=list)
    merged: list[tuple[Conversation, Conversation]] = field(default_factory=list)


def conversations_of(run: Run) -> Iterator[tuple[Conversation, Asked]]:
    """Yield the requests of a run with their conversations.

    A conversation of the script that is opened again (a request without any reply in it) is another one.
    """
    opened: Counter[str] = Counter()
    for asked in run.asked:
        messages = [received.message for received in asked.request.messages]
        system = [] if asked.request.system is None else [Message(role="system", content=asked.request.system)]
        key = key_of(run.case.script, opening_of([*system, *messages]))
        opened[key] += all(message.role != "assistant" for message in messages)
        yield (run.case.name, key, opened[key]), asked


def recognized(runs: Sequence[Run], seed: int | None) -> Recognized:
    """Place the requests of runs in one session.

    Args:
        runs: The runs.
        seed: Interleaves the runs at random, with a reply that comes later than other requests; None takes them one
            after the other, each request after the reply to the one before.
    """
    conversations, result = Conversations(), Recognized()
    transcripts = {
        conversation: _transcript(asked) for run in runs for conversation, asked in conversations_of(run)
    }  # of each conversation the last request
    owner_of: dict[str, Conversation] = {}
    for is_reply, conversation, asked in _events(runs, seed):
        if is_reply:
            conversations.answer(asked.request, asked.replies)
            continue
        placed = conversations.place(asked.request)
        assert not isinstance(placed, Repeats)
        is_new = conversation not in owner_of.values()
        owner = owner_of.setdefault(placed.context, conversation)
        result.continuations += not is_new
        if isinstance(placed, Opens):
            result.missed += [] if is_new else [(conversation, placed.context)]
        elif owner == conversation:
            result.found += 1
        elif transcripts[owner] == transcripts[conversation]:
            result.twins += 1
        else:
            result.merged.append((conversation, owner))
    return result


def _transcript(asked: Asked) -> list[tuple[str, str, tuple[str | None, ...]]]:
    messages = [*(received.message for received in asked.request.messages), *(reply.message for reply in asked.replies)]
    return [(message.role, message.content, tuple(call.id for call in message.tool_calls)) for message in messages]


def _events(runs: Sequence[Run], seed: int | None) -> Iterator[tuple[bool, Conversation, Asked]]:
    """Yield requests and replies: whether it is a reply, the conversation, and the request."""
    left = {run.case.name: [*conversations_of(run)][::-1] for run in runs}
    waiting: dict[str, tuple[Conversation, Asked]] = {}
    draw = random.Random(seed)
    while left:
        name = next(iter(left)) if seed is None else draw.choice([*left])
        if name in waiting:
            yield True, *waiting.pop(name)
        elif left[name]:
            conversation, asked = waiting[name] = left[name].pop()
            yield False, conversation, asked
        else:
            del left[name]
