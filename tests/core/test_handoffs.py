"""Several contexts in one episode: sub-agents, nested, side by side and failing; players; and their credit."""

import asyncio
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soundness import check
from toy_policies import in_any_vocabulary

from envsdk import (
    Action,
    Env,
    Handoff,
    HandoffResult,
    Limits,
    Message,
    ToolEnv,
    Trajectory,
    Turn,
    get_renderer,
    rollout,
    tool,
)
from envsdk.episodes import _agent
from envsdk.errors import ConfigError, EpisodeError, HandoffError, PolicyError, RenderError, TurnError
from envsdk.policies import RandomPolicy


class Worker(Env):
    """Answers once, after `rounds` questions."""

    def __init__(self, rounds: int = 1, reward: float = 0.25, **options: Any) -> None:
        super().__init__(**options)
        self.rounds, self.reward = rounds, reward

    def start(self) -> Turn:
        self.heard = 0
        return Turn(f"Work on {self.task}.", system="You work.")

    def respond(self, reply: Message) -> Turn:
        self.heard += 1
        is_last = self.heard == self.rounds
        return Turn("More." if not is_last else "Done.", reward=self.reward * is_last, terminated=is_last)


class Fails(Env):
    def start(self) -> Turn:
        return Turn("Fail.")

    def respond(self, reply: Message) -> Turn:
        raise RuntimeError("the disk is full")


class FailsAtOnce(Env):
    def start(self) -> Turn:
        raise RuntimeError("there is no disk")


class Boss(Env):
    """Hands over what it was given, one after the other, and ends with the sum."""

    def __init__(self, plan: list[Any], **options: Any) -> None:
        super().__init__(**options)
        self.plan = plan

    def start(self) -> Turn:
        self.left, self.results = list(self.plan), []
        return Turn("Delegate.", system="You delegate.")

    def respond(self, reply: Message) -> Any:
        if not self.left:
            return Turn("Good.", reward=1.0, terminated=True)
        return self.left.pop(0)

    def resume(self, result: Any) -> Turn:
        self.results.append(result)
        results = result if isinstance(result, list) else [result]
        return Turn("; ".join(one.error or one.content[:20] for one in results), reward=0.125)


def says(text: str) -> Any:
    """A policy that says its role and the number of its reply."""

    @in_any_vocabulary
    def policy(prompt: Any, *, role: str, context: str, **_: Any) -> Any:
        from envsdk import Action

        tokens = TOKENIZER.encode(f"{text} {role} {context} {len(prompt)}").tolist()
        return Action([*tokens, END], np.full(len(tokens) + 1, -0.5))

    return policy


ENV = Boss([])
TOKENIZER, END = ENV.renderer.tokenizer, ENV.renderer.stop_token_ids[0]


def test_a_parent_that_delegates_is_one_sample_and_each_child_is_one() -> None:
    env = Boss([Handoff(Worker(2), "bees", role="researcher"), Handoff(Worker(), "ants", role="researcher")])
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert list(trajectory.contexts) == ["main", "main/researcher-1", "main/researcher-2"]
    assert [step.context for step in trajectory.steps] == [
        *("main", "main/researcher-1", "main/researcher-1", "main", "main/researcher-2", "main")
    ]
    kinds = [(broken.kind, broken.reason, broken.context) for broken in trajectory.breaks]
    assert kinds == [
        ("switch", "handoff", "main/researcher-1"),
        ("switch", "return", "main"),
        ("switch", "handoff", "main/researcher-2"),
        ("switch", "return", "main"),
    ]
    assert all(broken.dropped == 0 for broken in trajectory.breaks)
    samples = trajectory.samples()
    assert [(sample.context, sample.role, sample.parent) for sample in samples] == [
        *(("main", "main", None), ("main/researcher-1", "researcher", "main")),
        ("main/researcher-2", "researcher", "main"),
    ]
    assert trajectory.reward == 0.125 + 0.25 + 0.125 + 0.25 + 1.0
    assert [step.reward for step in trajectory.steps] == [0.125, 0.0, 0.25, 0.125, 0.25, 1.0]
    assert env.results[0].content.startswith("I researcher")
    assert (env.results[0].reward, env.results[0].stop_reason, env.results[0].error) == (0.25, "terminated", None)
    assert "Work on bees." in TOKENIZER.decode(trajectory.contexts["main/researcher-1"].tokens)


def test_a_list_is_children_side_by_side_and_the_record_is_the_same_as_one_after_the_other() -> None:
    def boss() -> Boss:
        return Boss([[Handoff(Worker(n), n, role="w") for n in (3, 1, 2)]])

    at_once = rollout(boss(), says("I"), seed=1)
    env = boss()
    observation, info = env.reset(seed=1)
    policy, done = says("I"), False
    while not done:
        action = policy(env.prompt(), role=info["role"], context=observation.context)
        observation, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    assert env.trajectory is not None
    check(at_once)
    assert at_once.to_json() == env.trajectory.to_json()
    assert [result.reward for result in env.results[0]] == [0.25] * 3


