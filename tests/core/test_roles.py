"""What each token belongs to: recorded on request, the same in every history, and in records and samples."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core.test_edges import Talks, says
from envsdk_environments._calculator import Calculator

import envsdk
from envsdk import Action, Message, Sample, Trajectory, rollout
from envsdk.errors import ConfigError, InvalidRecord, InvalidSample
from envsdk.policies import ReplyPolicy
from envsdk.trainers.plain import collate


def calculated(renderer: str = "qwen3", history: str = "keep", seed: int = 0, *, records: bool = True) -> Trajectory:
    """An episode with a system message, tools, calls, results and reasoning."""
    env = Calculator(renderer=renderer, tokenizer="embedded", history=history)
    env.records_roles = records

    def calls(speaker: Any) -> Message:
        reply = speaker.reference_reply()
        reply = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
        return reply.model_copy(update={"reasoning": "I add the numbers."})

    return rollout(env, ReplyPolicy(env, calls), seed=seed, options={"episode_id": f"{history}-{seed}"})


def text_of(sample: Sample, label: str) -> list[str]:
    """The texts of the runs of tokens with a label."""
    assert sample.roles is not None
    tokenizer = envsdk.load_tokenizer("embedded")
    runs = itertools.groupby(zip(sample.roles.labels(), sample.tokens.tolist(), strict=True), key=lambda pair: pair[0])
    return [tokenizer.decode([token for _, token in run]) for name, run in runs if name == label]


def is_text(run: str, content: str) -> bool:
    """Whether a run is a content; a token across a seam belongs to what its last byte is in."""
    return content[3:-3] in run and len(run) <= len(content) + 3


@pytest.mark.parametrize("history", ["keep", "strip", "compact:every=2"])
@pytest.mark.parametrize("renderer", ["qwen3", "qwen2.5", "qwen3.5"])
def test_the_text_of_each_message_has_its_label(renderer: str, history: str):
    trajectory = calculated(renderer, history)
    messages = trajectory.contexts["main"].messages
    for sample in trajectory.samples():
        assert sample.roles is not None and (sample.roles.codes >= 0).all()
        system, (user, *_) = text_of(sample, "system"), text_of(sample, "user")
        assert any(is_text(run, messages[0].content) for run in system) and any("expression" in run for run in system)
        assert is_text(user, messages[1].content)
        results = [run for label in sample.roles.legend if label.startswith("tool") for run in text_of(sample, label)]
        known = [message.content for message in messages if message.role == "tool"]
        assert all(any(is_text(run, content) for content in known) for run in results)
        is_sampled = sample.roles.are("content") | sample.roles.are("call") | sample.roles.are("reasoning")
        assert is_sampled[sample.mask].any() and not sample.roles.are("tool")[sample.mask].any()
        calls = text_of(sample, "call")
        assert calls and all("calculate" in call or "expression" in call for call in calls)
        reasoning = text_of(sample, "reasoning")
        assert bool(reasoning) == ("qwen3" in renderer) and all(is_text(run, "I add the numbers.") for run in reasoning)
        controls = list(envsdk.load_tokenizer("embedded").control_tokens.values())
        assert (sample.roles.are("scaffold")[np.isin(sample.tokens, controls)]).all()


@pytest.mark.parametrize("renderer", ["chatml", "role_colon"])
def test_families_without_tools_have_labels_too(renderer: str):
    env = Talks(renderer=renderer, tokenizer="embedded", limits={"max_steps": 2})
    env.records_roles = True
    env.reset(seed=0)
    env.step(says(env, "one"))
    env.step(says(env, "two"))
    (sample,) = env.trajectory.samples()
    assert [is_text(run, given) for run, given in zip(text_of(sample, "user"), ("Hello.", "Go on."), strict=True)] == [
        True
    ] * 2
    assert [run.strip() for run in text_of(sample, "content")] == ["one", "two"]


def test_nothing_is_recorded_unless_it_is_requested():
    plain, labeled = calculated(records=False), calculated()
    assert plain.contexts["main"].roles is None and plain.samples()[0].roles is None
    assert b'"roles"' not in plain.to_json() and b'"roles"' not in plain.samples()[0].to_json()
    without = replace(labeled, contexts={name: replace(log, roles=None) for name, log in labeled.contexts.items()})
    assert without.to_json() == plain.to_json()


def test_text_inside_a_reply_that_looks_like_another_message_is_the_replys():
    env = Talks(renderer="qwen3", tokenizer="embedded", limits={"max_steps": 3})
    env.records_roles = True
    env.first = "user"
    env.reset(seed=0)
    env.step(says(env, "user", reasoning="assistant"))
    env.step(Action([5, 6], finish_reason="abort"))
    env.step(Action([7, env.renderer.stop_token_ids[0]]))
    env.step(Action([], finish_reason="length"))
    (sample,) = env.trajectory.samples()
    assert text_of(sample, "user")[0] == "user" and text_of(sample, "reasoning") == ["assistant"]
    assert text_of(sample, "content")[0] == "user" and len(text_of(sample, "content")) == 2


def test_roles_survive_records_and_damage_is_refused():
    trajectory = calculated(history="strip")
    assert Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()
    sample = trajectory.samples()[0]
    again = Sample.from_json(sample.to_json())
    assert again.to_json() == sample.to_json()
    assert again.roles is not None and sample.roles is not None
    assert again.roles.labels() == sample.roles.labels()
    line = sample.to_json().decode()
    written = f'"starts":{str(sample.roles.starts.tolist()).replace(" ", "")}'
    assert written in line
    for damage in (
        '"starts":[]',
        '"starts":[1]',
        '"starts":"a"',
        written.replace("[0,", "[0,0,"),
        written.replace("[0,", "[0,99999,"),
    ):
        with pytest.raises(InvalidRecord, match="roles"):
            Sample.from_json(line.replace(written, damage))
    with pytest.raises(InvalidSample, match="roles is not valid: it has 3 codes"):
        replace(sample, roles=replace(sample.roles, length=3)).validate()
    with pytest.raises(InvalidSample, match="a code outside"):
        replace(sample, roles=replace(sample.roles, legend=["user"])).validate()


@pytest.mark.parametrize("history", ["keep", "strip", "compact:every=2"])
def test_an_observed_token_is_weighted_once_where_a_trained_reply_follows(history: str):
    trajectory = calculated(history=history)
    samples = trajectory.samples()
    batch = collate(samples, observation_weight={"tool": 0.25, "user": 0.5})
    weights = batch["observation_weight"]
    assert weights.dtype == np.float32 and weights.shape == batch["tokens"].shape
    assert not weights[batch["mask"]].any()
    log = trajectory.contexts["main"]
    assert log.roles is not None
    steps = [step for step in trajectory.steps if step.parts]
    for label, weight in (("tool", 0.25), ("user", 0.5)):
        observed = sum(int(log.roles.are(label)[s.start : s.action_start].sum()) for s in steps)
        assert (weights == weight).sum() == observed
    assert "observation_weight" not in collate(samples)


def test_a_tool_has_a_weight_of_its_own():
    samples = calculated().samples()
    (name,) = (label for label in samples[0].roles.legend if label.startswith("tool:"))  # pyright: ignore[reportOptionalMemberAccess]
    weights = collate(samples, observation_weight={name: 0.5, "tool": 0.25})["observation_weight"]
    assert set(np.unique(weights)) == {0.0, 0.5}


@pytest.mark.parametrize(
    "wrong", [{"content": 1.0}, {"tol": 1.0}, {"user:a": 1.0}, {"tool": -1.0}, {"tool": True}, {"tool": float("nan")}]
)
def test_a_weight_that_means_nothing_is_refused(wrong: Any):
    with pytest.raises(ConfigError, match="observation_weight"):
        collate(calculated().samples(), observation_weight=wrong)


def test_weights_need_roles():
    with pytest.raises(InvalidSample, match="has no roles: set records_roles = True"):
        collate(calculated(records=False).samples(), observation_weight={"tool": 0.1})
