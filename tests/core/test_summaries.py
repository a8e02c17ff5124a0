"""Summaries: who writes them, what they replace, when they are refused, and what is trained of them."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_models import gpt_oss_tokenizer, qwen3_folder
from soundness import check
from toy_policies import in_any_vocabulary

from envsdk import Action, Env, Handoff, HandoffResult, Limits, Message, ToolEnv, Trajectory, Turn, rollout, tool
from envsdk.contexts._history import get_history
from envsdk.errors import ConfigError, EpisodeError, TurnError
from envsdk.history import Summarize
from envsdk.policies import RandomPolicy

PADDING = "and so on " * 20


class Interview(Env):
    """Asks `questions` questions, whatever is answered."""

    def __init__(self, questions: int = 6, **options: Any) -> None:
        super().__init__(**options)
        self.questions = questions

    def start(self) -> Turn:
        self.asked = 1
        return Turn("Question 1?", system="Answer.")

    def respond(self, reply: Message) -> Turn:
        self.asked += 1
        return Turn(f"Question {self.asked}?", reward=0.25, terminated=self.asked > self.questions)


def speaks(env: Env, summary: str = "All was answered.") -> Any:
    """A policy that answers at length, and writes the same summary each time."""

    @in_any_vocabulary
    def policy(prompt: Any, *, context: str, max_tokens: int | None, **_: Any) -> Action:
        renderer = env.episode.pending_reply(context).context.renderer
        is_summary = "/summary-" in context
        text = summary if is_summary else f"Answer {len(prompt)} {PADDING}"
        tokens = renderer.reply(Message(role="assistant", content=text, reasoning="Hm." if not is_summary else None))
        is_cut = len(tokens) > (max_tokens or len(tokens))
        return Action(tokens[:max_tokens], np.full(len(tokens[:max_tokens]), -0.5), "length" if is_cut else "stop")

    return policy


def view_of(trajectory: Trajectory, context: str = "main") -> str:
    """The last prompt of a context, as text."""
    prompts = [prompt for step, prompt, _ in trajectory.prompts() if step.context == context]
    return TOKENIZER.decode(prompts[-1])


TOKENIZER = Interview().renderer.tokenizer


@pytest.mark.parametrize("renderer", ["qwen3", "harmony", "chatml", "fixed_base"])
def test_the_model_writes_a_summary_in_a_context_that_starts_with_this_one(renderer: str) -> None:
    tokenizer = {"harmony": gpt_oss_tokenizer, "fixed_base": qwen3_folder}.get(renderer, lambda: "embedded")()
    env = Interview(history=Summarize(threshold=300), renderer=renderer, tokenizer=tokenizer)
    trajectory = rollout(env, speaks(env), seed=1)
    check(trajectory)
    summaries = [name for name in trajectory.contexts if "/summary-" in name]
    assert summaries[0] == "main/summary-1"
    for name in summaries:
        first = next(step for step in trajectory.steps if step.context == name)
        assert (first.base, first.break_.reason) == ("main", "handoff") and first.keep > 300  # type: ignore[union-attr]
        assert trajectory.contexts[name].role == "main" and trajectory.contexts[name].parent == "main"
        assert trajectory.contexts[name].error is None
    rewrites = [break_ for break_ in trajectory.breaks if break_.kind == "rewrite"]
    assert {break_.reason for break_ in rewrites} == {"summary"} and len(rewrites) == len(summaries)
    samples = trajectory.samples()
    assert len(samples) == 1 + 2 * len(summaries)  # the main context is cut at each summary
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.sampled_tokens
    last = env.renderer.tokenizer.decode(samples[-1].tokens)
    assert "Summary of the conversation so far:\n\nAll was answered." in last
    assert "Question 1?" in last and "Question 2?" not in last
    assert [step.reward for step in trajectory.steps if step.context == "main"] == [0.25] * 6
    assert [step.reward for step in trajectory.steps if step.context != "main"] == [0.0] * len(summaries)


def test_a_function_writes_it() -> None:
    seen: list[list[Message]] = []

    def summarizer(messages: list[Message]) -> str:
        seen.append(messages)
        return f"{len(messages)} messages"

    env = Interview(history=Summarize(threshold=300, summarizer=summarizer))
    trajectory = rollout(env, speaks(env), seed=1)
    check(trajectory)
    assert list(trajectory.contexts) == ["main"]
    assert next([message.role for message in messages] for messages in seen) == ["assistant", "user"] * (
        len(seen[0]) // 2
    )
    assert all(message.content.startswith("Summary") for messages in seen[1:] for message in messages[:1])
    assert {break_.reason for break_ in trajectory.breaks} == {"summary"}
    assert f"{len(seen[-1])} messages" in view_of(trajectory)
    assert sum(step.metrics.get("summaries", 0) for step in trajectory.steps) == len(seen)
    assert trajectory.history["summarizer"].endswith("summarizer")


def test_a_summarizer_may_wait() -> None:
    async def summarizer(messages: list[Message]) -> str:
        await asyncio.sleep(0.001)
        return "Short."

    env = Interview(history=Summarize(threshold=300, summarizer=summarizer))
    assert "Short." in view_of(rollout(env, speaks(env), seed=1))
    env.reset(seed=1)  # and outside an event loop, too
    done = False
    while not done:
        *_, terminated, truncated, _ = env.step(speaks(env)(env.prompt(), context="main", max_tokens=9999))
        done = terminated or truncated
    assert env.trajectory is not None and "Short." in view_of(env.trajectory)
    env.close()

    async def inside() -> None:
        env.reset(seed=1)

    with pytest.raises(EpisodeError, match="areset"):
        asyncio.run(inside())


def test_what_a_summarizer_raises_ends_the_episode_and_says_where() -> None:
    def summarizer(messages: list[Message]) -> str:
        raise RuntimeError("no connection")

    env = Interview(history=Summarize(threshold=300, summarizer=summarizer))
    with pytest.raises(RuntimeError, match="no connection") as error:
        rollout(env, speaks(env), seed=1)
    assert "Raised by the summarizer summarizer() of Interview, seed 1" in error.value.__notes__[0]
    env = Interview(history=Summarize(threshold=300, summarizer=lambda messages: 3))  # type: ignore[arg-type,return-value]
    with pytest.raises(TurnError, match="a summarizer returns a string, or None for no summary, got 3"):
        rollout(env, speaks(env), seed=1)
    env = Interview(history=Summarize(threshold=300, summarizer=lambda messages: None))
    assert rollout(env, speaks(env), seed=1).breaks == []


@pytest.mark.parametrize(
    ("summary", "options", "reason"),
    [
        ("", {}, "it is empty"),
        (PADDING * 9, {}, "tokens, and what it replaces has"),
        ("All was answered.", {"accept": lambda summary: "Done" in summary}, "it was not accepted"),
        ("All was answered.", {"max_tokens": 3}, "it was cut"),
    ],
)
def test_a_summary_that_is_rejected_is_recorded_and_not_trained(summary: str, options: Any, reason: str) -> None:
    env = Interview(history=Summarize(threshold=300, **options))
    trajectory = rollout(env, speaks(env, summary), seed=1)
    check(trajectory)
    rejected = [name for name in trajectory.contexts if name != "main"]
    assert len(rejected) >= 2
    for name in rejected:
        error = trajectory.contexts[name].error
        assert error is not None and error.startswith("the summary was rejected: ") and reason in error
        assert len(trajectory.contexts[name].tokens)
    assert {break_.reason for break_ in trajectory.breaks} == {"handoff", "return"}
    assert [sample.context for sample in trajectory.samples()] == ["main"]
    assert len(trajectory.samples(include_failed=True)) == 1 + len(rejected)


def test_a_summary_is_no_step_of_the_episode_but_its_tokens_count() -> None:
    env = Interview(history=Summarize(threshold=300), limits=Limits(max_steps=6))
    trajectory = rollout(env, speaks(env), seed=1)
    assert trajectory.stop_reason == "terminated" and len(trajectory.steps) > 6
    limit = 500
    env = Interview(20, history=Summarize(threshold=300), limits=Limits(max_sampled_tokens=limit))
    trajectory = rollout(env, speaks(env), seed=1)
    check(trajectory)
    assert trajectory.stop_reason in ("max_sampled_tokens", "cut") and trajectory.sampled_tokens <= limit


def test_a_call_is_answered_before_a_summary_is_asked_for() -> None:
    class Tools(ToolEnv):
        @tool
        def look(self, at: str) -> str:
            """Look.

            Args:
                at: At what.
            """
            return f"{at}: {PADDING}"

        def start(self) -> Turn:
            return Turn("Look at five things.")

        def finish(self, reply: Message) -> Turn:
            return Turn(reward=1.0, terminated=True)

        def reference_reply(self) -> Message | str:
            looked = sum(message.role == "tool" for message in self.messages())
            if looked == 5:
                return "Done."
            call = {"function": {"name": "look", "arguments": {"at": f"thing {looked}"}}}
            return Message.from_openai({"role": "assistant", "content": "", "tool_calls": [call]})

    env = Tools(history=Summarize(threshold=250))
    trajectory = rollout(env, "reference", seed=1)
    check(trajectory)
    assert trajectory.reward == 1.0
    assert any(break_.reason == "summary" for break_ in trajectory.breaks)
    summary = trajectory.contexts["main/summary-1"].messages
    assert [message.role for message in summary[-3:]] == ["tool", "user", "assistant"]
    prompts = [prompt for step, prompt, _ in trajectory.prompts() if step.context == "main"]
    for prompt in prompts:  # no result is without its call
        text = TOKENIZER.decode(prompt)
        assert text.count("<tool_response>\n") == text.count('<tool_call>\n{"name": "look"')


def test_players_have_summaries_of_their_own() -> None:
    class Talk(Env):
        def start(self) -> Turn:
            self.turns = 0
            return Turn("Begin.", context="player0")

        def respond(self, reply: Message) -> Turn:
            self.turns += 1
            return Turn(f"Turn {self.turns}.", context=f"player{self.turns % 2}", terminated=self.turns == 12)

    env = Talk(history=Summarize(threshold=300))
    trajectory = rollout(env, speaks(env), seed=1)
    check(trajectory)
    assert {"player0/summary-1", "player1/summary-1"} <= trajectory.contexts.keys()
    assert trajectory.contexts["player1/summary-1"].role == "player1"
    rewrites = {break_.context for break_ in trajectory.breaks if break_.kind == "rewrite"}
    assert rewrites == {"player0", "player1"}


def test_a_summary_without_room_is_rejected() -> None:
    env = Interview(20, history=Summarize(threshold=300), limits=Limits(max_context_tokens=380))
    trajectory = rollout(env, speaks(env), seed=1)
    check(trajectory)
    rejected = [log.error for name, log in trajectory.contexts.items() if name != "main" and log.error]
    assert rejected and all("it ended with" in error for error in rejected)


def test_it_is_configuration() -> None:
    policy = get_history({"name": "summarize", "threshold": 8000, "max_tokens": 500})
    assert isinstance(policy, Summarize) and policy.specification()["threshold"] == 8000
    assert get_history(policy.specification()) == policy
    for options in ({}, {"threshold": 0}, {"threshold": 5, "summarizer": "me"}, {"threshold": 5, "instruction": ""}):
        with pytest.raises(ConfigError, match="history policy 'summarize'"):
            get_history({"name": "summarize", **options})


@given(
    policy_seed=st.integers(0, 99),
    threshold=st.integers(1, 200),
    stop=st.sampled_from([0.05, 0.2, 0.9]),
    max_tokens=st.sampled_from([None, 2, 40]),
    from_function=st.booleans(),
)
def test_whatever_is_sampled_it_is_sound(
    policy_seed: int, threshold: int, stop: float, max_tokens: int | None, from_function: bool
) -> None:
    writer = (lambda messages: messages[0].content[:9]) if from_function else None
    history = Summarize(threshold=threshold, summarizer=writer, max_tokens=max_tokens)
    env = Interview(8, history=history, limits=Limits(end_on_cut=False))
    policy = RandomPolicy(TOKENIZER.vocab_size, seed=policy_seed, stop_probability=stop)
    check(rollout(env, policy, seed=1))


def test_what_refuses_a_summary_may_fail_and_only_its_own_agent_does() -> None:
    def accept(summary: str) -> bool:
        raise RuntimeError("no judge")

    class Asks(Env):
        def start(self) -> Turn:
            return Turn("Ask.")

        def respond(self, reply: Message) -> Handoff:
            return Handoff(Interview(history=Summarize(threshold=300, accept=accept)))

        def resume(self, result: HandoffResult) -> Turn:
            self.error = result.error
            return Turn("x", terminated=True)

    env = Asks()
    check(rollout(env, speaks(env), seed=1))
    assert env.error == "RuntimeError: no judge"
    env = Interview(history=Summarize(threshold=300, accept=accept))
    with pytest.raises(RuntimeError, match="no judge"):
        rollout(env, speaks(env), seed=1)


def test_a_return_is_declared_though_a_summary_was_asked_for_in_between() -> None:
    class Asks(Env):
        def start(self) -> Turn:
            self.asked = 0
            return Turn("Ask.")

        def respond(self, reply: Message) -> Handoff | Turn:
            self.asked += 1
            return Handoff(Interview(1)) if self.asked < 4 else Turn("x", terminated=True)

        def resume(self, result: HandoffResult) -> Turn:
            return Turn("Go on.")

    env = Asks(history=Summarize(threshold=1, summarizer=lambda messages: None))
    trajectory = rollout(env, speaks(env), seed=1)
    check(trajectory)
    assert [break_.reason for break_ in trajectory.breaks] == ["handoff", "return"] * 3
