"""A tally counts the facts of episodes, and tallies add up."""

from dataclasses import replace

from trainers.episodes import all_kinds, delegated, stripped

from envsdk import Trajectory
from envsdk.trajectories._tally import Tally, tally


def test_the_tally_of_an_episode_has_its_facts():
    trajectory = stripped()
    found = Tally.of(trajectory)
    assert (found.episodes, found.failed, found.scored) == (1, 0, 1)
    assert found.steps == len(trajectory.steps)
    assert found.sampled_tokens == trajectory.sampled_tokens
    assert found.observed_tokens == trajectory.observed_tokens
    assert found.kept_tokens == sum(step.keep for step in trajectory.steps)
    assert sum(found.breaks.values()) == len(trajectory.breaks)
    assert found.mean_reward == trajectory.reward
    assert found.stop_reasons == {trajectory.stop_reason: 1}


def test_the_sum_of_tallies_is_the_tally_of_all_episodes():
    episodes = all_kinds()
    found = tally(episodes)
    assert found.episodes == len(episodes)
    assert found.steps == sum(len(episode.steps) for episode in episodes)
    assert found.scored + sum(found.not_scored.values()) == len(episodes)
    assert sum(found.statuses.values()) == sum(found.stop_reasons.values()) == len(episodes)
    assert found.images == sum(Tally.of(episode).images for episode in episodes)


def test_a_failed_episode_is_counted_by_its_error_and_not_scored():
    failed: Trajectory = replace(stripped(), status="error", stop_reason="error", error="ValueError: x")
    found = tally([failed, replace(failed, error_kind="policy"), delegated()])
    assert found.failures == {"unknown": 1, "policy": 1}
    assert found.errors == {"ValueError": 2}
    assert found.not_scored == {"error": 1, "policy error": 1}
    assert (found.failed, found.scored) == (2, 1)


def test_no_episodes_have_no_mean_reward():
    assert tally([]).mean_reward is None
