"""Rollouts on a real vLLM: what is stored is what a trainer computes, and nothing is lost when the server fails.

`.venvs/vllm/bin/pytest tests/peers/vllm --full` plays 32 tasks x 4 samples of each environment under each history.
"""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from vllm_checks import check_logprobs, check_tokens, samples_of
from vllm_server import MODEL_NAME, VLLMServer

import envsdk
from envsdk import Trajectory
from envsdk.policies import VLLM
from envsdk.rollouts import Rollouts
from envsdk.rollouts._stored_run import StoredRun

pytestmark = pytest.mark.filterwarnings("default")

ENVIRONMENTS = ("GuessNumber-v1", "Calculator-v1", "Delegate-v1")
HISTORIES = ("keep", "strip", "compact:every=2")
CASES = list(zip(ENVIRONMENTS, HISTORIES, strict=True))
OTHER_CASES = [(env, history) for env in ENVIRONMENTS for history in HISTORIES if (env, history) not in CASES]


@pytest.fixture(scope="module")
def changed_transformers_model(changed_model_folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(changed_model_folder, dtype=torch.float32).eval()


# What is stored is what a trainer computes.


@pytest.mark.parametrize(
    ("env", "history", "tasks", "group_size"),
    [
        *((*case, 32, 4) for case in CASES),
        *((*case, 8, 2) for case in OTHER_CASES),
        *(pytest.param(*case, 32, 4, marks=pytest.mark.full) for case in OTHER_CASES),
    ],
)
def test_a_trainer_computes_what_the_server_sampled(
    env: str,
    history: str,
    tasks: int,
    group_size: int,
    policy_of: Any,
    env_options: Any,
    transformers_model: Any,
    tmp_path: Path,
    compared: Counter[str],
    is_full: bool,
) -> None:
    policy = policy_of(max_tokens=16, seed=None)  # vLLM on the CPU dies of seeds, as in test_programs.py
    options = {"env_options": env_options(history), "group_size": group_size, "max_concurrency": 32}
    begun = time.monotonic()
    rollouts = Rollouts(f"envsdk/{env}", policy, seeds=range(tasks), out=tmp_path / "run", **options)
    reported = rollouts.run()
    took = time.monotonic() - begun
    trajectories = list(StoredRun(tmp_path / "run").trajectories())
    assert {one.id for one in trajectories} == {one.id for one in reported}
    assert len(trajectories) == len(reported) == tasks * group_size
    assert Counter(one.group_id for one in trajectories) == {f"{reported[0].env}/{n}": group_size for n in range(tasks)}
    samples = samples_of(trajectories)
    breaks = Counter(break_.reason for one in trajectories for break_ in one.breaks)
    print(
        f"{len(reported)} episodes, {rollouts.statistics.tally.sampled_tokens} tokens in {took:.0f} s; {dict(breaks)}"
    )
    assert max(len(one.steps) for one in trajectories) > 1
    if history == "strip":
        assert breaks["thinking_stripped"]
    check_tokens(policy, samples, compared)
    check_logprobs(samples, {-1: transformers_model}, compared, at_least=3_000 if is_full else 600)


# Updates of the weights.


async def play_and_update(
    server: VLLMServer, policy: VLLM, rollouts: Rollouts, update: Callable[[], Awaitable[None]]
) -> list[Trajectory]:
    """Run rollouts, and update weights while replies are sampled: each has a few tokens."""
    before = sampled_tokens(server)
    async with policy:
        run = asyncio.create_task(rollouts.arun())
        while await asyncio.to_thread(sampled_tokens, server) < before + 80:
            await asyncio.sleep(0.2)
        await update()
        return await run


def sampled_tokens(server: VLLMServer) -> int:
    return metric(server, "generation_tokens_total")


def metric(server: VLLMServer, name: str) -> int:
    """Return the sum of a metric of vLLM."""
    found = re.findall(rf"(?m)^vllm:{name}\{{.*\}} (\S+)$", httpx.get(f"{server.url}/metrics", timeout=600.0).text)
    assert found, name
    return sum(int(float(value)) for value in found)


def interrupted(trajectories: Sequence[Trajectory]) -> list[list[int | None]]:
    """Return the versions of the parts of each reply that has several."""
    steps = [step for one in trajectories for step in one.steps if len(step.parts) > 1]
    return [[part.policy_version for part in step.parts] for step in steps]


def test_a_reply_that_is_aborted_continues(
    vllm_server: VLLMServer, policy_of: Any, env_options: Any, transformers_model: Any, compared: Counter[str]
) -> None:
    async def pause() -> None:
        await rollouts.pause()
        await asyncio.to_thread(wait_until_idle, vllm_server)
        rollouts.resume(policy_version=2)

    policy = policy_of(max_tokens=80)
    rollouts = Rollouts("envsdk/Calculator-v1", policy, seeds=range(2), group_size=4, env_options=env_options())
    rollouts.resume(policy_version=1)
    trajectories = asyncio.run(play_and_update(vllm_server, policy, rollouts, pause))
    versions = interrupted(trajectories)
    assert versions.count([1, 2]) >= 4
    samples = samples_of(trajectories)
    check_logprobs(samples, {1: transformers_model, 2: transformers_model}, compared)
    compared["interrupted replies"] += len(versions)


def test_a_reply_that_is_aborted_continues_with_the_new_weights(
    vllm_server: VLLMServer,
    model_folder: Path,
    changed_model_folder: Path,
    policy_of: Any,
    env_options: Any,
    transformers_model: Any,
    changed_transformers_model: Any,
    compared: Counter[str],
) -> None:
    async def update() -> None:
        await rollouts.pause()
        vllm_server.load_weights(changed_model_folder, "2")  # which leaves the prefix cache of the old weights
        rollouts.resume(policy_version=2)

    policy = policy_of(max_tokens=80)
    rollouts = Rollouts("envsdk/Calculator-v1", policy, seeds=range(2), group_size=4, env_options=env_options())
    rollouts.resume(policy_version=1)
    try:
        trajectories = asyncio.run(play_and_update(vllm_server, policy, rollouts, update))
    finally:
        vllm_server.load_weights(model_folder, "default")
        vllm_server.post("/reset_prefix_cache", {})
    assert interrupted(trajectories).count([1, 2]) >= 4
    samples = samples_of(trajectories)
    check_logprobs(samples, {1: transformers_model, 2: changed_transformers_model}, compared)
    with pytest.raises(AssertionError):  # the weights differ by more than the tolerance
        check_logprobs(samples, {1: transformers_model, 2: transformers_model}, Counter(), at_least=100)


def test_versions_that_the_server_reports_within_a_reply_are_parts(
    vllm_server: VLLMServer, policy_of: Any, env_options: Any, transformers_model: Any, compared: Counter[str]
) -> None:
    async def update() -> None:
        vllm_server.post("/update_weight_version", {"new_version": "7"})

    policy = policy_of(max_tokens=80)
    rollouts = Rollouts(
        "envsdk/Calculator-v1", policy, seeds=range(2), group_size=4, env_options=env_options(max_steps=1)
    )
    try:
        trajectories = asyncio.run(play_and_update(vllm_server, policy, rollouts, update))
    finally:
        vllm_server.post("/update_weight_version", {"new_version": "default"})
    assert interrupted(trajectories).count([None, 7]) >= 4
    check_logprobs(samples_of(trajectories), {-1: transformers_model, 7: transformers_model}, compared)


# A server that fails.


def test_a_server_that_is_killed_and_restarted_loses_no_episode(
    vllm_server: VLLMServer,
    policy_of: Any,
    env_options: Any,
    transformers_model: Any,
    tmp_path: Path,
    compared: Counter[str],
) -> None:
    policy = policy_of(max_tokens=16, max_retries=3)  # both the calls and the episodes are tried again
    options = {"env_options": env_options(), "group_size": 4, "max_retries": 8, "retry_wait_s": 4.0}
    rollouts = Rollouts("envsdk/GuessNumber-v1", policy, seeds=range(16), out=tmp_path / "run", **options)

    async def play() -> list[str]:
        ids: list[str] = []
        restarted: asyncio.Task[None] | None = None
        async with policy:
            async for trajectory in rollouts:
                ids.append(trajectory.id)
                if restarted is None:
                    assert running_requests(vllm_server) > 0
                    vllm_server.kill()
                    restarted = asyncio.create_task(asyncio.to_thread(vllm_server.start))
        assert restarted is not None
        await restarted
        return ids

    ids = asyncio.run(play())
    stored = list(StoredRun(tmp_path / "run").trajectories())
    expected = {f"envsdk/GuessNumber-v1/{n}{f'#{i}' if i else ''}" for n in range(16) for i in range(4)}
    assert (len(ids), set(ids)) == (64, expected)
    assert (len(stored), {one.id for one in stored}) == (64, expected)
    assert policy.usage.retries["connection"] > 0
    assert rollouts.statistics.play.retries["PolicyUnavailable"] > 0
    print(f"retries of calls {dict(policy.usage.retries)}, of episodes {dict(rollouts.statistics.play.retries)}")
    check_logprobs(samples_of(stored), {-1: transformers_model}, compared)
    compared["episodes"] += len(stored)


def test_episodes_move_from_a_server_that_does_not_run(vllm_server: VLLMServer, env_options: Any) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        nowhere = f"http://127.0.0.1:{held.getsockname()[1]}"
        policy = VLLM([nowhere, vllm_server.url], MODEL_NAME, max_tokens=4, seed=0)
        options = {"env_options": env_options(max_steps=1), "group_size": 4}
        rollouts = Rollouts("envsdk/GuessNumber-v1", policy, seeds=range(2), **options)
        assert len(samples_of(rollouts.run())) == 8
    assert policy.usage.retries["connection"] > 0
    assert rollouts.statistics.play.retries == {}


def test_replies_that_take_too_long_are_counted_and_the_server_stops_sampling_them(
    vllm_server: VLLMServer, policy_of: Any, env_options: Any
) -> None:
    policy = policy_of(max_tokens=900)
    options = {"env_options": env_options(max_steps=1), "group_size": 8, "max_retries": 1, "retry_wait_s": 0.1}
    most: list[int] = []

    async def play() -> list[Trajectory]:
        async with policy:
            await policy.acheck(envsdk.make("envsdk/GuessNumber-v1", **options["env_options"]).renderer)
            run = asyncio.create_task(rollouts.arun())
            while not run.done():
                most.append(await asyncio.to_thread(running_requests, vllm_server))
                await asyncio.sleep(0.1)
            return await run

    rollouts = Rollouts("envsdk/GuessNumber-v1", policy, seeds=[0], policy_timeout_s=0.5, **options)
    trajectories = asyncio.run(play())
    kinds = Counter(one.error_kind for one in trajectories)
    assert kinds["infrastructure"] > 0
    assert rollouts.statistics.failures["infrastructure"] == kinds["infrastructure"]
    assert rollouts.statistics.tally.errors["DeadlineExceeded"] == kinds["infrastructure"]
    assert rollouts.statistics.play.retries["DeadlineExceeded"] >= kinds["infrastructure"]
    assert max(most) > 0
    wait_until_idle(vllm_server)


def running_requests(server: VLLMServer) -> int:
    """Return how many requests the server is sampling for, or has in its queue."""
    return metric(server, "num_requests_running") + metric(server, "num_requests_waiting")


def wait_until_idle(server: VLLMServer) -> None:
    """Wait until the server samples for no request. Its metrics are a moment late."""
    deadline = time.monotonic() + 600.0
    while running_requests(server) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running_requests(server) == 0


# From the command line.


def command(*arguments: str | Path) -> list[str]:
    return [str(Path(sys.executable).with_name("envsdk")), *map(str, arguments)]


def called(*arguments: str | Path) -> str:
    """Run `envsdk` and return what it prints."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def model_options(vllm_server: VLLMServer, model_folder: Path) -> list[str]:
    """The model, for `envsdk rollout` and `envsdk eval`; the model's own chat template renders."""
    limits = json.dumps({"max_steps": 3, "end_on_cut": False})
    return [
        *("--policy", f"vllm:{vllm_server.url}", "--model", MODEL_NAME, "--renderer", "auto"),
        *("--tokenizer", str(model_folder), "--option", f"limits={limits}"),
        *("--policy-option", "max_tokens=16", "--policy-option", "seed=0", "--max-concurrency", "16"),
    ]


def test_a_run_is_interrupted_resumed_and_replayed(
    tmp_path: Path, model_options: list[str], transformers_model: Any, compared: Counter[str]
) -> None:
    out = tmp_path / "run"
    arguments = ("rollout", "envsdk/GuessNumber-v1", *model_options, "--seeds", "16", "--group-size", "4")
    with subprocess.Popen(
        command(*arguments, "--out", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and lines_of(out) < 8:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "continue with: envsdk rollout" in errors
    stored = lines_of(out)
    assert 8 <= stored < 64
    printed = called(*arguments, "--out", out, "--resume")
    assert f"resumed: {stored} episodes" in printed
    run = StoredRun(out)
    trajectories = list(run.trajectories())
    assert len(trajectories) == len({one.id for one in trajectories}) == 64
    assert "64 of 64 episodes are the same, 0 differ, 0 were not repeated" in called("replay", out)
    check_logprobs(samples_of(trajectories), {-1: transformers_model}, compared)
    text = run.tokenizer.decode(trajectories[0].contexts["main"].tokens)
    assert text.startswith("<|im_start|>system\nAnswer with one number.<|im_end|>")


def lines_of(out: Path) -> int:
    file = out / "trajectories.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def test_a_model_is_evaluated_and_its_run_is_scored_again(tmp_path: Path, model_options: list[str]) -> None:
    out = tmp_path / "evaluation"
    sizes = ("--seeds", "4", "--group-size", "2")
    printed = called("eval", "envsdk/GuessNumber-v1", *model_options, *sizes, "--out", out, "--json")
    (result,) = json.loads(printed)["results"]
    assert (result["episodes"], result["failed"]) == (8, {})
    (again,) = json.loads(called("eval", out, "--json"))["results"]
    assert again["reward"] == result["reward"]
