"""Side data of tokens: rows over sampled tokens, over all tokens, and lists; in actions, samples, records and trees."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from envsdk_environments._guess_number import GuessNumber
from trainers.episodes import thinks

import envsdk
from envsdk import Action, Sample, Trajectory, rollout, tree_batch
from envsdk.episodes._turn import Opening
from envsdk.errors import ActionError, InvalidRecord, InvalidSample
from envsdk.policies import Aligned, Ragged, ReplyPolicy
from envsdk.trajectories.records import read_jsonl, write_jsonl


def experts_of(tokens: Any) -> np.ndarray:
    """Two layers with three experts for each token: a function of the token and its position."""
    tokens = np.asarray(tokens)
    rows = np.stack([np.arange(len(tokens)), *[tokens + layer for layer in range(5)]], axis=1)
    return rows.reshape(-1, 2, 3).astype(np.int32)


def routed(policy: Any) -> Any:
    """As if a server returned experts of all tokens but the last, and the ids that sampling was restricted to."""

    def sample(prompt: Any, **request: Any) -> Action:
        action = policy(prompt, **request)
        experts = experts_of([*prompt, *action.tokens])
        experts[-1] = -1
        extra = {
            "routed_experts": Aligned(experts, "all", -1),
            "sampling_mask": Ragged.of([[token, 7] for token in action.tokens]),
            "entropy": np.arange(len(action.tokens), dtype=np.float32),
            "bytes": Aligned(np.arange(len(action.tokens), dtype=np.uint8), fill=255),
        }
        return replace(action, logprobs=np.full(len(action.tokens), -1.0), extra=extra)

    return sample


def guessed(history: str = "strip", seed: int = 0) -> Trajectory:
    env = GuessNumber(renderer="qwen3", tokenizer="embedded", history=history)
    policy = ReplyPolicy(env, thinks)
    return rollout(env, routed(policy), seed=seed, options={"episode_id": f"{history}-{seed}"})


def says_six(prompt: Any, **request: Any) -> Action:
    return Action([5, 6, request["stop_token_ids"][0]])


@pytest.mark.parametrize("history", ["keep", "strip", "compact:every=2"])
def test_experts_are_known_at_all_tokens_that_the_model_processed(history: str):
    for sample in guessed(history).samples():
        experts = sample.extra["routed_experts"]
        assert isinstance(experts, Aligned)
        assert experts.known.tolist() == [True] * (len(sample) - 1) + [False]
        assert (experts.values[:-1] == experts_of(sample.tokens)[:-1]).all()


def test_rows_over_sampled_tokens_are_known_only_where_the_segment_sampled_a_token():
    for sample in guessed().samples():
        lists, own = sample.extra["sampling_mask"], sample.step_ids >= 0
        assert isinstance(lists, Ragged) and (lists.known == own).all()
        assert [one.tolist() for one in lists.lists()] == [
            [t, 7] if s else [] for t, s in zip(sample.tokens, own, strict=True)
        ]
        entropy, small = sample.extra["entropy"], sample.extra["bytes"]
        assert (np.isnan(entropy) == ~own).all()
        assert isinstance(small, Aligned) and small.values.dtype == np.uint8
        assert (small.values[~own] == 255).all() and (small.values[own] == entropy[own]).all()


def test_an_episode_stores_the_rows_of_a_token_once():
    trajectory = guessed("keep")
    stored = [part.extra["routed_experts"] for step in trajectory.steps for part in step.parts]
    tokens = trajectory.observed_tokens + trajectory.sampled_tokens
    assert sum(map(len, stored)) == tokens + len(trajectory.steps) - 1  # and again the last token of each reply


def test_trajectories_and_samples_survive_their_files(tmp_path: Any):
    trajectory = guessed()
    write_jsonl(tmp_path / "t.jsonl", [trajectory])
    (read,) = read_jsonl(tmp_path / "t.jsonl", Trajectory)
    assert read.to_json() == trajectory.to_json()
    samples = trajectory.samples()
    assert [s.to_json() for s in read.samples()] == [s.to_json() for s in samples]
    again = [Sample.from_json(sample.to_json()) for sample in samples]
    assert [s.to_json() for s in again] == [s.to_json() for s in samples]
    small = again[0].extra["bytes"]
    assert isinstance(small, Aligned) and (small.values.dtype, small.over, small.fill) == (np.uint8, "sampled", 255)


def test_a_record_with_side_data_for_other_tokens_is_refused():
    trajectory = guessed()
    for key in ("routed_experts", "sampling_mask", "bytes"):
        part = trajectory.steps[1].parts[0]
        for change in (slice(1, 2), np.arange(len(part.extra[key])).repeat(9)):
            damaged = replace(part, extra={**part.extra, key: part.extra[key].take(change)})
            step = replace(trajectory.steps[1], parts=(damaged,))
            steps = [trajectory.steps[0], step, *trajectory.steps[2:]]
            with pytest.raises(InvalidRecord, match=f"step 2 has .* rows of '{key}'"):
                Trajectory.from_json(replace(trajectory, steps=steps).to_json())


N = 3
REFUSED: dict[str, tuple[Any, str]] = {
    "too few rows": (Aligned(np.zeros((N - 1, 2))), "has 2 rows, but there are 3 sampled tokens"),
    "too few rows over all tokens": (Aligned(np.zeros(N - 1), "all"), "has 2 rows; expected"),
    "too many rows over all tokens": (Aligned(np.zeros(10**4), "all"), "has 10000 rows; expected"),
    "too few lists": (Ragged.of([[1]] * (N - 1)), "has 2 rows, but there are 3 sampled tokens"),
    "lengths that do not add up": (Ragged(np.arange(5), np.ones(N, np.int64)), "lengths add up to 3, but it has 5"),
    "negative lengths": (Ragged(np.arange(1), np.array([-1, 1, 1])), "lengths add up"),
    "lists of texts": (Ragged(np.array(["a"] * N), np.ones(N, np.int64)), "values are an array of <U1"),
    "objects": (Aligned(np.zeros(N, object)), "is an array of object"),
    "a list": (Aligned([1] * N), "values of the type list"),  # pyright: ignore[reportArgumentType]
    "a masked array": (Aligned(np.ma.zeros(N)), "values of the type MaskedArray"),
    "an array without rows": (Aligned(np.array(1)), "with one row for each token"),
    "another range": (Aligned(np.zeros(N), "some"), "is over 'some'"),  # pyright: ignore[reportArgumentType]
    "a fill value that does not fit": (Aligned(np.zeros(N, np.uint8), fill=-1), "fill value is -1"),
    "no fill value": (Aligned(np.zeros(N, np.uint8)), "has no value that means that nothing is known"),
    "half a fill value": (Aligned(np.zeros(N, np.int8), fill=0.5), "fill value is 0.5"),
    "booleans": (Aligned(np.zeros(N, bool), fill=0), "can hold"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_action_with_unsound_side_data_is_refused_and_leaves_nothing_behind(name: str):
    given, message = REFUSED[name]
    env = GuessNumber(renderer="qwen3", tokenizer="embedded")
    env.reset(seed=0)
    before = env.prompt()
    with pytest.raises(ActionError, match=message) as caught:
        env.step(Action([1] * N, extra={"x": given}))
    assert "extra['x']" in str(caught.value)
    assert np.array_equal(env.prompt(), before)


def test_side_data_of_different_kinds_in_one_episode_is_refused():
    trajectory = guessed("keep")
    part = trajectory.steps[1].parts[0]
    for other in (part.extra["entropy"], None, Aligned(part.extra["bytes"].values, fill=254)):
        steps = [*trajectory.steps]
        steps[1] = replace(steps[1], parts=(replace(part, extra={**part.extra, "bytes": other}),))
        with pytest.raises(InvalidSample, match=r"extra\['bytes'\] is an array of uint8"):
            replace(trajectory, steps=steps).samples()


def test_a_sample_with_side_data_for_other_tokens_is_refused():
    (sample,) = guessed("keep").samples()
    for name in ("routed_experts", "sampling_mask"):
        short: Any = sample.extra[name]
        with pytest.raises(InvalidSample, match=f"{name}.* rows, but there are {len(sample)} tokens"):
            replace(sample, extra={name: short.take(slice(0, 3))}).validate()


KEYS = ("routed_experts", "sampling_mask", "bytes")


@pytest.mark.parametrize("history", ["keep", "strip"])
@pytest.mark.parametrize("source", ["trajectory", "samples", "group", "split"])
def test_a_tree_holds_the_rows_of_its_tokens(history: str, source: str):
    group = [guessed(history), guessed(history, 1)] if source == "group" else [guessed(history)]
    samples = [sample for trajectory in group for sample in trajectory.samples()]
    given: Any = {"trajectory": group[0], "samples": samples, "group": group, "split": group[0]}[source]
    tree = tree_batch(given, extra=KEYS)
    trees = tree.split(max(map(len, samples)) + 5) if source == "split" else [tree]
    for one in trees:
        experts, lists, small = (one.extra[key] for key in KEYS)
        assert isinstance(experts, Aligned) and isinstance(lists, Ragged) and isinstance(small, Aligned)
        assert (lists.known == one.mask).all() and ((small.values != 255) == one.mask).all()
        for index, items in enumerate(lists.lists()):
            assert not one.mask[index] or items.tolist() == [one.tokens[index], 7]
        expected = experts_of(one.tokens)
        expected[:, 0, 0] = one.position_ids
        assert (experts.values[experts.known] == expected[experts.known]).all()
        inner = np.isin(np.arange(len(one)), one.parent[one.mask])  # the model processed what a trained token follows
        assert experts.known[inner].all()


def test_a_tree_of_what_has_no_such_side_data_is_refused():
    trajectory = guessed()
    for source in (trajectory, trajectory.samples()):
        with pytest.raises(InvalidSample, match=r"has no extra\['top_k'\] with a row for each token"):
            tree_batch(source, extra=["top_k"])


def test_a_context_that_begins_with_anothers_prefix_has_the_rows_of_its_own_model():
    trajectory = rollout(FullHistory(renderer="qwen3", tokenizer="embedded"), routed(says_six), seed=0)
    child = next(sample for sample in trajectory.samples() if sample.context != "main")
    assert trajectory.steps[1].keep > 0
    experts = child.extra["routed_experts"]
    assert isinstance(experts, Aligned) and experts.known[:-1].all()
    assert (experts.values[:-1] == experts_of(child.tokens)[:-1]).all()


class FullHistory(envsdk.Env):
    """Opens a context on all that was said."""

    def start(self) -> envsdk.Turn:
        self.asked = False
        return envsdk.Turn("Say something.", system="You talk.")

    def respond(self, reply: envsdk.Message) -> envsdk.Turn:
        if self.asked:
            return envsdk.Turn(terminated=True, reward=1.0)
        self.asked = True
        return envsdk.Turn("Say it again.", context="aside", opening=Opening("agent", "main", 3))
