"""A tree says what the separate samples say: token by token, and, with torch, through real models.

Random trajectories are made here as records, with contexts that begin with others' prefixes and few different tokens,
so that much is equal by accident; and by whole episodes of the plans of `test_invariants`.
"""

import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import real_models
from core import test_forks
from core.test_handoffs import TOKENIZER, Boss, Duel, Fails, Tree, Worker, says
from core.test_invariants import Plan, plans, play
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envsdk import Break, Handoff, Limits, Sample, Trajectory, get_renderer, load_tokenizer, rollout
from envsdk.errors import ConfigError, EnvsdkError, InvalidSample, TreeTooLarge, TreeUnsupported, UnknownName
from envsdk.policies import RandomPolicy
from envsdk.trajectories._context_log import ContextLog
from envsdk.trajectories._steps import Part, Step
from envsdk.tree import TreeBatch, check_model, tree_batch

pytestmark = pytest.mark.filterwarnings("ignore:Scripted.start.. returned a turn without text")

# Random trajectories.

NAMES = ("main", "main/a", "main/b")
EMPTY: Mapping[str, Sequence[int]] = {}


def random_trajectory(rng: Random, number: int = 0, pasts: Mapping[str, Sequence[int]] = EMPTY) -> Trajectory:
    """Steps in up to three contexts, which keep, rewrite, and begin with prefixes of each other.

    The first observation of a context is, as in an episode that was forked, first of all its past.
    """
    logs: dict[str, list[int]] = {}
    logprobs: dict[str, list[float]] = {}
    lengths: dict[str, int] = {}
    steps: list[Step] = []
    for _ in range(rng.randint(1, 8)):
        name = rng.choice(NAMES[: len(logs) + 1])
        is_new = name not in logs
        past = pasts.get(name, ())
        base = rng.choice([name, *logs]) if is_new and not past else name
        length = lengths.get(base, 0)
        keep = length if rng.random() < 0.5 and not is_new else rng.randint(0, length)
        drops = not is_new and keep < length
        observed = [rng.randint(0, 2) for _ in range(rng.randint(0 if keep else 1, 4))]
        if is_new:
            observed = [*past, *observed]
        sampled = [rng.randint(0, 2) for _ in range(rng.randint(0, 4))]
        log, probs = logs.setdefault(name, []), logprobs.setdefault(name, [])
        start, action_start = len(log), len(log) + len(observed)
        log += [*observed, *sampled]
        probs += [0.0] * len(observed) + [-rng.random() - 0.01 for _ in sampled]
        cut = rng.randint(action_start, len(log))
        parts = [Part(stop, rng.choice([0.5, 1.0]), rng.choice([None, 3])) for stop in (cut, len(log))]
        broken = Break("rewrite", "edit", name, name, keep, length - keep) if drops else None
        reward = rng.choice([None, 0.5])
        steps.append(
            Step(name, base, keep, not is_new and not drops, start, action_start, tuple(parts), "stop", None, reward)
        )
        steps[-1].break_ = broken
        lengths[name] = keep + len(observed) + len(sampled)
    contexts = {
        name: ContextLog(
            rng.choice(["agent", "other"]),
            rng.choice([None, *itertools.takewhile(lambda known: known != name, logs)]),  # noqa: B023 - used at once
            np.array(logs[name], np.int32),
            np.array(logprobs[name], np.float32),
            [],
            reward=rng.choice([None, -1.0]),
            error=rng.choice([None, None, None, "it failed"]),
        )
        for name in logs
    }
    return Trajectory(f"episode-{number}", "random", 0, "terminated", "terminated", contexts, steps, tokenizer="t")


def random_pasts(rng: Random, original: Trajectory) -> dict[str, list[int]]:
    """What is in each context of an episode after some of its steps."""
    steps = itertools.islice(original.prompts(), rng.randint(1, len(original.steps)))
    return {step.context: [*prompt.tolist(), *action.tolist()] for step, prompt, action in steps}


