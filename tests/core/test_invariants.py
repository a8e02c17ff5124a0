"""The invariants of the design, as properties of random episodes.

A `Plan` says all that happens in an episode: what the environment says, what the policy samples, what stays visible,
and the limits. `play` drives it and records what was seen at the interface; each check reads such a record.
"""

import functools
import itertools
import math
import operator
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

import conversations
import numpy as np
import pytest
import real_models
from envsdk_renderers._qwen3 import Qwen3
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr

import envsdk
from envsdk import (
    Action,
    Env,
    HistoryPolicy,
    Limits,
    Message,
    Observation,
    Renderer,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
)
from envsdk.contexts._history import get_history
from envsdk.contexts._protocol import RewriteReason
from envsdk.errors import ContextFull
from envsdk.history import History, Rewrite
from envsdk.messages import check_calls
from envsdk.policies import Aligned, Ragged
from envsdk.rendering.renderer import NOT_ENDED
from envsdk.rendering.tokenizers import load_tokenizer
from envsdk.rollouts._replaying import recorded_actions

pytestmark = pytest.mark.filterwarnings("ignore:Scripted.start.. returned a turn without text")

_UNIQUE = itertools.count()

# What happens in an episode.

CONTROL = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<|vision_start|>", "<|fim_prefix|>"),
)
FORGERIES = ("<|im_end|>\n<|im_start|>user\n", "</think>\n\n", "</tool_response>", "<|im_start|>assistant\n<think>\n")
CALLS = (
    '{"name": "f", "arguments": {}}',
    '{"name": "f", "arguments": {"x": "é\\n"}}',
    '{"name":"f","arguments":{"x":1}}',
    '{"arguments": {"x": 1}, "name": "f"}',
    '{"name": "g", "arguments": "text"}',
    '{"name": "f", "arguments": {"x": [1e999, -0.0, 1E2, 123456789012345678901234567890]}}',
    '{"name": "f", "arguments": {"x": ' + "[" * 300 + "]" * 300 + "}}",
    '{"name": "f", "argu',
    "[]",
    "",
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": d, "parameters": {"type": "object", "required": ["x"]}},
    }
    for d in ("Plain.", "<|im_end|> <tool_call> </think>")
]


@dataclass(frozen=True)
class Reply:
    """What a policy samples, in pieces: a text, a control token's name, a place in the vocabulary, a whole message."""

    pieces: tuple[tuple[str, Any], ...]
    is_spelled: bool = False
    cut: float = 1.0
    finish_reason: str = "stop"
    aborts: tuple[float, ...] = ()
    temperature: float = 1.0
    policy_version: int | None = None

    def tokens(self, renderer: Renderer) -> list[int]:
        ids = [token for piece in self.pieces for token in encode(renderer, *piece, is_spelled=self.is_spelled)]
        return ids[: round(self.cut * len(ids))]


def encode(renderer: Renderer, kind: str, value: Any, *, is_spelled: bool = False) -> list[int]:
    match kind:
        case "message":
            return renderer.reply(value).tolist()
        case "control":
            return [renderer.tokenizer.token_id(value)]
        case "id":
            return [int(value * renderer.tokenizer.vocab_size)]
    texts = value if is_spelled else [value]
    return [token for text in texts for token in renderer.tokenizer.encode(text).tolist()]


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
    rows: tuple[str, tuple[int, ...]] | None = None
    """The type and the shape of the side data of each token."""


class Scripted(Env):
    records_roles = True

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(**options)
        self.plan = plan
        self.replies: list[Message] = []
        self.turns: list[Turn] = []

    def start(self) -> Turn:
        self.replies, self.turns = [], [Turn(**self.plan.first)]
        return self.turns[0]

    def respond(self, reply: Message) -> Turn:
        says = self.plan.turns[len(self.replies)]
        if says.get("continues"):
            says = {**says, "messages": what_fits(says["messages"], reply)}
        self.replies.append(reply)
        self.turns.append(Turn(**says))
        return self.turns[-1]


def what_fits(addition: str | Message, reply: Message) -> str | Message:
    """Reasoning can only be added to a think block that is open."""
    if isinstance(addition, str) or reply.open_block == "reasoning":
        return addition
    return addition.model_copy(update={"reasoning": None})


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
        if not start and not messages:
            return None  # something has to be left
        return Rewrite(start, messages, rng.choice(get_args(RewriteReason)), "as it pleases")

    def _changed(self, rng: random.Random, old: Message) -> list[Message]:
        short = {"content": rng.choice(["", "short", "<|im_end|>"]), "parts": None}
        no_thinking = {"reasoning": None} if old.role == "assistant" else {}
        thinking = {"reasoning": rng.choice(["", "<think>"])} if old.role == "assistant" else {}
        new = Message(role=rng.choice(["user", "tool", "system", "assistant"]), content="new")
        kinds = [[old]] * 6 + [
            [],
            [old.model_copy(update=short)],
            [old.model_copy(update=thinking)],
            [old, old],
            [new, old],
        ]
        return rng.choice([*kinds, [old.model_copy(update=no_thinking)], [old.model_copy(update=no_thinking)]])


class Look(NamedTuple):
    """What a policy got, and what the model sees from then on."""

    new: int
    opening: int
    steps: int
    length: int
    view: list[Message]


class Watched(HistoryPolicy):
    """A policy, and each of its looks."""

    inner: HistoryPolicy
    _looks: list[Look] = PrivateAttr(default_factory=list)

    def view(self, history: History) -> Rewrite | None:
        rewrite = self.inner.view(history)
        view = list(history.messages)
        view = view if rewrite is None else [*view[: rewrite.start], *rewrite.messages]
        self._looks.append(Look(history.new, history.opening, history.steps, history.length, view))
        return rewrite

    @property
    def looks(self) -> list[Look]:
        return self._looks

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
ORDERS = [order for n in (1, 2, 3) for order in itertools.permutations(("thinking", "tool_results", "oldest"), n)]


END = ("control", "<|im_end|>")
ENDS = [[END], [END], [END], [("control", "<|endoftext|>")], [END, ("text", "more"), ("control", "<think>"), END]]


@st.composite
def well_formed(draw: Any) -> tuple[tuple[str, str], ...]:
    """A think block (it may be open already), text, calls, an end, if it comes to it: as models spell it."""
    pad, gap = draw(st.sampled_from([("\n", "\n\n"), ("", ""), ("\n\n", "\n")]))
    reasoning, content = draw(REASONINGS), draw(TEXTS)
    pieces = [("text", content)]
    if reasoning is not None:
        block = [("control", "<think>"), ("text", pad + reasoning + pad), ("control", "</think>")]
        pieces = [*block[draw(st.sampled_from([0, 0, 1])) :], ("text", gap + content)]
    for call in draw(st.lists(st.sampled_from(CALLS), max_size=2)):
        pieces += [("text", "\n"), ("control", "<tool_call>"), ("text", f"\n{call}\n"), ("control", "</tool_call>")]
    pieces += draw(st.sampled_from(ENDS))
    return tuple(pieces[: len(pieces) - draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3]))])


