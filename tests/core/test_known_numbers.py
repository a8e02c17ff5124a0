"""Numbers that follow from the design: how many samples, which breaks, how many tokens."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import Field

from envsdk import Action, Break, Env, Handoff, HistoryPolicy, Message, StopReason, Trajectory, Turn, get_renderer
from envsdk.history import DROPPED_RESULT, History, Rewrite

TOOL = {"type": "function", "function": {"name": "look", "description": "Look something up."}}
Reply = Message | Action


class Scripted(Env):
    """Says one turn after the other."""

    def __init__(self, turns: Sequence[Turn], **options: Any) -> None:
        super().__init__(**options)
        self.turns = turns

    def start(self) -> Turn:
        self.said = 1
        return self.turns[0]

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        return self.turns[self.said - 1]


class Seen:
    """An episode, as a policy sees it."""

    def __init__(self, turns: Sequence[Turn], replies: Sequence[Reply], **options: Any) -> None:
        self.env = Scripted(turns, **options)
        self.observation, info = self.env.reset(seed=0)
        self.infos = [info]
        self.prompts = [self.env.prompt().tolist()]
        for reply in replies:
            if self.env.trajectory is not None:
                break
            action = reply if isinstance(reply, Action) else Action(self.env.renderer.reply(reply))
            self.observation, self.reward, self.terminated, self.truncated, info = self.env.step(action)
            self.infos.append(info)
            self.prompts.append(self.env.prompt().tolist())

    @property
    def trajectory(self) -> Trajectory:
        assert self.env.trajectory is not None
        return self.env.trajectory

    @property
    def breaks(self) -> list[Break | None]:
        return [info.get("break") for info in self.infos]

    def text(self, index: int = -1) -> str:
        return self.env.renderer.tokenizer.decode(self.prompts[index])


def thinks(number: int, *, calls: bool = False) -> Message:
    """A reply with reasoning of always the same length."""
    call = ({"name": "look", "arguments": {"id": number}},) if calls else ()
    return Message(
        role="assistant", reasoning=f"thought {number:03} " * 8, content=f"Answer {number:03}.", tool_calls=call
    )


def says(content: str) -> Message:
    return Message(role="assistant", content=content)


def result(number: int, length: int = 8) -> Turn:
    return Turn(Message(role="tool", content=f"result {number:03} " * length))


def query(number: int = 0) -> Turn:
    return Turn(f"Question {number:03}?", tools=[TOOL] if number == 0 else None)


END = Turn("The end.", terminated=True)


def talk(steps: int, history: Any, **options: Any) -> Seen:
    """A user's query before each of the thinking steps."""
    turns = [query(number) for number in range(steps)]
    return Seen([*turns, END], [thinks(number) for number in range(steps)], history=history, **options)


def tool_loop(steps: int, history: Any, **options: Any) -> Seen:
    """One query, and a tool call with a result in each thinking step."""
    turns = [query(), *(result(number) for number in range(steps - 1))]
    replies = [thinks(number, calls=True) for number in range(steps)]
    return Seen([*turns, END], replies, history=history, **options)


# How many samples.

STEPS = (1, 2, 5, 12)


def test_keep_gives_one_sample_however_many_steps_think():
    assert [len(talk(steps, "keep").trajectory.samples()) for steps in STEPS] == [1] * 4


def test_strip_gives_a_sample_for_each_thinking_step_that_answers_a_user():
    assert [len(talk(steps, "strip").trajectory.samples()) for steps in STEPS] == list(STEPS)


@pytest.mark.matrix
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("episode", [talk, tool_loop])
def test_compact_gives_a_sample_for_every_n_steps(episode: Any, every: int):
    history = {"name": "compact", "every": every}
    counts = [len(episode(steps, history).trajectory.samples()) for steps in STEPS]
    assert counts == [math.ceil(steps / every) for steps in STEPS]


def test_compact_trains_n_steps_in_each_sample_and_what_is_left_in_the_last():
    samples = talk(11, {"name": "compact", "every": 4}).trajectory.samples()
    assert [sample.metadata["steps"] for sample in samples] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert [sample.n_segments for sample in samples] == [3, 3, 3]