@st.composite
def trajectories(draw: Any) -> Trajectory:
    return random_trajectory(draw(st.randoms(use_true_random=False)))


@st.composite
def groups(draw: Any) -> list[Trajectory]:
    """Up to four trajectories, some of which are forks of others, in any order."""
    rng = draw(st.randoms(use_true_random=False))
    group: list[Trajectory] = []
    for number in range(rng.randint(1, 4)):
        is_fork = group and rng.random() < 0.5
        group.append(random_trajectory(rng, number, random_pasts(rng, rng.choice(group)) if is_fork else {}))
    rng.shuffle(group)
    return group


GROUPS = groups()
LOSSES: list[Any] = ["all", "last_step", lambda step: step.start % 2 == 0]


def samples_of(group: Sequence[Trajectory], loss: Any = "all") -> list[Sample]:
    return [sample for trajectory in group for sample in trajectory.samples(loss)]


# What holds of every tree.


def branch(tree: TreeBatch, index: int) -> list[int]:
    """The indices from the root to a token, by its predecessors."""
    found: list[int] = []
    while index >= 0:
        found.append(index)
        index = int(tree.parent[index])
    return found[::-1]


def says_what_the_samples_say(batches: Sequence[TreeBatch], samples: Sequence[Sample]) -> None:
    """Each trained token is there once, behind the tokens that its sample has before it."""
    expected = {(number, int(i)) for number, sample in enumerate(samples) for i in np.flatnonzero(sample.mask)}
    seen: list[tuple[int, int]] = []
    for tree in batches:
        for index, before in zip(tree.trained, tree.predecessors, strict=True):
            number, position = int(tree.sample_ids[index]), int(tree.position_ids[index])
            sample = samples[number]
            path = tree.path(int(before))
            assert tree.tokens[path].tolist() == sample.tokens[:position].tolist()
            assert tree.position_ids[path].tolist() == list(range(position))
            assert tree.tokens[index] == sample.tokens[position]
            assert tree.step_ids[index] == sample.step_ids[position]
            part = sample.part_ids[position]
            assert tree.temperature[index] == sample.temperature[part]
            assert tree.policy_version[index] == sample.policy_version[part]
            if sample.logprobs is not None and tree.logprobs is not None:
                assert tree.logprobs[index] == sample.logprobs[position]
            seen.append((number, position))
    assert len(seen) == len(expected)
    assert set(seen) == expected


def knows_the_samples(tree: TreeBatch, samples: Sequence[Sample]) -> None:
    assert len(tree.samples) == len(samples)
    for mine, sample in zip(tree.samples, samples, strict=True):
        assert (mine.trajectory_id, mine.group_id) == (sample.trajectory_id, sample.group_id)
        assert (mine.context, mine.role, mine.reward) == (sample.context, sample.role, sample.reward)
        assert (mine.length, mine.trained_tokens) == (len(sample), int(sample.mask.sum()))
        assert mine.loss_weight == sample.loss_weight
        assert mine.step_rewards.tolist() == sample.step_rewards.tolist()
    assert tree.tokens_separate == sum(map(len, samples))
    assert tree.ratio == tree.tokens_separate / len(tree)


def is_in_depth_first_order(tree: TreeBatch) -> None:
    """All that the entry and exit times say is what the predecessors say."""
    sees = tree.dense_mask()
    assert isinstance(sees, np.ndarray)
    for query in range(len(tree)):
        path = branch(tree, query)
        assert np.flatnonzero(sees[query]).tolist() == path == tree.path(query).tolist()
        assert tree.position_ids[query] == len(path) - 1
    by_times = (tree.enter <= tree.enter[:, None]) & (tree.enter[:, None] < tree.exit)
    assert (sees == by_times).all()
    assert not (by_times & (tree.position_ids > tree.position_ids[:, None])).any()
    assert (sees & tree.mask[:, None]).any(axis=0).all(), "a token that no trained one follows"


