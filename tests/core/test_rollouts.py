"""Rolling out: one episode, many, and those that fail."""

import asyncio

import numpy as np
import pytest
from toy_policies import in_any_vocabulary

import envsdk
from envsdk import Action, Env, Message, Turn, errors
from envsdk.rollouts import arollout_many, rollout_many


def test_near_seeds_take_different_tasks_and_each_comes_once() -> None:
    tasks = [{"secret": n} for n in range(1, 51)]
    env = envsdk.make("envsdk/GuessNumber-v1", tasks=tasks)
    secrets = []
    for seed in range(50):
        env.reset(seed=seed)
        secrets.append(env.task.secret)
    assert sorted(secrets) == list(range(1, 51))
    assert secrets != sorted(secrets)


def test_a_task_can_be_chosen_by_index_or_given() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", tasks=[{"secret": 3}, {"secret": 4}])
    env.reset(options={"task": 1})
    assert env.secret == 4
    env.reset(options={"task": {"secret": 9}})
    assert env.secret == 9


class Greets(Env):
    """Answers twice; may be told to fail."""

    fails: tuple[str, ...] = ()

    async def start(self) -> Turn:
        await asyncio.sleep(0)
        self.said = 0
        if "start" in self.fails:
            self.fails = ()
            raise ValueError("no start")
        return Turn("Hello.")

    async def respond(self, reply: Message) -> Turn:
        await asyncio.sleep(0)
        self.said += 1
        if "respond" in self.fails and self.said == 2:
            self.fails = ()
            raise ValueError("no answer")
        return Turn("Again.", reward=0.5, terminated=self.said == 3)


def test_async_environments_step_outside_and_inside_an_event_loop() -> None:
    env = Greets()
    outside = envsdk.rollout(env, "null", seed=1).to_json()
    env.reset(seed=1)
    while env.trajectory is None:
        env.step(Action(env.renderer.reply(Message(role="assistant")), np.zeros(1)))
    assert env.trajectory.to_json() == outside
    env.close()
    env.close()


def test_two_rollouts_of_one_environment_object_are_refused_while_the_first_continues() -> None:
    env = Greets()

    async def both() -> list[envsdk.Trajectory]:
        first = asyncio.create_task(envsdk.arollout(env, "null", seed=1))
        await asyncio.sleep(0)
        with pytest.raises(errors.EpisodeError, match="make another environment for each episode"):
            await envsdk.arollout(env, "null", seed=2)
        return [await first, await envsdk.arollout(env, "null", seed=2)]

    assert [trajectory.seed for trajectory in asyncio.run(both())] == [1, 2]


def test_step_of_an_async_environment_inside_an_event_loop_says_what_to_call() -> None:
    async def inside() -> None:
        Greets().reset(seed=0)

    with pytest.raises(errors.EpisodeError, match="astep"):
        asyncio.run(inside())


@pytest.mark.parametrize(("fails", "steps"), [("start", 0), ("respond", 2)])
def test_a_failed_episode_keeps_its_steps_and_stops_no_other(fails: str, steps: int) -> None:
    made = []

    def make() -> Env:
        env = Greets()
        env.fails = (fails,) if not made else ()
        made.append(env)
        return env

    ended = []
    trajectories = rollout_many(make, "null", seeds=range(6), max_concurrency=2, on_end=ended.append)
    assert [trajectory.seed for trajectory in trajectories] == list(range(6))
    assert len(ended) == 6
    failed = [trajectory for trajectory in trajectories if trajectory.status == "error"]
    assert len(failed) == 1
    assert failed[0].stop_reason == "error"
    assert failed[0].error.startswith("ValueError: no ")
    assert len(failed[0].steps) == steps
    assert failed[0].samples() == []
    assert len(failed[0].samples(include_failed=True)) == min(steps, 1)
    assert envsdk.Trajectory.from_json(failed[0].to_json()).to_json() == failed[0].to_json()


def test_a_policy_that_fails_is_an_error_trajectory_too() -> None:
    @in_any_vocabulary
    async def policy(prompt: np.ndarray, *, keep: int, **_: object) -> Action:
        if keep:
            raise ConnectionError("the server is gone")
        return Action([5])

    (trajectory,) = rollout_many(Greets, policy, seeds=[0])
    assert trajectory.error == "ConnectionError: the server is gone"
    assert len(trajectory.steps) == 1


def test_no_more_episodes_run_at_a_time_than_allowed() -> None:
    running, most = set(), []

    @in_any_vocabulary
    async def policy(prompt: np.ndarray, *, episode_id: str, **_: object) -> Action:
        running.add(episode_id)
        most.append(len(running))
        await asyncio.sleep(0.001)
        running.discard(episode_id)
        return Action([5])

    asyncio.run(arollout_many(Greets, policy, seeds=range(12), max_concurrency=3))
    assert max(most) == 3


def test_a_policy_gets_what_the_turn_asks_for() -> None:
    class Asks(Env):
        def start(self) -> Turn:
            return Turn("Go.", stop=["</search>"], max_tokens=7, sampling={"temperature": 0.5})

        def respond(self, reply: Message) -> Turn:
            return Turn("Done.", terminated=True)

    seen = {}

    @in_any_vocabulary
    def policy(prompt: np.ndarray, **arguments: object) -> Action:
        seen.update(arguments)
        return Action([5])

    envsdk.rollout(Asks(), policy, seed=0)
    assert seen["stop"] == ("</search>",)
    assert seen["max_tokens"] == 7
    assert seen["sampling"] == {"temperature": 0.5}
    assert (seen["context"], seen["base"], seen["role"], seen["keep"]) == ("main", "main", "main", 0)


class _Texts:
    """A policy that exchanges text, and plays each episode with an object of its own."""

    trainable = False
    tokenizer = "any"

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def for_episode(self, env: Env, seed: int | None) -> "_Texts":
        self.seeds.append(seed)
        return self

    def __call__(self, prompt: np.ndarray, **_: object) -> Action:
        return Action([5])


def test_an_episode_of_a_policy_that_exchanges_text_gives_no_samples() -> None:
    policy = _Texts()
    trajectory = envsdk.rollout(Greets(), policy, seed=3)
    assert policy.seeds == [3]
    assert trajectory.tree_size() == 0
    read = envsdk.Trajectory.from_json(trajectory.to_json())
    with pytest.raises(errors.InvalidSample, match="exchanges text"):
        read.samples()


def test_only_the_contexts_of_policies_that_return_tokens_give_samples() -> None:
    env = envsdk.make("envsdk/KuhnPoker-v1")
    trajectory = envsdk.rollout(env, {"player0": "reference", "player1": _Texts()}, seed=0)
    assert not trajectory.contexts["player1"].is_trainable
    assert {sample.role for sample in trajectory.samples()} == {"player0"}