@pytest.mark.matrix
@pytest.mark.parametrize("keep_last", [1, 5, 9])
@pytest.mark.parametrize("episode", [talk, tool_loop])
def test_compact_can_keep_the_thinking_of_the_last_replies(episode: Any, keep_last: int):
    seen = episode(13, {"name": "compact", "every": 4, "keep_last": keep_last})
    for step in range(13):
        settled = step // 4 * 4  # how many replies there were at the last compaction
        shown = [number for number in range(step) if f"thought {number:03}" in seen.text(step)]
        assert shown == list(range(max(0, settled - keep_last), step))
    breaks = [number for number, break_ in enumerate(seen.breaks) if break_ is not None]
    assert breaks == [step for step in (4, 8, 12) if step > keep_last]
    trajectory = seen.trajectory
    assert sum(int(sample.mask.sum()) for sample in trajectory.samples()) == trajectory.sampled_tokens
    assert trajectory.tree_size() == trajectory.observed_tokens + trajectory.sampled_tokens


@pytest.mark.parametrize("history", ["keep", "strip", {"name": "compact", "every": 2}], ids=str)
def test_steps_that_do_not_think_give_one_sample_under_each_policy(history: Any):
    turns = [query(number) for number in range(6)]
    seen = Seen([*turns, END], [says(f"Answer {number}.") for number in range(6)], history=history)
    assert len(seen.trajectory.samples()) == 1


@pytest.mark.parametrize("loss", ["all", lambda step: step.start == 0], ids=["an empty action", "a rule"])
def test_no_sample_holds_tokens_after_its_last_trained_one(loss: Any):
    seen = Seen([query(), query(1), END], [says("7"), Action([]) if loss == "all" else says("8")])
    (sample,) = seen.trajectory.samples(loss)
    assert len(sample) == np.flatnonzero(sample.mask)[-1] + 1


# Which breaks.


def test_a_tool_round_with_reasoning_breaks_nothing_under_strip_and_the_next_query_breaks_once():
    turns = [query(), result(1), result(2), query(3), END]
    replies = [thinks(1, calls=True), thinks(2, calls=True), thinks(3), thinks(4)]
    seen = Seen(turns, replies, history="strip")
    assert [break_ is not None for break_ in seen.breaks] == [False, False, False, True, False]
    first = seen.env.renderer.render(seen.env.messages()[:1], tools=[TOOL], history="keep").tokens
    length = len(seen.prompts[2]) + len(seen.env.renderer.reply(thinks(3)))
    kept = len(first)
    assert seen.breaks[3] == Break("rewrite", "thinking_stripped", "main", "main", kept, length - kept)
    assert [sample.metadata["steps"] for sample in seen.trajectory.samples()] == [[0, 1, 2], [3]]


def test_an_empty_think_block_in_a_tool_round_is_a_template_break_under_strip():
    empty = Message(role="assistant", reasoning="", tool_calls=({"name": "look", "arguments": {"id": 1}},))
    seen = Seen([query(), result(1), result(2), END], [empty, thinks(2, calls=True), says("Yes.")], history="strip")
    assert [break_ and (break_.kind, break_.reason) for break_ in seen.breaks] == [
        *(None, ("rewrite", "template"), None, None)
    ]
    kept = len(seen.prompts[0]) - len(seen.env.renderer.tokenizer.encode("assistant\n")) - 1
    assert (seen.breaks[1].kept, seen.breaks[1].dropped) == (
        kept,
        len(seen.prompts[0]) + len(seen.env.renderer.reply(empty)) - kept,
    )
    assert "<think>" not in seen.text(1)


def test_the_empty_think_block_of_a_model_that_does_not_think_is_a_template_break_under_strip():
    direct = {"name": "qwen3", "enable_thinking": False}
    turns = [query(number) for number in range(5)]
    seen = Seen([*turns, END], [says("Yes.")] * 5, history="strip", renderer=direct)
    assert [break_.reason for break_ in seen.trajectory.breaks] == ["template"] * 4


def test_compact_says_after_how_many_steps_it_compacts():
    seen = talk(7, {"name": "compact", "every": 3})
    assert [(break_.reason, break_.detail) for break_ in seen.trajectory.breaks] == [
        ("compaction", "after 3 steps"),
        ("compaction", "after 6 steps"),
    ]
    assert [index for index, break_ in enumerate(seen.breaks) if break_] == [3, 6]