def has_its_types(tree: TreeBatch) -> None:
    for name in ("tokens", "position_ids", "parent", "exit", "enter", "sample_ids", "step_ids", "policy_version"):
        assert (getattr(tree, name).dtype, getattr(tree, name).shape) == (np.int32, (len(tree),))
    for name, dtype, elsewhere in (
        ("mask", np.bool_, False),
        ("logprobs", np.float32, 0.0),
        ("temperature", np.float32, 1.0),
        ("sample_ids", np.int32, -1),
        ("step_ids", np.int32, -1),
        ("policy_version", np.int32, -1),
        ("advantage", np.float32, 0.0),
    ):
        array = getattr(tree, name)
        if array is not None:
            assert (array.dtype, array.shape) == (dtype, (len(tree),))
            assert (array[~tree.mask] == elsewhere).all()


def check(tree: TreeBatch, samples: Sequence[Sample]) -> None:
    has_its_types(tree)
    is_in_depth_first_order(tree)
    knows_the_samples(tree, samples)
    says_what_the_samples_say([tree], samples)


@given(group=GROUPS, loss=st.sampled_from(LOSSES))
def test_a_tree_of_trajectories_says_what_their_samples_say(group: Sequence[Trajectory], loss: Any):
    samples = samples_of(group, loss)
    assume(samples)
    tree = tree_batch(list(group), loss=loss)
    check(tree, samples)
    alone = [tree_batch(t, loss=loss) for t in group if t.samples(loss)]
    assert len(tree) <= sum(map(len, alone))
    for one in alone:
        has_its_types(one)


@given(trajectory=trajectories())
def test_the_tree_of_a_trajectory_holds_what_its_deltas_say_and_compares_nothing(trajectory: Trajectory):
    assume(trajectory.sampled_tokens)
    tree = tree_batch(trajectory, include_failed=True)
    assert len(tree) == trajectory.tree_size(include_failed=True)
    assert tree_batch([trajectory], include_failed=True).tokens.tolist() == tree.tokens.tolist()
    assert len(tree.trained) == trajectory.sampled_tokens
    again = tree_batch(Trajectory.from_json(trajectory.to_json()), include_failed=True)
    assert again.tokens.tolist() == tree.tokens.tolist()
    assert again.exit.tolist() == tree.exit.tolist()


@given(group=GROUPS, loss=st.sampled_from(LOSSES), order=st.randoms(use_true_random=False))
def test_a_tree_of_samples_says_what_they_say_in_whatever_order_they_come(
    group: Sequence[Trajectory], loss: Any, order: Any
):
    samples = samples_of(group, loss)
    assume(samples)
    in_order = tree_batch(samples)
    check(in_order, samples)
    if loss == "all":
        assert len(in_order) <= sum(trajectory.tree_size() for trajectory in group)
    order.shuffle(samples)
    check(tree_batch(samples), samples)


@given(group=GROUPS, is_of_samples=st.booleans(), spare=st.integers(0, 30))
def test_split_batches_fit_and_train_each_token_once(group: Sequence[Trajectory], is_of_samples: bool, spare: int):
    samples = samples_of(group)
    assume(samples)
    tree = tree_batch(samples if is_of_samples else list(group))
    tree.advantage = tree.per_token(np.arange(len(samples)) + 1)
    longest = int(tree.position_ids.max()) + 1
    batches = tree.split(longest + spare)
    for batch in batches:
        assert len(batch) <= longest + spare
        assert batch.samples is tree.samples
        has_its_types(batch)
        is_in_depth_first_order(batch)
        assert (batch.advantage == np.where(batch.mask, batch.sample_ids + 1, 0)).all()
    says_what_the_samples_say(batches, samples)
    for reduction in ("sum", "sample_mean"):
        whole = tree.weights(reduction).sum()
        assert sum(batch.weights(reduction).sum() for batch in batches) == pytest.approx(whole)
    with pytest.raises(TreeTooLarge, match=f"{longest:,} tokens, more than max_tokens={longest - 1:,}"):
        tree.split(longest - 1)


