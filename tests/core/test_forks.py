"""A running episode is copied: both go on, and what was sampled before is trained once."""

import asyncio
import threading
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soundness import check
from toy_policies import ANY_TOKENIZER, in_any_vocabulary

import envsdk
from envsdk import Action, Env, Handoff, HandoffResult, Message, ToolEnv, Trajectory, Turn, arollout, rollout, tool
from envsdk.authoring._tool_env import tools_of
from envsdk.errors import ConfigError, EpisodeError, InvalidRecord
from envsdk.policies import RandomPolicy
from envsdk.policies._find import find_policy


class Draws(Env):
    """Tells random numbers, eight times, and remembers them."""

    def start(self) -> Turn:
        self.drawn: list[int] = []
        return Turn("Begin.", system="S.")

    def respond(self, reply: Message) -> Turn:
        self.drawn.append(int(self.np_random.integers(1 << 30)))
        return Turn(f"{self.drawn}", reward=1.0, terminated=len(self.drawn) == 8)


TOKENIZER = Draws().renderer.tokenizer
RANDOM = RandomPolicy(TOKENIZER.vocab_size, seed=3, stop_probability=0.2)


def play(env: Env, steps: int, policy: Any = RANDOM) -> None:
    """So many steps more, or up to the end."""
    for _ in range(steps):
        observation, info = env.pending()
        action = policy(env.prompt(), episode_id=env.episode_id, context=observation.context, **_for_policy(info))
        *_, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return


def _for_policy(info: dict[str, Any]) -> dict[str, Any]:
    return {"stop_token_ids": info["stop_token_ids"], "max_tokens": info["max_tokens"]}


def finished(env: Env) -> Trajectory:
    assert env.trajectory is not None
    return env.trajectory


def test_both_go_on_from_the_same_state() -> None:
    env = Draws()
    env.reset(seed=1)
    play(env, 3)
    fork = env.fork()
    assert type(fork) is Draws and fork.episode_id == f"{env.episode_id}/fork-1"
    assert fork.prompt().tolist() == env.prompt().tolist()
    observation, info = env.pending()
    copied, copied_info = fork.pending()
    assert observation.tokens.tolist() == copied.tokens.tolist() and observation[1:] == copied[1:]
    assert info == copied_info
    action = Action([5, info["stop_token_ids"][0]], [-0.5, -0.5])
    results = [env.step(action), fork.step(action)]
    assert results[0].observation.tokens.tolist() == results[1].observation.tokens.tolist()  # the random state, too
    play(env, 9)
    play(fork, 9)
    assert env.drawn == fork.drawn and env.drawn is not fork.drawn
    check(finished(env), finished(fork))
    assert finished(fork).reward == 8.0 and len(finished(fork).steps) == 8
    (sample,) = finished(fork).samples()
    assert not sample.mask[sample.step_ids == 2].any() and sample.mask[sample.step_ids == 3].all()
    assert [origin.trajectory_id for origin in finished(fork).origins] == [env.episode_id]


def test_neither_sees_what_the_other_does() -> None:
    env = Draws()
    env.reset(seed=1)
    play(env, 2)
    fork = env.fork()
    before = fork.prompt().tolist(), list(fork.drawn), fork.np_random.bit_generator.state
    play(env, 9)
    assert (fork.prompt().tolist(), fork.drawn, fork.np_random.bit_generator.state) == before
    other = fork.fork()
    play(fork, 9)
    assert (other.prompt().tolist(), other.drawn, other.np_random.bit_generator.state) == before
    assert other.episode_id.endswith("/fork-1/fork-1")


@pytest.mark.parametrize("history", ["keep", "strip", {"name": "compact", "every": 2}], ids=str)
def test_best_of_n_from_a_state(history: Any) -> None:
    env = envsdk.make("envsdk/MathChat-v0", history=history)
    env.reset(seed=2)
    policy = find_policy("reference", env, None)
    for _ in range(2):
        observation, info = env.pending()
        env.step(policy(env.prompt(), context=observation.context, max_tokens=999, stop=info["stop"]))
    forks = [env.fork() for _ in range(4)]
    played = [
        rollout(fork, name, reset=False)
        for fork, name in zip(forks, ["reference", "null", "random", "reference"], strict=True)
    ]
    trajectories = [rollout(env, "reference", reset=False), *played]
    check(*trajectories)
    assert [trajectory.id for trajectory in trajectories[1:]] == [f"{env.episode_id}/fork-{n}" for n in (1, 2, 3, 4)]
    rewards = [trajectory.reward for trajectory in trajectories]
    assert rewards[0] == rewards[1] == rewards[4] == max(rewards) > rewards[2]


