"""`trajectory.under` where single episodes show it; its two properties are among those of test_invariants.py."""

from typing import Any

import numpy as np
import pytest

from envsdk import Action, Env, Handoff, HandoffResult, Limits, Message, Trajectory, Turn, get_renderer, make, rollout
from envsdk.errors import CannotReplay, ConfigError
from envsdk.history import Summarize
from envsdk.policies import Aligned


class Interview(Env):
    """Asks ten questions. The reasoning is long."""

    def start(self) -> Turn:
        self.asked = 0
        return Turn("Question 0?", system="Answer.")

    def respond(self, reply: Message) -> Turn:
        self.asked += 1
        return Turn(f"Question {self.asked}?", reward=float(self.asked), terminated=self.asked == 10)


def played(env: Env, contents: str = "It is {}.") -> Trajectory:
    env.reset(seed=0)
    while env.trajectory is None:
        says = Message(role="assistant", reasoning="Let me think. " * 5, content=contents.format(len(env.messages())))
        env.step(env.renderer.reply(says))
    return env.trajectory


def test_rewards_and_sampled_tokens_are_those_that_were_recorded() -> None:
    env = Interview(history="strip")
    trajectory = played(env)
    kept = trajectory.under("keep")
    assert kept.left_out == [] and not kept.breaks and len(kept.samples()) == 1
    assert kept.history == {"name": "keep"} and kept.reward == trajectory.reward == 55
    assert [one.action.tolist() for one in kept.prompts()] == [one.action.tolist() for one in trajectory.prompts()]
    assert kept.under("strip").to_json() == trajectory.to_json()


def test_replies_after_a_prompt_that_does_not_fit_are_left_out_unless_the_limits_allow_it() -> None:
    trajectory = played(Interview(history={"name": "budget", "max_tokens": 200}, limits={"max_context_tokens": 230}))
    assert trajectory.status == "terminated"
    kept = trajectory.under("keep")
    assert (kept.status, kept.stop_reason) == ("truncated", "max_context_tokens")
    sampled = trajectory.sampled_tokens - kept.sampled_tokens
    left = len(trajectory.steps) - len(kept.steps)
    where = f"the prompt of step {len(kept.steps) + 1} does not fit (max_context_tokens)"
    assert kept.left_out == [f"main: {where}; the last {left} replies have {sampled} sampled tokens"]
    assert kept.sampled_tokens and Trajectory.from_json(kept.to_json()).left_out == kept.left_out
    whole = trajectory.under("keep", limits=Limits())
    assert whole.left_out == [] and len(whole.steps) == 10 and whole.status == "terminated"


def test_a_summary_that_the_other_policy_does_not_request_is_left_out() -> None:
    env = Interview(history={"name": "summarize", "threshold": 300})
    trajectory = played(env, "A summary. {}")
    summaries = [name for name in trajectory.contexts if name != "main"]
    assert summaries and any(step.break_ and step.break_.reason == "summary" for step in trajectory.steps)
    kept = trajectory.under("keep")
    assert list(kept.contexts) == ["main"] and not kept.breaks and len(kept.left_out) == len(summaries)
    assert f"{summaries[0]}: this summary is not requested" in kept.left_out[0]
    (sample,) = kept.samples()
    assert sample.mask.sum() == kept.sampled_tokens
    back = kept.under({"name": "summarize", "threshold": 300})
    assert any("no summary was written after reply" in why for why in back.left_out)


class Lead(Env):
    def start(self) -> Turn:
        self.asked = 0
        return Turn("Begin.")

    def respond(self, reply: Message) -> Any:
        self.asked += 1
        return Handoff(Interview(history="strip"), task="Ask.", role="checker")

    def resume(self, result: HandoffResult) -> Turn:
        return Turn("And now?", terminated=self.asked == 2)


def test_sub_agents_keep_their_own_policies() -> None:
    trajectory = played(Lead())
    compacted = trajectory.under({"name": "compact", "every": 1})
    mine = [{"reason": step.break_ and step.break_.reason} for step in compacted.steps if step.context == "main"]
    assert mine == [{"reason": None}, {"reason": "compaction"}]
    children = [name for name in trajectory.contexts if name != "main"]
    assert len(children) == 2
    for name in children:
        assert compacted.contexts[name].tokens.tolist() == trajectory.contexts[name].tokens.tolist()
    for one in (compacted, trajectory.under("strip")):  # which is theirs
        assert one.under("keep").to_json() == trajectory.to_json()


def test_a_sub_agent_that_was_interrupted_keeps_its_policy_and_has_no_limit_of_the_agent_above() -> None:
    env = Lead(limits={"max_context_tokens": 60})
    env.reset(seed=0)
    for _ in range(5):
        env.step(env.renderer.reply(Message(role="assistant", reasoning="Let me think.", content="It is.")))
    env.fail(RuntimeError("The server is gone."))
    trajectory = env.trajectory
    assert trajectory is not None and trajectory.steps[-1].context != "main"
    assert trajectory.under("keep").to_json() == trajectory.to_json()
    last = trajectory.under({"name": "compact", "every": 1}).steps[-1].break_
    assert last is not None and last.reason == "thinking_stripped"


