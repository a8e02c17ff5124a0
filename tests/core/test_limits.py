"""What a policy is offered at each step, in numbers, and which limit ends an episode. The same with both vocabularies.

A context has room for 100 tokens, and what the environment says has 10 of them if a test says nothing else.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from envsdk import Action, Env, Message, StopReason, Turn, get_renderer
from envsdk.env import Result
from envsdk.limits import UNLIMITED
from envsdk.tokenizers import Tokenizer

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
    result: Result
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
        result = Result(observation, 0.0, False, env.trajectory is not None, info)
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


# One limit at a time.


def test_nothing_limits_a_reply_where_there_is_no_limit(offered: Offered):
    assert offered([first(), turn()], [says(10)], max_context_tokens=None) == [UNLIMITED] * 2


def test_each_message_and_each_reply_takes_its_tokens_from_the_room_in_the_context(offered: Offered):
    assert offered([first(), turn()], [says(10)] * 5) == [90, 70, 50, 30, 10, CONTEXT]


def test_longer_messages_and_replies_take_more(offered: Offered):
    assert offered([first(20), turn(15), turn(30)], [says(5), says(10)]) == [80, 60, 20]


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


def test_sampled_tokens_are_counted_over_all_replies(offered: Offered):
    replies = [says(10), says(10), says(5)]
    assert offered([first(), turn()], replies, max_context_tokens=None, max_sampled_tokens=25) == [25, 15, 5, SAMPLED]


def test_what_a_turn_offers_is_for_one_reply(offered: Offered):
    turns = [first(max_tokens=7), turn(), turn(max_tokens=60)]
    assert offered(turns, [says(7), says(10)], max_context_tokens=None) == [7, UNLIMITED, 60]


def test_steps_do_not_limit_a_reply(offered: Offered):
    assert offered([first(), turn()], [says(10)] * 2, max_context_tokens=None, max_steps=2) == [UNLIMITED] * 2 + [STEPS]


def test_calls_do_not_limit_a_reply(offered: Offered):
    replies = [calls(2), says(10), calls(1)]
    assert offered([first(), turn()], replies, max_tool_calls=3) == [90, 73, 53, CALLS]


def test_a_reply_may_have_more_calls_than_are_left(offered: Offered):
    assert offered([first(), turn()], [calls(1), calls(9)], max_tool_calls=2) == [90, 76, CALLS]


# Several limits at a time.


def test_the_tightest_of_context_and_sampled_tokens_counts_at_each_step(offered: Offered):
    assert offered([first(), turn()], [says(10)] * 5, max_sampled_tokens=60) == [60, 50, 40, 30, 10, CONTEXT]


def test_the_tightest_of_turn_context_and_sampled_tokens_counts_at_each_step(offered: Offered):
    turns = [first(max_tokens=7), turn(max_tokens=80), turn(max_tokens=80), turn(20, max_tokens=3)]
    assert offered(turns, [says(7), says(20), says(5)], max_sampled_tokens=60) == [7, 53, 33, 3]


def test_the_last_step_may_use_what_is_left_in_the_context(offered: Offered):
    assert offered([first(), turn()], [says(10), says(70)], max_steps=2) == [90, 70, STEPS]


def test_the_last_call_may_use_what_is_left_of_the_sampled_tokens(offered: Offered):
    assert offered([first(), turn()], [says(10), calls(3)], max_sampled_tokens=20, max_tool_calls=3) == [
        20,
        10,
        SAMPLED,
    ]


# A policy that samples more than it was offered.


def test_a_policy_that_samples_more_than_its_turn_offers_is_not_refused(offered: Offered):
    assert offered([first(max_tokens=5), turn()], [says(10)]) == [5, 70]


def test_a_policy_that_samples_more_than_the_context_has_room_for_ends_the_episode(offered: Offered):
    assert offered([first(), turn()], [says(91)]) == [90, CONTEXT]


def test_a_policy_that_samples_more_than_is_left_of_the_episode_ends_it(offered: Offered):
    assert offered([first(), turn()], [says(10), says(40)], max_sampled_tokens=15) == [15, 5, SAMPLED]


def test_thinking_beyond_the_room_in_the_context_is_forgiven_where_it_is_dropped(offered: Offered):
    assert offered([first(), turn()], [thinks(95)], history="strip") == [90, 78]


# Interrupted replies.


def test_the_parts_of_a_reply_share_the_room_in_the_context(offered: Offered):
    assert offered([first(), turn()], [part(10), part(15), says(5)]) == [90, 80, 65, 50]


def test_the_parts_of_a_reply_share_what_its_turn_offers(offered: Offered):
    assert offered([first(max_tokens=20), turn()], [part(10), part(5), says(5)]) == [20, 10, 5, 60]


def test_the_parts_of_a_reply_share_the_sampled_tokens(offered: Offered):
    assert offered([first(), turn()], [part(10), part(10), says(5)], max_sampled_tokens=25) == [25, 15, 5, SAMPLED]


def test_the_tightest_limit_counts_for_each_part(offered: Offered):
    turns = [first(max_tokens=80), turn(max_tokens=30)]
    replies = [part(10), says(10), part(20), part(5)]
    assert offered(turns, replies, max_sampled_tokens=60) == [60, 50, 30, 10, 5]


@pytest.mark.parametrize("limits", [{}, {"max_sampled_tokens": 90}], ids=["context", "sampled tokens"])
def test_a_reply_that_is_interrupted_where_nothing_is_left_is_cut(offered: Offered, limits: dict[str, int]):
    assert offered([first(), turn()], [part(50), part(40)], **limits) == [90, 40, CUT]


def test_a_reply_that_used_up_its_parts_ends_by_the_limit_if_it_may_be_cut(offered: Offered):
    assert offered([first(), turn()], [part(90)], **MAY_BE_CUT) == [90, CONTEXT]
    assert offered([first(), turn()], [part(20)], max_sampled_tokens=20, **MAY_BE_CUT) == [20, SAMPLED]


def test_a_reply_that_used_up_what_its_turn_offered_is_answered_if_it_may_be_cut(offered: Offered):
    assert offered([first(max_tokens=20), closing()], [part(15), part(5)], **MAY_BE_CUT) == [20, 5, 60]


# Cut replies.


def test_a_cut_reply_ends_the_episode(offered: Offered):
    assert offered([first(), turn()], [says(10), cut(10)]) == [90, 70, CUT]


def test_a_cut_reply_that_is_answered_takes_a_token_more_to_be_closed(offered: Offered):
    assert offered([first(), closing(), turn()], [cut(10), cut(10)], **MAY_BE_CUT) == [90, 70, 49]


def test_a_reply_that_was_cut_inside_its_reasoning_takes_four_tokens_more_to_be_closed(offered: Offered):
    reply = Reply(["<think>", "\n", *["a"] * 8], "length")
    assert offered([first(), turn()], [reply], **MAY_BE_CUT) == [90, 66]


def test_a_reply_that_was_cut_where_the_context_ends_leaves_no_room_for_an_answer(offered: Offered):
    assert offered([first(), turn()], [cut(90)], **MAY_BE_CUT) == [90, CONTEXT]
    assert offered([first(), goes_on(0)], [cut(90)], **MAY_BE_CUT) == [90, CONTEXT]


# A prefill.


def test_a_prefill_takes_its_tokens_from_the_room_in_the_context(offered: Offered):
    turns = [first(prefill=words(5)), turn(prefill=words(5))]
    assert offered(turns, [says(10)] * 4) == [85, 60, 35, 10, CONTEXT]


def test_a_prefill_takes_nothing_from_what_may_be_sampled(offered: Offered):
    turns = [first(prefill=words(5), max_tokens=15), turn(prefill=words(5))]
    assert offered(turns, [says(10)] * 2, max_sampled_tokens=20) == [15, 10, SAMPLED]


def test_reasoning_that_opens_a_reply_takes_two_tokens_more(offered: Offered):
    reasoning = Message(role="assistant", reasoning=" " + words(8))
    assert offered([first(prefill=reasoning)], []) == [80]


@pytest.mark.parametrize(("tokens", "expected"), [(89, [1]), (90, [CONTEXT]), (95, [CONTEXT])])
def test_a_first_prompt_must_have_room_for_its_prefill(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(prefill=words(tokens))], []) == expected


@pytest.mark.parametrize(("tokens", "expected"), [(69, [90, 1]), (70, [90, CONTEXT])])
def test_a_later_prompt_must_have_room_for_its_prefill(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(), turn(prefill=words(tokens))], [says(10)]) == expected


# A reply that goes on.


def test_what_is_put_inside_a_reply_takes_its_tokens_from_the_room_in_the_context(offered: Offered):
    assert offered([first(), goes_on(5), goes_on(10), turn()], [opens(10), opens(20), says(5)]) == [90, 75, 45, 30]


def test_a_stop_token_that_is_dropped_leaves_its_room(offered: Offered):
    assert offered([first(), goes_on(5), turn()], [says(10), says(10)]) == [90, 76, 56]


def test_a_stop_token_that_is_dropped_was_sampled(offered: Offered):
    replies = [says(10), says(10), says(5)]
    assert offered([first(), goes_on(5)], replies, max_sampled_tokens=25) == [25, 15, 5, SAMPLED]


def test_what_is_put_inside_a_reply_was_not_sampled(offered: Offered):
    assert offered([first(), goes_on(30)], [opens(10), opens(15)], max_sampled_tokens=25) == [25, 15, SAMPLED]


def test_a_turn_offers_tokens_to_the_part_that_follows(offered: Offered):
    turns = [first(max_tokens=20), goes_on(5, max_tokens=7), goes_on(5)]
    assert offered(turns, [opens(10), opens(7)]) == [20, 7, 63]


def test_a_reply_that_fills_the_context_goes_on_in_the_room_of_its_stop_token(offered: Offered):
    assert offered([first(), goes_on(0)], [says(90)]) == [90, 1]


@pytest.mark.parametrize(("tokens", "expected"), [(4, [90, 1]), (5, [90, CONTEXT])])
def test_a_reply_goes_on_where_there_is_room_for_one_token(offered: Offered, tokens: int, expected: list[Any]):
    assert offered([first(), goes_on(tokens)], [opens(85)]) == expected


def test_each_part_of_a_reply_that_goes_on_is_a_step(offered: Offered):
    assert offered([first(), goes_on(5)], [opens(10)] * 3, max_steps=3) == [90, 75, 60, STEPS]


def test_a_call_in_a_reply_that_goes_on_is_counted_once(offered: Offered):
    replies = [calls(1), says(6), calls(1)]
    assert offered([first(), goes_on(5), turn()], replies, max_tool_calls=2) == [90, 82, 66, CALLS]


def test_a_part_that_was_interrupted_and_a_part_that_goes_on_share_the_room(offered: Offered):
    turns = [first(prefill=words(5), max_tokens=40), goes_on(5), turn()]
    replies = [part(10), opens(20), part(5), says(5)]
    assert offered(turns, replies, max_sampled_tokens=50) == [40, 30, 20, 15, 10]


def test_a_cut_reply_goes_on_without_being_closed(offered: Offered):
    assert offered([first(), goes_on(10)], [cut(10)] * 2, **MAY_BE_CUT) == [90, 70, 50]


# A rewrite frees room.


def test_stripped_thinking_leaves_its_room(offered: Offered):
    assert offered([first(), turn()], [thinks(40)] * 2) == [90, 40, CONTEXT]
    assert offered([first(), turn()], [thinks(40)] * 3, history="strip") == [90, 78, 66, 54]


def test_a_stripped_context_is_full_when_what_is_left_fills_it(offered: Offered):
    turns = [first(), turn(40), turn(40)]
    assert offered(turns, [thinks(40), thinks(45)], history="strip") == [90, 48, 6]
    assert offered([first(), turn(40), turn(46)], [thinks(40), thinks(45)], history="strip") == [90, 48, CONTEXT]


def test_compacted_thinking_leaves_its_room_every_second_step(offered: Offered):
    history = {"name": "compact", "every": 2}
    assert offered([first(), turn()], [thinks(20)] * 4, history=history) == [90, 60, 66, 36, 42]


def test_a_budget_leaves_room_until_nothing_more_can_be_dropped(offered: Offered):
    history = {"name": "budget", "max_tokens": 60, "order": ["thinking"]}
    assert offered([first(), turn()], [thinks(20)] * 5, history=history) == [90, 60, 66, 54, 42, FULL]


def test_a_rewrite_gives_no_sampled_tokens_back(offered: Offered):
    assert offered([first(), turn()], [thinks(40)] * 2, history="strip", max_sampled_tokens=100) == [90, 60, 20]


def test_what_is_put_inside_a_reply_can_make_the_budget_leave_room(offered: Offered):
    turns = [first(), turn(), goes_on(20)]
    assert offered(turns, [thinks(30), opens(10)]) == [90, 50, 20]
    history = {"name": "budget", "max_tokens": 70, "order": ["thinking"]}
    assert offered(turns, [thinks(30), opens(10)], history=history) == [90, 50, 48]


def test_a_prefill_can_make_the_budget_leave_room(offered: Offered):
    turns = [first(), turn(prefill=words(20))]
    assert offered(turns, [thinks(30)]) == [90, 30]
    history = {"name": "budget", "max_tokens": 60, "order": ["thinking"]}
    assert offered(turns, [thinks(30)], history=history) == [90, 58]


def test_a_later_system_message_takes_its_tokens_once(offered: Offered):
    turns = [first(), turn(system=words(5)), turn(system=words(5)), turn(system=words(15))]
    assert offered(turns, [says(10)] * 3) == [90, 60, 40, 10]


def test_a_later_system_message_that_does_not_fit_ends_the_episode(offered: Offered):
    assert offered([first(), turn(system=words(65))], [says(10)]) == [90, CONTEXT]


def test_an_empty_think_block_takes_four_tokens_of_each_prompt(offered: Offered):
    assert offered([first(), turn()], [says(10)] * 2, thinking=False) == [86, 62, 38]
    assert offered([first(), turn()], [says(10)] * 2, thinking=False, history="strip") == [86, 66, 46]


def test_what_is_inserted_and_interrupted_and_dropped_adds_up(offered: Offered):
    turns = [
        first(prefill=words(5)),
        turn(max_tokens=50),
        goes_on(5, max_tokens=30),
        turn(system=words(5)),
        turn(),
    ]
    replies = [says(10), part(10), says(6), says(10), thinks(12), says(3)]
    assert offered(turns, replies, history="strip", max_sampled_tokens=60) == [60, 50, 40, 30, 15, 3, CONTEXT]


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


def end(play: Play, reasons: Sequence[StopReason], **answer: Any) -> Result:
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
    together = (StopReason.TERMINATED, StopReason.TRUNCATED)
    return [pair for pair in combinations(reasons, 2) if pair != together]


@pytest.mark.parametrize("reason", ORDER)
def test_each_reason_ends_an_episode_once_the_reply_is_scored(play: Play, reason: StopReason):
    result = end(play, [reason])
    assert result.info["stop_reason"] == reason
    assert (result.terminated, result.truncated) == (reason == "terminated", reason != "terminated")
    assert result.reward == 0.5


@pytest.mark.parametrize(("reason", "other"), pairs(ORDER))
def test_of_two_reasons_the_first_in_the_order_is_given(play: Play, reason: StopReason, other: StopReason):
    result = end(play, [reason, other])
    assert result.info["stop_reason"] == reason
    assert (result.terminated, result.truncated) == (reason == "terminated", reason != "terminated")


@pytest.mark.parametrize(("reason", "other"), pairs(ORDER[2:]))
def test_the_order_is_the_same_where_a_reply_would_go_on(play: Play, reason: StopReason, other: StopReason):
    assert end(play, [reason, other], continues=True).info["stop_reason"] == reason


@pytest.mark.parametrize("reason", ORDER)
def test_of_all_reasons_from_one_on_that_one_is_given(play: Play, reason: StopReason):
    later = ORDER[ORDER.index(reason) :]
    both = [other for other in later if reason != "terminated" or other != "truncated"]
    assert end(play, both).info["stop_reason"] == reason


@pytest.mark.parametrize(
    ("budget", "room", "reason"), [(9, 9, FULL), (9, ROOM, FULL), (ROOM, 10, CONTEXT), (10, 10, CONTEXT)]
)
def test_a_first_prompt_that_does_not_fit_has_one_reason(offered: Offered, budget: int, room: int, reason: StopReason):
    history = {"name": "budget", "max_tokens": budget}
    assert offered([first()], [], history=history, max_context_tokens=room, max_steps=1) == [reason]