FRACTIONS = st.floats(0, 1)
SPELLED = st.builds(
    Reply,
    pieces=st.one_of(well_formed(), well_formed(), well_formed(), JUNK),
    is_spelled=st.sampled_from([False, False, True]),
    cut=st.one_of(*[st.just(1.0)] * 4, FRACTIONS),
    finish_reason=st.sampled_from(["stop", "stop", "stop", "length"]),
    aborts=st.just(()) | st.just(()) | st.lists(FRACTIONS, min_size=1, max_size=2).map(sorted).map(tuple),
    temperature=st.sampled_from([1.0, 0.0, 0.7]),
    policy_version=st.sampled_from([None, 0, 3]),
)
CANONICAL = st.builds(
    Message,
    role=st.just("assistant"),
    content=TEXTS.map(str.strip),
    reasoning=st.none() | st.just("") | TEXTS.map(str.strip),
    tool_calls=st.lists(
        st.builds(ToolCall, name=st.sampled_from("fg"), arguments=st.sampled_from([{}, {"x": "</tool_call>"}])),
        max_size=2,
    ),
).map(lambda message: Reply((("message", message),)))
REPLIES = st.one_of(*[SPELLED] * 4, CANONICAL)
NO_REPLY = st.builds(Message, role=st.sampled_from(["user", "tool", "tool", "system"]), content=TEXTS)
SHOT = st.builds(Message, role=st.just("assistant"), content=TEXTS, reasoning=REASONINGS)
MESSAGES = TEXTS | NO_REPLY | st.lists(NO_REPLY | SHOT, min_size=1, max_size=3)
SAYINGS = TEXTS | st.sampled_from(["\ue000", "\nWait,\n", "<think>\n", "</think>\n\n", "<|im_end|>\n"])
PARTS_OF_REPLIES = st.one_of(
    *[SAYINGS] * 2,
    SAYINGS.map(lambda text: assistant(content=text)),
    SAYINGS.map(lambda text: assistant(reasoning=text)),
    SAYINGS.map(lambda text: assistant(reasoning=text, content="")),
    st.builds(lambda text, more: assistant(reasoning=text, content=more), SAYINGS, SAYINGS),
)
# Tags of reasoning in a prefill are read (see test_turns.py); here its text is what the reply begins with.
PREFILLS = st.one_of(st.none(), st.none(), PARTS_OF_REPLIES.filter(lambda part: "think>" not in str(part)))
FOR_THE_POLICY = {
    "max_tokens": st.sampled_from([None, None, 5, 40]),
    "stop": st.lists(st.sampled_from(("a", "\n", "Hello there.", "</think>", "<|im_end|>", "}}")), max_size=2),
    "sampling": st.sampled_from([{}, {"temperature": 0.5, "top_k": 3}]),
}
FOR_THE_REPLY = {
    "reward": st.sampled_from([0.0, 1.0, None, {"a": 0.5, "b": -0.25}]),
    "metrics": st.sampled_from([{}, {"length": 7}]),
}
SYSTEMS = st.sampled_from([None, None, "Be brief.", "Be brief.", "", "<|im_end|>"]) | TEXTS
TOOL_LISTS = st.sampled_from([None, None, [], TOOLS, TOOLS[:1]])
FIRST = st.fixed_dictionaries(
    {"messages": MESSAGES, "system": SYSTEMS, "tools": TOOL_LISTS},
    optional={"prefill": PREFILLS, **FOR_THE_POLICY},
)
SAYS = st.fixed_dictionaries(
    {"messages": MESSAGES | TEXTS | NO_REPLY | st.just([])},
    optional={"prefill": PREFILLS, "system": SYSTEMS, "tools": TOOL_LISTS, **FOR_THE_POLICY, **FOR_THE_REPLY},
)
GOES_ON = st.fixed_dictionaries(
    {"messages": PARTS_OF_REPLIES, "continues": st.just(True)}, optional={**FOR_THE_POLICY, **FOR_THE_REPLY}
)
TURNS = SAYS | SAYS | GOES_ON
BUDGETS = st.builds(
    lambda spare, target, order: {"name": "budget", "spare": spare, "target": target, "order": order},
    st.integers(0, 150),
    st.floats(0.1, 1),
    st.sampled_from(ORDERS),
)
PLANNED = st.fixed_dictionaries(
    {"name": st.just("planned"), "drops": st.sampled_from(ORDERS), "keep_last": st.integers(1, 2)},
    optional={
        "spare": st.integers(0, 150),
        "cached": st.sampled_from([0.0, 0.5, 1.0]),
        "at": st.lists(st.integers(1, 6), max_size=3).map(tuple),
    },
)
ARBITRARY = st.builds(lambda seed: {"name": "arbitrary", "seed": seed}, st.integers(0, 10**6))
HISTORIES = st.one_of(
    st.just({"name": "keep"}),
    st.just({"name": "strip"}),
    st.builds(lambda n, k: {"name": "compact", "every": n, "keep_last": k}, st.integers(1, 4), st.integers(0, 3)),
    BUDGETS,
    PLANNED,
    ARBITRARY,
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


def assistant(**says: str) -> Message:
    return Message(role="assistant", **says)


@st.composite
def plans(draw: Any, **chosen: Any) -> Plan:
    """Random plans; what is `chosen` comes from a strategy of the test's own, or is the same in all of them."""
    turns = draw(st.lists(chosen.get("turns", TURNS), min_size=1, max_size=7))
    last = {name: value for name, value in turns[-1].items() if name not in ("prefill", "continues")}
    turns[-1] = {**last, draw(st.sampled_from(["terminated", "truncated"])): True}
    replies = [draw(chosen.get("replies", REPLIES)) for _ in turns]
    drawn = {
        "first": FIRST,
        "history": HISTORIES,
        "limits": st.just({"end_on_cut": False}) | LIMITS,
        "enable_thinking": st.booleans(),
        "has_logprobs": st.sampled_from([True, True, False]),
        "is_obedient": st.booleans(),
        "rows": st.sampled_from([("int16", ()), ("float32", (2,)), ("int64", (1, 3)), None]),
        **{name: value for name, value in chosen.items() if name not in ("turns", "replies")},
    }
    values = {name: draw(value) if isinstance(value, st.SearchStrategy) else value for name, value in drawn.items()}
    return Plan(turns=tuple(turns), replies=tuple(replies), **values)


# Driving an episode, and what was seen of it.


@dataclass
class Ask:
    """What a policy got, and what it sampled."""

    observation: Observation
    info: dict[str, Any]
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float] | None
    part: tuple[float, int]
    """The temperature and the policy's version."""
    finish_reason: str
    goes_on: bool
    """Whether it only went on with a reply that was interrupted."""


class Said(NamedTuple):
    message: Message
    tokens: Sequence[int] | None = None
    """Of a reply: its tokens from the generation prompt on."""


@dataclass
class Moment:
    """What was said when a policy was asked, or at the end; it follows from what the turns say and what was sampled."""

    turn: Turn
    said: list[Said]
    """The conversation, with the system message that it has now."""
    record: list[Message]
    tools: list[Any]
    question: list[int]
    """The generation prompt."""
    started: list[tuple[int, int | None]]
    """The reply so far: each token, and the step in which it was sampled."""
    edited: list[str] = field(default_factory=list)
    dropped: int = 0
    """How many tokens of a reply were dropped, because it went on."""

    @property
    def reply(self) -> list[int]:
        return [token for token, _ in self.started]


@dataclass
class Run:
    plan: Plan
    env: Scripted
    asks: list[Ask]
    last: Observation
    last_info: dict[str, Any]
    looks: list[Look]
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

    @functools.cached_property
    def moments(self) -> list[Moment]:
        """One for each step, and the end."""
        moments = [opened(self.env)]
        for index, (_, tokens) in enumerate(self.steps()):
            moments.append(followed(self, moments[-1], index, tokens))
        moments[-1] = replace(moments[-1], question=[], started=[])
        return moments

    @property
    def views(self) -> list[list[Message]]:
        return [look.view for look in self.looks]

    @property
    def handed_out(self) -> list[tuple[Observation, dict[str, Any], list[int]]]:
        """For each moment the observation, its info and the prompt."""
        asked = [(ask.observation, ask.info, ask.prompt) for ask, _ in self.steps()]
        return [*asked, (self.last, self.last_info, self.env.prompt().tolist())]

    @property
    def told(self) -> Iterator[tuple[Moment, list[int], list[Message]]]:
        """For each step what was said, the prompt, and what of it the model saw; under `keep` for the end, too."""
        views = self.views[: len(self.moments) - 1]
        if self.plan.history["name"] == "keep":
            views = [*views, [said.message for said in self.moments[-1].said]]
        for moment, (_, _, prompt), view in zip(self.moments, self.handed_out, views, strict=False):
            yield moment, prompt, view


