import itertools
from typing import Any

import pytest
from envsdk_environments._kuhn_poker import LEGAL, OPTIMAL, PLAYERS, KuhnPoker, first_players_gain
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Limits, Message, Trajectory, errors
from envsdk.policies import RandomPolicy
from envsdk.rollouts import rollout_many

DEALS = list(itertools.permutations(range(3), 2))
FIRST, SECOND = [(), ("check", "bet")], [("check",), ("bet",)]
"""After which moves the first player acts, and the second."""


def won(trajectory: Trajectory) -> list[float | None]:
    """What each player earned."""
    return [trajectory.contexts[name].reward if name in trajectory.contexts else None for name in PLAYERS]


def say(env: KuhnPoker, *replies: str) -> tuple[float, bool]:
    """Step with these replies; the last reward, and whether the match is over."""
    for reply in replies:
        _, reward, terminated, _, _ = env.step(env.renderer.reply(Message(role="assistant", content=reply)))
    return reward, terminated


def check(trajectory: Trajectory) -> None:
    """Every sampled token is trained once, in its player's sample."""
    samples = [sample.validate() for sample in trajectory.samples()]
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.sampled_tokens
    assert {sample.context for sample in samples} <= set(PLAYERS)
    assert Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()


# The game.


def value(strategy: Any, cards: tuple[int, int], moves: tuple[str, ...] = ()) -> float:
    """What the first player wins on average, if both play as `strategy` says: how likely the bold move is."""
    if moves not in LEGAL:
        return first_players_gain(cards, moves)
    bold = strategy[moves][cards[len(moves) % 2]]
    outcomes = [value(strategy, cards, (*moves, move)) for move in LEGAL[moves]]
    return (1 - bold) * outcomes[0] + bold * outcomes[1]


def mean(strategy: Any) -> float:
    return sum(value(strategy, cards) for cards in DEALS) / len(DEALS)


def pure_strategies(places: list[tuple[str, ...]]) -> Any:
    for choices in itertools.product((0.0, 1.0), repeat=6):
        yield {**OPTIMAL, places[0]: choices[:3], places[1]: choices[3:]}


def test_with_optimal_play_the_first_player_loses_an_eighteenth_and_no_player_does_better():
    assert mean(OPTIMAL) == pytest.approx(-1 / 18)
    assert max(map(mean, pure_strategies(FIRST))) == pytest.approx(-1 / 18)
    assert min(map(mean, pure_strategies(SECOND))) == pytest.approx(-1 / 18)


@pytest.mark.parametrize(
    ("moves", "with_the_higher_card", "with_the_lower_card"),
    [
        (("check", "check"), 1, -1),
        (("bet", "call"), 2, -2),
        (("check", "bet", "call"), 2, -2),
        (("bet", "fold"), 1, 1),
        (("check", "bet", "fold"), -1, -1),
    ],
)
def test_what_the_first_player_gains(moves: tuple, with_the_higher_card: int, with_the_lower_card: int):
    assert first_players_gain((2, 0), moves) == with_the_higher_card
    assert first_players_gain((0, 1), moves) == with_the_lower_card


# Self-play.


@pytest.mark.parametrize("options", [{}, {"hands": 1}, {"hands": 20}, {"split": "test"}])
def test_the_reference_policy_plays_to_the_end_and_the_null_policy_loses(options: dict):
    for trajectory in rollout_many(lambda: KuhnPoker(**options), "reference", seeds=range(6)):
        assert (trajectory.reward, sum(won(trajectory))) == (1.0, pytest.approx(0.0))
    for trajectory in rollout_many(lambda: KuhnPoker(**options), "null", seeds=range(6)):
        assert (trajectory.reward, won(trajectory)) == (0.0, [-1.0, None])