def test_what_it_shares_and_what_it_copies() -> None:
    env = envsdk.make("envsdk/MathChat-v0", tasks=None)
    env.reset(seed=1)
    fork = env.fork()
    assert fork.renderer is env.renderer and fork.history is env.history and fork.spec is env.spec
    assert fork.np_random is not env.np_random
    assert fork.messages() == env.messages()


class Counter(ToolEnv):
    @tool
    def add(self, number: int) -> int:
        """Add.

        Args:
            number: What.
        """
        self.total += number
        return self.total

    def double(self) -> int:
        """Double it."""
        return 2 * self.total

    def begin_again(self) -> str:
        """Begin again."""
        self.total = 0
        return "Done."

    def start(self) -> Turn:
        self.total = 0
        more = [envsdk.tool(self.double), envsdk.tool(name="reset")(self.begin_again)]
        return Turn("Count.", tools=[*tools_of(self).values(), *more])

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=float(self.total), terminated=True)


def call(env: Env, name: str, **arguments: Any) -> Action:
    message = Message.from_openai(
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
    )
    tokens = env.renderer.reply(message)
    return Action(tokens, np.full(len(tokens), -0.1))


def test_tools_of_a_fork_are_the_forks() -> None:
    env = Counter()
    env.reset(seed=1)
    env.step(call(env, "add", number=3))
    fork = env.fork()
    fork.step(call(fork, "add", number=10))
    env.step(call(env, "add", number=1))
    assert (env.total, fork.total) == (4, 13)
    assert fork.messages()[-1].content == "13"
    fork.step(call(fork, "double"))
    assert fork.messages()[-1].content == "26"
    fork.step(call(fork, "reset"))
    assert (env.total, fork.total) == (4, 0)


class Boss(Env):
    def start(self) -> Turn:
        self.back: list[str] = []
        return Turn("Delegate.")

    def respond(self, reply: Message) -> Any:
        if len(self.back) == 2:
            return Turn(reward=1.0, terminated=True)
        return [Handoff(Draws(), role="w"), Handoff(Draws(), role="w")] if self.back else Handoff(Draws(), role="w")

    def resume(self, result: Any) -> Turn:
        results: list[HandoffResult] = result if isinstance(result, list) else [result]
        self.back.append(results[0].stop_reason)
        return Turn("Go on.")


def test_methods_that_a_fork_holds_work_on_the_fork() -> None:
    class Hears(Boss):
        def hear(self, result: HandoffResult) -> HandoffResult:
            self.heard = True
            return result

        def has_heard(self) -> bool:
            return self.heard

        def respond(self, reply: Message) -> Any:
            self.heard, self.ask = False, self.has_heard
            return Handoff(Draws(), result=self.hear) if not self.back else Turn(terminated=True)

    env = Hears()
    env.reset(seed=1)
    play(env, 3)
    fork = env.fork()
    play(fork, 6)
    assert (env.heard, fork.heard, env.ask(), fork.ask()) == (False, True, False, True)


@pytest.mark.parametrize("holder", ["attribute", "handoff", "tool"])
def test_a_nested_function_that_refers_to_the_environment_cannot_be_forked(holder: str) -> None:
    class Nested(Boss):
        def start(self) -> Turn:
            super().start()

            def name() -> str:
                """Name it."""
                return self.name

            if holder == "attribute":
                self.hook = name
            return Turn("Delegate.", tools=[envsdk.tool(name)] if holder == "tool" else None)

        def respond(self, reply: Message) -> Any:
            return Handoff(Draws(), result=lambda result: self.seen(result) or result)

        def seen(self, result: HandoffResult) -> None:
            self.back.append(result.content)

    env = Nested()
    env.reset(seed=1)
    if holder == "handoff":
        play(env, 2)
    if holder == "tool":
        env.kept = tool_that_knows(env)
    with pytest.raises(EpisodeError, match=r"nested function .* refers to (self|env).* make it a method"):
        env.fork()


def tool_that_knows(env: Env) -> Any:
    @envsdk.tool
    def name() -> str:
        """Name it."""
        return env.name

    return name


def test_a_fork_without_a_seed_draws_the_same() -> None:
    env = Draws()
    env.reset()
    fork = env.fork()
    assert env.np_random.integers(1 << 30) == fork.np_random.integers(1 << 30)