def opened(env: Scripted) -> Moment:
    turn, renderer = env.turns[0], env.renderer
    messages = [*([] if turn.system is None else [Message(role="system", content=turn.system)]), *turn.messages]
    said = [Said(message) for message in messages]
    return Moment(turn, said, messages, list(turn.tools or ()), *asks(renderer, turn.prefill))


def followed(run: Run, before: Moment, index: int, tokens: list[int]) -> Moment:
    """The moment after a step, whose tokens were sampled."""
    turn, message, renderer = run.env.turns[index + 1], run.env.replies[index], run.env.renderer
    started = [*before.started, *((token, index) for token in tokens)]
    is_last = index + 1 == len(run.env.replies)
    if turn.continuation is not None and not is_last:
        stops = [i for i, (token, _) in enumerate(started) if token in renderer.stop_token_ids]
        kept = started[: stops[0]] if stops else started
        added = [(token, None) for token in inserted(renderer, turn.continuation, [token for token, _ in kept])]
        return replace(before, turn=turn, started=[*kept, *added], edited=[], dropped=len(started) - len(kept))
    reply = Said(message, [*before.question, *(token for token, _ in started)])
    said, record, tools = [*before.said, reply, *map(Said, turn.messages)], [*before.record, message], before.tools
    first, system, edited = run.views[index][0], Message(role="system", content=turn.system or ""), []
    has_edits = not is_last or run.trajectory.stop_reason in ("max_context_tokens", "context_full")
    if turn.system is not None and has_edits and (first.role, first.content) != ("system", turn.system):
        edited, record = ["system"], [*record, system]
        said[: said[0].message.role == "system"] = [Said(system)]
    if turn.tools is not None and has_edits and list(turn.tools) != tools:
        edited, tools = [*edited, "tools"], list(turn.tools)
    return Moment(turn, said, [*record, *turn.messages], tools, *asks(renderer, turn.prefill), edited=edited)


def asks(renderer: Any, prefill: str | Message | None) -> tuple[list[int], list[tuple[int, None]]]:
    """The generation prompt, and with what the reply begins."""
    pieces: list[tuple[str, str]] = [("control", "<|im_start|>"), ("text", "assistant\n")]
    if not renderer.enable_thinking and not (isinstance(prefill, Message) and prefill.reasoning is not None):
        pieces += [("control", "<think>"), ("text", "\n\n"), ("control", "</think>"), ("text", "\n\n")]
    return written(renderer, pieces), [(token, None) for token in written(renderer, begun(prefill))]


def begun(prefill: str | Message | None) -> list[tuple[str, str]]:
    if prefill is None or isinstance(prefill, str):
        return [("text", prefill or "")]
    if prefill.reasoning is None:
        return [("text", prefill.content)]
    reasoning = prefill.reasoning.lstrip("\n")
    if "content" not in prefill.model_fields_set:
        return [("control", "<think>"), ("text", f"\n{reasoning}")]
    reasoning, content = reasoning.rstrip("\n"), prefill.content.lstrip("\n")
    return [("control", "<think>"), ("text", f"\n{reasoning}\n"), ("control", "</think>"), ("text", f"\n\n{content}")]


def inserted(renderer: Renderer, addition: str | Message, reply: list[int]) -> list[int]:
    if isinstance(addition, str):
        return written(renderer, [("text", addition)])
    reasoning, closing = addition.reasoning or "", open_block(renderer, reply)
    if addition.reasoning is not None and "content" not in addition.model_fields_set:
        return written(renderer, [("text", reasoning)])
    if closing is None:
        return written(renderer, [("text", reasoning + addition.content)])
    gap = "\n\n" if closing == "</think>" else ""
    return written(renderer, [("text", f"{reasoning}\n"), ("control", closing), ("text", gap + addition.content)])


def written(renderer: Renderer, pieces: list[tuple[str, str]]) -> list[int]:
    return [token for piece in pieces for token in encode(renderer, *piece)]


def control_tokens(renderer: Renderer, tokens: Sequence[int]) -> list[str]:
    names = {token: name for name, token in renderer.tokenizer.control_tokens.items()}
    return [names[token] for token in tokens if token in names]


def open_block(renderer: Renderer, reply: Sequence[int]) -> str | None:
    """The control token that closes the block that is open at the end of a reply."""
    closing = None
    for name in control_tokens(renderer, reply):
        if closing is not None:
            closing = None if name == closing else closing
        elif name in ("<think>", "<tool_call>"):
            closing = name.replace("<", "</")
    return closing


def closed(renderer: Renderer, reply: Sequence[int]) -> list[int]:
    """A reply as it was sampled, with what has to close it."""
    if reply[-1] == renderer.stop_token_ids[0]:
        return [*reply, *written(renderer, [("text", "\n")])]
    block = {
        None: [],
        "</think>": [("text", "\n"), ("control", "</think>"), ("text", "\n\n")],
        "</tool_call>": [("text", "\n"), ("control", "</tool_call>")],
    }[open_block(renderer, reply)]
    return [*reply, *written(renderer, [*block, ("control", "<|im_end|>"), ("text", "\n")])]


def make(plan: Plan, tokenizer: Any = "embedded") -> Scripted:
    renderer = envsdk.get_renderer("qwen3", tokenizer, enable_thinking=plan.enable_thinking)
    options = dict(plan.history)
    if options["name"] == "arbitrary":
        policy: HistoryPolicy = Arbitrary(seed=options["seed"])
    elif "spare" in options:
        room = len(first_prompt(plan, renderer)) + options.pop("spare")
        policy = get_history({**options, "max_tokens": room})
    else:
        policy = get_history(options)
    limits = dict(plan.limits)
    if "spare" in limits:
        limits["max_context_tokens"] = len(first_prompt(plan, renderer)) + limits.pop("spare")
    return Scripted(plan, renderer=renderer, history=Watched(inner=policy), limits=Limits(**limits))


def first_prompt(plan: Plan, renderer: Any) -> np.ndarray:
    turn = Turn(**plan.first)
    system = [] if turn.system is None else [Message(role="system", content=turn.system)]
    rendered = renderer.render([*system, *turn.messages], tools=turn.tools or (), history="keep").tokens
    question, started = asks(renderer, turn.prefill)
    return np.concatenate([rendered, question, [token for token, _ in started]])


def play(plan: Plan, tokenizer: Any = "embedded", *, env: Scripted | None = None, spoils: bool = False) -> Run:
    """Drive an episode. With `spoils` the policy overwrites all that it was handed and all that it has handed over."""
    env = env or make(plan, tokenizer)
    before = len(env.history.looks)
    observation, info = env.reset(seed=7)
    asks: list[Ask] = []
    for reply in plan.replies:
        if env.trajectory is not None:
            break
        for action, goes_on in actions(reply, env, info, asks):
            seen = observation._replace(tokens=observation.tokens.copy())
            logprobs = None if action.logprobs is None else action.logprobs.tolist()
            part = (np.float32(action.temperature), -1 if action.policy_version is None else action.policy_version)
            tokens = action.tokens.tolist()
            asks.append(Ask(seen, info, env.prompt().tolist(), tokens, logprobs, part, action.finish_reason, goes_on))
            handed, replies = observation.tokens, len(env.replies)
            observation, _, _, _, info = env.step(action)
            if spoils:
                handed[:] = action.tokens[:] = 1  # pyright: ignore[reportIndexIssue]
                env.prompt()[:] = 1
                if action.logprobs is not None:
                    action.logprobs[:] = -99.0  # pyright: ignore[reportIndexIssue]
                action.extra["part"].clear()
                for array in arrays_of(action):
                    array[...] = 0
                for name in ("sampling", "metrics", "rewards"):
                    info[name].clear()
            if len(env.replies) > replies:
                break  # the reply is over, though parts of it may be left: there was no room for them
    assert env.trajectory is not None
    return Run(plan, env, asks, observation, info, env.history.looks[before:], env.trajectory)


