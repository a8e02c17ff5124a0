"""A `RemoteEnv` over a real connection: the same bytes, reconnects, many sessions, rollouts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from example_programs import EXAMPLES
from openenv_servers import FIVE, served

import envsdk
from envsdk.adapters import RemoteEnv
from envsdk.authoring.adapters._remote import io_thread
from envsdk.errors import ConfigError, RemoteEnvError
from envsdk.rollouts import Rollouts


@pytest.mark.parametrize("policy", ["reference", "random"])
@pytest.mark.parametrize("name", FIVE)
def test_the_records_are_those_of_this_machine(server: str, name: str, policy: str, compared: Counter[str]):
    here, there = envsdk.make(f"envsdk/{name}"), RemoteEnv(f"{server}/{name}")
    for seed in range(20):
        assert envsdk.rollout(there, policy, seed=seed).to_json() == envsdk.rollout(here, policy, seed=seed).to_json()
        compared["episodes"] += 1
    there.close()


def drop_connection(env: RemoteEnv) -> None:
    """Break the TCP connection of a session, as a network does."""
    connection: Any = env._envsdk_session._connection
    io_thread(os.getpid()).run(aborted(connection))


async def aborted(connection: Any) -> None:
    connection.transport.abort()


def test_a_new_connection_continues_the_session(server: str):
    here, there = envsdk.make("envsdk/Delegate-v1"), RemoteEnv(f"{server}/Delegate-v1")
    policy = envsdk.policies.ReplyPolicy(there, lambda acting: acting.reference_reply())
    expected = envsdk.rollout(here, "reference", seed=3).to_json()
    observation, info = there.reset(seed=3)
    done = False
    while not done:
        drop_connection(there)
        action = policy(there.prompt(), context=observation.context, max_tokens=info["max_tokens"], stop=info["stop"])
        drop_connection(there)
        observation, _, terminated, truncated, info = there.step(action)
        done = terminated or truncated
    assert there.trajectory.to_json() == expected
    there.close()


def test_an_episode_whose_server_was_restarted_is_played_again():
    with served("envsdk/GuessNumber-v1", "--port", "0") as (url, process):
        port = url.rpartition(":")[2]
        env = RemoteEnv(url, reconnect_s=60)
        expected = envsdk.rollout(env, "reference", seed=1).to_json()
        env.reset(seed=1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with served("envsdk/GuessNumber-v1", "--port", port):
            with pytest.raises(RemoteEnvError, match="no longer has the session"):
                env.step([int(env.pending()[1]["stop_token_ids"][0])])
            assert envsdk.rollout(env, "reference", seed=1).to_json() == expected
            env.close()


def test_rollouts_have_256_sessions_in_one_process(server: str, compared: Counter[str]):
    async def play() -> dict[int | None, envsdk.Trajectory]:
        given = {"seeds": range(512), "max_concurrency": 256, "env_options": {"url": f"{server}/GuessNumber-v1"}}
        async with Rollouts(RemoteEnv, "reference", **given) as rollouts:
            return {trajectory.seed: trajectory async for trajectory in rollouts}

    episodes = asyncio.run(play())
    assert Counter(trajectory.status for trajectory in episodes.values()) == {"terminated": 512}
    here = envsdk.make("envsdk/GuessNumber-v1")
    for seed in range(0, 512, 64):
        assert episodes[seed].sampled_tokens == envsdk.rollout(here, "reference", seed=seed).sampled_tokens
    compared["episodes"] += len(episodes)


def test_a_split_of_the_server_is_chosen_here(server: str):
    url = f"{server}/GuessNumber-v1"
    there, here = RemoteEnv(url, split="test"), envsdk.make("envsdk/GuessNumber-v1", split="test")
    assert envsdk.rollout(there, "reference", seed=0).to_json() == envsdk.rollout(here, "reference", seed=0).to_json()
    with pytest.raises(ConfigError):
        RemoteEnv(url, split="none")


def test_a_remote_environment_passes_the_checks(server: str):
    from envsdk.testing import check_env

    report = check_env(lambda: RemoteEnv(f"{server}/GuessNumber-v1"))
    assert not report.failed, report


def test_the_example_records_the_same_trajectory(capfd: pytest.CaptureFixture[str]):
    subprocess.run([sys.executable, EXAMPLES / "remote_environment.py"], check=True)
    assert "the same record as on this machine: True" in capfd.readouterr().out