def test_children_in_a_list_wait_for_nobody() -> None:
    running = most = 0

    @in_any_vocabulary
    async def policy(prompt: Any, *, role: str, context: str, **_: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return says("I")(prompt, role=role, context=context)

    rollout(Boss([[Handoff(Worker(), n) for n in range(4)]]), policy, seed=1)
    assert most == 4


def test_full_history_is_a_prompt_that_starts_with_the_parents() -> None:
    trajectory = rollout(Boss([Handoff(Worker(2), "it", history="full")]), says("I"), seed=1)
    check(trajectory)
    prompts = {}
    for step, prompt, action in trajectory.prompts():
        prompts.setdefault(step.context, (step, np.append(prompt, action)))
    step, child = prompts["main/worker-1"]
    parent = prompts["main"][1]
    assert step.base == "main" and step.keep == len(parent)
    assert child[: len(parent)].tolist() == parent.tolist()
    assert step.break_ is not None and (step.break_.base, step.break_.kept) == ("main", len(parent))
    assert trajectory.tree_size(include_failed=True) < sum(len(sample) for sample in trajectory.samples())


def test_a_filter_says_what_goes_in_and_another_what_comes_out() -> None:
    env = Boss(
        [
            Handoff(
                Worker(),
                "it",
                history=lambda messages: [m for m in messages if m.role == "user"],
                result=lambda result: HandoffResult([], "secret", 0.0, result.stop_reason),
            )
        ]
    )
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert [m.content for m in trajectory.contexts["main/worker-1"].messages][:3] == [
        "You work.", "Delegate.", "Work on it."
    ]  # fmt: skip
    assert env.results[0].content == "secret"


def test_with_full_history_the_tools_are_the_parents() -> None:
    class HasTools(Worker):
        def start(self) -> Turn:
            return Turn("x", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])

    env = Boss([Handoff(HasTools(), history="full")])
    rollout(env, says("I"), seed=1)
    assert "it has its parent's tools" in env.results[0].error


@pytest.mark.parametrize("child", [Fails(), FailsAtOnce()], ids=["while it runs", "at once"])
def test_a_child_that_fails_gives_a_result_that_says_so(child: Env) -> None:
    env = Boss([Handoff(child)])
    trajectory = rollout(env, says("I"), seed=1)
    assert trajectory.status == "terminated"
    assert env.results[0].error.startswith("RuntimeError: ") and "disk" in env.results[0].error
    assert env.results[0].stop_reason == "error"
    check(trajectory)
    assert [sample.context for sample in trajectory.samples()] == ["main"]


def test_a_child_that_reaches_its_limit_gives_a_result_that_says_so() -> None:
    env = Boss([Handoff(Worker(9), limits={"max_steps": 2})])
    check(rollout(env, says("I"), seed=1))
    assert (env.results[0].stop_reason, env.results[0].error) == ("max_steps", None)


def test_what_a_child_does_counts_for_its_parents() -> None:
    env = Boss([Handoff(Worker(9)), Handoff(Worker(9))], limits=Limits(max_steps=4))
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert (trajectory.stop_reason, len(trajectory.steps)) == ("max_steps", 4)
    assert env.results[0].stop_reason == "max_steps"


def test_a_child_that_takes_too_long_gives_a_result_that_says_so() -> None:
    @in_any_vocabulary
    async def policy(prompt: Any, *, role: str, context: str, **_: Any) -> Any:
        await asyncio.sleep(9 if role == "worker" else 0)
        return says("I")(prompt, role=role, context=context)

    env = Boss([Handoff(Worker(), timeout_s=0.02)])
    trajectory = rollout(env, policy, seed=1)
    assert trajectory.status == "terminated"
    assert "did not finish within 0.02 s" in env.results[0].error


def test_a_cycle_ends_with_an_error() -> None:
    class Recursive(Env):
        def start(self) -> Turn:
            return Turn("Again.")

        def respond(self, reply: Message) -> Any:
            return Handoff(Recursive())

        def resume(self, result: HandoffResult) -> Turn:
            return Turn("x", terminated=True, info={"error": result.error})

    trajectory = rollout(Recursive(), says("I"), seed=1)
    check(trajectory)
    assert len(trajectory.contexts) == 9
    deepest = [log for log in trajectory.contexts.values() if log.error]
    assert "hands over at depth 9, but at most 8 is allowed" in deepest[0].error


def test_what_cannot_be_handed_over_to_is_refused() -> None:
    with pytest.raises(HandoffError, match="goes to an Env, got a str"):
        Handoff("researcher")  # type: ignore[arg-type]
    with pytest.raises(HandoffError, match="a name without '/'"):
        Handoff(Worker(), role="a/b")
    with pytest.raises(ConfigError, match="history is 'some'"):
        Handoff(Worker(), history="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout_s is 0"):
        Handoff(Worker(), timeout_s=0)
    env = Boss([])
    env.plan = [Handoff(env)]
    with pytest.raises(HandoffError, match="is running already"):
        rollout(env, says("I"), seed=1)
    twice = Worker()
    with pytest.raises(HandoffError, match="is running already"):
        rollout(Boss([[Handoff(twice), Handoff(twice)]]), says("I"), seed=1)


def test_a_worker_can_be_used_again_when_it_is_done() -> None:
    worker = Worker()
    trajectory = rollout(Boss([Handoff(worker, 1), Handoff(worker, 2)]), says("I"), seed=1)
    check(trajectory)
    assert len(trajectory.samples()) == 3