def test_what_a_fork_shares_with_its_original_stays_shared() -> None:
    env = Interview(history="strip")
    env.reset(seed=0)
    reply = env.renderer.reply(Message(role="assistant", reasoning="Let me think.", content="It is."))
    for _ in range(4):
        env.step(reply)
    fork = env.fork()
    while fork.trajectory is None:
        fork.step(reply)
    kept = fork.trajectory.under("keep")
    assert [kept.is_copied(step) for step in kept.steps] == [True] * 4 + [False] * 6
    assert sum(int(sample.mask.sum()) for sample in kept.samples()) == 6 * len(reply)


def test_what_was_folded_is_shown_if_folds_are_not_replayed() -> None:
    env = make("envsdk/LongErrand-v0")
    trajectory = rollout(env, "reference", seed=0)
    folds = [break_ for break_ in trajectory.breaks if break_.reason == "fold"]
    assert folds and trajectory.under("keep").to_json() == trajectory.to_json()
    shown = trajectory.under("keep", folds=False, limits=Limits())
    assert shown.left_out == [] and "fold" not in [break_.reason for break_ in shown.breaks]
    assert shown.sampled_tokens == trajectory.sampled_tokens


def test_rows_of_side_data_over_a_prompt_that_changed_are_left_out() -> None:
    env = Interview(history="strip")
    env.reset(seed=0)

    while env.trajectory is None:
        tokens = env.renderer.reply(Message(role="assistant", reasoning="Let me think.", content="It is."))
        rows = np.arange(len(env.prompt()) + len(tokens), dtype=np.int32)
        env.step(Action(tokens, extra={"experts": Aligned(rows, "all")}))
    for name, own in (("strip", True), ("keep", False)):
        replayed = env.trajectory.under(name)
        lengths = [len(step.parts[0].extra["experts"]) - (step.stop - step.action_start) for step in replayed.steps]
        assert all(lengths) if own else lengths[0] and not any(lengths[1:])
        for sample in replayed.samples():
            sample.validate()


def test_another_tokenizer_and_another_rendering_are_refused() -> None:
    trajectory = played(Interview(renderer="qwen3"))
    with pytest.raises(CannotReplay, match="another tokenizer"):
        trajectory.tokenizer = "other"
        trajectory.under("keep")
    trajectory = played(Interview(renderer="qwen3"))
    with pytest.raises(CannotReplay, match="messages give other tokens"):
        trajectory.under("keep", get_renderer("qwen3", enable_thinking=False))


@pytest.mark.parametrize("renderer", [5, "qwen3", {}, {"agent": 5}])
def test_a_renderer_that_is_none_is_refused(renderer: Any) -> None:
    with pytest.raises(ConfigError, match="expected the episode's renderer"):
        played(Interview()).under("keep", renderer)


def test_limits_may_be_a_mapping_as_those_of_an_environment() -> None:
    trajectory = played(Interview())
    limited = trajectory.under("keep", limits={"max_context_tokens": 200})  # type: ignore[arg-type]
    assert limited.to_json() == trajectory.under("keep", limits=Limits(max_context_tokens=200)).to_json()
    with pytest.raises(ConfigError, match="limits is 5"):
        trajectory.under("keep", limits=5)  # type: ignore[arg-type]


def test_a_summarizer_that_returns_no_string_is_refused() -> None:
    policy = Summarize(threshold=100, summarizer=lambda messages: len(messages))  # type: ignore[arg-type, return-value]
    with pytest.raises(CannotReplay, match="a summarizer returns a string"):
        played(Interview()).under(policy)


def test_a_summary_is_accepted_or_rejected_as_by_the_other_policy() -> None:
    trajectory = played(Interview(history={"name": "summarize", "threshold": 300}), "A summary. {}")
    other = {"name": "summarize", "threshold": 300, "heading": "Before: " * 400}
    rejected, forced = trajectory.under(other), Interview(history=other)
    forced.reset(seed=0)
    first = next(index for index, step in enumerate(trajectory.steps) if step.context == "main/summary-1")
    for prompt in list(trajectory.prompts())[: first + 1]:
        forced.step(prompt.action)
    forced.fail(RuntimeError("This was all."))
    assert forced.trajectory is not None
    name, error = "main/summary-1", forced.trajectory.contexts["main/summary-1"].error
    assert error is not None and rejected.contexts[name].error == error and trajectory.contexts[name].error is None
    assert [break_.reason for break_ in rejected.breaks] == ["handoff", "return"]
    assert rejected.under(trajectory.history).to_json() == trajectory.to_json()