@given(group=GROUPS, window=st.integers(1, 6))
def test_a_sliding_window_counts_along_the_branch(group: Sequence[Trajectory], window: int):
    assume(samples_of(group))
    tree = tree_batch(list(group))
    masks = tree.dense_mask(sliding_window=window)
    assert isinstance(masks, dict)
    assert (masks["full_attention"] == tree.dense_mask()).all()
    for query in range(len(tree)):
        assert np.flatnonzero(masks["sliding_attention"][query]).tolist() == branch(tree, query)[-window:]


@given(plan=plans())
def test_in_every_episode_a_tree_says_what_the_samples_say(plan: Plan):
    trajectory = play(plan).trajectory
    samples = trajectory.samples()
    if not samples:
        with pytest.raises(InvalidSample, match="no token is trained"):
            tree_batch(trajectory)
        return
    tree = tree_batch(trajectory)
    assert len(tree) == trajectory.tree_size()
    knows_the_samples(tree, samples)
    says_what_the_samples_say([tree], samples)
    says_what_the_samples_say([tree_batch(samples)], samples)
    says_what_the_samples_say(tree.split(int(tree.position_ids.max()) + 20), samples)


# What is merged, and what is not.


def record(*steps: tuple[Any, ...], id: str = "a", tokenizer: str = "t", status: Any = "terminated") -> Trajectory:
    """A trajectory of steps in `main`: what is kept, observed and sampled."""
    log: list[int] = []
    made: list[Step] = []
    length = 0
    for keep, observed, sampled in steps:
        drops = keep < length
        broken = Break("rewrite", "edit", "main", "main", keep, length - keep) if drops else None
        start, action_start = len(log), len(log) + len(observed)
        log += [*observed, *sampled]
        parts = (Part(len(log)),)
        made.append(Step("main", "main", keep, bool(made) and not drops, start, action_start, parts, break_=broken))
        length = keep + len(observed) + len(sampled)
    logs = ContextLog("main", None, np.array(log, np.int32), np.full(len(log), -0.5, np.float32), [])
    return Trajectory(id, "e", 0, status, "end", {"main": logs}, made, tokenizer=tokenizer, group_id="g")


def test_a_group_holds_its_prompt_once_and_each_reply_of_its_own_though_they_be_equal():
    group = [record((0, [1, 2, 3], [7, 8]), (5, [4], [9]), id=name) for name in "abcd"]
    for source in (group, samples_of(group)):
        tree = tree_batch(source)
        assert len(tree) == 3 + 4 * 4
        assert (tree.parent < 0).sum() == 1
        assert tree.tokens_separate == 4 * 7


def test_prompts_are_merged_as_far_as_they_are_equal():
    group = [record((0, [1, 2, last], [7]), id=str(last)) for last in (3, 4)]
    group.append(record((0, [1, 2], [7]), id="short"))
    for source in (group, samples_of(group)):
        tree = tree_batch(source)
        assert len(tree) == 2 + 2 * 2 + 1
        check(tree, samples_of(group))


def test_what_is_trained_is_merged_with_whatever_has_it_as_its_past_and_never_with_another_one_that_is_trained():
    group = [record((0, [1, 2], [7, 8, 9]), (3, [4], [5]), id=name) for name in "ab"]
    for source in (group, samples_of(group)):
        tree = tree_batch(source)
        check(tree, samples_of(group))
        assert len(tree) == 2 + 2 * 3 + 1 + 2  # the second of b follows what a kept, which is the same
        (kept,) = {tuple(tree.path(int(i)).tolist()[:-1]) for i in tree.trained[tree.tokens[tree.trained] == 5]}
        assert tree.tokens[list(kept)].tolist() == [1, 2, 7, 4]