def test_the_seed_of_a_child_is_its_own_and_the_same_each_time() -> None:
    class Draws(Worker):
        def start(self) -> Turn:
            return Turn(str(self.np_random.integers(1 << 30)))

    def drawn(seed: int) -> list[str]:
        env = Boss([Handoff(Draws()), Handoff(Draws())])
        trajectory = rollout(env, says("I"), seed=seed)
        return [trajectory.contexts[name].messages[0].content for name in ("main/draws-1", "main/draws-2")]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 4


class Team(ToolEnv):
    """Tools that hand over."""

    @tool
    def ask(self, topic: str) -> Handoff:
        """Ask a researcher.

        Args:
            topic: What about.
        """
        return Handoff(Fails() if topic == "fail" else Worker(), topic, role="researcher")

    @tool
    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: The other.
        """
        return a + b

    def start(self) -> Turn:
        return Turn("Find out.")

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)

    def reference_reply(self) -> Message | str:
        calls = [
            {"function": {"name": "ask", "arguments": {"topic": "bees"}}},
            {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}},
            {"function": {"name": "ask", "arguments": {"topic": "fail"}}},
        ]
        asked = Message.from_openai({"role": "assistant", "content": "", "tool_calls": calls})
        return "Done." if self.messages()[-1].role == "tool" else asked


def test_what_a_tool_handed_over_to_answers_its_call() -> None:
    trajectory = rollout(Team(), {"main": "reference", "researcher": says("I")}, seed=1)
    check(trajectory)
    results = [m.content for m in trajectory.contexts["main"].messages if m.role == "tool"]
    assert results[0].startswith("I researcher main/researcher-1") and results[1] == "3"
    assert results[2].startswith("Error: RuntimeError: the disk is full")
    assert trajectory.reward == 1.25


def test_a_tool_tells_which_sub_agent_said_what_and_which_did_not_finish() -> None:
    class Both(Team):
        @tool
        def ask(self, topic: str) -> list[Handoff]:
            """Ask two.

            Args:
                topic: What about.
            """
            return [Handoff(Worker(), topic), Handoff(Worker(9), topic, limits={"max_steps": 1})]

    trajectory = rollout(Both(), {"main": "reference", "worker": says("I")}, seed=1)
    first, second = next(m.content for m in trajectory.contexts["main"].messages if m.role == "tool").split("\n\n")
    assert first.startswith("worker-1: I worker main/worker-1")
    assert second.startswith("worker-2: I worker") and second.endswith("[It did not finish: max_steps]")


def test_a_sub_agent_and_its_parent_may_say_what_its_context_earned() -> None:
    class Scored(Worker):
        def respond(self, reply: Message) -> Turn:
            return Turn(context_rewards={self.context: 2.0}, terminated=True)

    class Judge(Boss):
        def resume(self, result: HandoffResult) -> Turn:
            return Turn("Well.", context_rewards={result.context: 0.5, "main": 3.0})

    trajectory = rollout(Judge([Handoff(Scored()), Handoff(Worker(reward=0.0))]), says("I"), seed=1)
    check(trajectory)
    assert [(sample.context, sample.reward) for sample in trajectory.samples()] == [
        *(("main", 6.0), ("main/scored-1", 2.5), ("main/worker-1", 0.5))
    ]


# Players.


class Duel(Env):
    """Two players say something in turn; the second wins."""

    def start(self) -> Turn:
        self.said: list[str] = []
        return Turn("You are first.", system="Player 0.", context="player0")

    def respond(self, reply: Message) -> Turn:
        self.said.append(reply.content)
        turn = len(self.said)
        if turn == 4:
            rewards = {"player0": -1.0, "player1": 1.0}
            return Turn("The end.", context="player1", context_rewards=rewards, terminated=True)
        system = "Player 1." if turn == 1 else None
        return Turn(f"They said: {self.said[-1][:8]}", context=f"player{turn % 2}", system=system)


def test_players_alternate_without_a_break_and_have_rewards_of_their_own() -> None:
    trajectory = rollout(Duel(), {"player0": says("A"), "player1": says("B")}, seed=1)
    check(trajectory)
    assert [step.context for step in trajectory.steps] == ["player0", "player1", "player0", "player1"]
    assert [step.extends for step in trajectory.steps] == [False, False, True, True]
    assert trajectory.breaks == []
    samples = trajectory.samples()
    assert [(sample.role, sample.reward) for sample in samples] == [("player0", -1.0), ("player1", 1.0)]
    assert "They said: A player" in TOKENIZER.decode(trajectory.contexts["player1"].tokens)


def test_each_role_needs_a_policy() -> None:
    with pytest.raises(PolicyError, match="no policy for the role 'player1', only for \\['player0'\\]"):
        rollout(Duel(), {"player0": says("A")}, seed=1)


def test_players_may_be_different_models() -> None:
    from envsdk import get_renderer

    other = get_renderer("qwen3", "embedded", enable_thinking=False)

    class Mixed(Duel):
        def renderer_of(self, role: str) -> Any:
            return other if role == "player1" else self.renderer

    trajectory = rollout(Mixed(), says("A"), seed=1)
    check(trajectory)
    assert "<think>\n\n</think>" in TOKENIZER.decode(trajectory.contexts["player1"].tokens)
    assert "<think>" not in TOKENIZER.decode(trajectory.contexts["player0"].tokens)


def test_wrong_names_of_contexts_are_refused() -> None:
    class Wrong(Duel):
        def respond(self, reply: Message) -> Turn:
            return Turn("x", context_rewards={"player7": 1.0})

    with pytest.raises(TurnError, match=r"a turn names the context 'player7'; the contexts are \['player0'\]"):
        rollout(Wrong(), says("A"), seed=1)
    with pytest.raises(TurnError, match="context is 3"):
        Turn("x", context=3)  # type: ignore[arg-type]

    class Taken(Boss):
        def resume(self, result: HandoffResult) -> Turn:
            return Turn("x", context="main/worker-1")

    with pytest.raises(HandoffError, match="the context name 'main/worker-1' is taken by the role 'worker'"):
        rollout(Taken([Handoff(Worker())]), says("A"), seed=1)


# Random trees of all of it.


HISTORIES: list[Any] = ["keep", "strip", {"name": "summarize", "threshold": 90}]


class Tree(Env):
    """Draws what it does next: speak, hand over (once, in a list, on all that was said), let a player speak, fail."""

    def __init__(self, seed: int, depth: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.rng, self.depth = Random(seed), depth

    def start(self) -> Any:
        self.turns = self.handovers = 0
        return self.handoffs(["fresh"]) if self.rng.random() < 0.3 and self.depth < 3 else self.first()

    def first(self) -> Turn:
        return Turn("Begin.", system="S." if self.rng.random() < 0.5 else None)

    def handoffs(self, histories: list[str]) -> Any:
        self.handovers += 1
        rng = self.rng
        handoffs = [
            Handoff(
                Tree(rng.randrange(1 << 30), self.depth + 1, history=rng.choice(HISTORIES)),
                role=rng.choice("ab"),
                history=rng.choice(histories),
                limits={"max_steps": rng.randint(1, 6)},
                adds_reward=rng.random() < 0.7,
            )
            for _ in range(rng.randint(1, 3))
        ]
        return handoffs if len(handoffs) > 1 else handoffs[0]

    def respond(self, reply: Message) -> Any:
        draw, rng = self.rng.random(), self.rng
        self.turns += 1
        if self.turns > 4 or draw < 0.15:
            return Turn("End.", reward=rng.random(), terminated=True)
        if draw < 0.25 and self.depth:
            raise RuntimeError("it fails")
        if draw < 0.6 and self.depth < 3:
            return self.handoffs(["fresh", "full"])
        return Turn("Go on.", context=rng.choice([None, None, "p", "q"]), reward=0.5)

    def resume(self, result: Any) -> Any:
        if self.turns:
            return Turn("They are back.")
        draw = self.rng.random()
        if draw < 0.2 and self.handovers < 3:
            return self.handoffs(["fresh"])
        if draw < 0.3:
            return Turn(
                terminated=True, context_rewards={one.context: 1.0 for one in results_of(result) if one.context}
            )
        return Turn("End.", terminated=True) if draw < 0.4 else self.first()


def results_of(result: Any) -> list[HandoffResult]:
    return result if isinstance(result, list) else [result]


def grow(seed: int, strips: bool) -> Tree:
    return Tree(seed, history="strip" if strips else "keep", limits=Limits(max_steps=40, end_on_cut=False))


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 1 << 30), strips=st.booleans())
def test_every_tree_of_handoffs_players_and_forks_is_sound(seed: int, strips: bool) -> None:
    rng = Random(seed)
    env = grow(seed, strips)
    env.reset(seed=seed)
    policy = RandomPolicy(TOKENIZER.vocab_size, seed=1, stop_probability=0.3)
    running, done = ([env], []) if env.trajectory is None else ([], [env.trajectory])
    while running:
        one = rng.choice(running)
        if len(running) + len(done) < 5 and rng.random() < 0.2:
            running.append(one.fork())
        _, info = one.pending()
        limits = {"stop_token_ids": info["stop_token_ids"], "max_tokens": info["max_tokens"]}
        one.step(policy(one.prompt(), episode_id=one.episode_id, **limits))
        if one.trajectory is not None:
            running.remove(one)
            done.append(one.trajectory)
    check(*done)


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 1 << 30), strips=st.booleans())
def test_every_tree_is_the_same_whether_it_is_stepped_or_rolled_out(seed: int, strips: bool) -> None:
    policy = RandomPolicy(TOKENIZER.vocab_size, seed=1, stop_probability=0.3)
    env = grow(seed, strips)
    env.reset(seed=seed)
    while env.trajectory is None:
        _, info = env.pending()
        asked = {"stop_token_ids": info["stop_token_ids"], "max_tokens": info["max_tokens"]}
        env.step(policy(env.prompt(), episode_id=env.episode_id, **asked))
    assert env.trajectory.reward == pytest.approx(sum(step.reward or 0.0 for step in env.trajectory.steps))
    ends = {env.trajectory.stop_reason, *(log.stop_reason for log in env.trajectory.contexts.values())}
    rolled_out = rollout(grow(seed, strips), policy, seed=seed)
    check(rolled_out)
    if "max_steps" not in ends:  # side by side, who comes first takes most of a shared limit
        assert rolled_out.to_json() == env.trajectory.to_json()


# Handing over before the first turn.


class Orders(Env):
    """Begins with handoffs, and then says one turn after the other."""

    def __init__(self, first: Any, *turns: Any, **options: Any) -> None:
        super().__init__(**options)
        self.said = [first, *turns]

    def start(self) -> Any:
        self.results: list[HandoffResult] = []
        self.left = list(self.said)
        return self.left.pop(0)

    def resume(self, result: Any) -> Any:
        self.results += results_of(result)
        return self.left.pop(0)

    def respond(self, reply: Message) -> Any:
        return self.left.pop(0)


GOOD = Turn("Good.", reward=1.0, terminated=True)


@pytest.mark.parametrize("is_list", [False, True])
def test_an_episode_may_begin_with_a_handoff(is_list: bool) -> None:
    first = [Handoff(Worker()), Handoff(Worker())] if is_list else Handoff(Worker())
    env = Orders(first, Turn("What now?", system="You know."), GOOD)
    observation, info = env.reset(seed=1)
    assert (observation.context, observation.keep, observation.extends) == ("main/worker-1", 0, False)
    assert (info["break"].reason, info["break"].detail) == ("handoff", "from main")
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    workers = [f"main/worker-{number}" for number in range(1, 2 + is_list)]
    assert list(trajectory.contexts) == ["main", *workers]
    assert [step.context for step in trajectory.steps] == [*workers, "main"]
    assert {trajectory.contexts[name].parent for name in workers} == {"main"}
    assert trajectory.steps[-1].break_ is None and not trajectory.steps[-1].extends
    assert [sample.context for sample in trajectory.samples()] == [*workers, "main"]
    assert trajectory.reward == 0.25 * len(workers) + 1.0


def test_the_seed_of_a_sub_agent_depends_on_the_episodes_and_its_name_alone() -> None:
    class Draws(Worker):
        def start(self) -> Turn:
            super().start()
            return Turn(str(self.np_random.integers(1 << 30)))

    handed = [Orders(Handoff(Draws()), Turn("?"), GOOD), Boss([Handoff(Draws())])]
    said = [rollout(env, says("I"), seed=1).contexts["main/draws-1"].messages[0] for env in handed]
    assert said[0] == said[1]


def test_an_agent_may_delegate_all_of_an_episode() -> None:
    end = Turn(terminated=True, context_rewards={"main/worker-1": 0.75})
    env = Orders(Handoff(Worker()), Handoff(Worker()), end)
    observation, *_ = env.reset(seed=1)
    for _ in range(2):
        observation, reward, terminated, truncated, info = env.step(
            env.renderer.reply(Message(role="assistant", content="I"))
        )
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.25, True, False, "terminated")
    assert (observation.context, len(observation.tokens), observation.keep) == ("main", 0, 0)
    check(env.trajectory)
    assert list(env.trajectory.contexts) == ["main/worker-1", "main/worker-2"]
    assert [log.parent for log in env.trajectory.contexts.values()] == [None, None]
    assert (env.trajectory.reward_of("main/worker-1"), env.trajectory.reward) == (0.75, 0.5)
    assert rollout(env, says("I"), seed=1).stop_reason == "terminated"


@pytest.mark.parametrize("says_something", [True, False])
def test_a_limit_that_sub_agents_reach_ends_an_agent_before_its_first_turn(says_something: bool) -> None:
    class Again(Orders):
        def resume(self, result: Any) -> Any:
            return Turn("What now?") if says_something else Handoff(Worker())

    trajectory = rollout(
        Again(Handoff(Worker()), limits={"max_steps": 3 if not says_something else 1}), says("I"), seed=1
    )
    check(trajectory)
    assert trajectory.stop_reason == "max_steps" and ("main" in trajectory.contexts) == says_something


def test_a_sub_agent_may_begin_with_a_handoff_and_take_over_its_renderer() -> None:
    inner = Orders(Handoff(Worker()), Turn("And you?"), GOOD)
    renderer = get_renderer("chatml", "embedded")
    env = Orders(Handoff(inner), Turn("And now?"), GOOD, renderer=renderer)
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert list(trajectory.contexts) == ["main", "main/orders-1", "main/orders-1/worker-1"]
    assert trajectory.contexts["main/orders-1/worker-1"].parent == "main/orders-1"


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ([Handoff(Worker(), history="full")], HandoffError, "before its first turn"),
        ([Handoff(Worker()), Turn("?", reward=1.0)], TurnError, "no reply was sampled yet"),
        ([Handoff(Worker()), Turn("?", reward=1.0, terminated=True)], TurnError, "no reply was sampled yet"),
        ([Handoff(Worker()), Turn("?", continues=True)], TurnError, "no reply was sampled yet"),
        ([Handoff(Worker()), Turn()], TurnError, "no message"),
        ([Turn("?", terminated=True)], TurnError, "ends the episode"),
        ([[]], TurnError, "not empty"),
    ],
)
def test_what_makes_no_sense_before_the_first_turn_is_refused(said: list[Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        rollout(Orders(*said), says("I"), seed=1)


def test_an_agent_that_only_hands_over_to_what_fails_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_agent, "STEPS_WITHOUT_LIMIT", 50)  # a thousand outside of this test

    class Loops(Orders):
        def resume(self, result: Any) -> Any:
            return Handoff(FailsAtOnce())

    with pytest.raises(HandoffError, match=r"handed over 50 times in a row"):
        Loops(Handoff(FailsAtOnce())).reset(seed=0)


def test_a_conversation_can_be_filtered_before_there_is_one() -> None:
    env = Orders(
        Handoff(Worker(), history=lambda messages: [*messages, Message(role="user", content="Hm.")]), Turn("?"), GOOD
    )
    trajectory = rollout(env, says("I"), seed=1)
    assert [m.content for m in trajectory.contexts["main/worker-1"].messages[:3]] == [
        "You work.",
        "Hm.",
        "Work on None.",
    ]


# Whose reward it is.


@pytest.mark.parametrize("adds", [True, False])
def test_what_a_sub_agent_earns_counts_for_the_episode_unless_the_handoff_says_otherwise(adds: bool) -> None:
    inner = Orders(Handoff(Worker(reward=0.25)), Turn("And you?"), Turn("Good.", reward=0.5, terminated=True))
    env = Orders(Handoff(inner, adds_reward=adds), Turn("And now?"), GOOD)
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert env.results[0].reward == 0.75
    assert trajectory.reward == (1.75 if adds else 1.0)
    own = {name: trajectory.reward_of(name) for name in trajectory.contexts}
    inner_own = {"main/orders-1": 0.5, "main/orders-1/worker-1": 0.25}
    assert own == (dict.fromkeys(own, 1.75) if adds else {"main": 1.0, **inner_own})
    assert {sample.context: sample.reward for sample in trajectory.samples()} == own


def test_what_does_not_count_for_a_sub_agent_does_not_count_in_its_result() -> None:
    inner = Orders(Handoff(Worker(reward=5.0), adds_reward=False), Turn("And you?"), GOOD)
    env = Orders(Handoff(inner), Turn("And now?"), Turn("Good.", terminated=True))
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert inner.results[0].reward == 5.0
    assert env.results[0].reward == trajectory.reward == 1.0


# What may go wrong, and is not silent.


class Endless(Env):
    """Hands over again and again."""

    def start(self) -> Turn:
        self.back: list[str] = []
        return Turn("x")

    def respond(self, reply: Message) -> Any:
        return Handoff(Worker(2))

    def resume(self, result: HandoffResult) -> Any:
        self.back.append(result.stop_reason)
        return Handoff(Worker(2)) if len(self.back) < 50 else Turn("e", terminated=True)


@pytest.mark.parametrize("plays", ["step", "rollout"])
def test_a_limit_that_is_reached_ends_handing_over(plays: str) -> None:
    env = Endless(limits={"max_steps": 5})
    trajectory = play(env) if plays == "step" else rollout(env, says("I"), seed=1)
    check(trajectory)
    assert (len(trajectory.steps), trajectory.stop_reason) == (5, "max_steps")
    assert env.back == ["terminated", "terminated", "max_steps"]


def play(env: Env, policy: Any = None) -> Trajectory:
    """An episode by `step`."""
    policy = policy or says("I")
    observation, info = env.reset(seed=1)
    done = False
    while not done:
        action = policy(env.prompt(), role=info["role"], context=observation.context)
        observation, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    assert env.trajectory is not None
    return env.trajectory


def test_nobody_is_asked_where_a_limit_is_reached_already() -> None:
    env = Boss([[Handoff(Worker(3)) for _ in range(3)]], limits={"max_steps": 1})
    trajectory = play(env)
    assert (len(trajectory.steps), list(trajectory.contexts)) == (1, ["main"])
    assert [one.stop_reason for one in env.results[0]] == ["max_steps"] * 3
    assert trajectory.reward == 0.125 and trajectory.stop_reason == "max_steps"  # and its own reply was scored
    cut = Boss([Handoff(Worker())])
    cut.reset(seed=1)
    cut.step(Action([5], [-0.1], finish_reason="length"))
    assert (finished(cut).stop_reason, cut.results[0].stop_reason) == ("cut", "cut")


def finished(env: Env) -> Trajectory:
    assert env.trajectory is not None
    return env.trajectory


def test_an_environment_is_one_agent_at_a_time() -> None:
    shared = Worker(2)

    class Middle(Env):
        def start(self) -> Turn:
            return Turn(f"middle {self.task}")

        def respond(self, reply: Message) -> Handoff:
            return Handoff(shared, self.task)

        def resume(self, result: HandoffResult) -> Turn:
            self.error = result.error
            return Turn("ok", terminated=True)

    @in_any_vocabulary
    async def slow(prompt: Any, *, role: str, context: str, **_: Any) -> Any:
        await asyncio.sleep(0)
        return says("I")(prompt, role=role, context=context)

    middles = [Middle(), Middle()]
    check(rollout(Boss([[Handoff(middle, task) for middle, task in zip(middles, "AB", strict=True)]]), slow, seed=1))
    assert middles[0].error is None and "is in use already, as 'main/middle-1/worker-1'" in middles[1].error
    env = Boss([Handoff(shared), Handoff(shared)])
    env.reset(seed=1)
    env.step([END])
    env.reset(seed=1)  # who was left in the middle of an episode is free again
    assert rollout(env, says("I"), seed=1).status == "terminated"


def test_sub_agents_that_were_interrupted_are_not_forgotten() -> None:
    @in_any_vocabulary
    async def policy(prompt: Any, *, role: str, context: str, **_: Any) -> Any:
        await asyncio.sleep(0)
        if context.endswith("-2"):
            raise ConnectionError("no server")
        return says("I")(prompt, role=role, context=context)

    env = Boss([[Handoff(Worker(3)) for _ in range(3)]])
    with pytest.raises(ConnectionError):
        rollout(env, policy, seed=1)
    for goes_on in (lambda: rollout(env, says("I"), reset=False), lambda: env.step([END]), env.fork, env.pending):
        with pytest.raises(EpisodeError, match="sub-agents were interrupted before they had ended"):
            goes_on()
    trajectory = env.fail(ConnectionError("no server"))
    check(trajectory)
    assert trajectory.status == "error" and trajectory.samples() == []
    assert rollout(env, says("I"), seed=1).status == "terminated"
    assert play(env).status == "terminated"


def test_nothing_goes_on_after_a_failure() -> None:
    env = Boss([Handoff(Worker(2))])
    env.reset(seed=1)
    env.step([END])
    trajectory = env.fail(RuntimeError("x"))
    with pytest.raises(EpisodeError, match="after the end"):
        env.step([END])
    assert env.trajectory is trajectory and trajectory.status == "error"


def test_players_of_a_sub_agent_are_its_own() -> None:
    class Judge(Boss):
        def resume(self, result: HandoffResult) -> Turn:
            self.results.append(result)
            return Turn("Well.", context_rewards={result.context: 0.5})

    env = Judge([Handoff(Duel())])
    trajectory = rollout(env, says("I"), seed=1)
    check(trajectory)
    assert list(trajectory.contexts) == ["main", "main/duel-1/player0", "main/duel-1/player1"]
    assert env.results[0].content.startswith("I player0") and env.results[0].context == "main/duel-1/player0"
    assert [log.reward for log in trajectory.contexts.values()] == [None, -0.5, 1.0]


def test_an_environment_calls_its_contexts_alike_wherever_it_runs() -> None:
    class Two(Env):
        def start(self) -> Turn:
            self.names: list[str] = []
            return Turn("a", system="S")

        def respond(self, reply: Message) -> Turn:
            self.names.append(self.context)
            turns = [Turn("b", context="p"), Turn("c", context="main"), Turn("d", context=self.context)]
            last = Turn("e", context_rewards={"main": 1.0, "p": 2.0}, terminated=True)
            return [*turns, last][len(self.names) - 1]

    alone, child = Two(), Two()
    first = rollout(alone, says("I"), seed=1)
    second = rollout(Boss([Handoff(child)]), says("I"), seed=1)
    check(first)
    check(second)
    assert alone.names == child.names == ["main", "p", "main", "main"]
    assert list(first.contexts) == ["main", "p"]
    assert list(second.contexts) == ["main", "main/two-1", "main/two-1/p"]
    assert [log.reward for log in second.contexts.values()] == [None, 1.0, 2.0]


@pytest.mark.parametrize("plays", ["step", "rollout"])
def test_a_wrong_filter_is_its_parents_fault(plays: str) -> None:
    def go(env: Env) -> Trajectory:
        return play(env) if plays == "step" else rollout(env, says("I"), seed=1)

    def fails(result: HandoffResult) -> HandoffResult:
        raise RuntimeError("filter")

    with pytest.raises(HandoffError, match="result= of a handoff returned a str; expected a HandoffResult"):
        go(Boss([Handoff(Worker(), result=lambda result: result.content)]))  # type: ignore[arg-type,return-value]
    inner = Boss([Handoff(Worker(), result=fails)])
    outer = Boss([Handoff(inner)])
    trajectory = go(outer)
    check(trajectory)
    assert outer.results[0].error == "RuntimeError: filter" and trajectory.contexts["main/boss-1"].error
    outer = Boss([Handoff(Worker(), history=lambda messages: 3)])  # type: ignore[arg-type,return-value]
    go(outer)
    assert "history= of a handoff returned something other than messages" in outer.results[0].error


def test_an_async_sub_agent_needs_the_async_step_inside_an_event_loop() -> None:
    class Waits(Worker):
        async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
            await asyncio.sleep(0)
            return super().respond(reply)

    async def inside() -> None:
        env = Boss([Handoff(Waits())])
        env.reset(seed=1)
        with pytest.raises(EpisodeError, match="astep"):
            env.step([END])
        with pytest.raises(EpisodeError, match="interrupted"):
            env.step([END])

    asyncio.run(inside())
    env = Boss([Handoff(Waits()), Handoff(Waits())])
    assert play(env).status == "terminated"  # outside, one event loop serves all
    env.close()


def test_a_sub_agent_that_cannot_be_closed_stops_no_other() -> None:
    closed: list[str] = []

    class Stuck(Worker):
        def close(self) -> None:
            closed.append("stuck")
            super().close()
            raise OSError("stuck")

    class Fine(Worker):
        def close(self) -> None:
            closed.append("fine")
            super().close()

    env = Boss([Handoff(Stuck()), Handoff(Fine())])
    rollout(env, says("I"), seed=1)
    rollout(env, says("I"), seed=1)
    with pytest.raises(OSError, match="stuck"):
        env.close()
    env.close()
    assert closed == ["stuck", "fine"] * 2


def refuses_the_end(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A renderer that compares what it rendered with its template at the end, and finds that they differ."""
    renderer = get_renderer("role_colon")
    monkeypatch.setattr(renderer, "check_episode", Mock(side_effect=RenderError("the template says otherwise")))
    return renderer