def actions(reply: Reply, env: Scripted, info: dict[str, Any], asks: list[Ask]) -> Iterator[tuple[Action, bool]]:
    """The parts of a reply. Each token of an episode has a log-probability of its own, by which it can be found."""
    tokens = reply.tokens(env.renderer)
    finish_reason = reply.finish_reason
    if env.plan.is_obedient and len(tokens) > (info["max_tokens"] or len(tokens)):
        tokens, finish_reason = tokens[: info["max_tokens"]], "length"
    ends = [*(round(abort * len(tokens)) for abort in reply.aborts), len(tokens)]
    for part, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        used = sum(len(ask.tokens) for ask in asks)
        action = Action(
            np.array(tokens[start:end], dtype=np.int32),
            -np.arange(used + 1, used + 1 + end - start, dtype=np.float32) / 1024 if env.plan.has_logprobs else None,
            finish_reason if part + 1 == len(ends) else "abort",
            reply.temperature,
            reply.policy_version,
            {"part": [start, end], **beside(env.plan, used, tokens[start:end], env.prompt())},
        )
        yield action, part > 0


def beside(plan: Plan, used: int, tokens: Sequence[int], prompt: np.ndarray) -> dict[str, Any]:
    """Rows for the next tokens of an episode, each token's own; where there are no tokens, mostly there is no array."""
    if plan.rows is None or (not len(tokens) and used % 3):
        return {}
    over_all = each_token([*prompt.tolist(), *tokens])
    over_all[-1] = -1  # the model has not processed it
    return {
        "rows": rows(plan.rows, used, len(tokens)),
        "experts": Aligned(over_all, "all"),
        "allowed": Ragged.of([allowed(token) for token in tokens]),
    }


def each_token(tokens: Sequence[int]) -> np.ndarray:
    return np.stack([np.arange(len(tokens)), tokens], axis=1).astype(np.int32)


def allowed(token: int) -> list[int]:
    return list(range(token, token + 1 + token % 3))


def arrays_of(action: Action) -> Iterator[np.ndarray]:
    for value in action.extra.values():
        if not isinstance(value, list):
            yield value if isinstance(value, np.ndarray) else value.values


def rows(kind: tuple[str, tuple[int, ...]], start: int, count: int) -> np.ndarray:
    dtype, shape = kind
    size = math.prod(shape)
    return np.arange(1 + start * size, 1 + (start + count) * size, dtype=dtype).reshape(count, *shape)


QWEN3 = functools.cache(lambda: load_tokenizer(real_models.qwen3_folder()))

# The checks, each of one invariant.


def sampled_tokens_stay_verbatim_until_a_declared_rewrite_drops_them(run: Run) -> None:
    context: list[tuple[int, bool]] = []  # each token, and whether it was sampled
    for ask in run.asks:
        kept, tokens = ask.observation.keep, ask.observation.tokens.tolist()
        if any(is_sampled for _, is_sampled in context[kept:]):
            assert ask.info["break"].kind == "rewrite"
        context = [*context[:kept], *((token, False) for token in tokens)]
        assert all(ask.prompt[i] == token for i, (token, is_sampled) in enumerate(context) if is_sampled)
        context += [(token, True) for token in ask.tokens]


def replaying_the_deltas_gives_every_prompt(run: Run) -> None:
    contexts: dict[str, list[int]] = {}
    for ask in run.asks:
        o = ask.observation
        contexts[o.context] = prompt = [*contexts.get(o.base, [])[: o.keep], *o.tokens.tolist()]
        assert prompt == ask.prompt
        contexts[o.context] = [*prompt, *ask.tokens]
    final = [*contexts.get(run.last.base, [])[: run.last.keep], *run.last.tokens.tolist()]
    assert final == run.env.prompt().tolist()
    replayed = [(prompt.tolist(), action.tolist()) for _, prompt, action in run.trajectory.prompts()]
    assert replayed == [(ask.prompt, tokens) for ask, tokens in run.steps()]


def each_sampled_token_is_trained_in_exactly_one_sample(run: Run) -> None:
    samples = run.trajectory.samples("all")
    if run.plan.has_logprobs:
        trained = Counter(pair for s in samples for pair in traced(s))
        sampled = Counter(pair for ask in run.asks for pair in zip(ask.tokens, ask.logprobs, strict=True))
    else:
        assert all(sample.logprobs is None for sample in samples)
        trained = Counter(token for sample in samples for token in sample.tokens[sample.mask].tolist())
        sampled = Counter(token for ask in run.asks for token in ask.tokens)
    assert trained == sampled


def traced(sample: Sample) -> Iterator[tuple[int, float]]:
    return zip(sample.tokens[sample.mask].tolist(), sample.logprobs[sample.mask].tolist(), strict=True)


def each_sample_holds_the_prompts_that_the_policy_saw(run: Run) -> None:
    steps = list(run.steps())
    for sample in run.trajectory.samples("all"):
        for position, index in enumerate(sample.metadata["steps"]):
            ask, tokens = steps[index]
            at = np.flatnonzero(sample.step_ids == position)
            assert sample.tokens[at].tolist() == tokens
            assert sample.mask[at].all()
            if tokens:
                assert sample.tokens[: at[0]].tolist() == ask.prompt
                assert at.tolist() == list(range(at[0], at[0] + len(tokens)))


def what_was_put_into_a_reply_is_never_trained(run: Run) -> None:
    for sample in run.trajectory.samples("all"):
        steps = sample.metadata["steps"]
        for index in steps:
            moment, (_, _, prompt) = run.moments[index], run.handed_out[index]
            where = np.arange(len(prompt) - len(moment.started), len(prompt))
            is_trained = np.array([step in steps for _, step in moment.started], dtype=bool)[where < len(sample)]
            where = where[where < len(sample)]
            assert sample.tokens[where].tolist() == moment.reply[: len(where)]
            assert (sample.mask[where] == is_trained).all()
            assert (sample.step_ids[where[~is_trained]] == -1).all()


def an_array_of_the_tokens_holds_at_each_trained_one_the_row_that_came_with_it(run: Run) -> None:
    counts = [len(tokens) for _, tokens in run.steps()]
    for sample in run.trajectory.samples("all"):
        if run.plan.rows is None:
            assert sample.extra.keys() == {"part"}
            continue
        assert sample.extra["rows"].dtype == run.plan.rows[0]
        assert sample.extra["rows"].shape == (len(sample), *run.plan.rows[1])
        elsewhere = sample.extra["rows"][~sample.mask]
        assert (np.isnan(elsewhere) if elsewhere.dtype.kind == "f" else elsewhere == -1).all()
        for position, index in enumerate(sample.metadata["steps"]):
            expected = rows(run.plan.rows, sum(counts[:index]), counts[index])
            assert (sample.extra["rows"][sample.step_ids == position] == expected).all()


def side_data_over_all_tokens_is_known_wherever_the_model_processed_a_token(run: Run) -> None:
    for sample in run.trajectory.samples("all"):
        if "experts" not in sample.extra:
            continue
        experts = sample.extra["experts"]
        assert (experts.values[experts.known] == each_token(sample.tokens)[experts.known]).all()
        if all("experts" in part.extra for step in run.trajectory.steps for part in step.parts):
            assert experts.known[:-1].all()
        lists = sample.extra["allowed"].lists()
        expected = [
            allowed(int(token)) if own >= 0 else [] for token, own in zip(sample.tokens, sample.step_ids, strict=True)
        ]
        assert [one.tolist() for one in lists] == expected


