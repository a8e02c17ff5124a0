"""What a policy is offered at each step, in numbers, and which limit ends an episode. The same with both vocabularies.

A context has room for 100 tokens, and what the environment says has 10 of them if a test says nothing else.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import envsdk
from envsdk import Action, Env, Handoff, HandoffResult, Limits, Message, StopReason, Turn, get_renderer
from envsdk.episodes import _agent
from envsdk.episodes._agent import StepResult
from envsdk.errors import ConfigError, NoEndWarning, TurnError
from envsdk.rendering.renderer import NOT_ENDED
from envsdk.rendering.tokenizers import Tokenizer

ROOM = 100
CUT, FULL, CONTEXT = StopReason.CUT, StopReason.CONTEXT_FULL, StopReason.MAX_CONTEXT_TOKENS
STEPS, SAMPLED, CALLS = StopReason.MAX_STEPS, StopReason.MAX_SAMPLED_TOKENS, StopReason.MAX_TOOL_CALLS
MAY_BE_CUT = {"end_on_cut": False}


# Messages and replies of a given length.


def words(count: int) -> str:
    """A text of so many tokens, wherever it stands: one for each word."""
    return " ".join(["a"] * count)


def first(tokens: int = 10, **options: Any) -> Turn:
    """A first prompt of so many tokens.

    <|im_start|> user \\n a a <|im_end|> \\n <|im_start|> assistant \\n: eight around the text.
    """
    return Turn(words(tokens - 8), **options)


def turn(tokens: int = 10, **options: Any) -> Turn:
    """An answer that adds so many tokens: also the newline behind a reply that ended."""
    return Turn(words(tokens - 9), **options)


def closing(tokens: int = 10, **options: Any) -> Turn:
    """An answer that adds so many tokens to a reply that has no stop token: also the <|im_end|> that closes it."""
    return Turn(words(tokens - 10), **options)


def goes_on(tokens: int, **options: Any) -> Turn:
    """So many tokens inside the reply, which goes on."""
    return Turn(words(tokens), continues=True, **options)


class Reply(NamedTuple):
    """What is sampled: pieces that are a token each."""

    pieces: Sequence[str]
    finish_reason: Any = "stop"

    def action(self, tokenizer: Tokenizer) -> Action:
        control = tokenizer.control_tokens
        tokens = [[control[p]] if p in control else tokenizer.encode(p).tolist() for p in self.pieces]
        assert all(len(piece) == 1 for piece in tokens)
        return Action([piece[0] for piece in tokens], finish_reason=self.finish_reason)


def says(tokens: int) -> Reply:
    return Reply([*["a"] * (tokens - 1), "<|im_end|>"])


def opens(tokens: int, finish_reason: str = "stop") -> Reply:
    """A reply without a stop token."""
    return Reply(["a"] * tokens, finish_reason)


def cut(tokens: int) -> Reply:
    return opens(tokens, "length")


def part(tokens: int) -> Reply:
    """A part of a reply: the policy was interrupted."""
    return opens(tokens, "abort")


def thinks(tokens: int) -> Reply:
    """A reply of which two tokens are left without its reasoning."""
    thought = ["<think>", "\n", *["a"] * (tokens - 7), "\n", "</think>", "\n\n"]
    return Reply([*thought, "a", "<|im_end|>"])


def calls(count: int) -> Reply:
    """A reply of so many calls, three tokens each, and the stop token."""
    return Reply([*["<tool_call>", "a", "</tool_call>"] * count, "<|im_end|>"])


class Answers(Env):
    """Says one turn after the other, and the last one for ever."""

    def __init__(self, turns: Sequence[Turn], **options: Any) -> None:
        super().__init__(**options)
        self.turns = turns

    def start(self) -> Turn:
        self.said = 0
        return self.turns[0]

    def respond(self, reply: Message) -> Turn:
        self.said = min(self.said + 1, len(self.turns) - 1)
        return self.turns[self.said]


class Played(NamedTuple):
    """How many tokens were offered at each step, and the last result."""

    offers: list[int]
    result: StepResult
    env: Env


Play = Callable[..., Played]
Offered = Callable[..., list[int | StopReason]]


@pytest.fixture
def play(tokenizer: Tokenizer) -> Play:
    def play(
        turns: Sequence[Turn], replies: Sequence[Reply], *, history: Any = "keep", thinking: bool = True, **limits: Any
    ) -> Played:
        renderer = get_renderer("qwen3", tokenizer, enable_thinking=thinking)
        env = Answers(turns, renderer=renderer, history=history, limits=limits)
        observation, info = env.reset(seed=0)
        result = StepResult(observation, 0.0, False, env.trajectory is not None, info)
        offers = [info["max_tokens"]] if env.trajectory is None else []
        for reply in replies:
            assert env.trajectory is None
            result = env.step(reply.action(tokenizer))
            if env.trajectory is None:
                offers.append(result.info["max_tokens"])
        return Played(offers, result, env)

    return play


@pytest.fixture
def offered(play: Play) -> Offered:
    """What a policy is offered at each step, and then why the episode ended, if it did."""

    def offered(*arguments: Any, max_context_tokens: int | None = ROOM, **options: Any) -> list[int | StopReason]:
        played = play(*arguments, max_context_tokens=max_context_tokens, **options)
        trajectory = played.env.trajectory
        return [*played.offers, *([] if trajectory is None else [StopReason(trajectory.stop_reason)])]

    return offered


@pytest.mark.parametrize("tokens", [10, 25, 60])
def test_a_message_is_as_long_as_a_test_says(play: Play, tokens: int):
    lengths = [
        play([first(tokens)], []),
        play([first(), turn(tokens)], [says(10)]),
        play([first(), closing(tokens)], [opens(10)]),
        play([first(), goes_on(tokens)], [opens(10)]),
    ]
    assert [len(played.result.observation.tokens) for played in lengths] == [tokens] * 4


OFFERS: list[tuple[Any, ...]] = [
    # One limit at a time.
    ([first(), turn()], [says(10)], [None] * 2, {"max_context_tokens": None}),
    ([first(), turn()], [says(10)] * 5, [90, 70, 50, 30, 10, CONTEXT]),
    ([first(20), turn(15), turn(30)], [says(5), says(10)], [80, 60, 20]),
    (
        [first(), turn()],
        [says(10), says(10), says(5)],
        [25, 15, 5, SAMPLED],
        {"max_context_tokens": None, "max_sampled_tokens": 25},
    ),
    (
        [first(max_tokens=7), turn(), turn(max_tokens=60)],
        [says(7), says(10)],
        [7, None, 60],
        {"max_context_tokens": None},
    ),
    ([first(), turn()], [says(10)] * 2, [None, None, STEPS], {"max_context_tokens": None, "max_steps": 2}),
    ([first(), turn()], [calls(2), says(10), calls(1)], [90, 73, 53, CALLS], {"max_tool_calls": 3}),
    ([first(), turn()], [calls(1), calls(9)], [90, 76, CALLS], {"max_tool_calls": 2}),
    # Several limits at a time.
    ([first(), turn()], [says(10)] * 5, [60, 50, 40, 30, 10, CONTEXT], {"max_sampled_tokens": 60}),
    (
        [first(max_tokens=7), turn(max_tokens=80), turn(max_tokens=80), turn(20, max_tokens=3)],
        [says(7), says(20), says(5)],
        [7, 53, 33, 3],
        {"max_sampled_tokens": 60},
    ),
    ([first(), turn()], [says(10), says(70)], [90, 70, STEPS], {"max_steps": 2}),
    ([first(), turn()], [says(10), calls(3)], [20, 10, SAMPLED], {"max_sampled_tokens": 20, "max_tool_calls": 3}),
    # A policy that samples more than it was offered.
    ([first(max_tokens=5), turn()], [says(10)], [5, 70]),
    ([first(), turn()], [says(91)], [90, CONTEXT]),
    ([first(), turn()], [says(10), says(40)], [15, 5, SAMPLED], {"max_sampled_tokens": 15}),
    ([first(), turn()], [thinks(95)], [90, 78], {"history": "strip"}),
    # Interrupted replies.
    ([first(), turn()], [part(10), part(15), says(5)], [90, 80, 65, 50]),
    ([first(max_tokens=20), turn()], [part(10), part(5), says(5)], [20, 10, 5, 60]),
    ([first(), turn()], [part(10), part(10), says(5)], [25, 15, 5, SAMPLED], {"max_sampled_tokens": 25}),
    (
        [first(max_tokens=80), turn(max_tokens=30)],
        [part(10), says(10), part(20), part(5)],
        [60, 50, 30, 10, 5],
        {"max_sampled_tokens": 60},
    ),
    ([first(), turn()], [part(90)], [90, CONTEXT], MAY_BE_CUT),
    ([first(), turn()], [part(20)], [20, SAMPLED], dict(max_sampled_tokens=20, **MAY_BE_CUT)),
    # Cut replies.
    ([first(), turn()], [says(10), cut(10)], [90, 70, CUT]),
    ([first(), closing(), turn()], [cut(10), cut(10)], [90, 70, 49], MAY_BE_CUT),
    ([first(), turn()], [Reply(["<think>", "\n", *["a"] * 8], "length")], [90, 66], MAY_BE_CUT),
    ([first(), turn()], [cut(90)], [90, CONTEXT], MAY_BE_CUT),
    ([first(), goes_on(0)], [cut(90)], [90, CONTEXT], MAY_BE_CUT),
    (
        [first(), turn()],
        [Reply(["<think>", "\n", *["a"] * 84, "\n", "</think>", "\n\n", "a"], "length")],
        [90, CONTEXT],
        {"history": "strip"},
    ),
    (
        [first(max_tokens=90), closing()],
        [Reply(["<think>", "\n", *["a"] * 84, "\n", "</think>", "\n\n", "a"], "length")],
        [90, 79],
        {"history": "strip"},
    ),
    (
        [first(), closing()],
        [Reply(["<think>", "\n", *["a"] * 84, "\n", "</think>", "\n\n", "a"], "length")],
        [90, 79],
        dict(history="strip", **MAY_BE_CUT),
    ),
    # A prefill.
    ([first(prefill=words(5)), turn(prefill=words(5))], [says(10)] * 4, [85, 60, 35, 10, CONTEXT]),
    (
        [first(prefill=words(5), max_tokens=15), turn(prefill=words(5))],
        [says(10)] * 2,
        [15, 10, SAMPLED],
        {"max_sampled_tokens": 20},
    ),
    ([first(prefill=Message(role="assistant", reasoning=" " + words(8)))], [], [80]),
    # A reply that goes on.
    ([first(), goes_on(5), goes_on(10), turn()], [opens(10), opens(20), says(5)], [90, 75, 45, 30]),
    ([first(), goes_on(5), turn()], [says(10), says(10)], [90, 76, 56]),
    ([first(), goes_on(5)], [says(10), says(10), says(5)], [25, 15, 5, SAMPLED], {"max_sampled_tokens": 25}),
    ([first(), goes_on(30)], [opens(10), opens(15)], [25, 15, SAMPLED], {"max_sampled_tokens": 25}),
    ([first(max_tokens=20), goes_on(5, max_tokens=7), goes_on(5)], [opens(10), opens(7)], [20, 7, 63]),
    ([first(), goes_on(0)], [says(90)], [90, 1]),
    ([first(), goes_on(5)], [opens(10)] * 3, [90, 75, 60, STEPS], {"max_steps": 3}),
    ([first(), goes_on(5), turn()], [calls(1), says(6), calls(1)], [90, 82, 66, CALLS], {"max_tool_calls": 2}),
    (
        [first(prefill=words(5), max_tokens=40), goes_on(5), turn()],
        [part(10), opens(20), part(5), says(5)],
        [40, 30, 20, 15, 10],
        {"max_sampled_tokens": 50},
    ),
    ([first(), goes_on(10)], [cut(10)] * 2, [90, 70, 50], MAY_BE_CUT),
    # A rewrite frees room; a system message takes it.
    ([first(), turn()], [thinks(40)] * 2, [90, 40, CONTEXT]),
    ([first(), turn()], [thinks(40)] * 3, [90, 78, 66, 54], {"history": "strip"}),
    ([first(), turn(40), turn(40)], [thinks(40), thinks(45)], [90, 48, 6], {"history": "strip"}),
    ([first(), turn(40), turn(46)], [thinks(40), thinks(45)], [90, 48, CONTEXT], {"history": "strip"}),
    ([first(), turn()], [thinks(20)] * 4, [90, 60, 66, 36, 42], {"history": {"name": "compact", "every": 2}}),
    (
        [first(), turn()],
        [thinks(20)] * 5,
        [90, 60, 66, 54, 42, FULL],
        {"history": {"name": "budget", "max_tokens": 60, "order": ["thinking"]}},
    ),
    ([first(), turn()], [thinks(40)] * 2, [90, 60, 20], {"history": "strip", "max_sampled_tokens": 100}),
    ([first(), turn(), goes_on(20)], [thinks(30), opens(10)], [90, 50, 20]),
    (
        [first(), turn(), goes_on(20)],
        [thinks(30), opens(10)],
        [90, 50, 48],
        {"history": {"name": "budget", "max_tokens": 70, "order": ["thinking"]}},
    ),
    ([first(), turn(prefill=words(20))], [thinks(30)], [90, 30]),
    (
        [first(), turn(prefill=words(20))],
        [thinks(30)],
        [90, 58],
        {"history": {"name": "budget", "max_tokens": 60, "order": ["thinking"]}},
    ),
    ([first(), turn(system=words(5)), turn(system=words(5)), turn(system=words(15))], [says(10)] * 3, [90, 60, 40, 10]),
    ([first(), turn(system=words(65))], [says(10)], [90, CONTEXT]),
    ([first(), turn()], [says(10)] * 2, [86, 62, 38], {"thinking": False}),
    ([first(), turn()], [says(10)] * 2, [86, 66, 46], {"thinking": False, "history": "strip"}),
    (
        [first(prefill=words(5)), turn(max_tokens=50), goes_on(5, max_tokens=30), turn(system=words(5)), turn()],
        [says(10), part(10), says(6), says(10), thinks(12), says(3)],
        [60, 50, 40, 30, 15, 3, CONTEXT],
        {"history": "strip", "max_sampled_tokens": 60},
    ),
]


@pytest.mark.matrix
@pytest.mark.parametrize("case", OFFERS, ids=str)
def test_what_a_policy_is_offered_at_each_step(offered: Offered, case: tuple[Any, ...]):
    turns, replies, expected, *options = case
    assert offered(turns, replies, **(options[0] if options else {})) == expected


# One limit at a time.


@pytest.mark.parametrize(("tokens", "expected"), [(79, [90, 1]), (80, [90, CONTEXT]), (90, [90, CONTEXT])])
def test_a_context_has_room_for_one_token_or_it_is_full(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(), turn()], [says(tokens)]) == expected


@pytest.mark.parametrize(
    ("room", "expected"), [(1, [CONTEXT]), (9, [CONTEXT]), (10, [CONTEXT]), (11, [1]), (12, [2]), (110, [100])]
)
def test_a_first_prompt_needs_room_for_itself_and_one_token(offered: Offered, room: int, expected: list[Any]):
    assert offered([first()], [], max_context_tokens=room) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(9, [FULL]), (10, [90])])
def test_a_first_prompt_may_be_as_long_as_the_budget(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first()], [], history={"name": "budget", "max_tokens": tokens}) == expected


# Interrupted replies.


@pytest.mark.parametrize(
    ("limits", "reason"), [({}, CONTEXT), ({"max_sampled_tokens": 90}, SAMPLED)], ids=["context", "sampled tokens"]
)
def test_a_reply_that_is_interrupted_where_nothing_is_left_ends_by_that_limit(
    offered: Offered, limits: dict[str, int], reason: StopReason
):
    assert offered([first(), turn()], [part(50), part(40)], **limits) == [90, 40, reason]


def test_a_reply_that_used_up_what_its_turn_offered_is_answered(offered: Offered):
    for limits in ({}, MAY_BE_CUT):
        assert offered([first(max_tokens=20), closing()], [part(15), part(5)], **limits) == [20, 5, 60]


# Whose cut it is.


class Cut(NamedTuple):
    """A reply of 20 tokens that was cut, in a context that begins with 10, and what comes of it."""

    turn: int | None = None
    sampled: int | None = None
    context: int | None = None
    ends_by: StopReason | None = None

    @property
    def limits(self) -> dict[str, int | None]:
        return {"max_sampled_tokens": self.sampled, "max_context_tokens": self.context}


CUTS = {
    "by nothing that is known": Cut(ends_by=CUT),
    "before its turn's tokens were used": Cut(turn=21, ends_by=CUT),
    "before the sampled tokens were used": Cut(sampled=21, ends_by=CUT),
    "before the context was full": Cut(context=31, ends_by=CUT),
    "before any limit": Cut(turn=21, sampled=21, context=31, ends_by=CUT),
    "by its turn": Cut(turn=20),
    "by its turn, which the policy did not obey": Cut(turn=15),
    "by its turn, before any limit": Cut(turn=20, sampled=200, context=200),
    "by the sampled tokens": Cut(sampled=20, ends_by=SAMPLED),
    "by the sampled tokens, before its turn": Cut(turn=21, sampled=20, ends_by=SAMPLED),
    "by the context": Cut(context=30, ends_by=CONTEXT),
    "by the context, before its turn": Cut(turn=21, context=30, ends_by=CONTEXT),
    "by both limits": Cut(sampled=20, context=30, ends_by=SAMPLED),
    "by its turn and the sampled tokens": Cut(turn=20, sampled=20, ends_by=SAMPLED),
    "by its turn and the context": Cut(turn=20, context=30, ends_by=CONTEXT),
}
REPLIES = {"cut": [cut(20)], "interrupted, and then cut": [part(12), cut(8)]}


@pytest.mark.matrix
@pytest.mark.parametrize("replies", REPLIES.values(), ids=REPLIES)
@pytest.mark.parametrize("answer", [closing(), goes_on(5)], ids=["answered", "going on"])
@pytest.mark.parametrize("case", CUTS.values(), ids=CUTS)
def test_a_cut_ends_the_episode_by_whoever_cut_unless_that_was_the_turn(
    play: Play, case: Cut, answer: Turn, replies: list[Reply]
):
    played = play([first(max_tokens=case.turn), answer], replies, **case.limits)
    trajectory = played.env.trajectory
    assert (trajectory and trajectory.stop_reason) == case.ends_by
    (step,) = (item for item in played.env.episode.root.record)
    assert step.finish_reason == "length"


@pytest.mark.matrix
@pytest.mark.parametrize("case", CUTS.values(), ids=CUTS)
def test_what_cut_the_last_reply_is_why_the_episode_ends_unless_that_was_the_turn(play: Play, case: Cut):
    played = play([first(max_tokens=case.turn), closing()], [cut(20)], max_steps=1, **case.limits)
    trajectory = played.env.trajectory
    is_cut_by_turn = case.turn is not None and case.turn <= 20
    assert trajectory is not None
    assert trajectory.stop_reason == (STEPS if is_cut_by_turn else case.ends_by)


@pytest.mark.matrix
@pytest.mark.parametrize("max_steps", [1, None])
@pytest.mark.parametrize("case", CUTS.values(), ids=CUTS)
def test_a_cut_ends_nothing_where_it_may_not(play: Play, case: Cut, max_steps: int | None):
    played = play([first(max_tokens=case.turn), closing()], [cut(20)], max_steps=max_steps, **case.limits, **MAY_BE_CUT)
    trajectory = played.env.trajectory
    no_room = CONTEXT if case.context == 31 else None  # for the answer
    by_limit = STEPS if max_steps else no_room if case.ends_by == CUT else case.ends_by
    assert (trajectory and trajectory.stop_reason) == by_limit


def test_a_budget_of_thinking_is_a_turn_whose_reply_goes_on(play: Play):
    answer = Message(role="assistant", reasoning="a", content="")
    turns = [first(max_tokens=10), Turn(answer, continues=True), Turn(terminated=True)]
    played = play(turns, [Reply(["<think>", "\n", *["a"] * 8], "length"), says(5)])
    trajectory = played.env.trajectory
    assert trajectory is not None and trajectory.stop_reason == "terminated"
    *_, reply = trajectory.contexts["main"].messages
    assert (reply.reasoning, reply.content, reply.errors) == ("a" * 9, "aaaa", ())
    assert [step.finish_reason for step in trajectory.steps] == ["length", "stop"]
    assert [int(sample.mask.sum()) for sample in trajectory.samples("without_errors")] == [15]


@pytest.mark.parametrize("reasoning", [True, False])
def test_a_reply_that_its_turn_cut_says_that_it_has_no_end_and_is_closed_where_it_is_answered(
    play: Play, reasoning: bool
):
    pieces = ["<think>", "\n", "a"] if reasoning else ["a"] * 3
    played = play([first(max_tokens=3), Turn("a")], [Reply(pieces, "length")])
    reply = played.env.messages()[-2]
    assert reply.open_block == ("reasoning" if reasoning else None)
    assert NOT_ENDED in reply.errors
    assert played.result.info["truncated_reply"] and not played.result.truncated


# Replies that never come.


@pytest.mark.parametrize("replies", [[part(0)] * 16, [part(3), *[part(0)] * 16]], ids=["none", "after a part"])
def test_an_episode_ends_where_a_policy_is_interrupted_again_and_again_before_it_samples(
    play: Play, replies: list[Reply]
):
    for limits in ({}, MAY_BE_CUT, {"max_steps": 3}):
        played = play([first(), Turn(reward=0.5)], replies, **limits)
        assert played.env.trajectory is not None and played.env.trajectory.reward == 0.5
        assert played.result.info["stop_reason"] == "aborted" and played.result.truncated


def test_a_policy_that_is_always_interrupted_ends_the_episode_although_it_samples(play: Play):
    played = play([first(), Turn(reward=0.5)], [part(1)] * 1000)
    assert played.env.trajectory is not None and played.env.trajectory.reward == 0.5
    assert played.result.info["stop_reason"] == "aborted" and played.result.truncated


def test_interruptions_are_counted_in_a_row(offered: Offered):
    replies = [*[part(0)] * 15, part(1), *[part(0)] * 15, says(2), *[part(0)] * 15, says(2)]
    assert offered([first(), turn()], replies)[-1] == 100 - 10 - 3 - 10 - 2 - 10


def test_a_sub_agent_that_is_interrupted_again_and_again_ends_and_its_parent_goes_on():
    env = Delegates(Answers([Turn("Well?")]))
    env.reset(seed=0)
    env.step(Action([5]))
    for _ in range(16):
        _, _, _, truncated, info = env.step(Action([], finish_reason="abort"))
    assert not truncated and info["context"] == "main"
    assert env.results[0].stop_reason == "aborted"


# Episodes without an end.


class Delegates(Env):
    """Hands over to the same environment again and again."""

    def __init__(self, child: Env, **options: Any) -> None:
        super().__init__(**options)
        self.child = child

    def start(self) -> Turn:
        self.results: list[HandoffResult] = []
        return Turn("Well?")

    def respond(self, reply: Message) -> Handoff:
        return Handoff(self.child)

    def resume(self, result: HandoffResult) -> Turn | Handoff:
        self.results.append(result)
        return Turn("Go on.") if result.stop_reason != "max_steps" else Handoff(self.child)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> int:
    """After how many steps an episode that nothing limits ends: fewer than the thousand outside of these tests."""
    monkeypatch.setattr(_agent, "STEPS_WITHOUT_LIMIT", 50)
    return 50


class Tires(Answers):
    """Keeps its conversation short."""

    def respond(self, reply: Message) -> Turn:
        return Turn(context=f"{len(self.episode.contexts)}", messages="Well?")


def test_an_episode_that_nothing_limits_ends_after_a_thousand_steps_and_says_how_to_limit_it():
    env = Tires([Turn("Well?")], limits={"max_tool_calls": 5, "max_context_tokens": 10**6})
    with pytest.warns(NoEndWarning, match=r"1,000 steps.*Turn\(terminated=True\).*limits=\{'max_steps'") as caught:
        trajectory = envsdk.rollout(env, "null", seed=0)
    assert len(caught) == 1
    assert (trajectory.status, trajectory.stop_reason, len(trajectory.steps)) == ("truncated", "no_end", 1000)


@pytest.mark.parametrize("limits", [{"max_steps": 52}, {"max_sampled_tokens": 10**6}])
def test_an_episode_that_a_limit_ends_may_be_as_long_as_that(limits: dict[str, int], soon: int):
    env = Tires([Turn("Well?")], limits=limits)
    env.reset(seed=0)
    for _ in range(soon + 1):
        env.step([5])
    assert env.trajectory is None


def test_replies_without_a_token_do_not_bring_the_limit_of_sampled_tokens_closer(soon: int):
    env = Tires([Turn("Well?")], limits={"max_sampled_tokens": 100})
    env.reset(seed=0)
    for _ in range(10):
        env.step([5])
    with pytest.warns(NoEndWarning):
        while env.trajectory is None:
            env.step([])
    assert (env.trajectory.stop_reason, len(env.trajectory.steps)) == ("no_end", soon + 10)


def test_a_history_that_makes_room_again_and_again_ends_too(soon: int):
    history = {"name": "budget", "max_tokens": 300}
    env = Answers([Turn("Well?")], history=history, limits={"max_context_tokens": 600})
    with pytest.warns(NoEndWarning):
        trajectory = envsdk.rollout(env, "null", seed=0)
    assert trajectory.stop_reason == "no_end"


def test_an_agent_that_hands_over_for_ever_ends_too(soon: int):
    env = Delegates(Answers([Turn("Well?")], limits={"max_steps": 1}))
    with pytest.warns(NoEndWarning, match=r"^Delegates: "):
        trajectory = envsdk.rollout(env, "null", seed=0)
    assert (trajectory.stop_reason, len(trajectory.steps)) == ("no_end", soon)


def test_a_sub_agent_is_limited_by_who_handed_over_to_it(soon: int):
    env = Delegates(Answers([Turn("Well?")]), limits={"max_steps": soon + 3})
    trajectory = envsdk.rollout(env, "null", seed=0)
    assert (trajectory.stop_reason, len(trajectory.steps)) == ("max_steps", soon + 3)


# What limits are made of.


class Bounded(Env):
    default_limits = Limits(max_steps=24, max_tool_calls=5)

    def start(self) -> Turn:
        return Turn("Well?")


FIELDS = {"max_steps": 3, "max_context_tokens": 4096, "max_sampled_tokens": 7, "max_tool_calls": None}


@pytest.mark.parametrize("names", [names for n in range(5) for names in combinations(FIELDS, n)], ids=str)
def test_a_mapping_of_limits_changes_what_it_names(names: tuple[str, ...]):
    given = {name: FIELDS[name] for name in names}
    expected = Bounded.default_limits.model_copy(update=given)
    assert Bounded(limits=given).limits == expected
    assert Handoff(Bounded(), limits=given).limits == expected
    assert Bounded(limits=Limits(**given)).limits == Limits(**given)


@pytest.mark.parametrize("limits", [Limits(), Limits(max_steps=3), {"max_context_tokens": 9}, None], ids=str)
def test_limits_are_the_same_when_an_environment_is_made_again_from_its_specification(limits: Any):
    made = envsdk.make("envsdk/GuessNumber-v1", limits=limits)
    again = EnvSpec.from_json(made.spec.to_json()).make(disable_env_checker=True).unwrapped
    assert again.limits == made.limits == Limits.of(limits, type(made).default_limits)


@pytest.mark.parametrize("integer", [np.int8, np.int32, np.int64, np.uint16])
def test_numpys_integers_are_integers(integer: Any):
    assert Bounded(limits={"max_steps": integer(5)}).limits.max_steps == 5
    assert type(Limits(max_sampled_tokens=integer(5)).max_sampled_tokens) is int
    assert type(Turn("Well?", max_tokens=integer(5)).max_tokens) is int
    env = Bounded()
    env.reset(seed=integer(5))
    assert (type(env.episode.seed), env.episode.seed) == (int, 5)


@pytest.mark.parametrize("value", [0, -1, np.int64(0), True, np.True_, 1.5, np.float32(2), "3", [1], 2.0], ids=repr)
def test_what_is_not_a_count_is_no_limit(value: Any):
    with pytest.raises(ConfigError, match="max_steps"):
        Bounded(limits={"max_steps": value})
    with pytest.raises(TurnError, match="max_tokens is"):
        Turn("Well?", max_tokens=value)


# A prefill.


@pytest.mark.parametrize(("tokens", "expected"), [(89, [1]), (90, [CONTEXT]), (95, [CONTEXT])])
def test_a_first_prompt_must_have_room_for_its_prefill(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(prefill=words(tokens))], []) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(69, [90, 1]), (70, [90, CONTEXT])])
def test_a_later_prompt_must_have_room_for_its_prefill(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(), turn(prefill=words(tokens))], [says(10)]) == expected


# A reply that goes on.


@pytest.mark.parametrize(("tokens", "expected"), [(4, [90, 1]), (5, [90, CONTEXT])])
def test_a_reply_goes_on_where_there_is_room_for_one_token(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(), goes_on(tokens)], [opens(85)]) == expected


# One reason, the first of those that hold.

ORDER = (StopReason.TERMINATED, StopReason.TRUNCATED, CUT, STEPS, SAMPLED, CALLS, FULL, CONTEXT)
CAUSES: dict[StopReason, dict[str, Any]] = {
    StopReason.TERMINATED: {"terminated": True},
    StopReason.TRUNCATED: {"truncated": True},
    CUT: {"finish_reason": "length"},
    STEPS: {"max_steps": 1},
    SAMPLED: {"max_sampled_tokens": 60},
    CALLS: {"max_tool_calls": 1},
    FULL: {"history": {"name": "budget", "max_tokens": 75}},
    CONTEXT: {"max_context_tokens": 75},
}


def end(play: Play, reasons: Sequence[StopReason], **answer: Any) -> StepResult:
    """The result of a reply of 60 tokens with a call in it, where each of the reasons holds."""
    options = {key: value for reason in reasons for key, value in CAUSES[reason].items()}
    finish_reason = options.pop("finish_reason", "stop")
    flags = {name: options.pop(name) for name in ("terminated", "truncated") if name in options}
    reply = Reply(["<tool_call>", "a", "</tool_call>", *["a"] * 57], finish_reason)
    played = play([first(), Turn(words(10), reward=0.5, **flags, **answer)], [reply], **options)
    assert played.env.trajectory is not None
    assert played.env.trajectory.stop_reason == played.result.info["stop_reason"]
    assert played.env.trajectory.status == ("terminated" if played.result.terminated else "truncated")
    return played.result


def pairs(reasons: Sequence[StopReason]) -> list[tuple[StopReason, StopReason]]:
    apart = ((StopReason.TERMINATED, StopReason.TRUNCATED), (CUT, SAMPLED))  # what a limit cut, the policy did not
    return [pair for pair in combinations(reasons, 2) if pair not in apart]


@pytest.mark.matrix
@pytest.mark.parametrize("reason", ORDER)
def test_each_reason_ends_an_episode_once_the_reply_is_scored(play: Play, reason: StopReason):
    result = end(play, [reason])
    assert result.info["stop_reason"] == reason
    assert (result.terminated, result.truncated) == (reason == "terminated", reason != "terminated")
    assert result.reward == 0.5


@pytest.mark.matrix
@pytest.mark.parametrize(("reason", "other"), pairs(ORDER))
def test_of_two_reasons_the_first_in_the_order_is_given(play: Play, reason: StopReason, other: StopReason):
    result = end(play, [reason, other])
    assert result.info["stop_reason"] == reason
    assert (result.terminated, result.truncated) == (reason == "terminated", reason != "terminated")


@pytest.mark.matrix
@pytest.mark.parametrize(("reason", "other"), pairs(ORDER[2:]))
def test_the_order_is_the_same_where_a_reply_would_go_on(play: Play, reason: StopReason, other: StopReason):
    assert end(play, [reason, other], continues=True).info["stop_reason"] == reason


@pytest.mark.matrix
@pytest.mark.parametrize("reason", ORDER)
def test_of_all_reasons_from_one_on_that_one_is_given(play: Play, reason: StopReason):
    later = ORDER[ORDER.index(reason) :]
    both = [other for other in later if (reason, other) not in (("terminated", "truncated"), (CUT, SAMPLED))]
    assert end(play, both).info["stop_reason"] == reason


@pytest.mark.parametrize(
    ("budget", "room", "reason"), [(9, 9, FULL), (9, ROOM, FULL), (ROOM, 10, CONTEXT), (10, 10, CONTEXT)]
)
def test_a_first_prompt_that_does_not_fit_has_one_reason(offered: Offered, budget: int, room: int, reason: StopReason):
    history = {"name": "budget", "max_tokens": budget}
    assert offered([first()], [], history=history, max_context_tokens=room, max_steps=1) == [reason]