@pytest.mark.parametrize(("null", "other"), [PLAYERS, PLAYERS[::-1]])
def test_each_role_may_have_a_policy_of_its_own(null: str, other: str):
    for seed in range(3):
        trajectory = envsdk.rollout(KuhnPoker(), {null: "null", other: "reference"}, seed=seed)
        rewards = {sample.role: sample.reward for sample in trajectory.samples()}
        assert rewards[null] == -1.0
        assert rewards.get(other, 1.0) == 1.0
        assert trajectory.reward == 0.0


@pytest.mark.full
def test_in_the_long_run_the_first_player_loses_what_it_must(is_full: bool):
    count = 1500 if is_full else 200
    trajectories = rollout_many(lambda: KuhnPoker(hands=1), "reference", seeds=range(count))
    first = [2 * won(trajectory)[0] for trajectory in trajectories]  # in chips
    assert sum(first) / len(first) == pytest.approx(-1 / 18, abs=3.9 / count**0.5)  # 3 standard errors


def test_each_player_is_one_sample_with_a_reward_of_its_own():
    trajectory = envsdk.rollout(KuhnPoker(), "reference", seed=0)
    check(trajectory)
    assert trajectory.breaks == []
    samples = trajectory.samples()
    assert [(sample.role, sample.parent) for sample in samples] == [("player0", None), ("player1", None)]
    assert [sample.reward for sample in samples] == won(trajectory)
    assert sum(won(trajectory)) == 0.0


def test_no_player_sees_what_the_other_has():
    env = KuhnPoker(tasks=[{"deck": [3, 50, 70], "deals": [[0, 2], [1, 2]]}])
    env.reset(seed=0)
    say(env, "check", "bet", "fold")
    text = {name: "\n".join(m.content for m in env.episode.contexts[name].messages) for name in PLAYERS}
    assert "Your card is 3." in text["player0"] and "Your card is 70." in text["player1"]
    assert "70" not in text["player0"].replace("3, 50 and 70", "")
    assert "3" not in text["player1"].replace("There are three cards", "").replace("3, 50 and 70", "")
    say(env, "bet", "call")
    assert env.messages()[-1].content.startswith("They had 50." if env.context == "player0" else "They had 70.")


def test_the_first_player_alternates_and_both_players_read_how_a_hand_ended():
    env = KuhnPoker(tasks=[{"deck": [1, 2, 3], "deals": [[0, 1], [2, 1], [1, 2]]}])
    observation, _ = env.reset(seed=0)
    order = [observation.context]
    for reply in ("check", "bet", "call", "bet", "fold", "check"):
        observation, *_ = env.step(env.renderer.reply(Message(role="assistant", content=reply)))
        order.append(observation.context)
    assert order == ["player0", "player1", "player0", "player1", "player0", "player0", "player1"]
    said = {name: [m.content for m in env.episode.contexts[name].messages if m.role == "user"] for name in PLAYERS}
    assert said["player0"][1:] == [
        "They bet. Fold or call?",
        "They had 2. You lose 2 chips. Hand 2 of 3. Your card is 2. They bet. Fold or call?",
        "You lose 1 chip. Hand 3 of 3. Your card is 2. Check or bet?",
    ]
    assert said["player1"][1:] == [
        "They called. They had 1. You win 2 chips. Hand 2 of 3. Your card is 3. Check or bet?",
        "They folded. You win 1 chip. Hand 3 of 3. Your card is 3. They checked. Check or bet?",
    ]
    assert env.won == [-3 / 6, 3 / 6]


# Replies.


@pytest.mark.parametrize("reply", ["bet", "Bet.", "I am bold: BET!", "check or\n**bet**"])
def test_the_last_word_is_the_move(reply: str):
    env = KuhnPoker()
    env.reset(seed=0)
    say(env, reply)
    assert env.moves == ("bet",)


@pytest.mark.parametrize("reply", ["", "call", "bet it", "raise", "<|im_end|>", "b e t", "ＢＥＴ"])
def test_an_illegal_move_is_refused_once_and_then_loses_the_match(reply: str):
    env = KuhnPoker()
    env.reset(seed=0)
    assert say(env, reply) == (0.0, False)
    assert env.messages()[-1].content == "That is not a legal move. Check or bet?"
    assert (env.context, env.moves) == ("player0", ())
    assert say(env, reply) == (0.0, True)
    assert won(env.trajectory) == [-1.0, None]