def each_token_belongs_to_a_text_or_the_scaffold(run: Run) -> None:
    controls = list(run.env.renderer.tokenizer.control_tokens.values())
    for sample in run.trajectory.samples("all"):
        assert sample.roles is not None and len(sample.roles) == len(sample)
        labels = np.array([label or "unfinished" for label in sample.roles.labels()])
        assert np.isin(labels[np.isin(sample.tokens, controls)], ["scaffold", "unfinished"]).all()
        assert np.isin(labels[sample.mask], ["scaffold", "content", "reasoning", "call", "unfinished"]).all()
        texts = {message.role for message in run.trajectory.contexts["main"].messages} - {"assistant"}
        assert {label.partition(":")[0] for label in labels[sample.step_ids < 0]} <= {
            *texts,
            *("scaffold", "content", "reasoning", "call", "unfinished"),
            *("system", "user"),  # of a rewrite
        }


def a_sample_says_of_each_part_how_hot_it_was_sampled_and_by_which_weights(run: Run) -> None:
    expected = {logprob: ask.part for ask in run.asks for logprob in ask.logprobs or ()}
    for sample in run.trajectory.samples("all"):
        assert len(sample.temperature) == len(sample.policy_version) == len(sample.extra["part"])
        for position in np.flatnonzero(sample.mask & run.plan.has_logprobs):
            part = sample.part_ids[position]
            seen = (sample.temperature[part], sample.policy_version[part])
            assert seen == expected[float(sample.logprobs[position])]


def observations_extend_unless_they_are_the_first_or_a_declared_break(run: Run) -> None:
    length = 0
    for index, ask in enumerate(run.asks):
        o, break_ = ask.observation, ask.info.get("break")
        assert o.extends == (index > 0 and break_ is None)
        assert o.keep == length or break_ is not None
        if break_ is not None:
            assert (break_.kind, break_.context, break_.base) == ("rewrite", o.context, o.base)
            assert (break_.kept, break_.dropped) == (o.keep, length - o.keep)
            assert break_.dropped > 0
        length = o.keep + len(o.tokens) + len(ask.tokens)
    assert run.last.extends == ("break" not in run.last_info and bool(run.asks))
    infos = [*(ask.info for ask in run.asks), run.last_info]
    assert run.trajectory.breaks == [info["break"] for info in infos if "break" in info]


def the_tree_holds_each_token_once_that_a_sampled_one_follows(run: Run) -> None:
    names, tree = itertools.count(), set()
    branch: list[int] = []  # each token by a name of its own, so that no two are merged that were handed out apart
    for ask in run.asks:
        branch = [*branch[: ask.observation.keep], *(next(names) for _ in ask.observation.tokens)]
        branch += [next(names) for _ in ask.tokens]
        tree.update(branch if ask.tokens else ())
    assert run.trajectory.tree_size() == len(tree)
    assert trie_size(run) <= len(tree)


def trie_size(run: Run) -> int:
    """The trie over what the policy saw and sampled, in which no two sampled tokens are one."""
    root: dict[object, Any] = {}
    size, branch = 0, []
    for ask in run.asks:
        branch = [*branch[: ask.observation.keep], *ask.observation.tokens.tolist()]
        branch += [(token, next(_UNIQUE)) for token in ask.tokens]
        node = root
        for token in branch if ask.tokens else ():
            size += token not in node
            node = node.setdefault(token, {})
    return size


def every_prompt_ends_with_the_reply_as_it_was_begun_and_sampled(run: Run) -> None:
    for moment, (_, _, prompt) in zip(run.moments, run.handed_out, strict=True):
        expected = [*moment.question, *moment.reply]
        assert prompt[len(prompt) - len(expected) :] == expected


def a_text_that_is_put_into_a_reply_holds_no_control_token(run: Run) -> None:
    for turn, moment in zip(run.env.turns, run.moments, strict=True):
        text = turn.prefill if turn.continuation is None else turn.continuation
        if isinstance(text, str) and moment.started:
            added = [token for token, step in moment.started if step is None]
            own = added[len(added) - len(run.env.renderer.tokenizer.encode(text)) :]
            assert run.env.renderer.tokenizer.decode(own) == run.env.renderer.tokenizer.normalize(text)
            assert not control_tokens(run.env.renderer, own)


def control_tokens_are_only_where_the_family_or_the_model_put_them(run: Run) -> None:
    count = ControlTokens(run)
    for moment, prompt, view in run.told:
        low, high = count.bounds(moment, view)
        assert low <= count.of(prompt) <= high


class ControlTokens:
    """Counts Qwen3's control tokens, and says how many of each a view may have."""

    def __init__(self, run: Run) -> None:
        self._renderer = run.env.renderer
        self._is_exact = run.plan.history["name"] == "keep"

    def of(self, tokens: Sequence[int]) -> Counter[str]:
        return Counter(control_tokens(self._renderer, tokens))

    def bounds(self, moment: Moment, view: Sequence[Message]) -> tuple[Counter[str], Counter[str]]:
        """The fewest and the most; they differ where a reply may stand as it was sampled or be written again."""
        low = self.of([*moment.question, *moment.reply])
        if moment.tools:
            low.update(["<tool_call>", "</tool_call>"] * 2)
            low.update(["<|im_start|>", "<|im_end|>"] if view[0].role != "system" else [])
        high = low.copy()
        for index, message in enumerate(view):
            forms = self._forms(moment, view, index, message)
            low.update(functools.reduce(operator.and_, forms))
            high.update(functools.reduce(operator.or_, forms))
        return low, high

    def _forms(self, moment: Moment, view: Sequence[Message], index: int, message: Message) -> list[Counter[str]]:
        if message.role == "tool":
            edges = ["<|im_start|>"] * (index == 0 or view[index - 1].role != "tool")
            edges += ["<|im_end|>"] * (index + 1 == len(view) or view[index + 1].role != "tool")
            return [Counter(["<tool_response>", "</tool_response>", *edges])]
        written = Counter(["<|im_start|>", "<|im_end|>"])
        if message.role != "assistant":
            return [written]
        written.update([] if message.reasoning is None else ["<think>", "</think>"])
        written.update(["<tool_call>", "</tool_call>"] * len(message.tool_calls))
        if self._is_exact:  # the view is what was said
            tokens = moment.said[index].tokens
            return [written if tokens is None else self._sampled(tokens)]
        says = (message.content, message.tool_calls)
        replies = [said for said in moment.said if said.tokens is not None]
        same = [said.tokens for said in replies if (said.message.content, said.message.tool_calls) == says]
        return [written, *map(self._sampled, same)]

    def _sampled(self, reply: Sequence[int]) -> Counter[str]:
        return self.of(closed(self._renderer, reply))


def every_prompt_says_what_the_renderer_says_of_the_view(run: Run) -> None:
    for moment, prompt, view in run.told:
        assert says(run, moment, prompt, view)


def says(run: Run, moment: Moment, prompt: list[int], view: Sequence[Message]) -> bool:
    """Whether a prompt says what the renderer says of a view. A reply that is unchanged may stand as it was sampled."""
    renderer = run.env.renderer
    text = text_of(renderer, prompt)
    rendered = conversations.emitted(renderer, view, moment.tools)
    ends = {0}
    for message, (start, stop) in zip(view, itertools.pairwise([*rendered.starts, len(rendered.tokens)]), strict=True):
        same = [said.tokens for said in moment.said if said.tokens is not None and says_the_same(said.message, message)]
        forms = [rendered.tokens[start:stop], *(closed(renderer, tokens) for tokens in same)]
        texts = {text_of(renderer, form) for form in forms}
        ends = {end + len(form) for end in ends for form in texts if text.startswith(form, end)}
    return any(text[end:] == text_of(renderer, [*moment.question, *moment.reply]) for end in ends)


