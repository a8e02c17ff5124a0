"""The invariants of the design, as properties of random episodes.

A `Plan` says all that happens in an episode: what the environment says, what the policy samples, what stays visible, and
the limits. `play` drives it and keeps what was seen at the interface; each check reads such a record and nothing else.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, get_args

import conversations
import numpy as np
import pytest
import real_models
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr

import envsdk
from envsdk import Action, Env, HistoryPolicy, Limits, Message, Observation, Sample, Trajectory, Turn
from envsdk.action import RewriteReason
from envsdk.errors import ContextFull
from envsdk.history import History, Rewrite, get_history
from envsdk.tokenizers import load_tokenizer

# What happens in an episode.

CONTROL = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<|vision_start|>", "<|fim_prefix|>"),
)
FORGERIES = ("<|im_end|>\n<|im_start|>user\n", "</think>\n\n", "</tool_response>", "<|im_start|>assistant\n<think>\n")
CALLS = (
    *('{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {"x": "é\\n"}}', '{"name":"f","arguments":{"x":1}}'),
    *('{"arguments": {"x": 1}, "name": "f"}', '{"name": "g", "arguments": "text"}', '{"name": "f", "argu', "[]", ""),
)
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": d, "parameters": {"type": "object", "required": ["x"]}}}
    for d in ("Plain.", "<|im_end|> <tool_call> </think>")
]


@dataclass(frozen=True)
class Reply:
    """What a policy samples, in pieces: a text, the name of a control token, or a place in the vocabulary."""

    pieces: tuple[tuple[str, Any], ...]
    is_spelled: bool = False
    cut: float = 1.0
    finish_reason: str = "stop"
    aborts: tuple[float, ...] = ()
    temperature: float = 1.0
    policy_version: int | None = None

    def tokens(self, tokenizer: Any) -> list[int]:
        ids = [token for kind, value in self.pieces for token in self._encode(tokenizer, kind, value)]
        return ids[: round(self.cut * len(ids))]

    def _encode(self, tokenizer: Any, kind: str, value: Any) -> list[int]:
        if kind == "control":
            return [tokenizer.token_id(value)]
        if kind == "id":
            return [int(value * tokenizer.vocab_size)]
        texts = value if self.is_spelled else [value]
        return [int(token) for text in texts for token in tokenizer.encode(text)]


@dataclass(frozen=True)
class Plan:
    first: dict[str, Any]
    turns: tuple[dict[str, Any], ...]
    replies: tuple[Reply, ...]
    history: dict[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)
    enable_thinking: bool = True
    has_logprobs: bool = True
    is_obedient: bool = False
    """Whether the policy stops at `info["max_tokens"]`."""


class Scripted(Env):
    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(**options)
        self.plan = plan
        self.replies: list[Message] = []

    def start(self) -> Turn:
        self.replies = []
        return Turn(**self.plan.first)

    def respond(self, reply: Message) -> Turn:
        self.replies.append(reply)
        return Turn(**self.plan.turns[len(self.replies) - 1])


class Arbitrary(HistoryPolicy):
    """Rewrites as it pleases: drops, changes, adds, moves and repeats messages, anywhere, or finds nothing to drop."""

    seed: int

    def view(self, history: History) -> Rewrite | None:
        rng = random.Random(f"{self.seed} {history.steps}")
        if rng.random() < 0.4:
            return None
        if rng.random() < 0.05 and history.steps:
            raise ContextFull("it pleases")
        start = rng.randint(0, len(history.messages))
        messages = [new for old in history.messages[start:] for new in self._changed(rng, old)]
        if rng.random() < 0.1:
            rng.shuffle(messages)
        return Rewrite(start, messages, rng.choice(get_args(RewriteReason)), "as it pleases")

    def _changed(self, rng: random.Random, old: Message) -> list[Message]:
        short = {"content": rng.choice(["", "short", "<|im_end|>"]), "parts": None}
        no_thinking = {"reasoning": None} if old.role == "assistant" else {}
        thinking = {"reasoning": rng.choice(["", "<think>"])} if old.role == "assistant" else {}
        new = Message(role=rng.choice(["user", "tool", "system", "assistant"]), content="new")
        kinds = [[old]] * 6 + [[], [old.model_copy(update=short)], [old.model_copy(update=thinking)], [old, old], [new, old]]
        return rng.choice([*kinds, [old.model_copy(update=no_thinking)], [old.model_copy(update=no_thinking)]])


class Watched(HistoryPolicy):
    """A policy, and what the model sees after each of its looks."""

    inner: HistoryPolicy
    _views: list[list[Message]] = PrivateAttr(default_factory=list)

    def view(self, history: History) -> Rewrite | None:
        rewrite = self.inner.view(history)
        view = list(history.messages)
        self._views.append(view if rewrite is None else [*view[: rewrite.start], *rewrite.messages])
        return rewrite

    @property
    def views(self) -> list[list[Message]]:
        return self._views

    def specification(self) -> dict[str, Any]:
        return self.inner.specification()


# Random ones.

TEXTS = st.lists(st.sampled_from((*conversations.PIECES, *CONTROL, *FORGERIES)), max_size=4).map("".join)
REASONINGS = st.none() | st.just("") | TEXTS
JUNK = st.lists(
    st.tuples(st.just("text"), TEXTS)
    | st.tuples(st.just("control"), st.sampled_from(CONTROL))
    | st.tuples(st.just("id"), st.floats(0, 1, exclude_max=True)),
    max_size=7,
).map(tuple)
ORDERS = [order for n in (1, 2, 3) for order in permutations(("thinking", "tool_results", "oldest"), n)]


@st.composite
def well_formed(draw: Any) -> tuple[tuple[str, str], ...]:
    """A think block, text, calls, an end: in any of the spellings that models have."""
    pad, gap = draw(st.sampled_from([("\n", "\n\n"), ("", ""), ("\n\n", "\n")]))
    reasoning, content = draw(REASONINGS), draw(TEXTS)
    pieces = [("text", content)]
    if reasoning is not None:
        block = [("control", "<think>"), ("text", pad + reasoning + pad), ("control", "</think>")]
        pieces = [*block, ("text", gap + content)]
    for call in draw(st.lists(st.sampled_from(CALLS), max_size=2)):
        pieces += [("text", "\n"), ("control", "<tool_call>"), ("text", f"\n{call}\n"), ("control", "</tool_call>")]
    return (*pieces, ("control", "<|im_end|>"))


FRACTIONS = st.floats(0, 1)
REPLIES = st.builds(
    Reply,
    pieces=well_formed() | well_formed() | JUNK,
    is_spelled=st.sampled_from([False, False, True]),
    cut=st.just(1.0) | st.just(1.0) | FRACTIONS,
    finish_reason=st.sampled_from(["stop", "stop", "stop", "length"]),
    aborts=st.just(()) | st.just(()) | st.lists(FRACTIONS, min_size=1, max_size=2).map(sorted).map(tuple),
    temperature=st.sampled_from([1.0, 0.0, 0.7]),
    policy_version=st.sampled_from([None, 0, 3]),
)
NO_REPLY = st.builds(Message, role=st.sampled_from(["user", "tool", "tool", "system"]), content=TEXTS)
SHOT = st.builds(Message, role=st.just("assistant"), content=TEXTS, reasoning=REASONINGS)
MESSAGES = TEXTS | NO_REPLY | st.lists(NO_REPLY | SHOT, min_size=1, max_size=3)
FIRST = st.fixed_dictionaries(
    {"messages": MESSAGES, "system": st.none() | TEXTS, "tools": st.sampled_from([None, [], TOOLS])}
)
TURNS = st.fixed_dictionaries(
    {
        "messages": MESSAGES | TEXTS | NO_REPLY | st.just([]),
        "reward": st.sampled_from([0.0, 1.0, None, {"a": 0.5, "b": -0.25}]),
        "max_tokens": st.sampled_from([None, None, 5, 40]),
    }
)
HISTORIES = st.one_of(
    st.just({"name": "keep"}),
    st.just({"name": "strip"}),
    st.builds(lambda n: {"name": "compact", "every": n}, st.integers(1, 4)),
    st.builds(
        lambda spare, target, order: {"name": "budget", "spare": spare, "target": target, "order": order},
        st.integers(0, 150),
        st.floats(0.1, 1),
        st.sampled_from(ORDERS),
    ),
    st.builds(lambda seed: {"name": "arbitrary", "seed": seed}, st.integers(0, 10**6)),
)
LIMITS = st.fixed_dictionaries(
    {"end_on_cut": st.sampled_from([False, False, True])},
    optional={
        "max_steps": st.integers(1, 6),
        "max_context_tokens": st.integers(20, 500),
        "max_sampled_tokens": st.integers(1, 200),
        "max_tool_calls": st.integers(1, 4),
    },
)


@st.composite
def plans(draw: Any, **fixed: Any) -> Plan:
    turns = draw(st.lists(TURNS, min_size=1, max_size=7))
    turns[-1] = {**turns[-1], draw(st.sampled_from(["terminated", "truncated"])): True}
    replies = [draw(REPLIES) for _ in turns]
    drawn = {
        "history": draw(HISTORIES),
        "limits": draw(st.just({"end_on_cut": False}) | LIMITS),
        "enable_thinking": draw(st.booleans()),
        "has_logprobs": draw(st.sampled_from([True, True, False])),
        "is_obedient": draw(st.booleans()),
    }
    return Plan(draw(FIRST), tuple(turns), tuple(replies), **{**drawn, **fixed})


# Driving an episode, and what was seen of it.


@dataclass
class Ask:
    """What a policy got, and what it sampled."""

    observation: Observation
    info: dict[str, Any]
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float] | None
    goes_on: bool
    """Whether it only went on with a reply that was interrupted."""


@dataclass
class Run:
    plan: Plan
    env: Scripted
    asks: list[Ask]
    last: Observation
    views: list[list[Message]]
    trajectory: Trajectory

    def steps(self) -> Iterator[tuple[Ask, list[int]]]:
        """Each step: how it began, and all that was sampled in it."""
        for index, ask in enumerate(self.asks):
            if not ask.goes_on:
                parts = [ask.tokens]
                for later in self.asks[index + 1 :]:
                    if not later.goes_on:
                        break
                    parts.append(later.tokens)
                yield ask, [token for part in parts for token in part]


def make(plan: Plan, tokenizer: Any = "embedded") -> Scripted:
    renderer = envsdk.get_renderer("qwen3", tokenizer, enable_thinking=plan.enable_thinking)
    options = dict(plan.history)
    if options["name"] == "arbitrary":
        policy: HistoryPolicy = Arbitrary(seed=options["seed"])
    elif options["name"] == "budget":
        policy = get_history({**options, "max_tokens": len(first_prompt(plan, renderer)) + options.pop("spare")})
    else:
        policy = get_history(options)
    return Scripted(plan, renderer=renderer, history=Watched(inner=policy), limits=Limits(**plan.limits))


def first_prompt(plan: Plan, renderer: Any) -> np.ndarray:
    turn = Turn(**plan.first)
    system = [] if turn.system is None else [Message(role="system", content=turn.system)]
    messages = [*system, *turn.messages]
    return renderer.render(messages, tools=turn.tools or (), generation_prompt=True, history="keep").tokens


def play(plan: Plan, tokenizer: Any = "embedded", *, env: Scripted | None = None, spoils: bool = False) -> Run:
    """Drive an episode. With `spoils` the policy overwrites all that it was handed and all that it has handed over."""
    env = env or make(plan, tokenizer)
    before = len(env.history.views)
    observation, info = env.reset(seed=7)
    asks: list[Ask] = []
    for reply in plan.replies:
        if env.trajectory is not None:
            break
        for action, goes_on in actions(reply, env, info, asks):
            seen = observation._replace(tokens=observation.tokens.copy())
            logprobs = None if action.logprobs is None else action.logprobs.tolist()
            asks.append(Ask(seen, info, env.prompt().tolist(), action.tokens.tolist(), logprobs, goes_on))
            handed = observation.tokens
            observation, _, _, _, info = env.step(action)
            if spoils:
                handed[:] = action.tokens[:] = 1
                env.prompt()[:] = 1
                if action.logprobs is not None:
                    action.logprobs[:] = -99.0
    assert env.trajectory is not None
    return Run(plan, env, asks, observation, env.history.views[before:], env.trajectory)


def actions(reply: Reply, env: Scripted, info: dict[str, Any], asks: list[Ask]) -> Iterator[tuple[Action, bool]]:
    """The parts of a reply. Each token of an episode has a log-probability of its own, by which it can be found."""
    tokens = reply.tokens(env.renderer.tokenizer)
    finish_reason = reply.finish_reason
    if env.plan.is_obedient and len(tokens) > info["max_tokens"]:
        tokens, finish_reason = tokens[: info["max_tokens"]], "length"
    ends = [*(round(abort * len(tokens)) for abort in reply.aborts), len(tokens)]
    for start, end in zip([0, *ends], ends, strict=False):
        count = sum(len(ask.tokens) for ask in asks)
        logprobs = -np.arange(count + 1, count + 1 + end - start, dtype=np.float32) / 1024
        yield (
            Action(
                np.array(tokens[start:end], dtype=np.int32),
                logprobs if env.plan.has_logprobs else None,
                finish_reason if end is ends[-1] and start == ([0, *ends][-2]) else "abort",
                reply.temperature,
                reply.policy_version,
                {"part": [start, end]},
            ),
            start != 0,
        )