def test_a_fork_may_begin_in_a_sub_agent() -> None:
    env = Boss()
    env.reset(seed=1)
    play(env, 4)
    assert env.pending()[0].context == "main/w-1"
    fork, rolled = env.fork(), env.fork()
    with pytest.raises(EpisodeError, match="'main/w-1' is a sub-agent: fork the environment that was reset"):
        env.episode.agent.env.fork()
    play(env, 99)
    play(fork, 99)
    rollout(rolled, RANDOM, reset=False)
    assert len(finished(env).contexts) == len(finished(fork).contexts) == len(finished(rolled).contexts) == 4
    check(finished(env), finished(fork), finished(rolled))
    assert [len(sample.tokens) > 0 for sample in finished(rolled).samples()] == [True] * 4


def test_what_cannot_be_forked_says_so() -> None:
    env = Draws()
    with pytest.raises(EpisodeError, match="reset"):
        env.fork()
    env.reset(seed=1)
    env.step(Action([5], [-0.1], finish_reason="abort"))
    with pytest.raises(EpisodeError, match="the action that is due was interrupted"):
        env.fork()
    play(env, 99)
    with pytest.raises(EpisodeError, match="no action is due"):
        env.fork()
    with pytest.raises(EpisodeError, match="no action is due"):
        rollout(env, reset=False)
    with pytest.raises(ConfigError, match="with reset=False, expected None"):
        rollout(env, reset=False, options={"task": 1})

    class Inside(Draws):
        def respond(self, reply: Message) -> Turn:
            self.fork()
            return Turn()

    with pytest.raises(EpisodeError, match="a method of its environment is running"):
        rollout(Inside(), RANDOM)

    class Holds(Draws):
        def start(self) -> Turn:
            self.lines = (line for line in "ab")
            return super().start()

    env = Holds()
    env.reset(seed=1)
    with pytest.raises(EpisodeError, match=r"cannot be copied: TypeError: .*generator.*Let __getstate__ leave out"):
        env.fork()

    class LeavesOut(Holds):
        def __getstate__(self) -> dict[str, Any]:
            return {**super().__getstate__(), "lines": None}

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__dict__.update(state)
            self.lines = (line for line in "ab")

    env = LeavesOut()
    env.reset(seed=1)
    assert next(env.fork().lines) == "a"


def test_sub_agents_side_by_side_cannot_be_forked() -> None:
    env = Boss()
    errors: list[str] = []

    @in_any_vocabulary
    def policy(prompt: Any, *, context: str, **others: Any) -> Any:
        if context == "main/w-2":
            with pytest.raises(EpisodeError, match="a rollout is running sub-agents") as error:
                env.fork()
            errors.append(str(error.value))
        return RANDOM(prompt, **others)

    rollout(env, policy, seed=1)
    assert errors


def test_a_policy_may_fork_what_it_plays() -> None:
    env = Draws()
    looked: list[Trajectory] = []

    class Looks:
        tokenizer = ANY_TOKENIZER

        def __init__(self) -> None:
            self.lock = threading.Lock()  # it cannot be copied

        async def __call__(self, prompt: Any, **others: Any) -> Any:
            if len(env.drawn) == 4 and "fork" not in others["episode_id"]:
                looked.append(await arollout(env.fork(), RANDOM, reset=False))
            return RANDOM(prompt, **others)

    trajectory = asyncio.run(arollout(env, Looks(), seed=1))
    check(trajectory, *looked)
    assert len(looked) == 1


def test_damaged_origins_are_refused() -> None:
    env = Draws()
    env.reset(seed=1)
    play(env, 1)
    fork = env.fork()
    play(fork, 9)
    line = finished(fork).to_json()
    assert b'"origins":[{"trajectory_id":"Draws/1","tokens":{"main":' in line
    with pytest.raises(InvalidRecord):
        Trajectory.from_json(line.replace(b'"tokens":{"main":', b'"tokens":{"main":-'))


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 999), history=st.sampled_from(["keep", "strip", "summarize"]))
def test_any_tree_of_forks_trains_each_token_once(seed: int, history: str) -> None:
    rng = Random(seed)
    options: Any = {"name": "summarize", "threshold": 60} if history == "summarize" else history
    env = (Boss if rng.random() < 0.3 else Draws)(history=options, limits={"max_steps": 12, "end_on_cut": False})
    env.reset(seed=seed)
    running, done = [env], list[Trajectory]()
    while running:
        one = rng.choice(running)
        if len(running) + len(done) < 6 and rng.random() < 0.3:
            running.append(one.fork())
        else:
            play(one, rng.randint(1, 4))
        if one.trajectory is not None:
            running.remove(one)
            done.append(one.trajectory)
    check(*done)
    assert len({trajectory.id for trajectory in done}) == len(done)
    sampled = sum(step.stop - step.action_start for t in done for step in t.steps if not t.is_copied(step))
    trained = sum(int(sample.mask.sum()) for t in done for sample in t.samples(include_failed=True))
    assert trained == sampled
