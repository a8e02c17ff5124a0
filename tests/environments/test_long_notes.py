import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from envsdk_environments._long_notes import LongNotes, NotedFact, put_together, random_task, read_answers
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Env, Limits, Message, ToolCall, Trajectory, errors
from envsdk.policies import ReplyPolicy
from envsdk.rollouts import rollout_many

ALL = [(difficulty, split) for difficulty in ("easy", "medium", "hard") for split in ("train", "test")]
BUDGET = {"name": "budget", "max_tokens": 1500}
SUMMARIZE = {"name": "summarize", "threshold": 1500}
COMPACT = {"name": "compact", "every": 5}
HISTORIES = ["keep", "strip", COMPACT, BUDGET, SUMMARIZE]
CODES = (
    r"As of today, the gate code of (?P<depot>\w+) is (?P<number>\d+)\.",
    r"Please note that the gate of (?P<depot>\w+) now opens only with the code (?P<number>\d+)\.",
    r"After the trouble with the lock, (?P<depot>\w+) has (?P<number>\d+) as its new gate code\.",
)
CRATES = (
    r"(?P<depot>\w+) received (?P<number>\d+) crates in good order\.",
    r"The early train brought (?P<number>\d+) crates to (?P<depot>\w+), and all",
    r"Another (?P<number>\d+) crates reached (?P<depot>\w+) by boat\.",
)
TASK: dict[str, Any] = {
    "topic": "You will be asked for the age of people.",
    "documents": [
        {"text": "Ada is 36.", "facts": [{"about": "the age of Ada", "value": 36}]},
        {"text": "Nothing happened."},
        {"text": "Ada is a year older.", "facts": [{"about": "the age of Ada", "value": 1, "adds": True}]},
    ],
    "questions": ["the age of Ada"],
}


def writes_nothing(env: Env) -> Message | str:
    """Reads everything, writes no note, and answers with what is still in sight."""
    if not isinstance(env, LongNotes):
        return env.reference_reply()
    if not env.asked:
        return Message(role="assistant", reasoning="I keep that in mind.", content="next")
    view = [message.content for message in env.episode.contexts["main"].view if message.role == "user"]
    seen = [document for document in env.quest.documents if any(document.text in content for content in view)]
    known = put_together(fact for document in seen for fact in document.facts)
    answers = (f"{number}. {known.get(about, 0)}" for number, about in enumerate(env.quest.questions, start=1))
    return Message(role="assistant", reasoning="That is what I see.", content="\n".join(answers))


def play(env: LongNotes, policy: Any = "reference", seed: int = 0) -> Trajectory:
    return envsdk.rollout(env, policy if isinstance(policy, str) else ReplyPolicy(env, policy), seed=seed)


def step(env: LongNotes, content: str = "", **note: str) -> Any:
    """Say something; with `text`, write a note."""
    calls = (ToolCall(name="write_note", arguments=note),) if note else ()
    return env.step(env.renderer.reply(Message(role="assistant", content=content, tool_calls=calls)))


def facts_in(text: str) -> list[NotedFact]:
    """What a reader finds in a message."""
    codes = [NotedFact(about=f"the gate code of {m['depot']}", value=int(m["number"])) for m in _matches(CODES, text)]
    crates = _matches(CRATES, text)
    return [
        *codes,
        *(NotedFact(about=f"the crate count of {m['depot']}", value=int(m["number"]), adds=True) for m in crates),
    ]


def _matches(forms: tuple[str, ...], text: str) -> list[re.Match[str]]:
    return [match for form in forms for match in re.finditer(form, text)]


@pytest.mark.parametrize(("difficulty", "split"), ALL)
def test_a_careful_reader_finds_the_facts_in_the_messages(difficulty: str, split: str):
    config = LongNotes(difficulty=difficulty, split=split).config
    for seed in range(4):
        for document in random_task(np.random.default_rng(seed), config).documents:
            assert sorted(facts_in(document.text), key=str) == sorted(document.facts, key=str)


# What each history policy does.


def test_keep_has_no_break():
    trajectory = play(LongNotes(history="keep"))
    assert (len(trajectory.steps), trajectory.breaks, len(trajectory.samples())) == (38, [], 1)


def test_strip_loses_the_thinking_at_each_message_and_at_the_questions():
    assert breaks(play(LongNotes(history="strip"))) == {"thinking_stripped": 20 + 1}