def test_a_policy_that_rewrites_only_what_is_new_breaks_nothing():
    class Shout(HistoryPolicy):
        def view(self, history: History) -> Rewrite | None:
            loud = history.messages[-1].content.upper()
            return Rewrite(len(history.messages) - 1, [Message(role="tool", content=loud)], "edit")

    turns = [query(), Turn("more"), END]
    tokens = [
        int(token) for char in "not as it would be written" for token in get_renderer("qwen3").tokenizer.encode(char)
    ]
    seen = Seen(turns, [Action(tokens)], history=Shout())
    assert seen.breaks == [None, None]
    assert seen.prompts[1][: len(seen.prompts[0]) + len(tokens)] == [*seen.prompts[0], *tokens]
    assert "MORE" in seen.text()


@pytest.mark.parametrize(
    "turn", [Turn([]), Turn([Message(role="assistant", content="an example")])], ids=["none", "shot"]
)
def test_strip_follows_the_template_after_a_turn_that_ends_with_the_assistant(turn: Turn):
    seen = Seen([query(), turn, result(1), END], [says("a"), says("b")], history="strip")
    shown = seen.env.renderer.render(seen.env.messages(), tools=[TOOL], generation_prompt=True)
    assert seen.text() == seen.env.renderer.tokenizer.decode(shown.tokens)


def test_a_message_is_measured_between_its_neighbors():
    measured: list[tuple[int, int]] = []

    class Measures(HistoryPolicy):
        def view(self, history: History) -> None:
            for index, message in enumerate(history.messages):
                measured.append((history.tokens(index), history.measure(index, message)))

    two = Turn([Message(role="tool", content="one"), Message(role="tool", content="two")])
    Seen([query(), two, END], [says("a"), says("b")], history=Measures())
    assert len(measured) == 5
    assert [tokens for tokens, _ in measured] == [length for _, length in measured]


class Looks(HistoryPolicy):
    """Notes what is new, how many messages came first, and how many there are."""

    noted: list[tuple[int, int, int]] = Field(default_factory=list)

    def view(self, history: History) -> None:
        self.noted.append((history.new, history.opening, len(history.messages)))


def test_a_policy_knows_what_is_new_though_a_system_message_is_put_before_it():
    looks = Looks()
    Seen([Turn("One?"), Turn("Two?", system="Be brief."), END], [says("a"), says("b")], history=looks)
    assert looks.noted == [(0, 1, 1), (2, 2, 4)]


def test_all_of_the_context_that_a_sub_agent_begins_with_came_first():
    looks = Looks()

    class HandsOver(Scripted):
        def respond(self, reply: Message) -> Any:
            return Handoff(Scripted([query(1), END], history=looks), history="full")

        def resume(self, result: Any) -> Turn:
            return END

    env = HandsOver([query()])
    env.reset(seed=0)
    for _ in range(2):
        env.step(Action(env.renderer.reply(says("a"))))
    assert looks.noted == [(0, 3, 3)]


# The budget.


def test_a_budget_rewrites_rarely_because_it_rewrites_down_to_its_target():
    for episode in (talk, tool_loop):
        seen = episode(40, {"name": "budget", "max_tokens": 1000, "target": 0.5})
        lengths = list(map(len, seen.prompts[:-1]))
        rewritten = [length for length, break_ in zip(lengths, seen.breaks, strict=False) if break_]
        new = seen.trajectory.sampled_tokens + sum(
            len(seen.env.renderer.tokenizer.encode(m.content)) for m in seen.env.messages()
        )
        assert max(lengths) <= 1000
        assert 1 < len(rewritten) <= 2 * new / (0.5 * 1000)
        assert all(0.3 * 1000 < length <= 0.5 * 1000 for length in rewritten)
        assert [break_.reason for break_ in seen.trajectory.breaks] == ["budget"] * len(rewritten)


def test_a_budget_with_a_higher_target_keeps_more_and_rewrites_more_often():
    counts = [
        len(tool_loop(30, {"name": "budget", "max_tokens": 1000, "target": target}).trajectory.breaks)
        for target in (0.3, 0.9)
    ]
    assert counts[0] < counts[1]