def test_an_episode_that_its_template_would_render_differently_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RenderError, match="the template says otherwise"):
        rollout(Worker(renderer=refuses_the_end(monkeypatch)), says("I"), seed=1)


def test_a_sub_agent_that_its_template_would_render_differently_ends_with_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = Boss([Handoff(Worker(renderer=refuses_the_end(monkeypatch)))])
    trajectory = rollout(env, says("I"), seed=1)
    assert trajectory.status == "terminated"
    (result,) = env.results
    assert (result.stop_reason, result.error) == ("error", "RenderError: the template says otherwise")


def test_what_was_cancelled_under_a_sub_agent_is_its_own_failure() -> None:
    class Cancels(Worker):
        async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
            raise AssertionError

    env = Boss([Handoff(Cancels())])
    assert rollout(env, says("I"), seed=1).status == "terminated"
    assert "an awaited task or future was cancelled" in env.results[0].error


def test_a_judge_may_be_asked_at_the_end() -> None:
    class Judged(Team):
        def finish(self, reply: Message) -> Any:
            return Handoff(Worker(), "the answer", role="judge")

        def after_handoff(self, result: HandoffResult) -> Any:
            return Turn(reward=result.reward or 0.0, terminated=True)

    trajectory = rollout(Judged(), {"main": "reference", "researcher": says("I"), "judge": says("J")}, seed=1)
    check(trajectory)
    assert trajectory.reward == 0.75

    class Forgets(Judged):
        after_handoff = ToolEnv.after_handoff

    with pytest.raises(NotImplementedError, match="after_handoff"):
        rollout(Forgets(), {"main": "reference", "researcher": says("I"), "judge": says("J")}, seed=1)


