from typing import Any

import numpy as np
import pytest
from envsdk_environments._word_game import WORDS, WordGuess, marks, random_game
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Message, errors

GAME = {"words": ["stone", "store", "stork", "acorn"], "secret": "store", "guesses": 3}
SHORT = {"R": "right", "E": "elsewhere", "A": "absent"}
FEW_LETTERS = st.integers(1, 8).flatmap(lambda n: st.tuples(*[st.text("abc", min_size=n, max_size=n)] * 2))


def said(*replies: str, task: dict[str, Any] = GAME) -> tuple[WordGuess, list[Any]]:
    env = WordGuess(tasks=[task])
    env.reset(seed=0)
    return env, [env.step(env.renderer.reply(Message(role="assistant", content=reply))) for reply in replies]


@given(words=FEW_LETTERS | st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)))
def test_a_letter_is_marked_as_often_as_it_is_in_both_words(words: tuple[str, str]):
    guess, secret = words
    found = marks(guess, secret)
    assert [mark == "right" for mark in found] == [mine == its for mine, its in zip(guess, secret, strict=True)]
    for letter in set(guess):
        of_letter = [mark for mine, mark in zip(guess, found, strict=True) if mine == letter]
        assert len(of_letter) - of_letter.count("absent") == min(guess.count(letter), secret.count(letter))
        not_right = [mark for mark in of_letter if mark != "right"]
        assert not_right == sorted(not_right, reverse=True)  # `elsewhere` comes before `absent`


@pytest.mark.parametrize(
    ("guess", "secret", "marked"),
    [
        ("store", "store", "RRRRR"),
        ("crane", "store", "AEAAR"),
        ("eerie", "store", "AAEAR"),
        ("speed", "erase", "EAEEA"),
        ("allay", "label", "EEEAA"),
        ("aabbb", "bbbaa", "EEREE"),
        ("aaaab", "abcda", "REAAE"),
        ("llama", "hello", "EEAAA"),
    ],
)
def test_repeated_letters_are_marked_at_most_as_often_as_the_secret_has_them(guess: str, secret: str, marked: str):
    assert marks(guess, secret) == [SHORT[mark] for mark in marked]


def test_the_list_has_a_thousand_different_words_of_five_letters():
    assert len(set(WORDS)) == len(WORDS) > 1000
    assert list(WORDS) == sorted(WORDS)
    assert all(len(word) == 5 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_seeds_give_different_games_and_the_splits_share_no_secret(difficulty: str, is_full: bool):
    count = 2000 if difficulty == "easy" and is_full else 100  # the others have more words
    games = {
        split: {random_game(np.random.default_rng(seed), env.config) for seed in range(count)}  # pyright: ignore[reportUnhashable]
        for split in ("train", "test")
        for env in [WordGuess(difficulty=difficulty, split=split)]
    }
    assert all(len(found) == count for found in games.values())
    train, test = ({game.secret for game in games[split]} for split in ("train", "test"))
    assert not train & test


def test_a_game_is_won_with_the_secret():
    env, results = said("stone", "It must be **Store**.")
    assert env.messages()[3].content == (
        "stone: s right, t right, o right, n absent, e right. You have 2 guesses left."
    )
    assert (results[0].reward, results[0].terminated) == (0.0, False)
    assert results[1].info["rewards"] == {"solved": 0.8, "progress": 0.2}
    assert (results[1].reward, results[1].terminated) == (1.0, True)
    assert results[1].info["metrics"] == {"illegal": 0.0, "guesses": 2.0}
    assert env.messages()[-1].content.endswith("You found it.")


def test_a_game_is_lost_after_the_last_guess_and_the_best_one_earns_its_share():
    env, results = said("acorn", "stone", "acorn")
    assert [result.terminated for result in results] == [False, False, True]
    assert results[-1].info["rewards"] == {"solved": 0.0, "progress": 0.2 * 4 / 5}
    assert env.messages()[-1].content.endswith("The secret word is store.")


@pytest.mark.parametrize(
    "reply", ["", "I do not know.", "crane", "stor", "store stores", "s t o r e", "ｓｔｏｒｅ", "ſtore", "9" * 10**5]
)
def test_what_is_no_word_of_the_list_uses_up_a_guess(reply: str):
    env, results = said(reply, reply, reply)
    assert env.messages()[3].content == "That word is not in the list. You have 2 guesses left."
    assert [(result.reward, result.info["metrics"]["illegal"]) for result in results] == [(0.0, 1.0)] * 3
    assert results[-1].terminated


def test_whoever_guesses_without_thinking_stays_in_the_range():
    rng = np.random.default_rng(0)
    env = WordGuess()
    rewards: list[float] = []
    for seed in range(20):
        _, info = env.reset(seed=seed)
        reward = 0.0
        while env.trajectory is None:
            word = env.game.words[int(rng.integers(len(env.game.words)))]
            _, earned, *_, info = env.step(env.renderer.reply(Message(role="assistant", content=word)))
            reward += earned
        rewards.append(reward)
        assert "rewards" in info
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
    assert len(set(rewards)) > 2


@pytest.mark.parametrize(
    "change",
    [
        {"secret": "crane"},
        {"words": ["store", "store"]},
        {"words": ["store", "stores"]},
        {"words": ["store", "Stone"]},
        {"words": ["store", "st ne"]},
        {"words": ["store", "stonę"]},
        {"words": []},
        {"guesses": 0},
    ],
)
def test_a_task_that_is_no_game_is_refused(change: dict[str, Any]):
    with pytest.raises(errors.TaskError):
        WordGuess(tasks=[GAME | change]).reset(seed=0)


def test_words_of_a_task_may_be_of_any_length():
    task = {"words": ["to", "go", "do"], "secret": "do", "guesses": 3}
    assert envsdk.rollout(WordGuess(tasks=[task]), "reference", seed=0).reward == 1.0
