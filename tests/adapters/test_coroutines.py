"""Environments that are coroutines of another framework, without one."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

import envsdk
from envsdk import Message, Turn
from envsdk.authoring.adapters._coroutines import Ask, CoroutineEnv, ReplyRequest, Source
from envsdk.errors import ConfigError, EpisodeError
from envsdk.policies import ReplyPolicy

words = {"first": "one"}
cleaned: list[str] = []


def loaded() -> Source:
    return Source(None, [None], [{"task": 0}], (loaded, ()))


class Asks(CoroutineEnv):
    """Asks two times, and begins with a word that a test may change."""

    __module__ = "envsdk.testing_of_coroutines"  # only envsdk's own classes may write what is private

    def _load(self) -> Source:
        return loaded()

    async def _play(self, ask: Ask) -> Turn:
        conversation = [Message(role="user", content=f"{words['first']} {random.random()}")]
        try:
            conversation.append(await ask(ReplyRequest(conversation)))
            conversation.append(Message(role="user", content=await asyncio.create_task(self.drawn())))
            conversation.append(await ask(ReplyRequest(conversation)))
        finally:
            cleaned.append(words["first"])
        return Turn(reward=float(conversation[1].content == conversation[3].content), terminated=True)

    async def drawn(self) -> str:
        await asyncio.sleep(0)
        return str(random.random())


def step(env: Asks, reply: str) -> Any:
    player = env.episode.pending_reply(env.pending()[0].context)
    return env.step(envsdk.Action(player.context.renderer.reply(Message(role="assistant", content=reply))))


@pytest.fixture
def begun() -> Iterator[list[Asks]]:
    """An environment after a step, and its copy."""
    env = Asks()
    env.reset(seed=0)
    step(env, "yes")
    envs = [env, env.fork()]
    yield envs
    for one in envs:
        one.close()


def test_a_copy_continues_with_the_same_replies_and_random_numbers(begun: list[Asks]):
    env, copied = begun
    assert copied.messages()[2].content == env.messages()[2].content
    assert [step(copied, "no").reward, step(env, "yes").reward] == [0.0, 1.0]


def test_a_copy_of_code_that_depends_on_more_than_seed_and_replies_is_refused(
    begun: list[Asks], monkeypatch: pytest.MonkeyPatch
):
    env, copied = begun
    monkeypatch.setitem(words, "first", "two")
    with pytest.raises(EpisodeError, match="asked something else when it ran again"):
        step(copied, "yes")
    assert step(env, "yes").reward == 1.0


def test_an_episode_that_a_limit_ends_leaves_no_task_in_the_callers_event_loop():
    async def play() -> Any:
        env = Asks(limits={"max_steps": 1})
        trajectory = await envsdk.arollout(env, ReplyPolicy(env, lambda player: "yes"), seed=0)
        return trajectory.stop_reason, asyncio.all_tasks() - {asyncio.current_task()}

    cleaned.clear()
    assert asyncio.run(play()) == ("max_steps", set())
    assert cleaned == ["one"]


class Breaks(Asks):
    """Two agents side by side, of which each has a bug."""

    __module__ = Asks.__module__

    async def _play(self, ask: Ask) -> Turn:
        async def agent(name: str) -> None:
            await ask(ReplyRequest([Message(role="user", content=name)], agent=name))
            raise ValueError("a bug")

        async with asyncio.TaskGroup() as group:
            for name in ("a", "b"):
                group.create_task(agent(name))
        return Turn(terminated=True)


def test_an_agent_that_fails_next_to_another_is_the_error_of_the_episode():
    env = Breaks()
    env.reset(seed=0)
    step(env, "yes")
    with pytest.raises(ExceptionGroup) as raised:
        step(env, "yes")
    assert [str(error) for error in raised.value.exceptions] == ["a bug"]


def test_task_data_for_an_environment_that_has_its_own_is_refused():
    with pytest.raises(ConfigError, match="tasks= is given to Asks"):
        Asks(tasks=[{"question": "?"}])
