import re
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
import pytest
from envsdk_environments._long_errand import LongErrand, LongErrandTask, random_task

import envsdk
from envsdk import Env, Limits, Message, ToolCall, Trajectory, errors
from envsdk.policies import ReplyPolicy

SIZES = ["tiny", "small", "medium", "large"]
ALL = ("fold", "branch", "note", "recall")
TASK: dict[str, Any] = {
    "days": [
        {
            "houses": [
                {
                    "text": "Mark this: the word of the Gate is otter.",
                    "words": ["the word of the Gate is otter"],
                    "books": {"old book": ["The card of 1700: red owl:1.", "The card of 1701: red owl:2."]},
                    "questions": [
                        {"text": "The old owl?", "clue": "red owl:2", "answer": "2", "book": "old book"},
                        {"text": "The word?", "clue": "the word of the Gate is otter", "answer": "otter"},
                    ],
                }
            ]
        },
        {
            "gate": {
                "text": "What is the word of the Gate?",
                "clue": "the word of the Gate is otter",
                "answer": "otter",
            },
            "houses": [
                {"text": "Card: red owl:3.", "questions": [{"text": "Owl?", "clue": "red owl:3", "answer": "3"}]},
            ],
        },
    ]
}


def play(policy: Any = "reference", seed: int = 0, **options: Any) -> Trajectory:
    env = LongErrand(**options)
    return envsdk.rollout(env, policy if isinstance(policy, str) else ReplyPolicy(env, policy), seed=seed)


# Each of the context tools is needed.


@pytest.mark.parametrize(("size", "steps"), [("tiny", (10, 25)), ("small", (60, 100)), ("large", (150, 200))])
def test_whoever_uses_all_context_tools_succeeds(size: str, steps: tuple[int, int], is_full: bool):
    for seed in range(16 if is_full else 1):
        trajectory = play(size=size, seed=seed)
        assert (trajectory.reward, trajectory.status) == (pytest.approx(1.0), "terminated")
        assert steps[0] <= len(trajectory.steps) <= steps[1]
        reasons = {break_.reason for break_ in trajectory.breaks}
        assert reasons == ({"edit", "fold"} if size == "tiny" else {"edit", "fold", "handoff", "return"})


def rewards(tools: Sequence[str], count: int) -> list[float]:
    return [play(seed=seed, context_tools=tools).reward for seed in range(count)]


@pytest.mark.parametrize(("tool", "at_most"), [("fold", 0.7), ("branch", 0.9), ("note", 0.4), ("recall", 0.9)])
def test_without_one_of_the_context_tools_it_earns_clearly_less(tool: str, at_most: float, is_full: bool):
    tools = tuple(name for name in ALL if name != tool)
    assert mean(rewards(tools, 16 if is_full else 2)) < at_most


def test_whoever_keeps_everything_is_truncated_on_the_first_day():
    for seed in range(3):
        trajectory = play(seed=seed, context_tools=())
        assert trajectory.stop_reason == "max_context_tokens"
        assert trajectory.reward < 0.2
        assert not trajectory.breaks


def folds_blindly(env: Env) -> Message | str:
    """Plays like the reference policy, but its summaries are empty of content."""
    reply = env.reference_reply()
    if isinstance(reply, Message) and reply.tool_calls and reply.tool_calls[0].name == "fold":
        return Message.calling("fold", {"summary": "Some things happened."})
    return reply


def test_whoever_forgets_blindly_fails():
    for seed in range(2):
        assert play(folds_blindly, seed, context_tools=("fold",)).reward < 0.5


# The rules.


def started(**options: Any) -> LongErrand:
    env = LongErrand(tasks=[TASK], **options)
    env.reset(seed=0)
    return env


def step(env: LongErrand, *calls: tuple[str, dict[str, Any]]) -> Any:
    tool_calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    return env.step(env.renderer.reply(Message(role="assistant", tool_calls=tool_calls)))


def answer(text: str) -> tuple[str, dict[str, Any]]:
    return "answer", {"text": text}


VISIT: tuple[str, dict[str, Any]] = ("visit", {})


def on_the_second_day(**options: Any) -> LongErrand:
    env = started(**options)
    for calls in ([VISIT], [answer("2")], [answer("Otter. ")]):
        step(env, *calls)
    return env


def test_an_errand_goes_from_question_to_question_and_from_day_to_day():
    env = started()
    step(env, VISIT)
    assert env.messages()[-1].content.endswith("Question 1 of 2: The old owl?")
    step(env, ("read", {"book": "old book", "page": 2}))
    assert env.messages()[-1].content == "old book, page 2 of 2: The card of 1701: red owl:2."
    assert step(env, answer("2")).reward == pytest.approx(1 / 4)
    assert env.messages()[-1].content == "That is right. Question 2 of 2: The word?"
    night = step(env, answer("badger"))
    assert (night.reward, night.info["break"].reason, night.info["break"].detail) == (0.0, "edit", "a night")
    view = [message.content for message in env.episode.contexts["main"].view]
    assert len(view) == 2 and view[1].endswith("The guard does not wait and asks: What is the word of the Gate?")
    assert step(env, answer("otter")).reward == pytest.approx(1 / 4)
    step(env, VISIT)
    last = step(env, answer("3"))
    assert (last.terminated, env.trajectory is not None) == (True, True)
    assert env.trajectory is not None and env.trajectory.reward == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    "calls",
    [
        [answer("badger")],
        [answer("badger"), answer("otter")],
        [("note", {"text": "Think."})],
        [VISIT],
        [VISIT, answer("badger"), VISIT, answer("3")],
    ],
    ids=str,
)
def test_a_guard_who_gets_no_right_answer_at_once_closes_the_gate_for_the_day(calls: list[Any]):
    env = on_the_second_day()
    result = step(env, *calls)
    assert (result.reward, result.terminated) == (0.0, True)


