"""Workers in processes: the same episodes as in one process, whatever happens to the workers."""

import asyncio
import multiprocessing.synchronize
import sys
from pathlib import Path

import pytest
from worker_environments import Answers, Counts, Kills, NoTokenizer, Stalls

from envsdk import errors
from envsdk.rollouts import Rollouts


@pytest.fixture(autouse=True)
def no_semaphores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse what stays in shared memory if its processes are killed."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a semaphore stays in shared memory if its processes are killed")

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", refused)


@pytest.mark.full
@pytest.mark.parametrize("env", ["envsdk/Calculator-v1", "envsdk/Delegate-v1"])
def test_episodes_are_the_same_in_several_processes(env: str, is_full: bool) -> None:
    here = Rollouts(env, "random", seeds=range(6), group_size=2).run()
    there = Rollouts(env, "random", seeds=range(6), group_size=2, executor="processes", n_workers=4 if is_full else 2)
    assert [one.to_json() for one in there.run()] == [one.to_json() for one in here]
    assert there.statistics.episodes == 12
    assert there.statistics.play.lag.buckets.total() > 0


def test_a_worker_that_is_killed_costs_no_episode(tmp_path: Path) -> None:
    options = {"mark": str(tmp_path / "killed")}
    rollouts = Rollouts(
        Kills, Answers(), seeds=range(2, 5), group_size=2, env_options=options, executor="processes", n_workers=1
    )
    trajectories = rollouts.run()
    assert [one.status for one in trajectories] == ["terminated"] * 6
    assert (tmp_path / "killed").exists()
    assert rollouts.statistics.play.retries["WorkerLost"] >= 1
    assert rollouts.statistics.play.abandoned == 1


@pytest.mark.full
def test_an_episode_that_ends_its_process_each_time_fails_alone() -> None:
    rollouts = Rollouts(
        Kills, Answers(), seeds=range(2, 5), group_size=1, executor="processes", n_workers=1, max_retries=1
    )
    trajectories = rollouts.run()
    assert [one.error_kind for one in trajectories] == [None, "infrastructure", None]
    assert (trajectories[1].error or "").startswith("WorkerLost")


@pytest.mark.full
def test_a_worker_whose_event_loop_is_blocked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.rollouts._workers._ANSWER_S", 1.0)
    rollouts = Rollouts(
        Stalls,
        Answers(),
        seeds=range(5),
        group_size=1,
        executor="processes",
        n_workers=1,
        max_retries=1,
        method_timeout_s=2.0,
    )
    assert [one.error_kind for one in rollouts.run()] == [None, None, None, "infrastructure", None]


@pytest.mark.full
def test_weights_reach_the_workers() -> None:
    async def run() -> set[int | None]:
        rollouts = Rollouts(
            Counts, Answers(0.05), seeds=range(12), group_size=1, executor="processes", n_workers=2, max_concurrency=2
        )
        rollouts.resume(policy_version=1)

        async def update() -> None:
            await asyncio.sleep(0.1)
            await rollouts.pause()
            rollouts.resume(policy_version=2)

        updating = asyncio.create_task(update())
        trajectories = await rollouts.arun()
        await updating
        return {part.policy_version for one in trajectories for step in one.steps for part in step.parts}

    assert 2 in asyncio.run(run())


@pytest.mark.full
def test_a_pause_that_waits_for_long_replies_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.rollouts._workers._ANSWER_S", 1.0)

    async def run() -> Rollouts:
        rollouts = Rollouts(
            Counts,
            Answers(6.0),
            seeds=range(2),
            group_size=1,
            executor="processes",
            n_workers=1,
            method_timeout_s=3.0,
        )
        running = asyncio.create_task(rollouts.arun())
        while not rollouts.statistics.play.lag.buckets:  # until the worker has begun
            await asyncio.sleep(0.1)
        await rollouts.pause(abort=False)
        rollouts.resume()
        await running
        return rollouts

    assert asyncio.run(run()).statistics.play.abandoned == 0


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(errors.MissingPackage, match=r"executor='ray' needs ray.* pip install 'envsdk\[ray\]'"):
        Rollouts(Counts, Answers(), seeds=range(3), executor="ray")


def test_what_cannot_be_sent_is_refused_before_anything_runs() -> None:
    class Local(Counts):
        pass

    with pytest.raises(errors.ConfigError, match="the argument env cannot be sent"):
        Rollouts(Local, Answers(), seeds=range(3), executor="processes")
    with pytest.raises(errors.ConfigError, match="'processes' or 'ray'"):
        Rollouts(Counts, Answers(), seeds=range(3), executor="threads")  # type: ignore[arg-type]


@pytest.mark.full
def test_an_error_that_holds_for_all_episodes_ends_the_run() -> None:
    with pytest.raises(errors.TokenizerMismatch):
        Rollouts(Counts, NoTokenizer(), seeds=range(3), executor="processes", n_workers=1).run()
