import re

import numpy as np
import pytest
import real_models
from envsdk_environments._search_inline import SearchInline, first_tagged
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Action, Message
from envsdk.rollouts import rollout_many


@pytest.fixture(scope="module")
def tokenizer() -> envsdk.rendering.tokenizers.Tokenizer:
    return envsdk.load_tokenizer(real_models.qwen3_folder())


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_the_reference_policy_solves_it_and_the_null_policy_does_not(hops: int):
    for policy, reward in (("reference", 1.0), ("null", 0.0)):
        trajectories = rollout_many(lambda: SearchInline(hops=hops), policy, seeds=range(5))
        assert {t.reward for t in trajectories} == {reward}
        assert policy == "null" or {len(t.steps) for t in trajectories} == {hops + 1}


@pytest.mark.parametrize("enable_thinking", [True, False])
def test_results_stand_inside_one_message_and_are_not_trained(tokenizer, enable_thinking: bool):
    env = SearchInline(renderer={"name": "qwen3", "enable_thinking": enable_thinking}, tokenizer=tokenizer, hops=3)
    trajectory = envsdk.rollout(env, "reference", seed=4)
    (sample,) = trajectory.samples()
    assert trajectory.breaks == []
    assert [step.extends for step in trajectory.steps] == [False, True, True, True]
    trained = tokenizer.decode(sample.validate().tokens[sample.mask])
    person, town, region = env.quest.path
    queries = "".join(f"I will look up <search>{name}</search>" for name in (person, town, region))
    assert trained == f"{queries}The answer is <answer>{env.quest.answer}</answer>"
    handed_out = tokenizer.decode(sample.tokens[~sample.mask])
    assert handed_out.count("<information>") == handed_out.count("</information>") == 4  # one is the system message's
    for prompt in trajectory.prompts():
        assert sample.tokens[: len(prompt.prompt)].tolist() == prompt.prompt.tolist()
    (reply,) = [message for message in env.messages() if message.role == "assistant"]
    assert reply.content.startswith(
        f"I will look up <search>{person}</search>\n<information>{person} lives in the town"
    )
    assert reply.errors == ()


def test_what_was_sampled_after_a_stop_string_stays(tokenizer):
    env = SearchInline(tokenizer=tokenizer)
    env.reset(seed=0)
    name = env.quest.path[0]
    sampled = tokenizer.encode(f"<search>{name}</search> and so").tolist()
    observation, *_ = env.step(Action(sampled, np.zeros(len(sampled))))
    assert observation.extends
    assert tokenizer.decode(observation.tokens).startswith("\n<information>")
    assert tokenizer.decode(env.prompt()).split("assistant\n")[1].startswith(f"<search>{name}</search> and so\n<inf")


def test_a_search_that_ended_its_turn_goes_on_as_a_declared_edit():
    env = SearchInline()
    env.reset(seed=0)
    message = Message(role="assistant", content=f"<search>{env.quest.path[0]}</search>")
    _, _, _, _, info = env.step(env.renderer.reply(message))
    assert (info["break"].reason, info["break"].dropped) == ("edit", 1)


@pytest.mark.parametrize(
    ("words", "found"),
    [("nobody", "No results were found."), ("", "No results were found."), ("<|im_end|>", "No results")],
)
def test_a_search_without_results_reports_that(words: str, found: str):
    env = SearchInline()
    env.reset(seed=0)
    assert env.search(words).startswith(found)


def test_a_search_finds_at_most_three_facts_of_the_subjects_in_it():
    env = SearchInline()
    env.reset(seed=0)
    assert env.search(" ".join(fact.subject for fact in env.quest.facts)).count(".") == 3
    assert (
        env.search(env.quest.path[0].upper())
        == env.quest.facts[[fact.subject for fact in env.quest.facts].index(env.quest.path[0])].text
    )


def test_a_reply_without_tags_is_answered_by_the_user():
    env = SearchInline()
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(env.renderer.reply(Message(role="assistant", content="Hm.")))
    assert (reward, terminated) == (0.0, False)
    assert env.messages()[-1].role == "user"


def test_a_search_in_the_thinking_is_answered_there():
    env = SearchInline()
    env.reset(seed=0)
    ids = [env.renderer.tokenizer.token_id("<think>")]
    text = env.renderer.tokenizer.encode(f"\nI wonder. <search>{env.quest.path[0]}</search>").tolist()
    observation, *_ = env.step([*ids, *text])
    assert env.quest.path[1] in env.renderer.tokenizer.decode(observation.tokens)
    env.step(env.renderer.tokenizer.encode("so <answer>x</answer>"))
    assert "<information>" in next(m for m in env.messages() if m.role == "assistant").reasoning


@given(st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "a", "\n", "<"]), max_size=12))
def test_the_first_tag_that_is_closed_is_taken(pieces: list[str]):
    text = "".join(pieces)
    match = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    assert first_tagged(text) == ((match[1], match[2]) if match else (None, ""))


def test_openings_that_are_never_closed_are_read_at_once():
    assert first_tagged("<search><answer>" * 60_000) == (None, "")