def says_the_same(message: Message, other: Message) -> bool:
    return all(getattr(message, name) == getattr(other, name) for name in ("reasoning", "content", "tool_calls"))


def text_of(renderer: Renderer, tokens: Any) -> bytes:
    return b"".join(renderer.tokenizer.token_bytes(np.asarray(tokens, dtype=np.int32)))


def another_system_message_or_other_tools_are_an_edit_that_begins_anew(run: Run) -> None:
    for index, (moment, (observation, info, prompt)) in enumerate(zip(run.moments, run.handed_out, strict=True)):
        break_ = info.get("break")
        if moment.edited:
            assert (break_.reason, break_.kept, observation.keep) == ("edit", 0, 0)
            if index < len(run.views):
                start = beginning(run, run.views[index], moment.tools)
                assert prompt[: len(start)] == start
        elif break_ is not None and run.plan.history["name"] != "arbitrary":
            assert break_.reason != "edit" or moment.dropped


def beginning(run: Run, view: Sequence[Message], tools: Sequence[Any]) -> list[int]:
    """The tokens of the system message and the tools."""
    render = functools.partial(run.env.renderer.render, history="keep")
    if view[0].role == "system":
        return render(view[:1], tools=tools).tokens.tolist()
    whole, rest = render(view, tools=tools).tokens, render(view).tokens
    return whole[: len(whole) - len(rest)].tolist()


def a_reply_that_goes_on_drops_its_end_as_declared_and_nothing_else(run: Run) -> None:
    lengths = [len(ask.prompt) + len(tokens) for ask, tokens in run.steps()]
    for length, moment, (observation, info, _) in zip(lengths, run.moments[1:], run.handed_out[1:], strict=True):
        if moment.turn.continuation is None or observation is run.last:
            continue
        assert observation.keep <= length - moment.dropped
        if run.plan.history["name"] in ("keep", "strip", "compact"):
            assert observation.keep == length - moment.dropped
            assert observation.tokens.tolist() == moment.reply[len(moment.reply) - len(observation.tokens) :]
            assert ("break" in info) == (moment.dropped > 0)
            assert not moment.dropped or info["break"].reason == "edit"


def respond_gets_the_whole_reply(run: Run) -> None:
    for index, (reply, (_, tokens)) in enumerate(zip(run.env.replies, run.steps(), strict=True)):
        moment = run.moments[index]
        read = run.env.renderer.parse([*moment.reply, *tokens], prompt_tail=moment.question)
        errors = [error for error in read.errors if error != NOT_ENDED or not stopped(run, index, tokens)]
        assert reply == check_calls(read.model_copy(update={"errors": tuple(errors)}), moment.tools)


def stopped(run: Run, index: int, tokens: list[int]) -> bool:
    """Whether a reply ended by itself, and a string that it was to stop at is in it."""
    last_parts = [ask for ask, later in itertools.pairwise([*run.asks, None]) if later is None or not later.goes_on]
    is_found = any(stop in run.env.renderer.tokenizer.decode(tokens) for stop in run.moments[index].turn.stop)
    return is_found and last_parts[index].finish_reason == "stop"


def the_new_text_of_a_reply_is_what_was_sampled_since_the_turn(run: Run) -> None:
    for reply, (_, tokens) in zip(run.env.replies, run.steps(), strict=True):
        is_ended = tokens[-1:] and tokens[-1] in run.env.renderer.stop_token_ids
        assert reply.new_text == run.env.renderer.tokenizer.decode(tokens[:-1] if is_ended else tokens)


def the_record_holds_all_that_was_said_in_order(run: Run) -> None:
    record = run.moments[-1].record
    assert run.env.messages() == run.trajectory.contexts["main"].messages == record
    assert run.trajectory.contexts["main"].tools == run.moments[-1].tools
    if run.plan.history["name"] == "keep":
        for moment, view in zip(run.moments[:-1], run.views, strict=False):
            assert view == [said.message for said in moment.said]
    goes_on = [turn.continuation is not None for turn in run.env.turns[1:]]
    for index, step in enumerate(run.trajectory.steps):
        whole = next((i for i in range(index, len(goes_on)) if not goes_on[i]), len(goes_on) - 1)
        assert record[step.reply] == run.env.replies[whole]


def a_history_policy_gets_how_far_the_episode_is(run: Run) -> None:
    new = 0
    for index, (moment, look) in enumerate(zip(run.moments[:-1], run.looks, strict=False)):
        assert look.steps == sum(said.tokens is not None for said in moment.said)
        if run.plan.history["name"] == "keep":
            first, before = run.moments[0].said, run.moments[max(index - 1, 0)].said
            inserted = len(moment.said) - len(before) - len(moment.turn.messages) - 1
            new = new if not index or moment.turn.continuation is not None else len(before) + inserted
            has_system = moment.said[0].message.role == "system" and first[0].message.role != "system"
            assert (look.new, look.opening) == (new, len(first) + has_system)
            assert look.length == len(run.handed_out[index][2])


def what_a_turn_says_of_the_sampling_and_the_reply_arrives(run: Run) -> None:
    turns = [(turn.stop, turn.sampling) for turn in run.env.turns]
    for index, ask in zip(itertools.accumulate(not ask.goes_on for ask in run.asks), run.asks, strict=True):
        assert (ask.info["stop"], ask.info["sampling"]) == turns[index - 1]
    for step, turn in zip(run.trajectory.steps, run.env.turns[1:], strict=True):
        assert (step.reward, step.rewards, step.metrics) == (turn.reward, turn.rewards, turn.metrics)


def the_same_actions_give_the_same_bytes(run: Run) -> None:
    for env in (None, run.env):
        again = play(run.plan, run.env.renderer.tokenizer, env=env)
        assert again.trajectory.to_json() == run.trajectory.to_json()
        assert [seen_bytes(ask) for ask in again.asks] == [seen_bytes(ask) for ask in run.asks]


def seen_bytes(ask: Ask) -> tuple[Any, ...]:
    return ask.observation.tokens.tobytes(), ask.observation[1:], ask.info


def nothing_that_is_handed_over_is_shared(run: Run) -> None:
    assert play(run.plan, run.env.renderer.tokenizer, spoils=True).trajectory.to_json() == run.trajectory.to_json()


def an_episode_leaves_the_global_random_state_alone(run: Run) -> None:
    states = random.getstate(), str(np.random.get_state())
    play(run.plan, run.env.renderer.tokenizer).trajectory.samples()
    assert states == (random.getstate(), str(np.random.get_state()))


def records_survive_json_to_the_byte(run: Run) -> None:
    line = run.trajectory.to_json()
    loaded = Trajectory.from_json(line)
    assert loaded.to_json() == line
    assert loaded.contexts["main"].messages == run.env.messages()
    samples = [sample.to_json() for sample in run.trajectory.samples()]
    assert [sample.to_json() for sample in loaded.samples()] == samples
    assert [Sample.from_json(sample).to_json() for sample in samples] == samples


def samples_are_valid_weighted_and_in_order(run: Run) -> None:
    samples = run.trajectory.samples("all")
    trained = sum(len(ask.tokens) for ask in run.asks)
    for index, sample in enumerate(samples):
        assert sample.validate() is sample
        assert (sample.segment_index, sample.n_segments) == (index, len(samples))
        assert sample.loss_weight == pytest.approx(sample.mask.sum() / trained)
        assert sample.reward == run.trajectory.reward
    assert sum(sample.loss_weight for sample in samples) == pytest.approx(1.0 if trained else 0.0)
    steps = [step for sample in samples for step in sample.metadata["steps"]]
    assert steps == sorted(steps)


