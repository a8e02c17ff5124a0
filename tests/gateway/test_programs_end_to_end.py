"""Random programs as environments, played to the end: their contexts, breaks and samples are known by construction."""

import asyncio
import contextlib
import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import soundness
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_bodies import PROTOCOLS
from random_programs import ANY, Expected, RandomProgram, Thread

import envsdk
from envsdk import Action, Limits, Message, Trajectory, rollout
from envsdk.errors import RequestError
from envsdk.gateway import ProgramEnv
from envsdk.gateway._driver import ProgramDriver
from envsdk.gateway._programs import Endpoint, ThreadProgram
from envsdk.gateway._requests import ModelReply, ModelRequest
from envsdk.gateway._session import ProgramSession

FACTOR = 20  # with the profile's examples: 12 programs, and 2,000 in a full run
SAME = "same"
"""The base of a further reply to the same request."""
MANY = settings().max_examples >= 100
_USER = "<|im_start|>user"
_NUMBER = re.compile(r"\d+")
RENDERER = envsdk.get_renderer("qwen3", "embedded")


@dataclass(frozen=True)
class Asked:
    """A reply that was asked for, and what its step has to be."""

    expected: Expected
    thread: Thread
    """As it was when it was asked."""
    sampled: list[int]
    shared: int
    """How many messages it shares with what was recorded in its context, its system message included."""


class Played(RandomProgram):
    """A program that an episode answers, and the policy that replies to it.

    Args:
        random: Draws what it does.
        is_canonical: Whether the replies are tokenized as their text is; else some are in single bytes.
    """

    tokenizer = "any"
    may_retry = True
    may_ask_for_two = True

    def __init__(self, random: Random, *, is_canonical: bool = True) -> None:
        super().__init__(random)
        self.is_canonical = is_canonical
        self.asked: list[Asked] = []
        self.retried = 0
        self._replies: list[list[int]] = []
        self._records: dict[str, list[Message]] = {}

    # The policy.

    def __call__(self, prompt: Any, **_: Any) -> Action:
        tokens = self._replies.pop(0)
        return Action(tokens, np.linspace(-2, -1, len(tokens)))

    def _sampled(self, reply: Message) -> list[int]:
        """The tokens of a reply."""
        tokens = RENDERER.reply(reply).tolist()
        if self.is_canonical or self.random.random() < 0.5:
            return tokens
        pieces = zip(tokens, RENDERER.tokenizer.token_bytes(tokens), strict=True)
        is_text = [piece.isalpha() and piece.isascii() for _, piece in pieces]
        pieces = zip(tokens, RENDERER.tokenizer.token_bytes(tokens), is_text, strict=True)
        return [one for token, piece, split in pieces for one in (_bytewise(piece) if split else [token])]

    # The program.

    def play(self, session: Any, steps: int) -> float:
        """Ask a session, or in a subclass an endpoint."""
        self.session = session
        self.run(steps)
        return float(len(self.asked))

    def ask(self, thread: Thread, expected: Expected) -> None:
        is_for_two = self.may_ask_for_two and expected.role is None and self.random.random() < 0.05
        self._ask(thread, 2 if is_for_two else 1, expected)

    def _ask(self, thread: Thread, n: int, expected: Expected) -> None:
        request = self.request(thread, n=n)
        choices = [thread, *(thread.copy() for _ in range(n - 1))]
        self._made = [self.reply(has_tools=bool(thread.tools)) for _ in choices]
        self._replies = [self._sampled(made) for made in self._made]
        recorded = self._records.get(thread.context or "", [])
        shared = len(list(takewhile(lambda pair: pair[0] is pair[1], zip(recorded, thread.truth, strict=False))))
        shared += thread.system is not None
        self.asked.append(Asked(expected, thread.copy(), self._replies[0], shared))
        self.asked += [Asked(Expected(None, base=SAME), thread.copy(), tokens, 0) for tokens in self._replies[1:]]
        replies = self.send(request)
        if self.may_retry and self.random.random() < 0.1:
            self.session.abandon(request)
            again = self.send(ModelRequest(**{**_fields(request), "body": copy.deepcopy(request.body)}))
            assert [reply.id for reply in again] == [reply.id for reply in replies]
            self.retried += 1
        names = self.contexts(n)
        for choice, reply, name in zip(choices, replies, names, strict=True):
            choice.hear(reply.message, reply.id)
            choice.context, choice.has_twin = name, n > 1
            self._records[name] = list(choice.truth)
        self.threads += choices[1:]

    def ask_again(self, thread: Thread) -> None:
        fork = thread.copy()
        self._ask(thread, 1, Expected(thread.context))
        self._ask(fork, 1, Expected(None, base=thread.context, shared=len(fork.truth)))
        self.threads.append(fork)
        thread.has_twin = fork.has_twin = True

    def send(self, request: ModelRequest) -> Sequence[ModelReply]:
        return asyncio.run(self.session.ask(request))

    def contexts(self, n: int) -> list[str]:
        """The contexts of the last steps; the episode waits for the next request meanwhile."""
        return [step.context for step in self.env.episode.agent.record[-n:]]


