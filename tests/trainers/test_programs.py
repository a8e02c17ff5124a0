"""What a trainer takes of agent programs: samples, and trees of them. `test_plain` and the others have the records."""

from core.test_tree import check, samples_of
from program_environments import Continuing, Trimming
from trainers.episodes import programmed

from envsdk import tree_batch
from envsdk.rollouts import Rollouts


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
