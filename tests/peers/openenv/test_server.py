"""OpenEnv's own client and validator against `envsdk serve`."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from openenv.cli._validation import validate_multi_mode_deployment, validate_running_environment
from openenv.core import GenericEnvClient
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from openenv_servers import FIVE, served
from typer.testing import CliRunner

import envsdk
from envsdk import Message
from envsdk.cli import app
from envsdk.episodes._actions import action_of


def client_of(url: str, **options: Any) -> Any:
    return GenericEnvClient(base_url=url, **options).sync()


def play_both(url: str, name: str, seed: int) -> tuple[int, float]:
    """Play the reference policy here and at the message level of a server, and compare each step.

    Returns:
        The number of steps, and the reward.
    """
    env, steps, total, done = envsdk.make(f"envsdk/{name}"), 0, 0.0, False
    observation, info = env.reset(seed=seed)
    contexts: dict[str, list[Any]] = {}
    with client_of(f"{url}/{name}") as client:
        result = client.reset(seed=seed)
        while not done:
            seen, context = result.observation, observation.context
            if seen["continues"] is None:
                contexts[context] = contexts.get(seen["base"], [])[: seen["keep"]] + seen["messages"]
                pending = env.episode.pending_reply(context)
                shown = [message.to_openai() for message in pending.context.view]
                assert [*map(without_reply, contexts[context])] == [*map(without_reply, shown)]
            assert (seen["context"], seen["base"]) == (context, observation.base)
            pending = env.episode.pending_reply(context)
            reply = pending.env.reference_reply()
            message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
            action = action_of(message, pending.context.renderer, stop=info["stop"], max_tokens=info["max_tokens"])
            observation, reward, terminated, truncated, info = env.step(action)
            data = message.to_openai()
            given = {"content": data["content"], "reasoning": data.get("reasoning_content")}
            result = client.step({**given, "tool_calls": data.get("tool_calls")})
            if seen["continues"] is None:
                contexts[context].append(data)
            assert (result.reward, result.done) == (reward, terminated or truncated)
            steps, total, done = steps + 1, total + reward, terminated or truncated
    return steps, total


def without_reply(message: dict[str, Any]) -> dict[str, Any]:
    """A message; of a reply only its role, because what was sampled may be read differently."""
    return {"role": "assistant"} if message["role"] == "assistant" else message


@pytest.mark.parametrize("name", FIVE)
def test_the_message_level_is_the_episode_of_this_machine(server: str, name: str, compared: Counter[str]):
    for seed in range(5):
        steps, _ = play_both(server, name, seed)
        compared["steps"] += steps


@pytest.mark.parametrize("name", FIVE)
def test_the_token_level_has_the_same_bytes(server: str, name: str, compared: Counter[str]):
    env = envsdk.make(f"envsdk/{name}")
    policy = envsdk.policies.ReplyPolicy(env, lambda acting: acting.reference_reply())
    with client_of(f"{server}/{name}") as client:
        observation, info = env.reset(seed=7)
        result, done = client.reset(seed=7, level="token"), False
        while not done:
            seen = result.observation
            assert seen["tokens"] == observation.tokens.tolist()
            assert [seen[part] for part in observation._fields[1:5]] == list(observation[1:5])
            assert seen["info"]["stop_token_ids"] == list(info["stop_token_ids"])
            asked = {"context": observation.context, "max_tokens": info["max_tokens"], "stop": info["stop"]}
            action = policy(env.prompt(), **asked)
            compared["tokens"] += len(action.tokens)
            observation, reward, terminated, truncated, info = env.step(action)
            given = {"tokens": action.tokens.tolist(), "logprobs": action.logprobs.tolist()}
            result = client.step({**given, "finish_reason": action.finish_reason})
            done = terminated or truncated
            assert (result.reward, result.done) == (reward, done)


@pytest.mark.parametrize("name", FIVE)
def test_openenvs_validator_accepts_the_running_server(server: str, name: str):
    report = validate_running_environment(f"{server}/{name}", timeout_s=30)
    assert report["passed"], report["summary"]


def test_openenvs_validator_accepts_the_folder_of_init(tmp_path: Path):
    folder = tmp_path / "quiz"
    assert CliRunner().invoke(app, ["init", "quiz-for-openenv", str(folder), "--openenv"]).exit_code == 0
    (folder / "uv.lock").touch()  # which `uv lock` writes
    assert validate_multi_mode_deployment(folder) == (True, [])
    assert OpenEnvYamlParser().parse(folder)


def test_the_folder_of_init_serves_its_environment(tmp_path: Path):
    import subprocess
    import sys
    import time
    import urllib.request

    folder = tmp_path / "quiz"
    assert CliRunner().invoke(app, ["init", "quiz-for-openenv", str(folder), "--openenv"]).exit_code == 0
    command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", "18973", "--log-level", "warning"]
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), urllib.request.urlopen("http://127.0.0.1:18973/health") as answer:
                    assert answer.status == 200
                    break
                time.sleep(0.1)
            with client_of("http://127.0.0.1:18973") as client:
                assert client.reset(seed=0).observation["messages"]
        finally:
            process.terminate()


def test_images_and_breaks_reach_a_client_of_tokens():
    given = ("envsdk/CropZoom-v1", "envsdk/MathChat-v0", "--history", "strip", "--port", "0")
    with served(*given) as (url, _):
        with client_of(f"{url}/CropZoom-v1") as client:
            (image,) = client.reset(seed=1, level="token").observation["info"]["media"]
            assert image["image"].startswith("data:image/png;base64,") and image["start"] < image["stop"]
        with client_of(f"{url}/MathChat-v0") as client:
            stop = client.reset(seed=1, level="token").observation["info"]["stop_token_ids"]
            env = envsdk.make("envsdk/MathChat-v0")
            tokens = env.renderer.reply(Message(role="assistant", reasoning="Hm", content="1")).tolist()
            seen = [client.step({"tokens": [*tokens[:-1], stop[0]]}).observation["info"] for _ in range(3)]
            assert "thinking_stripped" in [info["break"]["reason"] for info in seen if "break" in info]


def test_the_second_reset_knows_nothing_of_the_first(server: str):
    def played(client: Any, seed: int) -> list[Any]:
        results = [client.reset(seed=seed, episode_id="e")]
        results += [client.step({"content": text}) for text in ("50", "25", "nothing")]
        return [(result.observation, result.reward, result.done) for result in results]

    with client_of(f"{server}/GuessNumber-v1") as first, client_of(f"{server}/GuessNumber-v1") as second:
        alone = played(first, 5)
        played(second, 6)
        assert played(second, 5) == played(first, 5) == alone
    with served("envsdk/GuessNumber-v1", "--port", "0") as (url, _), client_of(url) as third:
        assert played(third, 5) == alone


def test_the_task_api_returns_arguments_of_reset(server: str):
    import requests

    url = f"{server}/GuessNumber-v1"
    assert [split["name"] for split in requests.get(f"{url}/splits", timeout=60).json()] == ["train", "test"]
    assert requests.post(f"{url}/num_tasks", json={"split": "train"}, timeout=60).json() == {"num_tasks": 100}
    task = requests.post(f"{url}/task", json={"split": "test", "index": 3}, timeout=60).json()["task"]
    with client_of(url) as client:
        assert client.reset(**task).observation["messages"]
    assert requests.post(f"{url}/task", json={"split": "none", "index": 3}, timeout=60).status_code == 409
    assert requests.post(f"{url}/task", json={"split": "test", "index": -1}, timeout=60).status_code == 400
    listed = requests.post(f"{url}/task_range", json={"split": "train", "start": 2, "stop": 4}, timeout=60).json()
    assert listed["tasks"] == [{"split": "train", "seed": 2}, {"split": "train", "seed": 3}]


def test_two_hundred_sessions_play_side_by_side(server: str, compared: Counter[str]):
    async def play(seed: int) -> list[Any]:
        async with GenericEnvClient(base_url=f"{server}/GuessNumber-v1", connect_timeout_s=120) as client:
            first = await client.reset(seed=seed)
            ready.append(seed)
            while len(ready) < 200:
                await asyncio.sleep(0.05)
            second = await client.step({"content": str(seed % 100 + 1)})
            return [first.observation["messages"], second.observation["messages"], second.reward]

    async def play_all() -> list[list[Any]]:
        return await asyncio.gather(*map(play, range(200)))

    ready: list[int] = []
    results = asyncio.run(play_all())
    for seed in range(0, 200, 20):
        with client_of(f"{server}/GuessNumber-v1") as client:
            alone = [client.reset(seed=seed).observation["messages"]]
            result = client.step({"content": str(seed % 100 + 1)})
            assert results[seed] == [*alone, result.observation["messages"], result.reward]
    compared["sessions"] += len(results)