@pytest.mark.parametrize("order", [("oldest",), ("tool_results", "oldest"), ("thinking", "oldest")], ids=str)
def test_a_budget_leaves_no_tool_result_without_its_call_and_no_call_without_its_result(order: Sequence[str]):
    seen = tool_loop(40, {"name": "budget", "max_tokens": 700, "order": order})
    assert seen.trajectory.breaks
    for index in range(len(seen.prompts) - 1):
        said = seen.text(index).split("<|im_end|>", 1)[1]  # after the system block, which shows how to call
        parts = re.findall(r'"id": (\d+)|<tool_response>\n(?:result 0*(\d+)|\[)', said)
        calls = [int(call) for call, _ in parts if call]
        assert calls == list(range(index - len(calls), index))
        assert [bool(call) for call, _ in parts] == [True, False] * len(calls)
        assert all(int(number) == calls[i // 2] for i, (_, number) in enumerate(parts) if number)


def test_a_budget_drops_the_oldest_thinking_first_and_no_more_than_it_must():
    seen = tool_loop(12, {"name": "budget", "max_tokens": 700, "target": 0.9, "order": ["thinking"]})
    index = next(index for index, break_ in enumerate(seen.breaks) if break_)
    thoughts = [int(number) for number in dict.fromkeys(re.findall(r"thought (\d+)", seen.text(index)))]
    assert thoughts == list(range(index - len(thoughts), index))
    assert 0 < len(thoughts) < index
    assert seen.text(index).count('<tool_call>\n{"name": "look"') == index


def test_a_budget_puts_a_notice_in_the_place_of_a_dropped_tool_result():
    seen = tool_loop(12, {"name": "budget", "max_tokens": 700, "target": 0.8, "order": ["tool_results"]})
    index = next(index for index, break_ in enumerate(seen.breaks) if break_)
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", seen.text(index))
    dropped = results.count(DROPPED_RESULT)
    assert 0 < dropped < len(results)
    assert results[:dropped] == [DROPPED_RESULT] * dropped


def test_a_budget_keeps_the_first_messages_and_the_last_reply_with_its_answer():
    seen = tool_loop(40, {"name": "budget", "max_tokens": 400, "target": 0.1, "order": ["oldest"]})
    for index in range(1, 40):
        assert "Question 000?" in seen.text(index)
        assert f"Answer {index - 1:03}." in seen.text(index)
        assert f"result {index - 1:03}" in seen.text(index)


def test_an_episode_is_truncated_when_the_budget_finds_nothing_to_drop():
    turns = [query(), result(1, length=200), END]
    seen = Seen(turns, [thinks(1, calls=True)], history={"name": "budget", "max_tokens": 400})
    assert (seen.truncated, seen.infos[-1]["stop_reason"]) == (True, "context_full")
    assert seen.trajectory.stop_reason == StopReason.CONTEXT_FULL
    assert seen.observation.extends
    said = seen.env.renderer.extend(
        seen.env.renderer.reply(thinks(1, calls=True)), turns[1].messages, generation_prompt=False
    )
    assert seen.observation.tokens.tolist() == said.tolist()
    assert [len(sample.metadata["steps"]) for sample in seen.trajectory.samples()] == [1]


def test_a_budget_knows_how_long_the_first_message_is():
    first = Turn(Message(role="tool", content="result " * 60), tools=[TOOL])
    turns = [first, Turn("more " * 60), Turn("more " * 10), END]
    seen = Seen(turns, [says("a"), says("b")], history={"name": "budget", "max_tokens": 230, "order": ["tool_results"]})
    assert max(map(len, seen.prompts[:-1])) <= 230


# Records.


def test_a_failure_ends_the_episode_with_what_there_is_of_it():
    seen = Seen([query(), query(1), END], [says("7")])
    trajectory = seen.env.fail(RuntimeError("the disk is full"))
    assert (trajectory.status, trajectory.stop_reason) == ("error", StopReason.ERROR)
    assert trajectory.error == "RuntimeError: the disk is full"
    assert (len(trajectory.steps), trajectory.samples()) == (1, [])


@pytest.mark.parametrize("value", ["1" + 20 * "0", "[" * 300 + "]" * 300], ids=["large", "deep"])
def test_a_trajectory_with_any_arguments_of_a_call_can_be_written(value: str):
    renderer = get_renderer("qwen3")
    call = renderer.tokenizer.encode(f'\n{{"name": "look", "arguments": {{"x": {value}}}}}\n')
    opened, closed, ended = map(renderer.tokenizer.token_id, ("<tool_call>", "</tool_call>", "<|im_end|>"))
    seen = Seen([query(), END], [Action([opened, *call, closed, ended])])
    line = seen.trajectory.to_json()
    assert Trajectory.from_json(line).to_json() == line