def test_a_fork_costs_what_is_new_in_it():
    original = record((0, [1, 2], [7, 8]), (4, [3], [9]), (6, [4], [10, 11]))
    first = record((0, [1, 2, 7, 8, 3, 9, 4], [20]), (8, [5], [21]), id="first")
    second = record((0, [1, 2, 7, 8, 3, 9, 4, 20, 5], [30]), id="second")
    for group in itertools.permutations([original, first, second]):
        tree = tree_batch(list(group))
        check(tree, samples_of(group))
        assert (len(tree), (tree.parent < 0).sum()) == (9 + 3 + 1, 1)
        samples = samples_of(group)
        check(tree_batch(samples), samples)
        assert len(tree_batch(samples)) == 9 + 3 + 1


def test_equal_replies_of_many_are_told_apart_in_little_time():
    replies = [list(range(5, 200))] * 50
    group = [record((0, [1, 2], reply), (197, [3], reply), id=str(n)) for n, reply in enumerate(replies)]
    forks = [record((0, [1, 2, *reply, 3, *reply, 4], [n]), id=f"f{n}") for n, reply in enumerate(replies)]
    tree = tree_batch([*group, *forks])
    assert len(tree) == 2 + 50 * (195 + 1 + 195) + 1 + 50
    says_what_the_samples_say([tree], samples_of([*group, *forks]))


def test_the_order_of_one_context_is_that_of_its_log():
    trajectory = record((0, [1, 2], [3, 4]), (3, [5], [6]), (2, [7], [8]), (4, [], [9]))
    tree = tree_batch(trajectory)
    assert tree.tokens.tolist() == trajectory.contexts["main"].tokens.tolist()
    assert tree.exit.tolist() == [9, 9, 6, 4, 6, 6, 9, 9, 9]


def test_a_split_repeats_the_prompt_of_a_group_in_each_batch():
    group = [record((0, [1, 2, 3], [4, 5]), id=name) for name in "abcd"]
    batches = tree_batch(group).split(7)
    assert [batch.tokens.tolist() for batch in batches] == [[1, 2, 3, 4, 5, 4, 5]] * 2
    assert [batch.trained.tolist() for batch in batches] == [[3, 4, 5, 6]] * 2
    assert [batch.tokens_separate for batch in batches] == [10, 10]


def test_a_split_repeats_as_few_tokens_as_it_can():
    group = [
        record((0, [1, *more], [reply]), id=str(reply)) for more, reply in [([], 2), ([3, 4, 5], 6), ([3, 4, 5], 7)]
    ]
    tree = tree_batch(group)
    assert [batch.tokens.tolist() for batch in tree.split(len(tree) - 1)] == [[1, 2], [1, 3, 4, 5, 6, 7]]


def test_a_tree_that_fits_is_one_batch():
    tree = tree_batch(record((0, [1], [2])))
    assert tree.split(2) == [tree]


# Sub-agents and players.


def agrees_with_the_samples(trajectory: Trajectory) -> None:
    for include_failed in (True, False):
        samples = trajectory.samples(include_failed=include_failed)
        if not samples:
            with pytest.raises(InvalidSample, match="no token is trained"):
                tree_batch(trajectory, include_failed=include_failed)
            continue
        tree = tree_batch(trajectory, include_failed=include_failed)
        check(tree, samples)
        check(tree_batch([trajectory], include_failed=include_failed), samples)
        check(tree_batch(samples), samples)
        assert len(tree) == trajectory.tree_size(include_failed=include_failed)


PLANS = {
    "fresh": lambda: [Handoff(Worker(2), "a"), Handoff(Worker(), "b")],
    "full": lambda: [Handoff(Worker(2), "a", history="full"), Handoff(Worker(), "b", history="full")],
    "nested": lambda: [Handoff(Boss([Handoff(Worker(2), history="full")]), history="full")],
    "parallel": lambda: [[Handoff(Worker(n), history="full") for n in (2, 1, 3)]],
    "failed": lambda: [[Handoff(Fails(), history="full"), Handoff(Worker())], Handoff(Fails())],
}


