"""Workers on a real Ray cluster: the same episodes as in one process, whatever happens to workers and nodes."""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from worker_environments import Answers, Counts, Kills, NamesNode, NoTokenizer

from envsdk import errors
from envsdk.rollouts import Rollouts

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("default")]  # Ray's own warnings


@pytest.mark.parametrize("env", ["envsdk/Calculator-v1", "envsdk/Delegate-v1"])
def test_episodes_are_the_same_on_two_nodes(env: str, compared: Counter[str]) -> None:
    here = Rollouts(env, "random", seeds=range(6), group_size=2).run()
    there = Rollouts(env, "random", seeds=range(6), group_size=2, executor="ray")
    assert [one.to_json() for one in there.run()] == [one.to_json() for one in here]
    assert there.statistics.episodes == 12
    assert len(there._player._known) == 2, "a worker for each CPU"
    assert not ray.is_initialized()  # what the run started, it ended
    compared["trajectories"] += 12
    compared["tokens"] += sum(one.sampled_tokens for one in here)


def test_workers_are_spread_over_the_nodes(tmp_path: Path) -> None:
    options = {"folder": str(tmp_path)}
    Rollouts(NamesNode, Answers(0.1), seeds=range(8), group_size=1, env_options=options, executor="ray").run()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_worker_that_is_killed_costs_no_episode(tmp_path: Path) -> None:
    options = {"mark": str(tmp_path / "killed")}
    rollouts = Rollouts(Kills, Answers(), seeds=range(8), group_size=2, env_options=options, executor="ray")
    trajectories = rollouts.run()
    assert (tmp_path / "killed").exists()
    here = Rollouts(Kills, Answers(), seeds=range(8), group_size=2, env_options=options).run()  # it kills only once
    assert [one.to_json() for one in trajectories] == [one.to_json() for one in here]
    assert [one.status for one in trajectories] == ["terminated"] * 16
    assert rollouts.statistics.play.retries["WorkerLost"] >= 1
    assert rollouts.statistics.play.abandoned == 1


def test_an_episode_that_ends_its_process_each_time_fails_alone() -> None:
    rollouts = Rollouts(Kills, Answers(), seeds=range(6), group_size=1, executor="ray", n_workers=1, max_retries=1)
    trajectories = rollouts.run()
    assert [one.error_kind for one in trajectories] == [None, None, None, "infrastructure", None, None]
    assert (trajectories[3].error or "").startswith("WorkerLost")


@pytest.mark.parametrize("is_graceful", [True, False])
def test_a_node_that_is_removed_costs_no_episode(cluster: Cluster, is_graceful: bool) -> None:
    node = cluster.add_node(num_cpus=1)

    async def run() -> tuple[Rollouts, list[str]]:
        rollouts = Rollouts(Counts, Answers(0.2), seeds=range(60), group_size=1, executor="ray", max_concurrency=6)
        ids: list[str] = []
        removing = None
        async for trajectory in rollouts:
            ids.append(trajectory.id)
            assert trajectory.status == "terminated"
            if len(ids) >= 8 and removing is None and None not in rollouts._player._informed:
                removing = asyncio.create_task(asyncio.to_thread(cluster.remove_node, node, is_graceful))
        assert removing is not None
        await removing
        return rollouts, ids

    rollouts, ids = asyncio.run(run())
    assert len(ids) == 60 and len(set(ids)) == 60
    assert rollouts.statistics.play.abandoned >= 1
    assert rollouts.statistics.play.retries["WorkerLost"] >= 1
    assert rollouts.statistics.episodes == 60


def test_a_run_ends_with_an_error_if_ray_ends_on_the_node_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.rollouts._ray_workers._FIRST_LINE_S", 1.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)

    async def run() -> None:
        rollouts = Rollouts(Counts, Answers(1.0), seeds=range(1000), group_size=1, executor="ray", max_concurrency=2)
        async for _ in rollouts:
            cluster.head_node.kill_raylet(check_alive=False)

    try:
        with pytest.raises(errors.WorkerLost, match="Ray has ended on the node of this program"):
            asyncio.run(asyncio.wait_for(run(), 600))  # against hanging
    finally:
        cluster.shutdown()


def test_weights_reach_the_workers() -> None:
    async def run() -> list[int | None]:
        rollouts = Rollouts(Counts, Answers(0.1), seeds=range(12), group_size=1, executor="ray", max_concurrency=2)
        rollouts.resume(policy_version=1)
        trajectories = []
        async for trajectory in rollouts:
            trajectories.append(trajectory)
            if len(trajectories) == 4:
                await rollouts.pause()
                rollouts.resume(policy_version=2)
        return [part.policy_version for one in trajectories for step in one.steps for part in step.parts]

    versions = Counter(asyncio.run(run()))
    assert set(versions) == {1, 2}