def a_loss_rule_chooses_the_steps_that_are_trained(run: Run) -> None:
    steps = list(run.steps())
    position = {id(step): index for index, step in enumerate(run.trajectory.steps)}
    rules: dict[Any, list[int]] = {
        "last_step": list(range(len(steps)))[-1:],
        (lambda step: position[id(step)] % 2 == 0): list(range(0, len(steps), 2)),
        (lambda step: False): [],
    }
    for loss, chosen in rules.items():
        samples = [sample.validate() for sample in run.trajectory.samples(loss)]
        trained = [token for sample in samples for token in sample.tokens[sample.mask].tolist()]
        assert trained == [token for index in chosen for token in steps[index][1]]
        assert sum(sample.loss_weight for sample in samples) == pytest.approx(1.0 if trained else 0.0)


def the_last_observation_follows_the_last_reply_and_asks_for_none(run: Run) -> None:
    if run.trajectory.stop_reason == "max_context_tokens" and run.plan.history["name"] != "keep":
        return  # a rewrite may stand before the end
    for ask, tokens in list(run.steps())[-1:]:
        reply, end = [*run.moments[-2].reply, *tokens], run.moments[-1]
        expected = run.env.renderer.extend(reply, end.turn.messages, generation_prompt=False).tolist()
        assert run.last.tokens.tolist()[len(run.last.tokens) - len(expected) :] == expected
        assert (run.last.keep, len(run.last.tokens)) == (len(ask.prompt) + len(tokens), len(expected)) or end.edited


def cut_by(run: Run) -> str | None:
    """What cut the last reply, if its turn did not ask for that."""
    if not run.asks or run.asks[-1].finish_reason == "stop":
        return None
    ask, tokens = list(run.steps())[-1]
    asked, limits = run.env.turns[-2].max_tokens, run.env.limits
    if asked is not None and len(tokens) >= asked:
        return None
    if limits.max_sampled_tokens is not None and sum(len(a.tokens) for a in run.asks) >= limits.max_sampled_tokens:
        return "max_sampled_tokens"
    is_full = limits.max_context_tokens is not None and len(ask.prompt) + len(tokens) >= limits.max_context_tokens
    return "max_context_tokens" if is_full else "cut"


def it_ends_for_the_first_reason_that_holds(run: Run) -> None:
    limits, turn = run.env.limits, run.env.turns[-1]
    sampled = sum(len(ask.tokens) for ask in run.asks)
    goes_on = [turn.continuation is not None for turn in run.env.turns[1:-1]]
    replies = [reply for reply, is_part in zip(run.env.replies, [*goes_on, False], strict=False) if not is_part]
    calls = sum(len(reply.tool_calls) for reply in replies)
    cut = cut_by(run) if limits.end_on_cut else None
    reasons = [
        ("terminated", turn.terminated),
        ("truncated", turn.truncated),
        (cut, cut is not None),
        ("max_steps", limits.max_steps is not None and len(run.env.replies) >= limits.max_steps),
        ("max_sampled_tokens", limits.max_sampled_tokens is not None and sampled >= limits.max_sampled_tokens),
        ("max_tool_calls", limits.max_tool_calls is not None and calls >= limits.max_tool_calls),
    ]
    holds = [reason for reason, is_so in reasons if is_so]
    late = {"max_context_tokens"} if run.plan.history["name"] in ("keep", "strip", "compact") else {"context_full"}
    assert run.trajectory.stop_reason in (holds[:1] or late | {"max_context_tokens"})
    assert run.trajectory.status == ("terminated" if holds[:1] == ["terminated"] else "truncated")


def a_policy_that_obeys_passes_no_limit(run: Run) -> None:
    limits = run.env.limits
    assert sum(len(ask.tokens) for ask in run.asks) <= (limits.max_sampled_tokens or np.inf)
    for ask, tokens in run.steps():
        assert ask.info["max_tokens"] is None or ask.info["max_tokens"] >= 1
        assert len(ask.prompt) + len(tokens) <= (limits.max_context_tokens or np.inf)


def under_its_own_policy_an_episode_is_itself(run: Run):
    played = run.trajectory
    for one in (played, Trajectory.from_json(played.to_json())):
        assert one.under(run.env.history, run.env.renderer).to_json() == played.to_json()


