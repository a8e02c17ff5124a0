"""The value of breaks: what is played, what it starts from, and what is refused."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_policies import ANY_TOKENIZER, in_any_vocabulary

from envsdk import Action, Env, Handoff, HandoffResult, Message, ToolEnv, Trajectory, Turn, tool, tree_batch
from envsdk.errors import CannotReplay, ConfigError, EpisodeError, PolicyUnavailable, UnknownName
from envsdk.gateway import ProgramEnv
from envsdk.policies import RandomPolicy
from envsdk.rollouts import BreakValue, break_values, rollout_many

HISTORIES: Sequence[Any] = (
    "strip",
    {"name": "compact", "every": 2},
    {"name": "budget", "max_tokens": 260},
    {"name": "summarize", "threshold": 160},
)


class Talk(Env):
    """Asks eight questions; random numbers are in the rewards. It may hand the third over."""

    def __init__(self, *, helpers: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.helpers = helpers

    def start(self) -> Turn:
        self.asked = 0
        return Turn("Question 0?", system="Answer.")

    def respond(self, reply: Message) -> Turn | Handoff | list[Handoff]:
        self.asked += 1
        if self.asked == 3 and self.helpers:
            made = [Handoff(Talk(history=self.history), role=f"helper{i}") for i in range(self.helpers)]
            return made if self.helpers > 1 else made[0]
        return Turn(f"Question {self.asked}?", reward=float(self.np_random.random()), terminated=self.asked == 8)

    def resume(self, result: HandoffResult | list[HandoffResult]) -> Turn:
        return Turn("They have ended.")


@in_any_vocabulary
def thinks(prompt: Any, **_: Any) -> Action:
    """A reply with reasoning that depends on the prompt alone."""
    reasoning = f"Let me think about {len(prompt)}, at some length."
    tokens = RENDERER.reply(Message(role="assistant", content=f"Answer {len(prompt)}.", reasoning=reasoning))
    return Action(tokens, np.full(len(tokens), -0.5))


RENDERER = Talk().renderer
RANDOM = RandomPolicy(RENDERER.tokenizer.vocab_size, seed=3, stop_probability=0.05)


def prompts_of(trajectory: Trajectory, context: str = "main") -> list[list[int]]:
    return [prompt.tolist() for step, prompt, _ in trajectory.prompts() if step.context == context]


def rewrites(trajectory: Trajectory) -> list[tuple[str, int]]:
    """The breaks that drop something: the context, and the length of its log before them."""
    return [
        (step.context, step.start)
        for step in trajectory.steps
        if step.break_ is not None and step.break_.reason in ("thinking_stripped", "compaction", "budget", "summary")
    ]


def pairs_of(
    env: Callable[..., Env], policy: Any, trajectories: Sequence[Trajectory], **options: Any
) -> tuple[list[BreakValue], list[tuple[Trajectory, Trajectory]]]:
    """The values, and the pairs of plays: after the break, and without it. A pair has one id."""
    plays: dict[str, list[Trajectory]] = {}
    options = {"max_concurrency": 1, **options}
    found = break_values(
        env, policy, trajectories, on_trajectory=lambda play: plays.setdefault(play.id, []).append(play), **options
    )
    return found, [(pair[0], pair[1]) for pair in plays.values() if len(pair) == 2]


def check_play(episode: Trajectory, value: BreakValue, dropped: Trajectory, kept: Trajectory) -> None:
    """The play with the break is the episode, as the policy depends on the prompt alone; the other drops nothing."""
    step, cause = episode.steps[value.step], episode.steps[value.cause_step]
    context = step.context
    before = [one for one in episode.steps[: value.step] if one.context == context]
    assert value.cause == (cause.context, cause.action_start, cause.stop)
    is_summary = step.break_ is not None and step.break_.reason == "summary"
    assert cause.context.startswith(f"{context}/summary-") if is_summary else cause is before[-1]
    assert prompts_of(dropped, context) == prompts_of(episode, context) and dropped.reward == episode.reward
    assert value.reward_dropped == dropped.reward_of(context) and value.reward_kept == kept.reward_of(context)
    shown = prompts_of(kept, context)
    assert shown[: len(before)] == prompts_of(episode, context)[: len(before)]
    last = [*shown[len(before) - 1], *episode.contexts[context].tokens[before[-1].action_start : before[-1].stop]]
    assert shown[len(before)][: len(last)] == last
    for play in (dropped, kept):
        assert [origin.trajectory_id for origin in play.origins] == [episode.id]
        copied = [one for one in play.steps if play.is_copied(one)]
        assert [one for one in copied if one.context == context] == before
        assert Trajectory.from_json(play.to_json()).to_json() == play.to_json()
    sampled = [one for play in (dropped, kept) for one in play.steps if not play.is_copied(one)]
    assert value.sampled_tokens == sum(one.stop - one.action_start for one in sampled) > 0


@pytest.mark.matrix
@pytest.mark.parametrize("history", HISTORIES, ids=str)
@pytest.mark.parametrize("helpers", [0, 1, 2])
def test_a_play_with_the_break_goes_on_as_the_episode_did_and_one_without_it_drops_nothing(
    history: Any, helpers: int
) -> None:
    make = partial(Talk, helpers=helpers, history=history)
    (episode,) = rollout_many(make, thinks, seeds=[5])
    record = episode.to_json()
    values, pairs = pairs_of(make, thinks, [episode], k=1)
    assert episode.to_json() == record
    assert [(step.context, step.start) for step in (episode.steps[value.step] for value in values)] == rewrites(episode)
    assert values and all(value.pairs == 1 and value.failed == 0 for value in values)
    for value, pair in zip(values, pairs, strict=True):
        check_play(episode, value, *pair)


class Counting(ToolEnv):
    """Counts calls."""

    def start(self) -> Turn:
        self.count = 0
        return Turn("Count to nine.")

    @tool
    def add(self) -> str:
        """Add one."""
        self.count += 1
        return f"That is {self.count}."

    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        return Turn(results, reward=1.0, terminated=self.count == 9)


class Folds:
    """Folds after three calls, also in a branch, and takes notes. What it does depends on its view alone."""

    tokenizer = ANY_TOKENIZER

    def for_episode(self, env: Counting, seed: int | None) -> Callable[..., Action]:
        @in_any_vocabulary
        def policy(prompt: Any, *, context: str, **_: Any) -> Action:
            pending = env.episode.pending_reply(context).context
            calls = [call.name for message in pending.view for call in message.tool_calls]
            later = calls[-1 - calls[::-1].index("fold") :] if "fold" in calls else calls
            call = Message.calling("add", {})
            if later.count("add") == 3:
                call = Message.calling("fold", {"summary": "I counted."})
            elif context == "main" and calls == ["fold"]:
                call = Message.calling("branch", {"task": "Count on."})
            elif context != "main" and calls[-1] == "fold" and len(calls) > 1:
                call = Message.calling("finish", {"result": "Done."})
            elif later == ["add"]:
                call = Message.calling("note", {"text": "I began."})
            tokens = pending.renderer.reply(call)
            return Action(tokens, np.full(len(tokens), -0.5))

        return policy


@pytest.mark.parametrize("history", ["keep", "strip", {"name": "budget", "max_tokens": 900}], ids=str)
def test_without_a_fold_the_call_and_its_result_are_appended(history: Any) -> None:
    make = partial(Counting, context_tools=("fold", "branch", "note"), history=history)
    (episode,) = rollout_many(make, Folds(), seeds=[5])
    values, pairs = pairs_of(make, Folds(), [episode], k=1)
    folds = [value for value in values if value.break_.reason == "fold"]
    assert len({value.break_.context for value in folds}) == 2  # in a branch as well
    for value, pair in zip(values, pairs, strict=True):
        check_play(episode, value, *pair)
    for value in folds:
        reply = episode.steps[value.cause_step].reply
        assert reply is not None
        assert episode.contexts[value.cause[0]].messages[reply].tool_calls[0].name == "fold"


@given(history=st.sampled_from(HISTORIES), seed=st.integers(0, 2**20), k=st.integers(1, 2), share=st.floats(0.2, 1.0))
@settings(max_examples=6, deadline=None)
def test_the_same_seeds_give_the_same_values(history: Any, seed: int, k: int, share: float) -> None:
    make = partial(Talk, history=history)
    episodes = rollout_many(make, RANDOM, seeds=[seed, seed + 1])
    values, pairs = pairs_of(make, RANDOM, episodes, k=k, share=share, seed=seed)
    again, _ = pairs_of(make, RANDOM, episodes, k=k, share=share, seed=seed, max_concurrency=8)
    assert repr(again) == repr(values)
    assert [play.to_json() for play in rollout_many(make, RANDOM, seeds=[seed, seed + 1])] == [
        episode.to_json() for episode in episodes
    ]
    every = break_values(make, RANDOM, episodes, k=1, seed=seed)
    assert {(one.trajectory_id, one.step) for one in values} <= {(one.trajectory_id, one.step) for one in every}
    assert len(pairs) == k * len(values)


def refuses_to_be_made() -> Env:
    raise AssertionError("nothing is to be played")


@pytest.mark.parametrize("nothing", [{"k": 0}, {"share": 0}, {"share": 0.0}])
def test_nothing_is_played_without_plays_or_breaks(nothing: dict[str, Any]) -> None:
    episodes = rollout_many(partial(Talk, history="strip"), thinks, seeds=[5])
    assert break_values(refuses_to_be_made, thinks, episodes, **nothing) == []
    assert break_values(refuses_to_be_made, thinks, rollout_many(Talk, thinks, seeds=[5])) == []


def test_a_fork_shares_its_past_with_the_episode_in_a_tree_and_gives_no_samples_of_it() -> None:
    make = partial(Talk, history={"name": "compact", "every": 4})
    (episode,) = rollout_many(make, thinks, seeds=[5])
    _, ((dropped, kept),) = pairs_of(make, thinks, [episode], k=1)
    samples = [sample for one in (episode, dropped, kept) for sample in one.samples()]
    assert len(tree_batch(samples).tokens) < sum(len(sample) for sample in samples)
    assert sum(int(sample.mask.sum()) for sample in dropped.samples()) < episode.sampled_tokens


def test_a_play_that_fails_is_counted_and_its_pair_is_left_out() -> None:
    make = partial(Talk, history={"name": "compact", "every": 4})
    (episode,) = rollout_many(make, thinks, seeds=[5])

    @in_any_vocabulary
    def fails(prompt: Any, *, episode_id: str, **request: Any) -> Action:
        if episode_id.endswith("/fork-2"):
            raise RuntimeError("no reply")
        if episode_id.endswith("/fork-3"):
            raise PolicyUnavailable("no server")
        return thinks(prompt, **request)

    (value,) = break_values(make, fails, [episode], k=4, max_retries=0)
    assert (value.pairs, value.failed) == (2, 4) and value.reward_dropped == episode.reward

    @in_any_vocabulary
    def never(prompt: Any, **request: Any) -> Action:
        raise RuntimeError("no reply")

    (value,) = break_values(make, never, [episode], k=2)
    assert (value.pairs, value.failed, value.sampled_tokens) == (0, 4, 0)
    assert np.isnan([value.reward_dropped, value.reward_kept, value.difference, value.standard_error]).all()


@pytest.mark.full
def test_an_infrastructure_error_starts_a_play_again_from_the_break() -> None:
    make, calls = partial(Talk, history={"name": "compact", "every": 4}), list[str]()
    (episode,) = rollout_many(make, thinks, seeds=[5])

    @in_any_vocabulary
    def fails_at_first(prompt: Any, *, episode_id: str, **request: Any) -> Action:
        calls.append(episode_id)
        if len(calls) == 2:
            raise PolicyUnavailable("no server")
        return thinks(prompt, **request)

    (value,) = break_values(make, fails_at_first, [episode], k=1, max_concurrency=1)
    assert (value.pairs, value.failed, value.reward_dropped) == (1, 0, episode.reward)


def test_an_episode_that_is_full_without_the_break_ends_there() -> None:
    make = partial(Talk, history={"name": "compact", "every": 4}, limits={"max_context_tokens": 165})
    (episode,) = rollout_many(make, thinks, seeds=[5])
    values, pairs = pairs_of(make, thinks, [episode], k=2)
    assert values and not pairs  # the plays without the break were over before they began
    assert all(value.pairs == 2 and value.reward_kept < value.reward_dropped for value in values)


class Program(ProgramEnv):
    """An agent program."""

    async def run(self, model: Any) -> float:
        return 0.0


def test_an_environment_that_cannot_be_forked_is_refused() -> None:
    episodes = rollout_many(partial(Talk, history="strip"), thinks, seeds=[5])
    with pytest.raises(EpisodeError, match="break_values forks episodes, and Program cannot be copied: its program"):
        break_values(Program, thinks, episodes)


class Unsteady(Talk):
    """Asks other questions each time."""

    count = 0

    def start(self) -> Turn:
        Unsteady.count += 1
        super().start()
        return Turn(f"Question of episode {Unsteady.count}?")


def test_an_episode_that_cannot_be_repeated_is_refused() -> None:
    make, unsteady = partial(Talk, history="strip"), partial(Unsteady, history="strip")
    (episode,) = rollout_many(make, thinks, seeds=[5])
    with pytest.raises(CannotReplay, match=r"cannot be repeated in .*: its observation is not the recorded one"):
        break_values(partial(Talk, history="keep"), thinks, [episode])
    with pytest.raises(CannotReplay, match="step 1 of"):
        break_values(unsteady, thinks, rollout_many(unsteady, thinks, seeds=[5]))
    with pytest.raises(CannotReplay, match="has no seed"):
        break_values(make, thinks, rollout_many(make, thinks, seeds=[None]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": -1}, "k is -1"),
        ({"share": 1.5}, "share is 1.5; expected a number from 0 to 1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
        ({"max_concurrency": 0}, "max_concurrency is 0"),
        ({"max_concurrency": None}, "max_concurrency is None"),
        ({"k": None}, "k is None"),
        ({"method_timeout_s": 0}, "method_timeout_s is 0"),
        ({"patience": 3}, "no option 'patience'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    episodes = rollout_many(partial(Talk, history="strip"), thinks, seeds=[5])
    with pytest.raises(ConfigError, match=message):
        break_values(Talk, thinks, episodes, **options)
    with pytest.raises(ConfigError, match="trajectories has a str"):
        break_values(Talk, thinks, "abc")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trajectories is a Trajectory; expected a list"):
        break_values(Talk, thinks, episodes[0])  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="No policy is named 'thinsk'"):
        break_values(partial(Talk, history="strip"), "thinsk", episodes)