def _bytewise(piece: bytes) -> list[int]:
    return [int(RENDERER.tokenizer.encode(chr(byte))[0]) for byte in piece]


def _fields(request: ModelRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ModelRequest.__dataclass_fields__}


class Direct(ProgramEnv):
    """Plays a random program without a server between."""

    def __init__(self, program: Played, steps: int, **options: Any) -> None:
        super().__init__(**options)
        self.program, self.steps = program, steps
        program.env = self


class DirectDriver(ProgramDriver):
    """Gives the program its session."""

    def open_session(self) -> ProgramSession:
        env = self.env
        assert isinstance(env, Direct)
        session = self._session = ProgramSession(self.count_tokens, lambda image: None)
        self._program = ThreadProgram(lambda: env.program.play(session, env.steps), session.put)
        return session

    def close_session(self, session: ProgramSession) -> None:
        pass


Direct._envsdk_program = DirectDriver


def played(program: Played, steps: int, **options: Any) -> Trajectory:
    with contextlib.closing(Direct(program, steps, **options)) as env:
        trajectory = rollout(env, program, seed=0)
    check_played(trajectory, program)
    return trajectory


def check_played(trajectory: Trajectory, program: Played) -> None:
    """Check that the episode is sound, and has exactly what was sampled."""
    assert (trajectory.status, trajectory.reward) == ("terminated", len(program.asked))
    soundness.check(trajectory)
    assert [list(action) for _, _, action in trajectory.prompts()] == [asked.sampled for asked in program.asked]


def check_contexts(trajectory: Trajectory, asked: Sequence[Asked]) -> None:
    """Check in which context each request was answered."""
    known: set[str] = set()
    previous = ""
    for step, one in zip(trajectory.steps, asked, strict=True):
        expected, log = one.expected, trajectory.contexts[step.context]
        if expected.context is None:
            assert step.context not in known
            base = previous if expected.base == SAME else expected.base
            assert log.parent in known if base == ANY else base in (None, log.parent)
            assert expected.role in (None, log.role)
        else:
            assert step.context == expected.context
        known.add(step.context)
        previous = previous if expected.base == SAME else step.context


def check_breaks(trajectory: Trajectory, asked: Sequence[Asked]) -> None:
    """Check that what the program changed of the past is declared, with the first message that changed."""
    for step, one in zip(trajectory.steps, asked, strict=True):
        changed = one.expected.changed
        edits = [step.break_] if step.break_ is not None and step.break_.reason == "edit" else []
        assert len(edits) == bool(changed), (step.break_, one.expected)
        for edit in edits:
            assert edit.kind == "rewrite"
            assert changed in edit.detail or (changed, "was cut") == ("differs", edit.detail[-7:])
            assert changed in ("compacted", "new ") or int(_NUMBER.findall(edit.detail)[0]) == one.shared, (
                edit,
                one.shared,
            )


def check_prompts(trajectory: Trajectory, program: Played, *, without_system: bool = False) -> None:
    """Check that each prompt is the rendering of the conversation that the program meant, whatever it was taken for."""
    decode = RENDERER.tokenizer.decode
    for (_, prompt, _), one in zip(trajectory.prompts(), program.asked, strict=True):
        system = [] if one.thread.system is None else [Message(role="system", content=one.thread.system)]
        meant = RENDERER.render([*system, *one.thread.truth], tools=one.thread.tools, history="keep").tokens
        meant = [*meant, *RENDERER.opening_tokens]
        if without_system:
            assert decode(prompt).partition(_USER)[1:] == decode(meant).partition(_USER)[1:]
            continue
        assert decode(prompt) == decode(meant)
        assert not program.is_canonical or list(prompt) == list(meant)


@settings(max_examples=FACTOR * settings().max_examples if MANY else 12)
@given(st.integers(0, 2**32), st.integers(1, 25), st.booleans())
def test_contexts_breaks_prompts_and_samples_are_those_that_the_program_meant(seed, steps, is_canonical):
    program = Played(Random(seed), is_canonical=is_canonical)
    trajectory = played(program, steps, history="keep")
    check_contexts(trajectory, program.asked)
    check_breaks(trajectory, program.asked)
    check_prompts(trajectory, program)
    edits = sum(bool(asked.expected.changed) for asked in program.asked)
    assert len(trajectory.samples()) == len(trajectory.contexts) + edits