def test_who_loses_by_an_illegal_move_loses_all_that_it_had_won():
    env = KuhnPoker(tasks=[{"deck": [1, 2, 3], "deals": [[2, 1], [0, 1]]}])
    env.reset(seed=0)
    say(env, "bet", "call")
    assert env.won == [0.5, -0.5]
    say(env, "bet", "x", "y")
    check(env.trajectory)
    assert won(env.trajectory) == [-1.0, 1.0]
    assert sum(step.metrics.get("illegal", 0.0) for step in env.trajectory.steps) == 2


def test_a_legal_move_makes_up_for_an_illegal_one():
    env = KuhnPoker()
    env.reset(seed=0)
    assert say(env, "x", "check", "x", "bet", "x", "call") == (0.0, False)


def test_a_reply_that_was_cut_does_not_save_its_player():
    def cut(prompt: Any, **_: Any) -> envsdk.Action:
        return envsdk.Action([5], [-0.5], "length")

    trajectory = envsdk.rollout(KuhnPoker(tokenizer="embedded"), {"player0": "reference", "player1": cut}, seed=0)
    assert (trajectory.status, won(trajectory)) == ("terminated", [1.0, -1.0])


def test_a_match_that_is_cut_off_pays_the_hands_that_were_played():
    env = KuhnPoker(limits=Limits(max_steps=2), tasks=[{"deck": [1, 2, 3], "deals": [[0, 1], [0, 1]]}])
    env.reset(seed=0)
    say(env, "bet", "call")
    assert (env.trajectory.stop_reason, won(env.trajectory)) == ("max_steps", [-0.5, 0.5])


@given(seed=st.integers(0, 10**6), words=st.lists(st.sampled_from(["check", "bet", "fold", "call", "x"]), max_size=60))
def test_whatever_is_said_the_rewards_sum_to_zero(seed: int, words: list[str]):
    env = KuhnPoker()
    env.reset(seed=seed)
    for word in words:
        if env.trajectory is None:
            say(env, word)
    assert sum(env.won) == pytest.approx(0.0)
    if env.trajectory is not None:
        check(env.trajectory)
        rewards = won(env.trajectory)
        assert all(reward is None or -1.0 <= reward <= 1.0 for reward in rewards)
        assert None in rewards or sum(rewards) == pytest.approx(0.0)


def test_random_tokens_lose():
    env = KuhnPoker()
    noise = RandomPolicy(env.renderer.tokenizer.vocab_size, seed=0)
    trajectory = envsdk.rollout(env, {"player0": "reference", "player1": noise}, seed=0)
    check(trajectory)
    assert won(trajectory) == [1.0, -1.0]


# Tasks.


def test_no_deck_of_a_test_match_is_in_a_train_match(is_full: bool):
    count = 500 if is_full else 60

    def decks(split: str) -> set[tuple[int, int, int]]:
        env = KuhnPoker(split=split)
        return {env.reset(seed=seed) and env.match.deck for seed in range(count)}

    assert len(decks("train")) >= 0.98 * count <= len(decks("test"))
    assert not decks("train") & decks("test")


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"deck": [3, 2, 1], "deals": [[0, 1]]}, "three cards in ascending order"),
        ({"deck": [1, 2, 3], "deals": [[1, 1]]}, r"the deal \(1, 1\) is not two different cards"),
        ({"deck": [1, 2, 3], "deals": [[1, 3]]}, "is not two different cards"),
        ({"deck": [1, 2, 3], "deals": []}, "deals"),
    ],
)
def test_a_task_that_cannot_be_dealt_is_refused(task: dict, why: str):
    with pytest.raises(errors.TaskError, match=why):
        KuhnPoker(tasks=[task]).reset(seed=0)