@pytest.mark.parametrize("every", [2, 5, 38])
def test_compact_drops_the_thinking_every_n_steps(every: int):
    trajectory = play(LongNotes(history={"name": "compact", "every": every}))
    assert breaks(trajectory) == ({"compaction": 37 // every} if every < 38 else {})


def test_budget_loses_the_old_messages_whenever_the_prompt_would_pass_it():
    env = LongNotes(history=BUDGET)
    assert breaks(play(env)) == {"budget": 7}
    assert len(env.prompt()) <= 1500
    assert breaks(play(LongNotes(history={**BUDGET, "max_tokens": 4000}))) == {"budget": 2}


@pytest.mark.parametrize("summarizer", [None, lambda messages: f"There were {len(messages)} messages."])
def test_summarize_puts_a_summary_in_the_place_of_old_messages(summarizer: Any):
    history = envsdk.history.Summarize(threshold=1500, summarizer=summarizer)
    trajectory = play(LongNotes(history=history))
    assert breaks(trajectory) == ({"handoff": 7, "summary": 7} if summarizer is None else {"summary": 6})


def breaks(trajectory: Trajectory) -> dict[str, int]:
    """How many breaks of each reason an episode that was solved has; each rewrite begins another sample."""
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0)
    samples = [sample.validate() for sample in trajectory.samples()]
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.sampled_tokens
    assert len(samples) == 1 + len(trajectory.breaks)
    return dict(Counter(broken.reason for broken in trajectory.breaks))


@pytest.mark.parametrize("history", HISTORIES, ids=str)
@pytest.mark.parametrize("difficulty", ["easy", pytest.param("hard", marks=pytest.mark.full)])
def test_whoever_takes_notes_succeeds_under_every_policy(history: Any, difficulty: str):
    if history == BUDGET and difficulty == "hard":
        history = {**BUDGET, "max_tokens": 2500}  # there is more in the notes
    played = rollout_many(lambda: LongNotes(difficulty=difficulty, history=history), "reference", seeds=range(2))
    assert {(t.reward, t.status) for t in played} == {(1.0, "terminated")}


@pytest.mark.parametrize("difficulty", ["easy", pytest.param("hard", marks=pytest.mark.full)])
@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_without_notes_a_policy_succeeds_only_while_the_context_shows_all_messages(history: Any, difficulty: str):
    rewards = [play(LongNotes(history=history, difficulty=difficulty), writes_nothing, seed).reward for seed in (0, 1)]
    if history in (BUDGET, SUMMARIZE):
        assert max(rewards) < 1.0
    else:
        assert rewards == [1.0, 1.0]


def test_a_context_that_may_not_hold_all_ends_before_anything_is_asked_unless_old_messages_vanish():
    limits = Limits(max_context_tokens=3000)
    trajectory = play(LongNotes(limits=limits))
    assert (trajectory.stop_reason, trajectory.reward) == ("max_context_tokens", 0.0)
    assert play(LongNotes(limits=limits, history={**BUDGET, "max_tokens": 2000})).reward == 1.0


@pytest.mark.parametrize("difficulty", ["medium", pytest.param("hard", marks=pytest.mark.full)])
def test_whoever_folds_what_was_noted_succeeds_in_a_context_that_cannot_hold_all(difficulty: str):
    limits = Limits(max_context_tokens=4000)
    trajectory = play(LongNotes(limits=limits, difficulty=difficulty, context_tools=("fold",)))
    breaks(trajectory)
    assert {break_.reason for break_ in trajectory.breaks} == {"fold"}
    assert max(len(prompt.prompt) for prompt in trajectory.prompts()) < 4000
    assert play(LongNotes(limits=limits, difficulty=difficulty)).reward == 0.0


# Notes.


def started(**options: Any) -> LongNotes:
    env = LongNotes(tasks=[TASK], **options)
    env.reset(seed=0)
    return env


def test_a_conversation_goes_from_message_to_message_and_then_to_the_questions():
    env = started()
    step(env, "next")
    assert env.messages()[-1].content == "Message 1 of 3\n\nAda is 36."
    step(env, text="Ada: 36")
    assert env.messages()[-1].content.startswith("Noted.")
    for _ in range(2):
        step(env, "next")
    step(env, text="... and 1 more")
    step(env, "next")
    assert env.messages()[-1].content.endswith("such as `1. 42`:\n1. What is the age of Ada?")
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=(ToolCall(name="read_notes"),))))
    notes = env.messages()[-1].content.split("\n")
    assert notes[:2] == ["Note 1: Ada: 36", "Note 2: ... and 1 more"]
    assert notes[-1] == "1. What is the age of Ada?"  # the question itself may be out of sight
    result = step(env, "She is 37:\n1. 37")
    assert (result.reward, result.terminated) == (1.0, True)
    assert (result.info["metrics"]["notes"], result.info["metrics"]["note_chars"]) == (2.0, 21.0)