def test_two_calls_for_one_environment_in_a_reply_do_not_end_the_episode() -> None:
    class OneWorker(Team):
        def start(self) -> Turn:
            self.worker = Worker()
            return super().start()

        @tool
        def ask(self, topic: str) -> Handoff:
            """Ask the one researcher.

            Args:
                topic: What about.
            """
            return Handoff(self.worker, topic)

    trajectory = rollout(OneWorker(), {"main": "reference", "worker": says("I")}, seed=1)
    check(trajectory)
    results = [m.content for m in trajectory.contexts["main"].messages if m.role == "tool"]
    assert results[0].startswith("I worker") and results[2].startswith("Error: it is busy with another call")


def test_a_failure_is_told_without_what_is_no_part_of_the_episode() -> None:
    env = Boss([Handoff(Fails())])
    trajectory = rollout(env, says("I"), seed=77)
    assert env.results[0].error == "RuntimeError: the disk is full"
    assert "seed 77" in (trajectory.contexts["main/fails-1"].error or "")


def test_a_time_limit_holds_in_a_fork_too() -> None:
    @in_any_vocabulary
    async def slow(prompt: Any, *, role: str, context: str, **_: Any) -> Any:
        await asyncio.sleep(0.03)
        return says("I")(prompt, role=role, context=context)

    env = Boss([Handoff(Worker(9), timeout_s=0.05)])
    env.reset(seed=1)
    env.step([END])
    fork = env.fork()
    check(rollout(fork, slow, reset=False))
    assert "did not finish within 0.05 s" in fork.results[0].error


