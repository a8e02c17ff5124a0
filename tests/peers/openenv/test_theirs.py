"""Environments of OpenEnv as an `OpenEnv`: on OpenEnv's own server, and in this process."""

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openenv.core.env_server import create_app
from openenv_environments import (
    SERVED,
    Climb,
    GuessWord,
    PlaysClimb,
    PlaysGuessWord,
    PlaysNotebook,
    PlaysWalkLine,
    WalkLine,
)
from openenv_servers import running

import envsdk
from envsdk import Message, ToolCall
from envsdk.adapters import OpenEnv
from envsdk.errors import ConfigError, RemoteEnvError
from envsdk.policies import ReplyPolicy
from envsdk.testing import check_env


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(running(create_app(*classes))) for name, classes in SERVED.items()}


@pytest.mark.parametrize("env", [PlaysGuessWord, PlaysClimb, PlaysWalkLine, PlaysNotebook])
def test_an_environment_of_openenv_passes_our_checks(env: type[OpenEnv]):
    check_env(env, seeds=3).raise_if_failed()


def play(env: OpenEnv, *replies: Message | str, seed: int = 0) -> envsdk.Trajectory:
    left = iter(replies)
    return envsdk.rollout(env, ReplyPolicy(env, lambda _: next(left, "")), seed=seed)


def texts(trajectory: envsdk.Trajectory) -> list[str]:
    return [message.content for message in trajectory.contexts["main"].messages if message.role != "assistant"]


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_reply_is_the_only_field_with_text(urls: dict[str, str], is_remote: bool):
    env = OpenEnv(urls["GuessWord"] if is_remote else GuessWord, limits={"max_steps": 6})
    trajectory = play(env, "apple", "x" * 50, "melon", "peach", "plum")
    assert texts(trajectory)[0] == "Guess my word: apple, melon, peach or plum."
    assert trajectory.reward == 1.0 and trajectory.status == "terminated"
    assert play(env, "apple", "x" * 50, "melon", "peach", "plum").to_json() == trajectory.to_json()
    env.close()


def test_an_action_that_is_refused_is_answered_with_the_error(urls: dict[str, str]):
    env = OpenEnv(urls["GuessWord"], reset={"word": "plum"})
    trajectory = play(env, "x" * 50, "plum")
    env.close()
    assert "a word has at most 40 letters" in texts(trajectory)[1]
    assert trajectory.reward == 1.0


def test_a_row_has_arguments_of_reset(urls: dict[str, str]):
    env = OpenEnv(urls["GuessWord"], tasks=[{"word": "plum"}])
    assert play(env, "plum", seed=5).reward == 1.0
    env.close()


@pytest.mark.parametrize("is_remote", [True, False])
def test_functions_convert_actions_and_observations(urls: dict[str, str], is_remote: bool):
    env = OpenEnv(
        urls["WalkLine"] if is_remote else WalkLine,
        action=lambda reply: {"direction": 1 if "right" in reply.content else -1},
        observation=lambda seen: f"You are at {seen['position']}.",
    )
    trajectory = play(env, "right", "right", "left", "right", "right")
    assert texts(trajectory)[:2] == ["You are at 0.", "You are at 1."]
    assert (trajectory.reward, trajectory.status) == (1.0, "terminated")
    env.close()


def test_a_member_of_an_enum_is_text():
    trajectory = play(OpenEnv(Climb), "up", "north", "up")
    assert "Input should be 'up' or 'down'" in texts(trajectory)[2]
    assert (texts(trajectory)[1], trajectory.reward) == ('{"height": 1}', 1.0)


def test_an_action_without_a_field_with_text_needs_a_function(urls: dict[str, str]):
    with pytest.raises(ConfigError, match=r"\['direction', 'note'\].*give action="):
        OpenEnv(urls["WalkLine"])


def test_calls_of_tools_are_actions(urls: dict[str, str]):
    env = OpenEnv(urls["Notebook"], prompt="Use the tools.")
    calls = (ToolCall(name="add_note", arguments={"text": "a"}), ToolCall(name="add_note", arguments={"text": ""}))
    trajectory = play(
        env,
        Message(role="assistant", tool_calls=calls),
        Message.calling("list_notes"),
        Message.calling("add_note", {"text": "b"}),
    )
    seen = texts(trajectory)
    assert {tool["function"]["name"] for tool in trajectory.contexts["main"].tools} == {"add_note", "list_notes"}
    assert seen[:2] == ["Use the tools.", '{"task": "Take two notes."}']
    assert seen[2] == "There are 1 notes."
    assert seen[3].startswith("Error:") and "the note is empty" in seen[3]
    assert seen[4] in ('["a"]', "a")
    assert (trajectory.reward, trajectory.status) == (1.0, "terminated")
    env.close()


def test_the_environment_that_openenvs_own_tool_creates(tmp_path: Path):
    command = [Path(sys.executable).with_name("openenv"), "init", "echo_here", "-o", str(tmp_path)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert made.returncode == 0, made.stdout[-300:] + made.stderr[-300:]
    sys.path.insert(0, str(tmp_path))
    try:
        app = importlib.import_module("echo_here.server.app").app
    finally:
        sys.path.remove(str(tmp_path))
    with running(app) as url:
        env = OpenEnv(url, observation="echoed_message", limits={"max_steps": 3})
        trajectory = play(env, "Hello", "there", "you")
        assert texts(trajectory)[1:3] == ["Hello", "there"]
        assert trajectory.reward == pytest.approx(1.3)
        env.close()


def test_a_server_that_does_not_run_is_a_typed_error():
    with pytest.raises(RemoteEnvError, match="cannot be read"):
        OpenEnv("http://127.0.0.1:9")