def test_what_a_failed_sub_agent_sampled_is_left_out_unless_asked_for():
    trajectory = rollout(Boss(PLANS["failed"]()), says("I"), seed=1)
    tree, whole = tree_batch(trajectory), tree_batch(trajectory, include_failed=True)
    assert {sample.context for sample in whole.samples} - {sample.context for sample in tree.samples} == {
        "main/fails-1",
        "main/fails-2",
    }
    failed = [log for log in trajectory.contexts.values() if log.error]
    assert len(whole) - len(tree) == sum(len(log.tokens) for log in failed)


def test_players_have_trees_of_their_own_and_their_own_rewards():
    trajectory = rollout(Duel(), {"player0": says("A"), "player1": says("B")}, seed=1)
    agrees_with_the_samples(trajectory)
    tree = tree_batch(trajectory)
    assert [(sample.role, sample.reward) for sample in tree.samples] == [("player0", -1.0), ("player1", 1.0)]
    assert (tree.parent < 0).sum() == 2


def test_players_of_different_vocabularies_have_no_tree_together_but_one_each():
    other = get_renderer("qwen3", load_tokenizer(real_models.qwen3_folder()))

    class Mixed(Duel):
        def renderer_of(self, role: str) -> Any:
            return other if role == "player1" else self.renderer

    trajectory = rollout(Mixed(limits=Limits(end_on_cut=False)), says("A"), seed=1)
    names = [trajectory.tokenizer, trajectory.contexts["player1"].tokenizer]
    assert names[0] != names[1] != ""
    with pytest.raises(InvalidSample, match=f"'{names[0]}' .context 'player0' .*'{names[1]}' .context 'player1'"):
        tree_batch(trajectory)
    with pytest.raises(InvalidSample, match="two tokenizers"):
        tree_batch(trajectory.samples())
    for sample in trajectory.samples():
        check(tree_batch(sample), [sample])