def test_a_plugin_is_found_by_name_in_the_workers() -> None:
    options = {"renderer": "plugged", "tokenizer": "embedded"}
    trajectories = Rollouts(
        "plugged/Adds-v0", Answers(), seeds=range(4), group_size=1, env_options=options, executor="ray"
    ).run()
    assert [one.reward for one in trajectories] == [1.0] * 4
    processes = {message.content for one in trajectories for message in one.contexts["main"].messages[-1:]}
    assert f"Process {os.getpid()}." not in processes


def test_a_plugin_that_the_nodes_lack_ends_the_run() -> None:
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"].split(os.pathsep)[0]}})
    try:
        with pytest.raises(errors.UnknownName, match="plugged/Adds-v0") as caught:
            Rollouts("plugged/Adds-v0", "random", seeds=range(4), executor="ray").run()
        assert "This happened in a worker" in caught.value.__notes__[0]
        assert ray.is_initialized()  # the run did not start it
    finally:
        ray.shutdown()


def test_what_the_nodes_cannot_import_ends_the_run() -> None:
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"].split(os.pathsep)[1]}})
    try:
        with pytest.raises(errors.ConfigError, match=r"could not begin(.|\n)*No module named 'worker_environments'"):
            Rollouts(Counts, Answers(), seeds=range(4), executor="ray").run()
    finally:
        ray.shutdown()


def test_an_error_that_holds_for_all_episodes_ends_the_run() -> None:
    with pytest.raises(errors.TokenizerMismatch):
        Rollouts(Counts, NoTokenizer(), seeds=range(3), executor="ray", n_workers=1).run()


def test_workers_that_get_no_cpu_wait_with_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("envsdk.rollouts._ray_workers._FIRST_LINE_S", 1.0)

    async def run() -> list[Any]:
        rollouts = Rollouts(Counts, Answers(0.3), seeds=range(12), group_size=1, executor="ray", n_workers=4)
        trajectories = []
        async for trajectory in rollouts:
            trajectories.append(trajectory)
            if len(trajectories) == 1:
                await rollouts.pause()  # not held up by those that wait
                await asyncio.sleep(2)
                rollouts.resume()
        return trajectories

    with caplog.at_level(logging.WARNING, "envsdk"):
        assert len(asyncio.run(run())) == 12
    lines = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert len(lines) == 1
    assert "0 of 2 in the cluster are free" in lines[0]


def test_a_run_begins_once_other_programs_leave_it_a_cpu() -> None:
    ray.init()
    try:
        holders = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(2)]
        ray.get([holder.ready.remote() for holder in holders])

        async def run() -> list[Any]:
            running = asyncio.create_task(
                Rollouts(Counts, Answers(), seeds=range(4), group_size=8, executor="ray").arun()
            )
            await asyncio.sleep(3)
            assert not running.done()
            for holder in holders:
                ray.kill(holder)
            return await running

        assert len(asyncio.run(run())) == 32
    finally:
        ray.shutdown()


def test_the_event_loop_is_free_while_ray_starts_and_answers() -> None:
    async def run() -> float:
        latest = 0.0

        async def measure() -> None:
            nonlocal latest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                latest = max(latest, time.monotonic() - before)

        rollouts = Rollouts(Counts, Answers(), seeds=range(20), group_size=8, executor="ray")
        measuring = asyncio.create_task(measure())
        await rollouts.arun()
        measuring.cancel()
        return latest

    lag_s = asyncio.run(run())
    print(f"the event loop was late by at most {lag_s:.3f} s")


def test_a_run_that_is_left_early_ends_its_actors() -> None:
    async def run() -> None:
        async with Rollouts(Counts, Answers(0.1), seeds=range(100), group_size=8, executor="ray") as rollouts:
            async for _ in rollouts:
                break

    ray.init()
    try:
        asyncio.run(run())
        deadline = time.monotonic() + 600
        while ray.available_resources().get("CPU") != 2.0:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        ray.shutdown()


def test_what_cannot_be_sent_is_refused_before_anything_runs() -> None:
    policy = Answers()
    policy.lock = threading.Lock()
    with pytest.raises(errors.ConfigError, match="the argument policy cannot be sent"):
        Rollouts(Counts, policy, seeds=range(3), executor="ray")


class Holder:
    def ready(self) -> None:
        pass
