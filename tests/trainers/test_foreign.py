"""Logs of full prompts become trajectories; the numbered cases are the public ones of other systems' tests."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import soundness
from core.test_invariants import Plan, plans, play
from core.test_tree import trajectories
from hypothesis import given
from hypothesis import strategies as st
from trainers.episodes import delegated, played, run_page, stripped

from envsdk import Trajectory, tree_batch
from envsdk._visible import type_of
from envsdk.errors import ConfigError, InvalidRecord
from envsdk.policies import Aligned, Ragged
from envsdk.trainers import single_sample
from envsdk.trainers.foreign import LoggedStep, from_steps
from envsdk.trainers.foreign._chains import OpenPrompts

A = ([1, 2, 3], [10, 11])
B = ([50, 51, 52], [60, 61])
A_LATER = ([1, 2, 3, 10, 11, 20], [30])
B_LATER = ([50, 51, 52, 60, 61, 70], [80])


def built(*steps: tuple[Any, ...], **about: Any) -> Trajectory:
    trajectory = from_steps(
        [(*step, [-0.5] * len(step[1]), 1.0) if len(step) == 2 else step for step in steps], **about
    )
    soundness.check(trajectory)
    shown = [(prompt.tolist(), action.tolist()) for _, prompt, action in trajectory.prompts()]
    assert shown == [(list(step[0]), list(step[1])) for step in steps]
    return trajectory


def masks(trajectory: Trajectory) -> list[str]:
    return ["".join(str(int(trained)) for trained in sample.mask) for sample in trajectory.samples()]


def tokens(trajectory: Trajectory) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in trajectory.samples()]


# The public cases.


def test_case_1_one_step_is_one_sample():
    assert masks(built(A)) == ["00011"]
    assert tokens(built(A)) == [[1, 2, 3, 10, 11]]


def test_case_2_a_prompt_that_extends_goes_on_in_the_sample():
    trajectory = built(A, A_LATER)
    assert masks(trajectory) == ["0001101"]
    assert not trajectory.breaks


def test_case_3_prompts_that_have_nothing_in_common_are_two_samples():
    trajectory = built(A, B)
    assert masks(trajectory) == ["00011", "00011"]
    assert [(broken.kind, broken.reason) for broken in trajectory.breaks] == [("switch", "undeclared")]


def test_case_4_after_a_break_the_first_sample_goes_on():
    trajectory = built(A, B, A_LATER)
    assert tokens(trajectory) == [[1, 2, 3, 10, 11, 20, 30], [50, 51, 52, 60, 61]]
    assert [step.extends for step in trajectory.steps] == [False, False, True]


@pytest.mark.parametrize("order", ["abAB", "abBA", "aAbB", "baAB"])
def test_case_5_two_agents_in_any_order_are_two_samples(order: str):
    steps = {"a": A, "b": B, "A": A_LATER, "B": B_LATER}
    assert masks(built(*(steps[name] for name in order))) == ["0001101"] * 2


def test_case_6_a_part_of_an_earlier_prompt_is_a_new_sample():
    trajectory = built(A, ([1, 2], [12]))
    assert tokens(trajectory) == [[1, 2, 3, 10, 11], [1, 2, 12]]
    assert (trajectory.breaks[0].kept, trajectory.breaks[0].dropped) == (2, 3)


def test_case_7_prompts_that_never_extend_are_a_sample_each():
    assert len(built(*(([1, 2, n], [9]) for n in range(20))).samples()) == 20


def test_case_8_no_steps_are_no_samples():
    assert built().samples() == []
    assert single_sample(built(), "a trainer").sample is None


def test_case_9_nothing_is_trained_of_a_rollout_that_failed():
    trajectory = built(A, A_LATER, error="the server went away")
    assert (trajectory.status, trajectory.samples()) == ("error", [])
    assert built(A, status="error").samples() == []


def test_case_10_only_tokens_count_not_how_they_came_to_be():
    as_arrays = from_steps([(np.array(A[0]), np.array(A[1], np.uint16)), LoggedStep(*map(tuple, A_LATER))])
    assert masks(as_arrays) == ["0001101"]


def test_case_11_the_same_step_twice_with_other_logprobs_is_two_samples():
    trajectory = built((*A, [-1.0, -2.0], 0.0), (*A, [-3.0, -4.0], 0.0))
    assert [sample.logprobs.tolist()[3:] for sample in trajectory.samples()] == [[-1, -2], [-3, -4]]
    assert len(tree_batch(trajectory)) == 3 + 2 + 2


def test_case_12_one_logprob_for_two_tokens_is_refused():
    with pytest.raises(InvalidRecord, match=r"step 2: logprobs have shape \(1,\), but there are 2 tokens"):
        from_steps([(*A, [-1.0, -1.0], 0.0), (*B, [-1.0], 0.0)])


# How a log is read.


def test_the_longest_open_context_is_extended_and_of_equal_ones_the_latest():
    longer = ([1, 2, 3, 10, 11, 20, 30], [4])
    trajectory = built(A, longer, ([1, 2, 3, 10, 11, 20, 30, 4], [5]))
    assert tokens(trajectory) == [[1, 2, 3, 10, 11, 20, 30, 4, 5]]
    trajectory = built((*A, [-1, -1], 0.0), (*A, [-2, -2], 0.0), A_LATER)
    assert masks(trajectory) == ["00011", "0001101"]


def test_a_prompt_that_drops_tokens_is_an_undeclared_rewrite_of_the_context_that_it_is_nearest_to():
    trajectory = built(A, ([1, 2, 10, 20], [30]), ([1, 2, 10, 20, 30, 40], [50]))
    broken = trajectory.steps[1].break_
    assert broken is not None
    assert (broken.kind, broken.reason, broken.context) == ("rewrite", "undeclared", "main")
    assert (broken.kept, broken.dropped, broken.detail) == (
        2,
        3,
        "step 2 of the log, which does not specify the reason",
    )
    assert list(trajectory.contexts) == ["main"]
    assert masks(trajectory) == ["00011", "0000101"]


def test_a_context_that_goes_on_later_is_not_rewritten_by_what_begins_in_it():
    trajectory = built(A, ([1, 2, 7], [8]), A_LATER)
    assert list(trajectory.contexts) == ["main", "main-2"]
    broken = trajectory.steps[1].break_
    assert broken is not None
    assert (broken.kind, broken.base, broken.kept, broken.dropped) == ("switch", "main", 2, 0)
    assert len(tree_batch(trajectory)) == 7 + 2


def test_of_several_that_begin_in_a_context_the_last_is_its_rewrite():
    trajectory = built(A, ([1, 2, 3, 7], [8]), ([1, 2, 3, 10, 9], [8]))
    assert [step.context for step in trajectory.steps] == ["main", "main-2", "main"]
    assert [step.keep for step in trajectory.steps] == [0, 3, 4]


def test_what_a_log_says_of_sampling_and_rewards_is_in_the_samples():
    steps = [LoggedStep(*A, [-1, -2], 0.5, 0.7, 3), LoggedStep(*A_LATER, [-3], None, 0.9, 4)]
    trajectory = from_steps(steps, id="x", env="logs/Chat", group_id="g", tokenizer="t", vocab_size=100)
    (sample,) = trajectory.samples()
    assert trajectory.reward == 0.5
    assert (sample.trajectory_id, sample.group_id, sample.role) == ("x", "g", "main")
    assert sample.step_rewards.tolist() == [0.5, 0]
    assert sample.temperature.tolist() == np.array([0.7, 0.9], np.float32).tolist()
    assert sample.policy_version.tolist() == [3, 4]
    assert sample.logprobs.tolist() == [0, 0, 0, -1, -2, 0, -3]
    assert sample.metadata["tokenizer"] == "t"


def test_a_log_without_logprobs_gives_samples_without():
    (sample,) = from_steps([A, A_LATER]).samples()
    assert sample.logprobs is None


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (([], [1]), "the prompt is empty"),
        (([1, -2], [1]), "in the prompt: token -2 at position 1 is out of range"),
        (([1], [100]), "token 100 at position 0 is out of range"),
        (([1], [1.5]), "tokens must be integers"),
        (([1], [1], [0.5]), "logprob 0.5 at position 0"),
        (([1], [1], None, float("inf")), "the reward is inf"),
        (([1], [1], None, "high"), "the reward is 'high'; expected a finite number"),
        (([1], [1], None, True), "the reward is True; expected a finite number"),
        (([1], [1], [-(10**400)]), "too large"),
        (None, "must be an iterable"),
        ({"prompt": [1], "action_tokens": [1]}, r"LoggedStep\(\) has no argument 'prompt'"),
        ({"prompt_tokens": [1]}, "needs action_tokens"),
        (([1], [1], None, 0.0, -1.0), "temperature is -1.0"),
    ],
)
def test_a_step_that_is_not_sound_is_refused_with_its_number(step: Any, what: str):
    with pytest.raises(InvalidRecord, match=rf"^step 2: .*{what}"):
        from_steps([A, step], vocab_size=100)


def test_a_step_may_be_a_mapping():
    steps = [{"prompt_tokens": A[0], "action_tokens": A[1]}, LoggedStep(*A_LATER, reward=np.float32(0.5))._asdict()]
    trajectory = from_steps(steps)
    assert masks(trajectory) == ["0001101"]
    assert trajectory.reward == 0.5


@pytest.mark.parametrize("size", [None, -1, 1.0, True, "100", 2**31, 2**40])
def test_a_vocabulary_that_no_token_id_fits_is_refused(size: Any):
    with pytest.raises(ConfigError, match=f"vocab_size is {size!r}; expected an integer from 0"):
        from_steps([([2**33 + 1], [1])], vocab_size=size)


def test_ids_beyond_int32_are_refused_and_never_wrapped():
    for size in (0, 2**31 - 1, np.int64(100)):
        with pytest.raises(
            InvalidRecord, match=r"step 1: in the prompt: token 8589934593 at position 0 is out of range"
        ):
            from_steps([([2**33 + 1], [1])], vocab_size=size)  # type: ignore[arg-type]


def test_what_is_no_log_and_an_unknown_status_are_refused():
    for value in (None, 5):
        with pytest.raises(InvalidRecord, match=f"steps is {type_of(value)}; expected the steps"):
            from_steps(value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="status is 'done'; expected one of"):
        from_steps([A], status="done")  # type: ignore[arg-type]


# Our own episodes, as if another system had logged them.


def logged(trajectory: Trajectory) -> list[LoggedStep]:
    """The steps in which something was sampled."""
    steps: list[LoggedStep] = []
    for step, prompt, action in trajectory.prompts():
        logprobs = trajectory.contexts[step.context].logprobs[step.action_start : step.stop]
        given = None if np.isnan(logprobs).any() else logprobs
        if len(action):
            steps.append(LoggedStep(prompt, action, given, step.reward))
    return steps


def trained(trajectory: Trajectory) -> Counter[tuple[Any, ...]]:
    """Each trained token with all that comes before it in its sample, and its log-probability."""
    found: Counter[tuple[Any, ...]] = Counter()
    for sample in trajectory.samples(include_failed=True):
        for at in np.flatnonzero(sample.mask):
            logprob = None if sample.logprobs is None else float(sample.logprobs[at])
            found[sample.tokens[:at].tobytes(), int(sample.tokens[at]), logprob] += 1
    return found


def reads_its_own_prompts(trajectory: Trajectory) -> None:
    steps = logged(trajectory)
    again = from_steps(steps)
    soundness.check(again)
    assert trained(again) == trained(trajectory)
    assert len(again.samples()) <= len(trajectory.samples(include_failed=True))
    assert again.reward == pytest.approx(sum(step.reward or 0 for step in steps))


@given(trajectory=trajectories())
def test_the_prompts_of_any_trajectory_give_the_same_trained_tokens(trajectory: Trajectory):
    reads_its_own_prompts(trajectory)


@pytest.mark.filterwarnings("ignore:Scripted.start.. returned a turn without text")
@given(plan=plans())
def test_the_prompts_of_any_episode_give_the_same_trained_tokens(plan: Plan):
    trajectory = play(plan).trajectory
    if all(len(prompt) for _, prompt, action in trajectory.prompts() if len(action)):
        reads_its_own_prompts(trajectory)


def test_an_episode_that_strips_its_thinking_is_one_context_and_as_small_a_tree_as_its_own():
    trajectory = stripped()
    again = from_steps(logged(trajectory))
    assert len(trajectory.samples()) > 4
    assert list(again.contexts) == ["main"]
    assert {broken.reason for broken in again.breaks} == {"undeclared"}
    assert [s.tokens.tolist() for s in again.samples()] == [s.tokens.tolist() for s in trajectory.samples()]
    assert len(tree_batch(again)) <= len(tree_batch(trajectory))
    last = single_sample(again, "a trainer", "last_segment").sample
    assert last is not None and last.tokens.tolist() == trajectory.samples()[-1].tokens.tolist()


@pytest.mark.parametrize("trajectory", [delegated(), played()], ids=["sub-agents", "players"])
def test_contexts_that_take_turns_are_found_again(trajectory: Trajectory):
    again = from_steps(logged(trajectory))
    assert len(again.samples()) == len(trajectory.samples()) == len(trajectory.contexts) > 1
    assert trained(again) == trained(trajectory)
    assert [step.extends for step in again.steps] == [
        index != min(i for i, other in enumerate(trajectory.steps) if other.context == step.context)
        for index, step in enumerate(trajectory.steps)
    ]


# How prompts are found.

PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.lists(st.integers(0, 1), max_size=2)), max_size=12
)


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@given(steps=PROMPTS)
def test_a_search_by_hashes_finds_what_comparing_all_finds(steps: list[tuple[list[int], list[int]]]):
    prompts, ends = OpenPrompts(), list[list[int]]()
    for prompt, action in steps:
        place = prompts.add(np.array(prompt, np.int32), np.array(action, np.int32))
        whole = [end for end in ends if prompt[: len(end)] == end]
        most = max((shared(end, prompt) for end in ends), default=0)
        if whole:
            assert not place.is_new and place.nearest == place.chain
            assert ends[place.chain] == max(whole, key=len) and place.shared == len(ends[place.chain])
        else:
            assert (place.is_new, place.chain, place.shared) == (True, len(ends), most)
            assert (place.nearest is None) == (most == 0)
            if place.nearest is not None:
                assert shared(ends[place.nearest], prompt) == most
                assert place.nearest == len(ends) - 1 or shared(ends[-1], prompt) < most
            ends.append([])
        ends[place.chain] = prompt + action


def test_the_code_of_its_page_runs():
    run_page("foreign")


# What a step may have besides tokens.


def test_a_mask_makes_results_inside_a_response_observations():
    step = {
        "prompt_tokens": [1, 2],
        "action_tokens": [10, 90, 91, 11, 92],
        "logprobs": [-0.5, 7.0, float("nan"), -0.25, -1.0],
        "mask": [1, 0, 0, 1, 0],
        "reward": 1.0,
    }
    later = ([1, 2, 10, 90, 91, 11, 92, 3], [12], [-0.125])
    trajectory = from_steps([step, later])
    soundness.check(trajectory)
    (sample,) = trajectory.samples()
    assert sample.tokens.tolist() == [1, 2, 10, 90, 91, 11, 92, 3, 12]
    assert sample.mask.astype(int).tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert sample.logprobs is not None and sample.logprobs[sample.mask].tolist() == [-0.5, -0.25, -0.125]
    assert [step.reward for step in trajectory.steps] == [None, 1.0, None] and not trajectory.breaks


def test_a_response_without_a_sampled_token_keeps_its_reward():
    trajectory = from_steps([([1], [5, 6], None, 0.5, 1.0, None, {}, [0, 0]), ([1, 5, 6], [7])])
    soundness.check(trajectory)
    (sample,) = trajectory.samples()
    assert (sample.tokens.tolist(), sample.mask.tolist()) == ([1, 5, 6, 7], [False] * 3 + [True])
    assert trajectory.reward == 0.5


def side_data(prompt: Sequence[int], action: Sequence[int]) -> dict[str, Any]:
    over_all = np.array([*prompt, *action], np.int16)[:, None]
    over_all[-1] = -1
    return {
        "experts": Aligned(over_all, "all"),
        "allowed": Ragged.of([[token] * 2 for token in action]),
        "entropy": np.array(action, np.float32),
        "images": ["cat.png"],
    }


@pytest.mark.parametrize("mask", [None, [1, 0, 0, 1]])
def test_side_data_of_a_log_is_in_its_samples(mask: Any):
    steps = [{"prompt_tokens": [1, 2], "action_tokens": [10, 11, 12, 13], "mask": mask}]
    steps.append({"prompt_tokens": [1, 2, 10, 11, 12, 13, 3], "action_tokens": [14, 15]})
    steps.append({"prompt_tokens": [1, 2, 10, 4], "action_tokens": [16, 17]})
    for step in steps:
        step["extra"] = side_data(step["prompt_tokens"], step["action_tokens"])
    trajectory = from_steps(steps)
    soundness.check(trajectory)
    assert Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()
    assert len(trajectory.samples()) == 2
    for sample in trajectory.samples():
        experts, lists = sample.extra["experts"], sample.extra["allowed"].lists()
        assert experts.known.tolist() == [True] * (len(sample) - 1) + [False]
        assert experts.values[:-1, 0].tolist() == sample.tokens[:-1].tolist()
        assert [one.tolist() for one in lists] == [
            [token] * 2 if own >= 0 else [] for token, own in zip(sample.tokens, sample.step_ids, strict=True)
        ]
        assert (sample.extra["entropy"][sample.mask] == sample.tokens[sample.mask]).all()
        assert [images for images in sample.extra["images"] if images] == [["cat.png"]] * (2 if len(sample) > 6 else 1)
    stored = sum(len(part.extra["experts"]) for step in trajectory.steps for part in step.parts)
    assert stored == trajectory.observed_tokens + trajectory.sampled_tokens + len(trajectory.steps) - 1


def test_errors_of_a_reply_leave_it_out_on_request_and_rewards_have_names():
    first = LoggedStep(*A, errors=["the call is not JSON"], rewards={"format": -0.5, "other": 0.25})
    trajectory = from_steps([first, (*A_LATER, None, 1.0)])
    soundness.check(trajectory)
    assert [step.reward for step in trajectory.steps] == [-0.25, 1.0]
    assert trajectory.steps[0].rewards == {"format": -0.5, "other": 0.25}
    assert [sample.mask.sum() for sample in trajectory.samples()] == [3]
    assert [sample.mask.sum() for sample in trajectory.samples("without_errors")] == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": [1, 2]}, "step 1: the mask is"),
        ({"mask": [0.0, 1.0]}, "step 1: the mask is"),
        ({"rewards": {"a": float("nan")}}, "step 1: the reward is nan"),
        ({"rewards": {"a": 1.0}, "reward": 2.0}, r"step 1: the rewards .* add up to 1.0, but the reward is 2.0"),
        ({"errors": "bad"}, "step 1: the errors are 'bad'"),
        ({"extra": {"x": np.zeros(3)}}, r"step 1: extra\['x'\]"),
        ({"extra": {"x": Aligned(np.zeros(9), "all")}}, r"step 1: extra\['x'\] is over all tokens and has 9 rows"),
    ],
    ids=str,
)
def test_flags_that_mean_nothing_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(InvalidRecord, match=message):
        from_steps([{"prompt_tokens": A[0], "action_tokens": A[1], **change}])