@settings(max_examples=settings.default.max_examples // 3)
@given(seed=st.integers(0, 1 << 30), strips=st.booleans())
def test_in_every_tree_of_handoffs_and_players_a_tree_says_what_the_samples_say(seed: int, strips: bool):
    env = Tree(seed, history="strip" if strips else "keep", limits=Limits(max_steps=30, end_on_cut=False))
    policy = RandomPolicy(TOKENIZER.vocab_size, seed=seed, stop_probability=0.3)
    trajectory = rollout(env, policy, seed=seed)
    for include_failed in (True, False):
        samples = trajectory.samples(include_failed=include_failed)
        for source in ([trajectory, trajectory], trajectory, samples) if samples else ():
            expected = samples * 2 if isinstance(source, list) and source[0] is trajectory else samples
            tree = tree_batch(source, include_failed=include_failed)
            knows_the_samples(tree, expected)
            says_what_the_samples_say([tree], expected)


# Forks and summaries.


def forked_episodes(rng: Random, history: Any, count: int = 6) -> list[Trajectory]:
    """An episode, forks of it, and forks of those, in any order."""
    env_class = test_forks.Boss if rng.random() < 0.3 else test_forks.Draws
    env = env_class(history=history, limits={"max_steps": 12, "end_on_cut": False})
    env.reset(seed=rng.randrange(999))
    running, done = [env], list[Trajectory]()
    while running:
        one = rng.choice(running)
        if len(running) + len(done) < count and rng.random() < 0.4:
            running.append(one.fork())
        else:
            test_forks.play(one, rng.randint(1, 3))
        if one.trajectory is not None:
            running.remove(one)
            done.append(one.trajectory)
    return done


HISTORIES = ["keep", "strip", {"name": "summarize", "threshold": 60}]


@settings(max_examples=settings.default.max_examples // 3)
@given(rng=st.randoms(use_true_random=False), history=st.sampled_from(HISTORIES), include_failed=st.booleans())
def test_of_forks_a_tree_says_what_the_samples_say(rng: Random, history: Any, include_failed: bool):
    group = forked_episodes(rng, history)
    samples = [sample for trajectory in group for sample in trajectory.samples(include_failed=include_failed)]
    tree = tree_batch(group, include_failed=include_failed)
    knows_the_samples(tree, samples)
    says_what_the_samples_say([tree], samples)
    of_samples = tree_batch(samples)
    says_what_the_samples_say([of_samples], samples)
    for trajectory in group:
        size = trajectory.tree_size(include_failed=include_failed)
        if size:
            assert len(tree_batch(trajectory, include_failed=include_failed)) == size
    says_what_the_samples_say(tree.split(int(tree.position_ids.max()) + 9), samples)


# Losses.


def losses_of(group: Sequence[Trajectory]) -> dict[str, float]:
    """The loss of each reduction as the samples give it, if the loss of a token is its id."""
    samples = samples_of(group)
    means = [sample.loss_weight * sample.tokens[sample.mask].mean() for sample in samples]
    return {"sum": float(sum(s.tokens[s.mask].sum() for s in samples)), "sample_mean": float(sum(means))}


@given(group=GROUPS)
def test_each_reduction_gives_what_the_samples_give(group: Sequence[Trajectory]):
    assume(samples_of(group))
    for source in (list(group), samples_of(group)):
        tree = tree_batch(source)
        for reduction, expected in losses_of(group).items():
            assert (tree.weights(reduction) * tree.tokens).sum() == pytest.approx(expected, rel=1e-5)


def test_the_mean_of_samples_does_not_depend_on_how_an_episode_is_segmented():
    kept = record((0, [1, 2], [3, 4]), (4, [5], [6]))
    rewritten = record((0, [1, 2], [3, 4]), (2, [5], [6]))
    assert len(rewritten.samples()) == 2
    for trajectory in (kept, rewritten):
        weights = tree_batch(trajectory).weights("sample_mean")
        assert weights[weights > 0].tolist() == pytest.approx([1 / 3] * 3)


def test_advantages_of_samples_come_with_them():
    samples = samples_of([record((0, [1, 2], [3, 4]), (2, [5], [6, 7]))])
    samples[0].advantage = 2.0
    samples[1].advantage = np.array([0.0, 0.0, 0.0, -1.0, -2.0], np.float32)
    tree = tree_batch(samples)
    assert tree.advantage is not None
    assert tree.advantage[tree.mask].tolist() == [2.0, 2.0, -1.0, -2.0]
    with pytest.raises(InvalidSample, match="expected advantage in all samples or in none"):
        tree_batch([samples[0], replace(samples[1], advantage=None)])


def test_a_tree_without_any_logprobs_has_none():
    trajectory = record((0, [1], [2]))
    trajectory.contexts["main"].logprobs[:] = np.nan
    assert tree_batch(trajectory).logprobs is None
    assert tree_batch(trajectory.samples()).logprobs is None


# Bad input.


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([], "source is an empty list; expected at least one trajectory or sample"),
        (3, "source is an int; expected a Trajectory, a Sample, or a list"),
        ("abc", "source is a str"),
        (None, "source is None"),
        ([record((0, [1], [2])), 3], "source has items of Trajectory, int"),
        ([record((0, [1], [2])), *record((0, [1], [2])).samples()], "source has items of Sample, Trajectory"),
        (record((0, [1, 2], [])), "no token is trained"),
        (record((0, [1], [2]), status="error"), "no token is trained"),
        (record((0, [], [1, 2])), "first token of a sample of trajectory 'a', .* is trained, but nothing predicts it"),
        (
            [record((0, [1], [2])), record((0, [1], [2]), tokenizer="u")],
            "two tokenizers.*'t' .*'u' .* Make one tree f",
        ),
    ],
)
def test_what_is_no_source_of_a_tree_is_refused(source: Any, says: str):
    with pytest.raises(InvalidSample, match=says):
        tree_batch(source)


def test_an_unsound_sample_is_refused():
    (sample,) = record((0, [1], [2])).samples()
    with pytest.raises(InvalidSample, match="mask has shape"):
        tree_batch(replace(sample, mask=sample.mask[:1]))


def test_a_loss_is_not_chosen_for_samples():
    with pytest.raises(InvalidSample, match="samples have their masks already"):
        tree_batch(record((0, [1], [2])).samples(), loss="last_step")