def test_a_sub_agents_renderer_is_its_own_again_afterwards() -> None:
    direct = get_renderer("qwen3", "embedded", enable_thinking=False)
    worker = Worker()
    rollout(Boss([Handoff(worker)], renderer=direct), says("I"), seed=1)
    assert worker.renderer is direct
    rollout(worker, says("I"), seed=1)
    assert worker.renderer is not direct


@pytest.mark.parametrize(
    ("error", "make"),
    [
        (HandoffError, lambda: Handoff(Worker)),  # type: ignore[arg-type]
        (HandoffError, lambda: Handoff(Worker(), role="a\nb")),
        (HandoffError, lambda: Handoff(Worker(), role="\ud800")),
        (ConfigError, lambda: Handoff(Worker(), timeout_s="5")),  # type: ignore[arg-type]
        (ConfigError, lambda: Handoff(Worker(), history=np.zeros(2))),  # type: ignore[arg-type]
        (ConfigError, lambda: Handoff(Worker(), result="x")),  # type: ignore[arg-type]
        (TurnError, lambda: Turn("x", context_rewards=5)),  # type: ignore[arg-type]
        (TurnError, lambda: Turn("x", context="a\nb")),
    ],
)
def test_wrong_types_are_refused(error: type[Exception], make: Any) -> None:
    with pytest.raises(error):
        make()


def test_no_sub_agents_are_no_handoff() -> None:
    class Nobody(Boss):
        def respond(self, reply: Message) -> Any:
            return []

    with pytest.raises(TurnError, match="a list of them that is not empty"):
        rollout(Nobody([]), says("I"), seed=1)