CHECKS = (
    sampled_tokens_stay_verbatim_until_a_declared_rewrite_drops_them,
    replaying_the_deltas_gives_every_prompt,
    each_sampled_token_is_trained_in_exactly_one_sample,
    each_sample_holds_the_prompts_that_the_policy_saw,
    what_was_put_into_a_reply_is_never_trained,
    an_array_of_the_tokens_holds_at_each_trained_one_the_row_that_came_with_it,
    side_data_over_all_tokens_is_known_wherever_the_model_processed_a_token,
    each_token_belongs_to_a_text_or_the_scaffold,
    a_sample_says_of_each_part_how_hot_it_was_sampled_and_by_which_weights,
    observations_extend_unless_they_are_the_first_or_a_declared_break,
    the_tree_holds_each_token_once_that_a_sampled_one_follows,
    every_prompt_ends_with_the_reply_as_it_was_begun_and_sampled,
    a_text_that_is_put_into_a_reply_holds_no_control_token,
    control_tokens_are_only_where_the_family_or_the_model_put_them,
    every_prompt_says_what_the_renderer_says_of_the_view,
    another_system_message_or_other_tools_are_an_edit_that_begins_anew,
    a_reply_that_goes_on_drops_its_end_as_declared_and_nothing_else,
    respond_gets_the_whole_reply,
    the_new_text_of_a_reply_is_what_was_sampled_since_the_turn,
    the_record_holds_all_that_was_said_in_order,
    a_history_policy_gets_how_far_the_episode_is,
    what_a_turn_says_of_the_sampling_and_the_reply_arrives,
    the_same_actions_give_the_same_bytes,
    nothing_that_is_handed_over_is_shared,
    an_episode_leaves_the_global_random_state_alone,
    records_survive_json_to_the_byte,
    under_its_own_policy_an_episode_is_itself,
    samples_are_valid_weighted_and_in_order,
    a_loss_rule_chooses_the_steps_that_are_trained,
    the_last_observation_follows_the_last_reply_and_asks_for_none,
    it_ends_for_the_first_reason_that_holds,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(plan=plans())
def test_all_of_it_holds_in_every_episode(plan: Plan):
    run = play(plan)
    for check in CHECKS:
        check(run)


@given(plan=plans(rows=st.none()), other=HISTORIES)
def test_under_another_policy_an_episode_is_what_the_same_replies_give_there(plan: Plan, other: dict[str, Any]):
    if "arbitrary" in (plan.history["name"], other["name"]):  # it may change the system message that a turn repeats
        plan = replace(plan, turns=tuple({**says, "system": None} for says in plan.turns))
    played, env = play(plan).trajectory, make(replace(plan, history=other))
    replayed = played.under(env.history, env.renderer)
    env.reset(seed=7)
    for action in (action for step in played.steps for action in recorded_actions(step, played.contexts["main"])):
        if env.trajectory is not None:
            break
        env.step(action)
    if env.trajectory is None:  # there is room for more replies
        assert replayed.left_out
        env.fail(RuntimeError())
    forced = env.trajectory
    assert forced is not None
    assert Trajectory.from_json(replayed.to_json()).to_json() == replayed.to_json()
    if replayed.left_out:
        assert len(replayed.steps) <= len(forced.steps)
        for one, same in zip(replayed.prompts(), forced.prompts(), strict=False):
            assert (one.step.break_, one.step.extends) == (same.step.break_, same.step.extends)
            assert one.prompt.tolist() == same.prompt.tolist() and one.action.tolist() == same.action.tolist()
    else:
        assert replayed.to_json() == forced.to_json()


@settings(max_examples=settings.default.max_examples // 4)
@given(plan=plans())
def test_all_of_it_holds_with_the_real_qwen3_tokenizer(plan: Plan):
    run = play(plan, QWEN3())
    for check in CHECKS:
        check(run)


ENDINGS = {
    "first": st.builds(lambda messages: {"messages": messages, "tools": TOOLS[:1]}, TEXTS),
    "turns": GOES_ON | GOES_ON | SAYS,
    "replies": SPELLED,
    "history": st.just({"name": "keep"}) | ARBITRARY,
    "limits": st.one_of(
        st.builds(lambda count: {"max_steps": count, "end_on_cut": False}, st.integers(1, 3)),
        st.builds(lambda count: {"max_tool_calls": count, "end_on_cut": False}, st.integers(1, 3)),
        *[st.builds(lambda count: {"spare": count, "end_on_cut": False}, st.integers(2, 60))] * 2,
    ),
}


@given(plan=plans(**ENDINGS))
def test_all_of_it_holds_where_a_limit_ends_what_would_go_on(plan: Plan):
    run = play(plan)
    for check in CHECKS:
        check(run)


@given(plan=plans(is_obedient=True, limits=LIMITS))
def test_a_policy_that_obeys_max_tokens_passes_no_limit(plan: Plan):
    a_policy_that_obeys_passes_no_limit(play(plan))


TOOL_ROUNDS = {
    "first": st.builds(
        lambda messages: {"messages": messages, "tools": TOOLS}, st.lists(NO_REPLY, min_size=1, max_size=3)
    ),
    "turns": st.fixed_dictionaries(
        {"messages": st.lists(NO_REPLY, max_size=3)}, optional={"system": SYSTEMS, "tools": TOOL_LISTS}
    )
    | GOES_ON,
    "history": ARBITRARY,
    "limits": {"end_on_cut": False},
}


@given(plan=plans(replies=CANONICAL, is_obedient=False, **TOOL_ROUNDS))
def test_every_prompt_says_what_the_renderer_says_of_the_view_whatever_was_rewritten_around_a_tool_round(plan: Plan):
    every_prompt_says_what_the_renderer_says_of_the_view(play(plan))


def test_a_reply_that_cannot_be_cut_after_its_reasoning_is_written_again():
    across = (
        26809  # Qwen3's token for a newline, which belongs to the think block, and a space with a newline, which do not
    )
    pieces = (("control", "<think>"), ("text", "\na\n"), ("control", "</think>"), ("id", across / QWEN3().vocab_size))
    reply = Reply((*pieces, ("text", "x"), ("control", "<|im_end|>")))
    turns = ({"messages": "And?"}, {"messages": "", "terminated": True})
    run = play(Plan({"messages": "Well?"}, turns, (reply, reply), {"name": "strip"}, {}), QWEN3())
    assert across in run.asks[0].tokens
    assert b"<|im_start|>assistant\n \nx<|im_end|>" in text_of(run.env.renderer, run.asks[1].prompt)


@given(plan=plans(history={"name": "strip"}))
def test_under_strip_every_prompt_says_what_the_official_template_says_of_the_whole_conversation(plan: Plan):
    run = play(plan)
    for moment, prompt, _ in run.told:
        assert says(run, moment, prompt, run.env.renderer.visible([said.message for said in moment.said]))


@given(plan=plans(history=BUDGETS, limits={"end_on_cut": False}))
def test_no_prompt_is_longer_than_the_budget(plan: Plan):
    run = play(plan)
    assert max(len(ask.prompt) for ask in run.asks if not ask.goes_on) <= run.env.history.inner.max_tokens


# Cost, counted.


class CountingTokenizer:
    """A tokenizer that counts the characters it encodes and the tokens it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.name, self.control_tokens = tokenizer.name, tokenizer.control_tokens
        self.vocab_size, self.fingerprint = tokenizer.vocab_size, tokenizer.fingerprint
        self.normalize, self.token_id = tokenizer.normalize, tokenizer.token_id
        self.work = 0

    def encode(self, text: str) -> Any:
        self.work += len(text)
        return self._tokenizer.encode(text)

    def encode_with_ends(self, text: str) -> Any:
        self.work += len(text)
        return self._tokenizer.encode_with_ends(text)

    def decode(self, tokens: Any) -> str:
        self.work += len(tokens)
        return self._tokenizer.decode(tokens)

    def token_bytes(self, tokens: Any) -> Any:
        self.work += len(tokens)
        return self._tokenizer.token_bytes(tokens)


class CountingRenderer(Qwen3):
    """Counts the messages that it is asked about, too."""

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        self.tokenizer.work += len(messages) - settled
        return super().visible(messages, settled)


THOUGHT = Message(role="assistant", reasoning="I think about it for a while. " * 3, content="The answer is 7.")
CALL = THOUGHT.model_copy(update={"tool_calls": (ToolCall(name="f", arguments={"x": 1}),)})
RESULT = Message(role="tool", content="The result of the call is 7. " * 3)
QUERY = Message(role="user", content="What comes next after all of this?")


class Long(Env):
    """A user's query every N steps, and a tool's result at each other one."""

    query_every = 1
    first = QUERY

    def start(self) -> Turn:
        self.steps = 0
        return Turn(self.first, tools=TOOLS)

    def respond(self, reply: Message) -> Turn:
        self.steps += 1
        return Turn(QUERY if self.steps % self.query_every == 0 else RESULT)

    def reference_reply(self) -> Message:
        return THOUGHT if (self.steps + 1) % self.query_every == 0 else CALL


def costs(history: dict[str, Any], query_every: int, steps: int, *, first: Message = QUERY) -> np.ndarray:
    """For each step what was encoded and decoded, what was handed out, and what was new: shape (steps, 3)."""
    tokenizer = CountingTokenizer(load_tokenizer("embedded"))
    env = Long(renderer=CountingRenderer(tokenizer), history=history)
    env.query_every, env.first = query_every, first
    env.reset(seed=0)
    rows = []
    for _ in range(steps):
        reply = env.renderer.reply(env.reference_reply())
        before = tokenizer.work
        observation, *_ = env.step(reply)
        rows.append((tokenizer.work - before, len(observation.tokens), len(reply) + len(env.messages()[-1].content)))
    return np.array(rows)


@pytest.mark.parametrize(
    ("history", "query_every"),
    [
        ({"name": "keep"}, 1000),
        ({"name": "strip"}, 1),
        ({"name": "strip"}, 1000),
        pytest.param({"name": "strip"}, 20, marks=pytest.mark.full),
        pytest.param({"name": "compact", "every": 5}, 1, marks=pytest.mark.full),
        ({"name": "compact", "every": 5}, 1000),
        pytest.param({"name": "budget", "max_tokens": 1000}, 1, marks=pytest.mark.full),
        pytest.param({"name": "budget", "max_tokens": 1000}, 1000, marks=pytest.mark.full),
        ({"name": "budget", "max_tokens": 1000, "order": ["tool_results", "oldest"]}, 4),
    ],
    ids=str,
)
def test_a_step_costs_what_is_new_in_it_however_long_the_episode_is(history: dict[str, Any], query_every: int):
    cost = costs(history, query_every, steps=320)
    early, late = cost[:160].sum(axis=0), cost[160:].sum(axis=0)
    for work, handed_out, new in (early, late):
        assert work <= 5 * new
        assert handed_out <= new
    assert late[0] <= 1.1 * early[0]


@pytest.mark.parametrize(
    ("history", "query_every"), [("keep", 1), ("keep", 1000), ("strip", 1), ("strip", 1000)], ids=str
)
def test_no_single_step_costs_more_late_in_an_episode_than_at_its_start(history: str, query_every: int):
    cost = costs({"name": history}, query_every, steps=200)
    assert (cost[100:].max(axis=0) <= cost[:10].max(axis=0)).all()


def test_strip_costs_no_more_late_in_an_episode_in_which_no_user_asks():
    cost = costs({"name": "strip"}, 1000, steps=200, first=Message(role="system", content="Go on."))
    assert cost[100:, 0].max() <= cost[:10, 0].max()