def test_the_next_morning_says_that_a_day_was_lost():
    env = LongErrand(tasks=[{"days": [*TASK["days"], TASK["days"][0]]}])
    env.reset(seed=0)
    for calls in ([VISIT], [answer("2")], [answer("otter")], [answer("badger")]):
        step(env, *calls)
    assert env.messages()[-1].content.startswith(
        "The gate stayed closed, and a day was lost. This is the morning of day 3"
    )


def test_a_night_does_not_fall_in_a_branch():
    env = started()
    step(env, VISIT)
    step(env, answer("2"))
    step(env, ("branch", {"task": "Answer the question."}))
    assert step(env, answer("otter")).reward == 0.0
    assert env.messages()[-1].content == "Error: finish your branch first: this answer ends the day"
    step(env, ("finish", {"result": "otter"}))
    assert step(env, answer("otter")).info["break"].detail == "a night"


def test_branches_are_not_nested():
    env = started()
    step(env, ("branch", {"task": "Look."}))
    step(env, ("branch", {"task": "Look closer."}))
    assert env.messages()[-1].content.startswith("Error: branch: ")


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ([answer("2")], "there is no question to answer; visit the next house"),
        ([VISIT, VISIT], "answer the question of this house first: The old owl?"),
        ([("read", {"book": "old book", "page": 1})], "there are: no books"),
        ([VISIT, ("read", {"book": "old book", "page": 3})], "there are: old book with 2 pages"),
    ],
    ids=str,
)
def test_a_call_that_is_not_possible_is_answered_with_an_error(calls: list[Any], error: str):
    env = started()
    step(env, *calls)
    messages = [message.content for message in env.episode.contexts["main"].messages]
    assert any(content.startswith("Error: ") and content.endswith(error) for content in messages)


def test_a_task_of_ones_own_is_solved():
    assert play(tasks=[TASK]).reward == pytest.approx(1.0)


def test_a_task_without_a_house_is_refused():
    with pytest.raises(errors.TaskError):
        LongErrand(tasks=[{"days": [{"houses": []}]}]).reset(seed=0)


def test_a_context_tool_that_comes_twice_is_refused():
    with pytest.raises(errors.ConfigError, match=r"context_tools: .* comes twice"):
        LongErrand(context_tools=["fold", "fold"])


def test_the_size_sets_the_limits_that_are_not_given():
    assert LongErrand(size="large").limits.max_steps == 280
    limits = LongErrand(size="tiny", limits={"max_steps": 7}).limits
    assert (limits.max_steps, limits.max_context_tokens, limits.max_handoff_depth) == (7, 2400, 1)
    assert LongErrand(limits=Limits(max_steps=7)).limits == Limits(max_steps=7)
    with pytest.raises(errors.ConfigError, match="size"):
        LongErrand(size="huge")


# Random tasks.


def drawn(size: str, split: str, seed: int) -> LongErrandTask:
    return random_task(np.random.default_rng(seed), LongErrand(size=size, split=split).config)


@pytest.mark.parametrize("size", SIZES)
def test_each_clue_is_where_its_question_needs_it(size: str):
    for seed in range(4):
        before, days = "", drawn(size, "train", seed).days
        assert [day.gate is None for day in days] == [True] + [False] * (len(days) - 1)
        for day in days:
            assert day.gate is None or day.gate.clue in before
            for house in day.houses:
                for question in house.questions:
                    assert question.clue.endswith(question.answer)
                    source = "\n".join(house.books[question.book][1:]) if question.book else house.text + before
                    assert question.clue in source
                before += house.text


@pytest.mark.parametrize("size", SIZES)
def test_a_careful_listener_knows_the_word_of_each_gate(size: str):
    for seed in range(4):
        houses = [house for day in drawn(size, "train", seed).days for house in day.houses]
        said = [
            word
            for house in houses
            for word in re.findall(r"Mark this: (the word of the \w+ Gate is \w+)\.", house.text)
        ]
        assert sorted(said) == sorted(word for house in houses for word in house.words)
        assert len(said) == len({word.split(" is ")[0] for word in said}) == 4


def test_seeds_give_different_tasks_and_no_letter_is_for_someone_of_the_other_split():
    names: dict[str, set[str]] = {}
    for split in ("train", "test"):
        tasks = [drawn("small", split, seed) for seed in range(20)]
        assert len({task.model_dump_json() for task in tasks}) == 20
        letters = (letter for task in tasks for day in task.days for house in day.houses for letter in house.letters)
        names[split] = {letter.split(":")[0] for letter in letters}
    assert names["train"] and names["test"] and not names["train"] & names["test"]
