"""What a document says; that harbor accepts it is checked in tests/peers/harbor."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from core.test_tree import trajectories
from hypothesis import given
from trainers.episodes import all_kinds, delegated, kept, played, run_page, stripped, with_logprobs

from envsdk import Env, Handoff, Message, ToolCall, Trajectory, Turn, rollout
from envsdk._visible import type_of
from envsdk.errors import InvalidRecord, InvalidSample
from envsdk.policies import ReplyPolicy
from envsdk.trainers.atif import to_atif
from envsdk.trainers.foreign import from_steps


def walk(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield document
    for child in document.get("subagent_trajectories", ()):
        yield from walk(child)


def documents(trajectory: Trajectory, **options: Any) -> list[dict[str, Any]]:
    """All documents, those inside others included, as they come out of a file."""
    written = json.loads(json.dumps(to_atif(trajectory, **options), allow_nan=False))
    return [one for document in written for one in walk(document)]


def sampled(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for step in document["steps"] if "metrics" in step]


def says_what_was_sampled(trajectory: Trajectory) -> None:
    """Each step's prompt and answer stand in its context's document, in order, exactly."""
    found = {document["trajectory_id"]: document for document in documents(trajectory)}
    assert len(found) == len(trajectory.contexts)
    steps = {name: iter(sampled(document)) for name, document in found.items()}
    for step, prompt, action in trajectory.prompts():
        metrics = next(steps[f"{trajectory.id}/{step.context}"])["metrics"]
        assert metrics["prompt_token_ids"] == prompt.tolist()
        assert metrics["completion_token_ids"] == action.tolist()
        assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (len(prompt), len(action))
        logprobs = trajectory.contexts[step.context].logprobs[step.action_start : step.stop]
        if not np.isnan(logprobs).any():
            assert metrics["logprobs"] == logprobs.tolist()
    assert not any(next(left, None) for left in steps.values())
    for document in found.values():
        assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
        assert document["final_metrics"]["total_steps"] == len(document["steps"])


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_every_step_has_its_prompt_its_answer_and_its_log_probabilities(trajectory: Trajectory):
    says_what_was_sampled(trajectory)


def straightened(trajectory: Trajectory) -> Trajectory:
    """The trajectory with one parent for all: random ones may go round in circles."""
    for number, name in enumerate(trajectory.contexts):
        trajectory.contexts[name].parent = None if number == 0 else "main"
    return trajectory


@given(trajectory=trajectories().map(straightened))
def test_any_trajectory_can_be_written(trajectory: Trajectory):
    says_what_was_sampled(trajectory)


def test_messages_are_steps_by_who_speaks():
    (document,) = documents(kept())
    first, second, third = document["steps"][:3]
    assert (first["source"], first["message"]) == ("system", "Answer with one number.")
    assert second["source"] == "user"
    assert (third["source"], third["message"], third["reasoning_content"]) == ("agent", "50", "I halve what is left.")
    assert third["llm_call_count"] == 1
    assert [step["source"] for step in document["steps"]].count("agent") == 6
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["agent"]["name"] == "envsdk" and document["agent"]["version"]
    assert document["final_metrics"]["extra"] == {"reward": 1.0, "stop_reason": "terminated"}


def test_breaks_rewards_and_temperatures_are_in_the_extra_of_their_step():
    (document,) = documents(stripped(), agent="mine", model="qwen3")
    assert document["agent"]["model_name"] == "qwen3"
    extras = [step["extra"] for step in sampled(document)]
    assert "break" not in extras[0]
    assert {extra["break"]["reason"] for extra in extras[1:]} == {"thinking_stripped"}
    assert extras[-1]["reward"] == 1.0
    assert extras[0]["temperatures"] == [0.5] and extras[0]["policy_versions"] == [3]


def test_what_a_tool_answered_is_the_observation_of_the_step_that_called_it():
    document = next(
        document for document in documents(delegated()) if document["trajectory_id"].endswith("researcher-1")
    )
    calls = [step for step in document["steps"] if "tool_calls" in step]
    assert len(calls) == 3
    for step in calls:
        (call,), (result,) = step["tool_calls"], step["observation"]["results"]
        assert result["source_call_id"] == call["tool_call_id"]
        assert call["function_name"] in ("search", "read") and call["arguments"]
        assert result["content"]
    assert not any(step["source"] == "user" for step in document["steps"][2:])
    assert {tool["function"]["name"] for tool in document["agent"]["tool_definitions"]} == {"search", "read"}


def test_sub_agents_are_inside_their_parent_s_document_and_referred_to_where_they_began():
    (root,) = to_atif(delegated())
    names = [child["trajectory_id"] for child in root["subagent_trajectories"]]
    assert names == [f"{delegated().id}/main/researcher-{n}" for n in (1, 2, 3, 4)]
    refs = [
        [
            r["trajectory_id"]
            for result in step["observation"]["results"]
            for r in result.get("subagent_trajectory_ref", ())
        ]
        for step in root["steps"]
        if "observation" in step
    ]
    assert refs == [names[:3], names[3:]]
    assert {document["session_id"] for document in walk(root)} == {delegated().id}


def test_players_have_a_document_each():
    found = to_atif(played())
    assert [document["agent"]["extra"]["role"] for document in found] == ["player0", "player1"]
    assert sum(document["final_metrics"]["extra"]["reward"] for document in found) == 0


def test_prompts_may_be_left_out():
    for step in sampled(documents(kept(), prompt_ids=False)[0]):
        assert "prompt_token_ids" not in step["metrics"] and step["metrics"]["completion_token_ids"]


class Child(Env):
    def start(self) -> Turn:
        return Turn("Your turn.")

    def respond(self, reply: Message) -> Turn:
        return Turn("Thanks.", terminated=True)


class Parent(Env):
    """Shows an example, hands over with its whole history, and puts words into a reply."""

    def start(self) -> Turn:
        self.replies = 0
        return Turn(
            [
                Message(role="user", content="1 + 1?"),
                Message(role="assistant", content="2", reasoning="Easy."),
                Message(role="tool", content="an orphan"),
                Message(role="user", content="2 + 2?"),
            ],
            system="Count.",
        )

    def respond(self, reply: Message) -> Turn | Handoff:
        self.replies += 1
        if self.replies == 1:
            return Handoff(Child(), role="child", history="full")
        return Turn(" Wait,", continues=True) if self.replies == 3 else Turn("Good.", terminated=self.replies > 3)

    def resume(self, result: object) -> Turn:
        self.replies += 1
        return Turn("And now?")


def nested() -> Trajectory:
    env = Parent(renderer="qwen3", tokenizer="embedded")
    return rollout(env, with_logprobs(ReplyPolicy(env, lambda speaker: "4")))


def test_what_was_not_sampled_there_is_marked_as_copied_context():
    root, child = documents(nested())
    assert [step["message"] for step in root["steps"] if step.get("is_copied_context")] == ["2"]
    copied = [step["message"] for step in child["steps"] if step.get("is_copied_context")]
    assert copied == ["Count.", "1 + 1?", "2", "2 + 2?", "4"]
    assert not any("metrics" in step for step in child["steps"] if step.get("is_copied_context"))
    assert len(sampled(child)) == 1


def test_a_reply_that_went_on_is_a_step_for_each_part_of_which_the_last_says_it():
    root, _ = documents(nested())
    parts = sampled(root)
    assert [step["message"] for step in parts][:2] == ["4", ""]
    assert parts[2]["message"].startswith("4 Wait,")


def test_steps_before_a_fork_are_copied_context():
    class Twice(Env):
        def start(self) -> Turn:
            return Turn("One?")

        def respond(self, reply: Message) -> Turn:
            return Turn("Two?", terminated=len(self.messages()) > 3)

    env = Twice(renderer="qwen3", tokenizer="embedded")
    env.reset(seed=0)
    env.step(env.renderer.reply(Message(role="assistant", content="1")))
    fork = env.fork()
    fork.step(fork.renderer.reply(Message(role="assistant", content="2")))
    assert fork.trajectory is not None
    (document,) = documents(fork.trajectory)
    assert [bool(step.get("is_copied_context")) for step in sampled(document)] == [True, False]


def test_calls_that_cannot_be_read_and_ids_that_are_there_twice():
    calls = (
        ToolCall(name="f", arguments='{"x":', id="a", error="not JSON"),
        ToolCall(name="f", arguments={"x": 1}, id="a"),
        ToolCall(name="g"),
    )
    log = from_steps([([1, 2], [3], [-1.0], 0.5)])
    results = [
        Message(role="tool", content=content, tool_call_id=i) for content, i in (("x", "zz"), ("y", "a"), ("z", None))
    ]
    log.contexts["main"].messages = [Message(role="assistant", tool_calls=calls), *results]
    log.steps[0].reply = 0
    (document,) = documents(log)
    (step,) = document["steps"]
    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["a", "message-0-call-1", "message-0-call-2"]
    assert step["tool_calls"][0]["arguments"] == {}
    assert step["tool_calls"][0]["extra"] == {"error": "not JSON", "arguments": '{"x":'}
    known = {call["tool_call_id"] for call in step["tool_calls"]}
    unknown, *others = step["observation"]["results"]
    assert "source_call_id" not in unknown and unknown["extra"] == {"tool_call_id": "zz"}
    assert [result["source_call_id"] for result in others] == ["a", "message-0-call-1"]
    assert known > {"a", "message-0-call-1"}


def test_a_log_without_messages_has_its_steps_and_one_without_anything_is_refused():
    (document,) = documents(from_steps([([1, 2], [3])]))
    assert [step["message"] for step in document["steps"]] == [""]
    assert "logprobs" not in document["steps"][0]["metrics"]
    assert to_atif(from_steps([])) == []
    empty = from_steps([([1, 2], [3])])
    empty.steps.clear()
    with pytest.raises(InvalidRecord, match=r"context 'main' of .* has neither a message nor a step"):
        to_atif(empty)


DAMAGES: dict[str, tuple[Callable[[Trajectory], Any], str]] = {
    "a token outside the vocabulary": (lambda t: t.contexts["main"].tokens.__setitem__(0, 10**9), r"tokens\[0\]"),
    "a positive log-probability": (
        lambda t: t.contexts["main"].logprobs.__setitem__(t.steps[0].action_start, 0.5),
        "0.5 is not a log-probability",
    ),
    "some log-probabilities": (
        lambda t: t.contexts["main"].logprobs.__setitem__(t.steps[0].action_start, np.nan),
        "is missing",
    ),
    "a reward that is not finite": (lambda t: setattr(t.steps[-1], "reward", np.inf), "reward is inf"),
    "an id that is a number": (lambda t: setattr(t, "id", 5), "trajectory_id is 5; expected a string"),
    "a role that is none": (lambda t: setattr(t.contexts["main"], "role", None), "role is None; expected a string"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_trajectory_whose_samples_are_not_sound_is_refused(damage: Callable[[Trajectory], Any], message: str):
    trajectory = Trajectory.from_json(kept().to_json())
    assert to_atif(trajectory)
    damage(trajectory)
    with pytest.raises(InvalidSample, match=f"sample 0, .*{message}"):
        to_atif(trajectory)


def test_an_episode_that_failed_before_anybody_spoke_says_why():
    failed = from_steps([], id="x", error="no disk")
    with pytest.raises(InvalidRecord, match=r"'x' failed before its first observation, .*: no disk"):
        to_atif(failed)


def test_what_is_no_trajectory_is_refused():
    for value in (None, [kept()], kept().samples()[0]):
        with pytest.raises(InvalidRecord, match=f"trajectory is {type_of(value)}; expected a Trajectory"):
            to_atif(value)  # type: ignore[arg-type]


def test_the_code_of_its_page_runs():
    run_page("atif")
