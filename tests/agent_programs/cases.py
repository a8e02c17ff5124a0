"""Runs an agent program against a scripted model through the gateway, and keeps what it asked."""

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import real_models

import envsdk
from envsdk import Message, Trajectory
from envsdk.authoring._driver import driver_of
from envsdk.authoring._env import pending_reply
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._conversations import Continues, Conversations, Opens, Repeats
from envsdk.gateway._requests import ModelReply, ModelRequest
from envsdk.policies import ReplyPolicy

Script = Mapping[str, Sequence[Message]]
"""The replies of each conversation, by a text that only its system message or its first message contains.

The conversation of the program itself has an empty text.
"""


def own(context: str) -> tuple[str, str, str]:
    """The break at which another agent begins a separate conversation."""
    return context, "switch handoff", f"{context.rpartition('/')[2].rpartition('-')[0]}: a separate conversation"


def edited(detail: str) -> tuple[str, str, str]:
    """The break at which a framework changed the past of the main conversation."""
    return "main", "rewrite edit", detail


TWO_AGENTS = {"main": "main", "main/agent-1": "agent"}
THREE_AGENTS = {**TWO_AGENTS, "main/agent-2": "agent"}
SUB_AGENTS = (own("main/agent-1"), own("main/agent-2"))


@dataclass(frozen=True, eq=False)
class Case:
    """A program with what the model says, and with what has to be recorded.

    Attributes:
        name: The framework, and what it does.
        program: The program; it returns 1 if it got what it should, else 0. None for `env`.
        script: What the model says.
        contexts: The role of each context, by its name.
        breaks: The breaks in order: the context, the kind and the reason, and the detail.
        samples: How many samples there are.
        env: Makes the environment, if it is not a function that is run; None else.
    """

    name: str
    program: Callable[[Endpoint], Any] | None
    script: Script
    contexts: Mapping[str, str] = field(default_factory=lambda: {"main": "main"})
    breaks: Sequence[tuple[str, str, str]] = ()
    samples: int = 1
    env: Callable[..., ProgramEnv] | None = None


@dataclass(frozen=True)
class Asked:
    """A request, where it was placed, and the replies that it got."""

    request: ModelRequest
    placed: Continues | Opens | Repeats
    replies: list[ModelReply] = field(default_factory=list[ModelReply])


@dataclass(frozen=True)
class Run:
    """What came of a case."""

    case: Case
    trajectory: Trajectory
    asked: Sequence[Asked]

    @property
    def breaks(self) -> list[tuple[str, str, str]]:
        """The breaks of the trajectory, as a case names them."""
        return [(break_.context, f"{break_.kind} {break_.reason}", break_.detail) for break_ in self.trajectory.breaks]

    @property
    def roles(self) -> dict[str, str]:
        """The role of each context."""
        return {name: log.role for name, log in self.trajectory.contexts.items()}


class RecordedConversations(Conversations):
    """Also keeps every request, with where it was placed and what it was answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[Asked] = []

    def place(self, request: ModelRequest) -> Continues | Opens | Repeats:
        placed = super().place(request)
        self.asked.append(Asked(request, placed))
        return placed

    def answer(self, request: ModelRequest, replies: Sequence[ModelReply], **options: Any) -> None:
        super().answer(request, replies, **options)
        next(asked for asked in self.asked if asked.request is request).replies.extend(replies)


class ProgramOfCase(ProgramEnv):
    """Runs the program of a case."""

    def __init__(self, program: Callable[[Endpoint], Any], **options: Any) -> None:
        super().__init__(**options)
        self._program = program

    def run(self, model: Endpoint) -> Any:
        return self._program(model)


def opening_of(messages: Sequence[Message]) -> str:
    """Return the text by which a conversation is identified: all before the first reply."""
    texts: list[str] = []
    for message in messages:
        if message.role == "assistant":
            break
        texts.append(message.content)
    return "\n".join(texts)


def key_of(script: Script, opening: str) -> str:
    """Return which conversation of a script begins with a text."""
    return next((key for key in script if key and key in opening), "")


@functools.cache
def played(case: Case) -> Run:
    """Run a case, once in a process."""
    left: dict[str, Iterator[Message]] = {key: iter(replies) for key, replies in case.script.items()}

    def reply(_: envsdk.Env) -> Message:
        pending = pending_reply.get()
        assert pending is not None
        return next(left[key_of(case.script, opening_of(pending.context.conversation))])

    with mock.patch("envsdk.gateway._driver.Conversations", RecordedConversations):
        options = {"renderer": "qwen3", "tokenizer": real_models.qwen3_folder()}
        env = case.env(**options) if case.env else ProgramOfCase(case.program, **options)
        # The ids that the gateway issues follow from the seed: runs that are put together later need different ones.
        trajectory = envsdk.rollout(env, ReplyPolicy(env, reply), seed=zlib.crc32(case.name.encode()))
        asked = driver_of(env).program._conversations.asked
        env.close()
    assert not any(list(replies) for replies in left.values()), "the program asked for fewer replies"
    return Run(case, trajectory, asked)