@pytest.mark.parametrize("history", ["strip", "compact:every=3", "budget:max_tokens=1200"])
@settings(max_examples=5 * settings().max_examples if MANY else 3)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 25))
def test_under_any_history_policy_contexts_are_the_same_and_the_episode_is_sound(history, seed, steps):
    program = Played(Random(seed), is_canonical=False)
    check_contexts(played(program, steps, history=history), program.asked)


class Limited(Played):
    """A program whose requests that are too long are refused, and then sent again without the limit."""

    limit: int

    def send(self, request: ModelRequest) -> Sequence[ModelReply]:
        agent = self.env.episode.root
        agent.limits = Limits(max_context_tokens=self.limit)
        try:
            return super().send(request)
        except RequestError as error:
            assert error.code == "context_length_exceeded"
            self.refused.append(len(self.asked) - 1)
        agent.limits = Limits()
        return super().send(ModelRequest(**{**_fields(request), "body": copy.deepcopy(request.body)}))

    def play(self, session: Any, steps: int) -> float:
        self.refused: list[int] = []
        return super().play(session, steps)


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("history", ["keep", "compact:every=3"])
@settings(max_examples=5 * settings().max_examples if MANY else 3)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 25), is_over=st.booleans(), data=st.data())
def test_exactly_the_requests_without_room_are_refused_and_leave_no_trace(history, seed, steps, is_over, data):
    free, limited = Played(Random(seed)), Limited(Random(seed))
    free.may_retry = limited.may_retry = free.may_ask_for_two = limited.may_ask_for_two = False
    expected = played(free, steps, history=history)
    lengths = [len(prompt) for _, prompt, _ in expected.prompts()]
    limited.limit = data.draw(st.sampled_from(lengths)) + is_over
    trajectory = played(limited, steps, history=history)
    assert limited.refused == [i for i, length in enumerate(lengths) if length >= limited.limit]
    prompts = [prompt.tolist() for _, prompt, _ in trajectory.prompts()]
    assert prompts == [prompt.tolist() for _, prompt, _ in expected.prompts()]
    assert trajectory.breaks == expected.breaks


# Over HTTP.


class OverHttp(Played):
    """A program that asks over HTTP, in a protocol."""

    may_retry = False

    def __init__(self, random: Random, protocol: str) -> None:
        super().__init__(random)
        self.protocol = protocol
        self.may_ask_for_two = protocol == "chat"

    def play(self, session: Any, steps: int) -> float:
        with httpx.Client(base_url=session.base_url, timeout=600) as self.client:
            self.run(steps)
        return float(len(self.asked))

    def send(self, request: ModelRequest) -> Sequence[Any]:
        path, write, ids_of = PROTOCOLS[self.protocol]
        response = self.client.post(path, json={"model": "m", **write(request)})
        assert response.status_code == 200, response.text
        answer = response.json()
        reply_id = answer["id"][answer["id"].index("reply_") :]
        return [self._heard(made, ids, reply_id) for made, ids in zip(self._made, ids_of(answer), strict=True)]

    def _heard(self, made: Message, ids: list[str], reply_id: str) -> Any:
        """The reply, with the ids that the gateway issued."""
        calls = [call.model_copy(update={"id": name}) for call, name in zip(made.tool_calls, ids, strict=True)]
        return SimpleNamespace(id=reply_id, message=made.model_copy(update={"tool_calls": tuple(calls)}))


class Asking(ProgramEnv):
    """Plays a random program that asks over HTTP."""

    def __init__(self, program: OverHttp, steps: int) -> None:
        super().__init__()
        self.program, self.steps = program, steps
        program.env = self

    def run(self, model: Endpoint) -> float:
        return self.program.play(model, self.steps)


@settings(max_examples=settings().max_examples if MANY else 3)
@pytest.mark.parametrize("protocol", ["chat", "responses", "anthropic"])
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 25))
def test_over_http_contexts_breaks_and_samples_are_those_that_the_program_meant(protocol, seed, steps):
    program = OverHttp(Random(seed), protocol)
    with contextlib.closing(Asking(program, steps)) as env:
        trajectory = rollout(env, program, seed=0)
    check_played(trajectory, program)
    check_contexts(trajectory, program.asked)
    check_breaks(trajectory, program.asked)
    # The tools of Anthropic have another form than those that the program compares with.
    check_prompts(trajectory, program, without_system=protocol == "anthropic")