def test_a_failed_trajectory_takes_part_only_if_it_is_asked_for():
    failed, sound = record((0, [1], [2]), status="error", id="f"), record((0, [1], [3]))
    assert [s.trajectory_id for s in tree_batch([failed, sound]).samples] == ["a"]
    assert [s.trajectory_id for s in tree_batch([failed, sound], include_failed=True).samples] == ["f", "a"]


def test_a_dense_mask_that_is_too_large_is_refused_with_its_size():
    tree = tree_batch(record((0, [1] * 100_000, [2])))
    with pytest.raises(TreeTooLarge, match=r"100,001 tokens takes 10 GB; the limit is max_tokens=16,384: use tree.spl"):
        tree.dense_mask()
    small = tree_batch(record((0, [1], [2])))
    with pytest.raises(TreeTooLarge, match="max_tokens=1:"):
        small.dense_mask(max_tokens=1)
    with pytest.raises(ConfigError, match="at least itself"):
        small.dense_mask(sliding_window=0)


def test_values_for_another_number_of_samples_and_unknown_reductions_are_refused():
    tree = tree_batch(record((0, [1], [2])))
    for values, message in (
        ([1.0, 2.0], r"values has shape \(2,\); expected \(1,\)"),
        (["one"], "values must be numbers"),
        ([[1.0], [1.0, 2.0]], "values must be numbers"),
        ([float("nan")], r"values\[0\] is nan"),
    ):
        with pytest.raises(InvalidSample, match=message):
            tree.per_token(values)
    with pytest.raises(UnknownName, match="No reduction is named 'samplemean'"):
        tree.weights("samplemean")  # pyright: ignore[reportArgumentType]


# Models for which a tree is not exact.


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"model_type": "qwen3", **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer 1 is 'linear_attention'"),
        ({"layer_types": ["chunked_attention"]}, "layer 0 is 'chunked_attention'"),
        ({"layers_block_type": ["mamba", "attention"]}, "layer 0 is 'mamba'"),
        ({"block_types": ["recurrent"]}, "layer 0 is 'recurrent'"),
        ({"layer_types": ["conv"]}, "layer 0 is 'conv'"),
        ({"model_type": "mamba2"}, "model_type 'mamba2'"),
        ({"model_type": "new", "mamba_d_state": 16}, "mamba_d_state indicates recurrent"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "RoPE of type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "RoPE of type 'longrope'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "RoPE of type 'longrope'"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"resid_pdrop": 0.1}, "resid_pdrop=0.1"),
        ({"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.01}, "set output_router_logits=False"),
        ({"expert_capacity": 64}, "expert_capacity makes experts drop tokens"),
        ({"alibi": True}, "ALiBi"),
        ({"is_encoder_decoder": True}, "an encoder"),
    ],
)
def test_a_model_for_which_a_tree_is_not_exact_is_refused_by_the_part(fields: dict[str, Any], says: str):
    with pytest.raises(TreeUnsupported, match=says) as caught:
        check_model(config(**fields))
    assert str(caught.value).startswith("a tree is not exact for ")
    assert isinstance(caught.value, EnvsdkError)


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8, "attention_dropout": 0.0},
        {"rope_parameters": {"rope_type": "yarn", "factor": 32.0}},
        {"router_aux_loss_coef": 0.9, "output_router_logits": False},
        {"_attn_implementation": "sdpa", "classifier_dropout": 0.1},
    ],
)
def test_a_model_of_attention_layers_alone_is_taken(fields: dict[str, Any]):
    check_model(config(**fields))


def test_dropout_does_not_matter_to_a_model_in_evaluation():
    model = SimpleNamespace(config=config(attention_dropout=0.1), training=False)
    check_model(model)
    model.training = True
    with pytest.raises(TreeUnsupported, match="attention_dropout"):
        check_model(model)


def test_trees_import_neither_torch_nor_transformers():
    program = "import sys, envsdk.tree; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
