"""What a trainer takes of agent programs: samples, and trees of them. `test_plain` and the others have the records."""

from typing import Any

import pytest
from core.test_tree import check, samples_of
from program_environments import Continuing, Trimming, client_of
from trainers.episodes import programmed

from envsdk import load_tokenizer, tree_batch
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.policies import RandomPolicy
from envsdk.rollouts import Rollouts
from envsdk.trainers._checks import guard_policy


def test_one_conversation_is_one_sample_and_all_that_was_sampled_is_trained_in_it():
    for trajectory in Rollouts(Continuing, "random", seeds=range(3), group_size=2).run():
        (sample,) = trajectory.samples()
        assert int(sample.mask.sum()) == trajectory.sampled_tokens
        assert len(sample) == sum(step.stop - step.start for step in trajectory.steps)


def test_a_sub_agent_and_what_follows_dropped_messages_are_samples_of_their_own():
    trajectory = programmed()
    assert [(break_.kind, break_.reason) for break_ in trajectory.breaks] == [
        ("switch", "handoff"),
        ("rewrite", "edit"),
    ]
    samples = trajectory.samples()
    found = [(sample.context, sample.role, sample.segment_index, sample.n_segments) for sample in samples]
    assert found == [("main", "main", 0, 2), ("main/agent-1", "agent", 0, 1), ("main", "main", 1, 2)]
    prompts = [prompt for _, prompt, _ in trajectory.prompts()]
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.sampled_tokens
    assert samples[2].tokens[~samples[2].mask].tolist() == prompts[3].tolist()


def test_a_tree_of_agent_programs_says_what_their_samples_say():
    group = Rollouts(Trimming, "random", seeds=[0], group_size=3).run()
    samples = samples_of(group)
    tree = tree_batch(group)
    check(tree, samples)
    assert len(tree) < tree.tokens_separate
    check(tree_batch(samples), samples)


@pytest.mark.parametrize("options", [None, {}, {"temperature": 1.0}])
def test_a_temperature_that_a_program_asks_for_is_refused_unless_the_environment_replaces_it(options: Any):
    class Cold(ProgramEnv):
        sampling = options

        async def run(self, model: Endpoint) -> float:
            async with client_of(model) as client:
                messages: Any = [{"role": "user", "content": "How many apples are there?"}]
                await client.chat.completions.create(model="any", temperature=0.25, messages=messages)
            return 1.0

    policy = guard_policy(RandomPolicy(load_tokenizer("embedded").vocab_size), 1.0)
    (trajectory,) = Rollouts(Cold, policy, seeds=[0], group_size=1).run()
    if options is None:
        assert "requests temperature=0.25" in str(trajectory.error)
        assert "set `sampling = {}` in its ProgramEnv" in str(trajectory.error)
    else:
        (sample,) = trajectory.samples()
        assert sample.temperature.tolist() == [1.0]