@pytest.mark.parametrize(
    ("text", "error"), [(" \n", "is empty"), ("x" * 401, "the limit is 400"), ("x" * 60, "only 50 characters are left")]
)
def test_a_note_that_cannot_be_written_is_answered_with_an_error(text: str, error: str):
    env = started(max_notes_chars=100)
    step(env, text="y" * 50)
    result = step(env, text=text)
    assert error in env.messages()[-1].content and result.info["metrics"]["tool_errors"] == 1.0
    assert env.notes == ["y" * 50]


@pytest.mark.parametrize("reply", ["", "Note 1: the age of Ada = 37"])
def test_any_reply_leads_to_the_end(reply: str):
    env = started()
    results = [step(env, reply) for _ in range(5)]
    assert [result.terminated for result in results] == [False] * 4 + [True]
    assert results[-1].reward == 0.0


# Answers and tasks.


@pytest.mark.parametrize(
    ("content", "answers"),
    [
        ("1. 42\n2. 7", {1: 42, 2: 7}),
        (" 1: 42 \r\n\n2) -7", {1: 42, 2: -7}),
        ("1. 42\n1. 42", {1: 42}),
        ("1. 42\n1. 43\n2. 7", {2: 7}),
        ("1. about 42\n2. 4 2\n3. 4.2\n4. ٤٢\n5. 1e3\n6. " + "9" * 10**6, {}),
        ("42", {}),
    ],
)
def test_an_answer_is_a_line_with_a_number_and_a_number(content: str, answers: dict[int, int]):
    assert read_answers(content) == answers


@given(
    content=st.text() | st.lists(st.sampled_from(["1. ", "2: ", "42", "-", "\n", "٣", " "]), max_size=20).map("".join)
)
def test_any_text_is_read(content: str):
    assert all(0 <= number < 1000 and str(abs(value)) in content for number, value in read_answers(content).items())


@given(facts=st.lists(st.builds(NotedFact, about=st.sampled_from("ab"), value=st.integers(0, 9), adds=st.booleans())))
def test_facts_add_up_since_the_last_one_that_does_not(facts: list[NotedFact]):
    for about, value in put_together(facts).items():
        own = [fact for fact in facts if fact.about == about]
        last = max((index for index, fact in enumerate(own) if not fact.adds), default=0)
        assert value == sum(fact.value for fact in own[last:])


def test_part_of_the_answers_earns_its_part():
    env = LongNotes(tasks=[{**TASK, "questions": ["the age of Ada"] * 4}])
    env.reset(seed=0)
    for _ in range(4):
        step(env, "next")
    assert step(env, "1. 37\n2. 37\n3. 36\n4. 37\n4. 38").info["rewards"] == {"correct": 0.5}


@pytest.mark.parametrize(
    "change",
    [
        {"questions": ["the age of Ben"]},
        {"questions": []},
        {"documents": []},
        {"documents": [{"text": "", "facts": [{"about": "the age of Ada", "value": 1}]}]},
        {"documents": [{"text": "Ada", "facts": [{"about": "the age;of Ada", "value": 1}]}], "questions": ["a;b"]},
        {"documents": [{"text": "Ada", "facts": [{"about": "the age of Ada", "value": 10**10}]}]},
    ],
)
def test_a_task_that_cannot_be_answered_is_refused(change: dict[str, Any]):
    with pytest.raises(errors.TaskError):
        LongNotes(tasks=[TASK | change]).reset(seed=0)


def test_a_task_of_ones_own_is_solved():
    assert play(LongNotes(tasks=[TASK], history=BUDGET)).reward == 1.0


@pytest.mark.parametrize(("difficulty", "count"), [("easy", 150), ("medium", 20), ("hard", 20)])
def test_seeds_give_different_tasks_and_no_depot_is_in_both_splits(difficulty: str, count: int):
    config = {split: LongNotes(difficulty=difficulty, split=split).config for split in ("train", "test")}
    tasks = {name: [random_task(np.random.default_rng(seed), config[name]) for seed in range(count)] for name in config}
    assert all(len({task.documents for task in found}) == count for found in tasks.values())
    train, test = (
        {about.split()[-1] for task in found for about in task.questions} for found in (tasks["train"], tasks["test"])
    )
    assert len(train) > count and len(test) > count / 2
    assert not train & test
