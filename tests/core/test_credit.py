"""Credit: formulas on hand-computed cases, and what holds for all rewards."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk import Env, Handoff, HandoffResult, Message, Sample, Trajectory, Turn, make, rollout
from envsdk.credit import (
    add_kl_penalty,
    anchor_advantages,
    context_rewards,
    discounted,
    group_advantages,
    leave_one_out,
    mean,
    none,
    normalized,
    observation_anchors,
    per_token,
    role_advantages,
    step_advantages,
    step_returns,
    win_rates,
)
from envsdk.errors import ConfigError, InvalidSample
from envsdk.rollouts import rollout_many
from envsdk.trajectories._context_log import ContextLog
from envsdk.trajectories._steps import Part, Step

REWARDS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)
NAN, INF = float("nan"), float("inf")


def sample(
    id: str = "a",
    *,
    reward: float = 0.0,
    steps: Sequence[int] = (0, 1),
    context: str = "main",
    segment: int = 0,
    role: str | None = None,
    group: str | None = "g",
    logprobs: Sequence[float] | None = None,
    **more: Any,
) -> Sample:
    """A sample of a prompt token and two sampled tokens for each step."""
    count = len(steps)
    mask = np.tile([False, True, True], count)
    values = np.zeros(3 * count, dtype=np.float32) if logprobs is None else np.array(logprobs, dtype=np.float32)
    return Sample(
        tokens=np.arange(3 * count, dtype=np.int32),
        mask=mask,
        logprobs=values,
        step_ids=np.where(mask, np.repeat(np.arange(count), 3), -1).astype(np.int32),
        reward=reward,
        step_rewards=np.zeros(count, dtype=np.float32),
        temperature=np.ones(count, dtype=np.float32),
        policy_version=np.full(count, -1, dtype=np.int32),
        part_ids=np.where(mask, np.repeat(np.arange(count), 3), -1).astype(np.int32),
        context=context,
        role=context if role is None else role,
        parent=None,
        trajectory_id=id,
        segment_index=segment,
        n_segments=segment + 1,
        loss_weight=1.0,
        stop_reason="terminated",
        truncated=False,
        group_id=group,
        metadata={"steps": list(steps)},
        **more,
    )


def trajectory(steps: Sequence[tuple[str, float | None]], parents: dict[str, str | None]) -> Trajectory:
    """A trajectory of steps of one token, as (context, reward)."""
    counts = dict.fromkeys(parents, 0)
    made: list[Step] = []
    for name, reward in steps:
        at = counts[name]
        made.append(Step(name, name, at, at > 0, at, at, (Part(at + 1),), reward=reward))
        counts[name] += 1
    logs = {
        name: ContextLog(
            name, parent, np.zeros(counts[name], dtype=np.int32), np.zeros(counts[name], dtype=np.float32), []
        )
        for name, parent in parents.items()
    }
    return Trajectory("t", "env", 0, "terminated", "terminated", logs, made)


def with_reward(episode: Trajectory, name: str, reward: float) -> Trajectory:
    return replace(episode, contexts={**episode.contexts, name: replace(episode.contexts[name], reward=reward)})


def values(sample: Sample) -> list[float]:
    assert isinstance(sample.advantage, np.ndarray)
    return sample.advantage.tolist()


# Returns.


@given(REWARDS, st.floats(0, 1))
def test_a_return_is_what_its_formula_says(rewards: list[float], gamma: float):
    n = len(rewards)
    expected = [sum(gamma ** (k - t) * rewards[k] for k in range(t, n)) for t in range(n)]
    np.testing.assert_allclose(discounted(rewards, gamma), expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("gamma", [-0.1, 1.01, NAN, INF, "a", None])
def test_a_discount_out_of_range_is_refused(gamma: float):
    with pytest.raises(ConfigError, match="gamma is"):
        discounted([1.0], gamma)
    with pytest.raises(ConfigError, match="gamma is"):
        step_returns(trajectory([], {"main": None}), gamma)


def test_a_sub_agent_shares_what_its_parent_earns_afterwards():
    parents = {"main": None, "main/child": "main"}
    steps = [("main", 1.0), ("main/child", 0.25), ("main/child", None), ("main", 2.0)]
    episode = trajectory(steps, parents)
    assert step_returns(episode).tolist() == [3.25, 2.25, 2.0, 2.0]
    assert step_returns(episode, 0.5).tolist() == [1 + 0.5 * 0.75, 0.25 + 0.25 * 2, 0.5 * 2, 2.0]
    assert step_returns(episode, scope="context").tolist() == [3.0, 0.25, 0.0, 2.0]
    assert step_returns(episode, 0.5, scope="context").tolist() == [2.0, 0.25, 0.0, 2.0]


def test_sub_agents_side_by_side_share_nothing_with_each_other():
    parents = {"main": None, "main/a": "main", "main/b": "main", "main/b/c": "main/b"}
    steps = [("main", 0.0), ("main/a", 1.0), ("main/b", 2.0), ("main/b/c", 4.0), ("main", 8.0)]
    episode = trajectory(steps, parents)
    assert step_returns(episode).tolist() == [15.0, 9.0, 14.0, 12.0, 8.0]
    assert step_returns(episode, scope="trajectory").tolist() == [15.0, 15.0, 14.0, 12.0, 8.0]


def test_a_context_with_a_reward_of_its_own_has_that_in_place_of_what_its_steps_earned():
    steps = [("main", 0.0), ("main/child", 0.25), ("main/child", 0.0), ("main", 2.0)]
    episode = trajectory(steps, {"main": None, "main/child": "main"})
    own = with_reward(episode, "main/child", 7.0)
    assert step_returns(own).tolist() == [2.25, 7.0, 7.0, 2.0]
    assert step_returns(own, 0.5).tolist() == [0.375, 3.5, 7.0, 2.0]
    assert step_returns(own, scope="context").tolist() == [2.0, 7.0, 7.0, 2.0]
    assert step_returns(own, scope="trajectory").tolist() == step_returns(episode).tolist()


def test_a_sub_agent_shares_a_reward_that_is_its_parents_own():
    episode = trajectory(
        [("p0", 1.0), ("p1", 1.0), ("p0/child", 0.5), ("p0", 1.0), ("p0/child", 0.5)],
        {"p0": None, "p1": None, "p0/child": "p0"},
    )
    episode = with_reward(with_reward(episode, "p0", 3.0), "p1", -3.0)
    assert step_returns(episode).tolist() == [3.0, -3.0, 3.0, 3.0, 3.0]
    assert step_returns(episode, 0.5).tolist() == [3 / 8, -3.0, 3 / 4, 3 / 2, 3.0]
    assert context_rewards(episode) == {"p0": 3.0, "p1": -3.0, "p0/child": 3.0}


@pytest.mark.parametrize("parents", [{"a": "b", "b": "a"}, {"a": "a", "b": "nobody"}])
def test_parents_that_make_no_sense_end_nothing(parents: dict[str, str | None]):
    episode = trajectory([("a", 1.0), ("b", 2.0)], parents)
    assert context_rewards(episode) == {"a": 3.0, "b": 3.0}
    assert len(step_returns(episode)) == 2


@given(
    st.lists(st.tuples(st.sampled_from(["main", "main/a", "main/a/b", "main/c"]), st.floats(-9, 9)), min_size=1),
    st.floats(0, 1),
)
def test_the_first_step_of_the_first_context_has_the_return_of_all(steps: list[tuple[str, float]], gamma: float):
    parents = {"main": None, "main/a": "main", "main/a/b": "main/a", "main/c": "main"}
    episode = trajectory([("main", 0.0), *steps], parents)
    expected = discounted([0.0, *(reward for _, reward in steps)], gamma)
    np.testing.assert_allclose(step_returns(episode, gamma, "trajectory"), expected)
    assert step_returns(episode, gamma)[0] == pytest.approx(expected[0])
    assert step_returns(episode)[0] == pytest.approx(episode.reward)


def test_an_unknown_scope_is_refused():
    with pytest.raises(ConfigError, match="scope is 'family'"):
        step_returns(trajectory([], {"main": None}), scope="family")  # pyright: ignore[reportArgumentType]


def test_a_context_without_a_reward_has_its_parents():
    parents = {"main": None, "main/a": "main", "main/a/b": "main/a"}
    episode = trajectory([("main", 1.0), ("main/a", None), ("main/a/b", None), ("main", 0.5)], parents)
    assert context_rewards(episode) == {"main": 1.5, "main/a": 1.5, "main/a/b": 1.5}
    assert context_rewards(with_reward(episode, "main/a", 7.0)) == {"main": 1.5, "main/a": 7.0, "main/a/b": 7.0}
    assert context_rewards(with_reward(episode, "main", 3.0))["main/a/b"] == 3.0


# Baselines.


def test_baselines_give_what_their_formulas_say():
    rewards = [1.0, 2.0, 6.0]
    assert mean(rewards).tolist() == [-2.0, -1.0, 3.0]
    assert leave_one_out(rewards).tolist() == [1 - 4, 2 - 3.5, 6 - 1.5]
    assert none(rewards).tolist() == rewards
    deviation = np.sqrt(14 / 3)
    np.testing.assert_allclose(normalized(rewards), np.array([-2, -1, 3]) / (deviation + 1e-6))
    np.testing.assert_allclose(normalized(rewards, ddof=1, epsilon=0.5), np.array([-2, -1, 3]) / (np.sqrt(7) + 0.5))


def test_leave_one_out_leaves_out_all_that_an_owner_has():
    advantages = leave_one_out([1.0, 3.0, 5.0, 7.0], ["a", "a", "b", "c"])
    assert advantages.tolist() == [1 - 6, 3 - 6, 5 - 11 / 3, 7 - 3]


@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_equal_rewards_have_advantage_exactly_zero(reward: float, count: int):
    for baseline in (mean, leave_one_out, normalized):
        assert not np.any(baseline([reward] * count))


def test_a_group_of_one_has_no_leave_one_out_baseline():
    with pytest.raises(ConfigError, match="group of one"):
        leave_one_out([1.0])
    with pytest.raises(ConfigError, match="group of one"):
        leave_one_out([1.0, 2.0], ["a", "a"])
    assert mean([1.0]).tolist() == normalized([1.0]).tolist() == normalized([1.0], ddof=1).tolist() == [0.0]
    assert mean([]).tolist() == leave_one_out([]).tolist() == normalized([]).tolist() == []


@pytest.mark.parametrize("baseline", [mean, leave_one_out, normalized, none, discounted])
@pytest.mark.parametrize(
    "wrong", [[0.0, NAN], [0.0, INF], [[0.0, 1.0]], ["a", "b"], [[1], [1, 2]], 3.0, None, {1}, ["1"]]
)
def test_what_is_no_finite_number_is_refused(baseline: Callable[[Any], Any], wrong: Any):
    with pytest.raises(InvalidSample):
        baseline(wrong)


@pytest.mark.parametrize(
    "options", [{"epsilon": 0.0}, {"epsilon": "a"}, {"epsilon": NAN}, {"epsilon": -1}, {"ddof": 2}]
)
def test_options_of_normalized_are_checked(options: dict[str, Any]):
    with pytest.raises(ConfigError):
        normalized([1.0, 2.0], **options)


# Advantages of samples.


def test_an_advantage_stands_at_each_trained_token():
    one = sample()
    one.mask[5] = False
    assert per_token(one, 2.0).tolist() == [0, 2, 2, 0, 2, 0]
    assert per_token(one, [1.0, -1.0]).tolist() == [0, 1, 1, 0, -1, 0]
    assert per_token(one, 2.0).dtype == np.float32
    with pytest.raises(InvalidSample, match="3 advantages, but the sample has 2 steps"):
        per_token(one, [1.0, 2.0, 3.0])
    with pytest.raises(InvalidSample, match="nan"):
        per_token(one, NAN)


def test_a_group_is_compared_with_itself_alone():
    given = [
        sample("a", reward=1.0),
        sample("b", reward=0.0),
        sample("c", reward=10.0, group="h"),
        sample("d", reward=20.0, group="h"),
    ]
    advantages = [max(values(s), key=abs) for s in group_advantages(given)]
    assert advantages == [0.5, -0.5, -5.0, 5.0]
    assert all(s.advantage is None for s in given)
    assert all(s.validate() for s in group_advantages(given))


def test_the_segments_of_a_context_count_once_in_a_baseline():
    given = [sample("a", reward=3.0), sample("a", reward=3.0, steps=(2,), segment=1), sample("b", reward=0.0)]
    assert [values(s)[1] for s in group_advantages(given)] == [1.5, 1.5, -1.5]


def test_a_sub_agent_never_shares_its_parents_baseline_unless_asked():
    given = [
        sample("a", reward=1.0),
        sample("a", reward=4.0, context="main/child", role="child"),
        sample("b", reward=3.0),
        sample("b", reward=8.0, context="main/child", role="child"),
    ]
    assert [values(s)[1] for s in group_advantages(given)] == [-1.0, -2.0, 1.0, 2.0]
    assert [values(s)[1] for s in group_advantages(given, by_role=False)] == [-3.0, 0.0, -1.0, 4.0]


def test_rewards_of_contexts_may_be_given():
    given = [sample("a"), sample("a", context="child"), sample("b"), sample("b", context="child")]
    rewards = {"a": {"main": 1.0, "child": 5.0}, "b": {"main": 0.0, "child": 1.0}}
    assert [values(s)[1] for s in group_advantages(given, rewards=rewards)] == [0.5, 2.0, -0.5, -2.0]
    with pytest.raises(ConfigError, match=r"rewards\['b'\] has no key 'child'"):
        group_advantages(given, rewards={**rewards, "b": {"main": 0.0}})


@pytest.mark.parametrize("wrong", [3, {}, {"a": 1.0}, {"a": {}}, {"a": {"main": None}}, {"a": {"main": NAN}}])
def test_rewards_that_are_none_are_refused(wrong: Any):
    with pytest.raises((ConfigError, InvalidSample), match="rewards"):
        group_advantages([sample("a")], rewards=wrong)


@pytest.mark.parametrize("wrong", [3, {}, {"a": 1.0}, {"a": [1.0]}, {"a": [1.0, NAN]}, {"a": "ab"}])
def test_returns_that_are_none_are_refused(wrong: Any):
    with pytest.raises((ConfigError, InvalidSample), match="returns"):
        step_advantages([sample("a")], wrong)


@pytest.mark.parametrize("wrong", [None, "a", [[1], [1, 2]], [[1.0, 2.0]], {}, [None, None]])
def test_what_is_no_advantage_is_refused(wrong: Any):
    with pytest.raises(InvalidSample, match="advantages"):
        per_token(sample(), wrong)
    assert per_token(sample(), np.float32(1)).sum() == 4


@pytest.mark.parametrize(
    "wrong", [3, None, sample(), [3], [None], [replace(sample(), mask=np.zeros(6, dtype=np.bool_))]]
)
def test_what_is_no_list_of_sound_samples_is_refused(wrong: Any):
    for credit in (group_advantages, lambda given: step_advantages(given, {}), lambda x: add_kl_penalty(x, [], 0.1)):
        with pytest.raises(InvalidSample, match=r"list of samples|sample 0"):
            credit(wrong)


def test_nothing_gives_nothing():
    assert group_advantages([]) == step_advantages([], {}) == add_kl_penalty([], [], 0.1) == []


def test_a_sample_without_a_group_is_refused():
    with pytest.raises(ConfigError, match=r"sample 1, of trajectory 'b', has no group_id"):
        group_advantages([sample("a"), sample("b", group=None)])
    with pytest.raises(ConfigError, match="has no group_id"):
        step_advantages([sample(group=None)], {"a": np.zeros(2)})


def test_samples_of_one_context_with_several_rewards_are_refused():
    with pytest.raises(InvalidSample, match=r"the rewards 1\.0 and 2\.0"):
        group_advantages([sample("a", reward=1.0), sample("a", reward=2.0, segment=1)])


def test_trajectories_of_one_id_are_refused():
    for credit in (group_advantages, lambda given: step_advantages(given, {"a": np.zeros(2)})):
        with pytest.raises(InvalidSample, match=r"sample 1 is segment .* for the second time: .* a unique id"):
            credit([sample("a"), sample("a")])


def test_an_advantage_that_is_too_large_for_its_dtype_is_refused():
    with pytest.raises(InvalidSample, match=r"advantages\[0\] is 1e\+39; expected a number that is finite in float32"):
        per_token(sample(), 1e39)


@pytest.mark.parametrize("wrong", ["median", None, 3, ["mean"], {}])
def test_a_baseline_that_is_none_is_refused(wrong: Any):
    with pytest.raises(ConfigError, match="baseline is"):
        group_advantages([sample("a"), sample("b")], wrong)


def test_owners_are_as_many_as_values():
    with pytest.raises(ConfigError, match="1 owners for 2 values"):
        leave_one_out([1.0, 2.0], ["a"])


def test_an_error_names_the_group():
    with pytest.raises(ConfigError, match="group 'g', role 'main': a group of one"):
        group_advantages([sample("a")], "leave_one_out")
    with pytest.raises(InvalidSample, match="group 'g', role 'main': advantages"):
        group_advantages([sample("a"), sample("b")], lambda values, owners: [NAN, 0.0])
    with pytest.raises(InvalidSample, match="sample 0, of trajectory 'a': reward is nan"):
        group_advantages([sample("a", reward=NAN), sample("b")])


def test_a_baseline_of_ones_own_is_a_function():
    given = [sample("a", reward=1.0), sample("b", reward=5.0), sample("c", reward=6.0)]
    advantages = group_advantages(given, lambda values, owners: np.asarray(values) - np.median(values))
    assert [values(s)[1] for s in advantages] == [-4.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match="returned 1 advantages for 3 values"):
        group_advantages(given, lambda values, owners: [0.0])


def test_steps_have_advantages_of_their_own():
    given = [sample("a"), sample("a", steps=(2,), segment=1), sample("b")]
    returns = {"a": np.array([3.0, 2.0, 1.0]), "b": np.array([0.0, 4.0])}
    advantages = step_advantages(given, returns)  # the mean is 2
    assert [values(s) for s in advantages] == [[0, 1, 1, 0, 0, 0], [0, -1, -1], [0, -2, -2, 0, 2, 2]]
    alone = step_advantages(given, returns, "leave_one_out")  # a against the mean of b, 2, and b against that of a, 2
    assert [values(s) for s in alone] == [values(s) for s in advantages]
    with pytest.raises(ConfigError, match="no value for step 3 of trajectory 'a'"):
        step_advantages(given, {**returns, "a": np.zeros(2)})
    with pytest.raises(InvalidSample, match=r"metadata\['steps'\] of sample 0 is None"):
        step_advantages([replace(given[0], metadata={})], returns)


def credited(history: str) -> dict[str, list[float]]:
    """The advantages of the sampled tokens of each of a few real episodes, by group and by step."""
    trajectories = rollout_many(lambda: make("envsdk/MathChat-v0", history=history), "reference", seeds=[0, 0, 1, 1])
    for n, episode in enumerate(trajectories):
        episode.steps[-1].reward = float(n)  # the reference always wins: let them differ
    samples = [s for episode in trajectories for s in episode.samples()]
    rewards = {episode.id: context_rewards(episode) for episode in trajectories}
    returns = {episode.id: step_returns(episode, 0.9) for episode in trajectories}
    by_group = group_advantages(samples, "leave_one_out", rewards=rewards)
    by_step = step_advantages(samples, returns, "normalized")
    advantages: dict[str, list[float]] = {}
    for s in (*by_group, *by_step):
        assert not np.any(np.asarray(s.validate().advantage)[~s.mask])
        advantages.setdefault(s.trajectory_id, []).extend(np.asarray(s.advantage)[s.mask].tolist())
    return advantages


def test_credit_of_real_episodes_does_not_depend_on_how_they_are_cut_into_samples():
    kept, stripped = credited("keep"), credited("strip")
    assert kept == stripped
    assert len(kept) == 4
    assert all(any(values) for values in kept.values())


# Real episodes of several contexts.


class Worker(Env):
    """Is rewarded for each of two replies, as its task says."""

    def start(self) -> Turn:
        self.rewards = list(self.task)
        return Turn("Work.", system="You work.")

    def respond(self, reply: Message) -> Turn:
        reward = self.rewards.pop(0)
        return Turn("Go on.", reward=reward, terminated=not self.rewards)


class Boss(Env):
    """Hands over to workers, one after the other, and is rewarded in the end."""

    def __init__(self, plan: list[Any], reward: float) -> None:
        super().__init__()
        self.plan, self.reward = plan, reward

    def start(self) -> Turn:
        self.left = list(self.plan)
        return Turn("Delegate.", system="You delegate.")

    def respond(self, reply: Message) -> Any:
        if self.left:
            return Handoff(Worker(), self.left.pop(0), role="worker")
        return Turn("Good.", reward=self.reward, terminated=True)

    def resume(self, result: HandoffResult) -> Turn:
        return Turn("And now?", reward=0.125)


class Duel(Env):
    """Two players say something in turn; one of them wins."""

    def __init__(self, winner: int) -> None:
        super().__init__()
        self.winner = winner

    def start(self) -> Turn:
        self.turn = 0
        return Turn("Begin.", context="player0")

    def respond(self, reply: Message) -> Turn:
        self.turn += 1
        if self.turn == 4:
            won = {f"player{player}": 1.0 if player == self.winner else -1.0 for player in (0, 1)}
            return Turn("The end.", context_rewards=won, terminated=True)
        return Turn("Your turn.", context=f"player{self.turn % 2}", reward=0.25)


def played(envs: Iterable[Env]) -> list[Trajectory]:
    """An episode of each, as a group."""
    return [
        rollout(env, "null", seed=0, options={"episode_id": f"e{index}", "group_id": "g"})
        for index, env in enumerate(envs)
    ]


def by_context(samples: Sequence[Sample]) -> dict[tuple[str, str], float]:
    """The one advantage of all trained tokens of each context."""
    found: dict[tuple[str, str], float] = {}
    for one in samples:
        one.validate()
        trained = np.asarray(one.advantage)[one.mask]
        assert len(set(trained.tolist())) == 1
        assert found.setdefault((one.trajectory_id, one.context), trained[0]) == trained[0]
    return found


def test_sub_agents_of_real_episodes_are_compared_with_sub_agents():
    episodes = played([Boss([[0.0, 1.0], [0.0, 2.0]], 4.0), Boss([[0.5, 0.0]], 0.0)])
    samples = [one for episode in episodes for one in episode.samples()]
    assert [one.context for one in samples] == ["main", "main/worker-1", "main/worker-2", "main", "main/worker-1"]
    assert [episode.reward for episode in episodes] == [7.25, 0.625]
    rewards = {episode.id: context_rewards(episode) for episode in episodes}
    assert rewards["e0"] == {"main": 7.25, "main/worker-1": 7.25, "main/worker-2": 7.25}
    assert by_context(group_advantages(samples, rewards=rewards)) == by_context(group_advantages(samples))
    advantages = by_context(group_advantages(samples))
    of_workers = 7.25 - (7.25 + 7.25 + 0.625) / 3
    assert advantages == pytest.approx(
        {
            ("e0", "main"): 7.25 - (7.25 + 0.625) / 2,
            ("e1", "main"): 0.625 - (7.25 + 0.625) / 2,
            ("e0", "main/worker-1"): of_workers,
            ("e0", "main/worker-2"): of_workers,
            ("e1", "main/worker-1"): -2 * of_workers,
        }
    )
    alone = by_context(group_advantages(samples, "leave_one_out"))
    assert alone["e0", "main/worker-1"] == alone["e0", "main"] == 7.25 - 0.625


def test_players_have_rewards_and_baselines_of_their_own():
    episodes = played([Duel(0), Duel(1), Duel(0), Duel(0)])
    samples = [one for episode in episodes for one in episode.samples()]
    assert context_rewards(episodes[0]) == {"player0": 1.0, "player1": -1.0}
    advantages = by_context(group_advantages(samples, "leave_one_out"))
    assert advantages["e0", "player0"] == pytest.approx(1 - 1 / 3)
    assert advantages["e1", "player0"] == -2.0
    assert advantages["e1", "player1"] == 2.0
    assert step_returns(episodes[0]).tolist() == [1.0, -1.0, 1.0, -1.0]
    assert step_returns(episodes[0], 0.5).tolist() == [0.5, -0.5, 1.0, -1.0]
    assert step_returns(episodes[0], scope="trajectory").tolist() == [0.75, 0.5, 0.25, 0.0]


# The penalty.


def test_the_kl_penalty_is_what_its_formula_says():
    given = [
        sample("a", steps=(0,), logprobs=[0.0, -1.0, -2.0], advantage=1.0),
        sample("b", steps=(0,), logprobs=[0.0, -3.0, -1.0], advantage=np.array([0, 5, 6], dtype=np.float32)),
    ]
    trainer = [np.array([9.0, -1.5, -2.0]), np.array([NAN, -1.0, -2.5])]
    # d = lp_sampler - lp_trainer: 0.5, 0 and -2, 1.5; their mean is 0.
    one, other = add_kl_penalty(given, trainer, 0.1)
    np.testing.assert_allclose(one.advantage, [0, 0.95, 1.0], rtol=1e-6)
    np.testing.assert_allclose(other.advantage, [0, 5.2, 5.85], rtol=1e-6)
    assert given[0].advantage == 1.0


def test_near_the_sampler_the_two_models_of_the_kl_penalty_are_exchanged():
    given = [sample("a", steps=(0,), logprobs=[0.0, -1.0, -2.0], advantage=1.0)]
    weights = [np.array([0.0, -0.5, -2.5])]  # d = lp_weights - lp_sampler: 0.5 and -0.5
    (near,) = add_kl_penalty(given, weights, 0.1, near="sampler")
    (away,) = add_kl_penalty(given, weights, 0.1)
    np.testing.assert_allclose(near.advantage, [0, 0.95, 1.05], rtol=1e-6)  # a token that became likelier loses
    np.testing.assert_allclose(away.advantage, [0, 1.05, 0.95], rtol=1e-6)
    assert near.logprobs is given[0].logprobs


@pytest.mark.parametrize("near", ["reference", "sampler"])
def test_a_token_counts_in_the_kl_penalty_up_to_the_clip(near: Any):
    given = [sample("a", steps=(0,), logprobs=[0.0, -1.0, -60.0], advantage=0.0)]
    (one,) = add_kl_penalty(given, [np.array([0.0, -1.0, -2.0])], 0.1, near=near, clip=4.0)
    (other,) = add_kl_penalty([replace(given[0], logprobs=np.array([0, -1, -6], "f4"))], [[0, -1, -2]], 0.1, near=near)
    np.testing.assert_allclose(one.advantage, other.advantage, rtol=1e-6)


@given(st.lists(st.floats(-20, 0, width=32), min_size=6, max_size=6), st.floats(0, 2))
def test_the_kl_penalty_adds_no_credit(logprobs: list[float], coef: float):
    given = [sample("a", logprobs=[0, -0.5, -0.5] * 2, advantage=0.0)]
    (one,) = add_kl_penalty(given, [logprobs], coef)
    assert abs(sum(values(one))) < 1e-4
    assert all(value == 0 for value, trained in zip(values(one), given[0].mask, strict=True) if not trained)


def test_the_kl_penalty_needs_advantages_and_log_probabilities():
    zeros = np.zeros(6)
    with pytest.raises(InvalidSample, match="sample 0 has no advantage"):
        add_kl_penalty([sample()], [zeros], 0.1)
    with pytest.raises(InvalidSample, match="has no logprobs"):
        add_kl_penalty([replace(sample(advantage=0.0), logprobs=None)], [zeros], 0.1)
    with pytest.raises(InvalidSample, match=r"shape \(5,\)"):
        add_kl_penalty([sample(advantage=0.0)], [zeros[:5]], 0.1)
    with pytest.raises(InvalidSample, match="shape"):
        add_kl_penalty([sample(advantage=np.zeros(3, dtype=np.float32))], [zeros], 0.1)
    for coef in (-1.0, NAN, INF, "a"):
        with pytest.raises(ConfigError, match="coef is"):
            add_kl_penalty([sample(advantage=0.0)], [zeros], coef)
    for clip in (0.0, -1.0, NAN, INF, "a"):
        with pytest.raises(ConfigError, match="clip is"):
            add_kl_penalty([sample(advantage=0.0)], [zeros], 0.1, clip=clip)
    with pytest.raises(ConfigError, match="near is 'trainer'; expected 'reference' or 'sampler'"):
        add_kl_penalty([sample(advantage=0.0)], [zeros], 0.1, near="trainer")  # type: ignore[arg-type]


def test_what_is_no_trajectory_and_no_sample_is_refused() -> None:
    for call in (lambda: context_rewards(5), lambda: step_returns(None)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected a Trajectory"):
            call()
    with pytest.raises(InvalidSample, match="expected a Sample"):
        per_token("x", 1.0)  # type: ignore[arg-type]


# Roles, states, and comparisons.


@given(st.lists(st.tuples(st.sampled_from(["first", "second"]), st.floats(-5, 5)), max_size=20), st.floats(0, 1))
def test_a_role_is_compared_with_its_own_running_mean(games: list[tuple[str, float]], decay: float):
    samples = [sample(f"t{i}", role=role, reward=reward, group=None) for i, (role, reward) in enumerate(games)]
    scored, means = role_advantages(samples, decay=decay)
    expected = {"first": 0.0, "second": 0.0}
    for one, (role, reward) in zip(scored, games, strict=True):
        np.testing.assert_allclose(values(one), np.where(one.mask, reward - expected[role], 0), rtol=1e-6, atol=1e-6)
        expected[role] = decay * expected[role] + (1 - decay) * reward
    assert means.get("", {}) == pytest.approx({role: expected[role] for role, _ in games})


def test_baselines_of_roles_go_on_and_belong_to_their_environment():
    def game(env: str, reward: float, id: str) -> Sample:
        made = sample(id, reward=reward, role="first")
        return replace(made, metadata={**made.metadata, "env": env})

    before = {"chess": {"first": 0.5}}
    segments = [game("chess", 1.0, "a"), replace(game("chess", 1.0, "a"), segment_index=1, n_segments=2)]
    scored, means = role_advantages([*segments, game("go", 1.0, "b")], before, decay=0.5)
    assert [max(values(one)) for one in scored] == [0.5, 0.5, 1.0]  # a context counts once
    assert means == {"chess": {"first": 0.75}, "go": {"first": 0.5}}
    assert before == {"chess": {"first": 0.5}}


@pytest.mark.parametrize(
    ("options", "error"),
    [({"decay": 1.5}, "decay is"), ({"baselines": [1]}, "baselines is"), ({"baselines": {"": 1.0}}, "baselines is")],
)
def test_baselines_of_roles_that_are_none_are_refused(options: Any, error: str):
    with pytest.raises(ConfigError, match=error):
        role_advantages([sample()], **options)


STATES = st.lists(st.lists(st.tuples(st.sampled_from("xyz"), st.floats(-9, 9)), min_size=1, max_size=4), max_size=5)


@given(STATES, st.floats(0, 2))
def test_steps_that_began_in_one_state_are_compared(episodes: list[list[tuple[str, float]]], weight: float):
    """Against the formula of GiGPO, written out."""
    samples = [
        sample(f"t{i}", reward=sum(r for _, r in steps), steps=range(len(steps))) for i, steps in enumerate(episodes)
    ]
    returns = {f"t{i}": discounted([r for _, r in steps], 0.9) for i, steps in enumerate(episodes)}
    anchors = {f"t{i}": [state for state, _ in steps] for i, steps in enumerate(episodes)}
    found = anchor_advantages(samples, returns, anchors, "normalized", weight=weight)
    totals = [one.reward for one in samples]
    for i, (one, steps) in enumerate(zip(found, episodes, strict=True)):
        for t, (state, _) in enumerate(steps):
            same = [
                (j, returns[f"t{j}"][u])
                for j, other in enumerate(episodes)
                for u, (s, _) in enumerate(other)
                if s == state
            ]
            whole = normalize(totals, totals[i])
            step = (
                normalize([value for _, value in same], returns[f"t{i}"][t]) if len({j for j, _ in same}) > 1 else 0.0
            )
            np.testing.assert_allclose(
                np.array(values(one))[one.step_ids == t], whole + weight * step, rtol=1e-4, atol=1e-4
            )


def normalize(group: list[float], value: float) -> float:
    mean = sum(group) / len(group)
    deviation = (sum((one - mean) ** 2 for one in group) / len(group)) ** 0.5
    return (value - mean) / (deviation + 1e-6) if len(group) > 1 else 0.0


@pytest.mark.parametrize(
    ("anchors", "weight", "error"),
    [
        ({}, 1.0, "anchors has no key 'a'"),
        ({"a": ["x"]}, 1.0, "expected one for each step"),
        ({"a": "xy"}, 1.0, "expected one for each step"),
        ({"a": [["x"], ["y"]]}, 1.0, "unhashable"),
        ({"a": ["x", "y"]}, -1.0, "weight is"),
    ],
)
def test_anchors_that_are_none_are_refused(anchors: Any, weight: float, error: str):
    with pytest.raises(ConfigError, match=error):
        anchor_advantages([sample()], {"a": [0.0, 0.0]}, anchors, weight=weight)


def test_the_anchor_of_a_step_is_what_the_environment_said():
    env = make("envsdk/GuessNumber-v1", limits={"max_steps": 4})
    played = [rollout(env, "random", seed=3, options={"episode_id": f"a{i}", "group_id": "g"}) for i in range(2)]
    first, second = map(observation_anchors, played)
    assert len(first) == len(played[0].steps)
    assert first[0] == second[0] and "Guess" in first[0]
    assert set(first[1:]) & set(second[1:])  # the same answer to another guess
    samples = [one for episode in played for one in episode.samples()]
    returns = {episode.id: step_returns(episode) for episode in played}
    assert len(anchor_advantages(samples, returns, {t.id: observation_anchors(t) for t in played})) == len(samples)


@given(st.integers(2, 6).flatmap(lambda n: st.lists(st.floats(0, 1), min_size=n * n, max_size=n * n)))
def test_a_win_rate_is_the_mean_over_the_others(numbers: list[float]):
    n = int(len(numbers) ** 0.5)
    wins = np.array(numbers).reshape(n, n)
    wins = np.triu(wins, 1) + np.tril(1 - wins.T, -1)
    expected = [sum(wins[i, j] for j in range(n) if j != i) / (n - 1) for i in range(n)]
    np.testing.assert_allclose(win_rates(wins), expected)


@pytest.mark.parametrize(
    ("wins", "error"),
    [
        ([[0.5, 0.7]], "expected \\(n, n\\)"),
        ([[0.5, 1.7], [-0.7, 0.5]], "not from 0 to 1"),
        ([[0.5, 0.7], [0.7, 0.5]], "contradicts itself"),
        ([[0.5, NAN], [0.5, 0.5]], "contradicts itself"),
        ([[0.5, NAN], [NAN, 0.5]], "member 0 was not compared with any other"),
        ([["a", "b"]], "must be numbers"),
    ],
)
def test_comparisons_that_are_none_are_refused(wins: Any, error: str):
    with pytest.raises(InvalidSample, match=error):
        win_rates(wins)
