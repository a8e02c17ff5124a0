"""What `renderer="auto"` chose, and why, is in each trajectory and in the run folder, which need no chat template."""

import asyncio
import copy
import json
from pathlib import Path

import pytest
from families import CHATML, with_template
from template_conversations import templates
from typer.testing import CliRunner

import envsdk
from envsdk import Env, Trajectory
from envsdk.cli import app
from envsdk.errors import RunFolderError
from envsdk.rendering.tokenizers import Tokenizer
from envsdk.rollouts import RunFolder, StoredRun
from envsdk.rollouts._replaying import replay_trajectory
from envsdk.testing import check_renderer
from envsdk.viewer._transcript import transcript

ODD = CHATML.replace("message.content", "'> ' + message.content")


def tokenizer_with(template: str) -> Tokenizer:
    return with_template("qwen2.5", templates().get(template, template))


def env_with(template: str) -> Env:
    return envsdk.make("envsdk/GuessNumber-v1", renderer="auto", tokenizer=tokenizer_with(template))


@pytest.fixture(params=["qwen2_5", ODD], ids=["a family", "fixed_base"])
def env(request: pytest.FixtureRequest) -> Env:
    return env_with(request.param)


def test_a_trajectory_and_show_have_the_renderer_and_why_it_was_chosen(env: Env, tmp_path: Path) -> None:
    trajectory = envsdk.rollout(env, "reference", seed=0)
    stored = Trajectory.from_json(trajectory.to_json())
    assert stored.renderer == env.renderer.specification()
    assert stored.renderer_chosen_because == env.renderer.chosen_because != ""
    assert stored.to_json() == trajectory.to_json()
    text = next(transcript(trajectory)).parts[0].text
    assert text.startswith(f"renderer {env.renderer.name}; chosen because {env.renderer.chosen_because}")
    (tmp_path / "trajectories.jsonl").write_bytes(trajectory.to_json() + b"\n")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "trajectories.jsonl")]).output
    assert "chosen because" in shown and "chat template" in shown


def test_a_record_of_a_renderer_that_was_named_has_no_reason() -> None:
    trajectory = envsdk.rollout(envsdk.make("envsdk/GuessNumber-v1"), "reference", seed=0)
    assert trajectory.renderer_chosen_because == ""
    assert "renderer_chosen_because" not in json.loads(trajectory.to_json())


def test_show_prints_the_options_of_a_renderer() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", renderer={"name": "qwen3", "enable_thinking": False})
    text = next(transcript(envsdk.rollout(env, "reference", seed=0))).parts[0].text
    assert text == "renderer qwen3 enable_thinking=False"


def test_the_doctor_prints_the_reason() -> None:
    renderer = envsdk.get_renderer("auto", tokenizer_with("qwen2_5"))
    first = check_renderer(renderer, random_replies=0).checks[0]
    assert (first.name, first.verdict) == ("chosen by `auto`", "PASS")
    assert first.detail == f"'qwen2.5': {renderer.chosen_because}"


# Run folders.


def stored_run(path: Path, env: Env) -> Trajectory:
    trajectory = envsdk.rollout(env, "reference", seed=0)
    folder = RunFolder.create(path, {}, {"main": env.renderer})
    asyncio.run(folder.append(trajectory))
    folder.close()
    return trajectory


def without_template(path: Path) -> None:
    """Remove the chat template from the tokenizer in a run folder."""
    removed = 0
    for file in (path / "tokenizer").glob("*.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if "chat_template" in content:
            file.write_text(json.dumps({**content, "chat_template": None}), encoding="utf-8")
            removed += 1
    for file in (path / "tokenizer").glob("*.jinja"):
        file.unlink()
        removed += 1
    assert removed


def test_a_run_goes_on_if_only_the_reason_is_worded_differently(tmp_path: Path) -> None:
    env = env_with("qwen2_5")
    stored_run(tmp_path / "run", env)
    other = copy.copy(env.renderer)
    other.chosen_because = "in other words"
    RunFolder.create(tmp_path / "run", {}, {"main": other}, resume=True).close()
    other = envsdk.get_renderer("qwen3-instruct-2507", env.renderer.tokenizer)
    with pytest.raises(RunFolderError, match="qwen3-instruct-2507"):
        RunFolder.create(tmp_path / "run", {}, {"main": other}, resume=True)


@pytest.mark.matrix(every=2)
def test_a_stored_run_has_the_reason_and_decodes_without_the_chat_template(env: Env, tmp_path: Path) -> None:
    trajectory = stored_run(tmp_path / "run", env)
    without_template(tmp_path / "run")
    run = StoredRun(tmp_path / "run")
    (renderer,) = run.description.renderers.values()
    assert renderer.specification == env.renderer.specification()
    assert renderer.chosen_because == env.renderer.chosen_because
    assert run.tokenizer.chat_template is None
    (stored,) = run.trajectories()
    texts = [run.tokenizer_of(stored).decode(prompt.prompt) for prompt in stored.prompts()]
    assert texts == [env.renderer.tokenizer.decode(prompt.prompt) for prompt in trajectory.prompts()]


def test_a_run_of_a_chosen_family_is_replayed_without_the_chat_template(tmp_path: Path) -> None:
    stored_run(tmp_path / "run", env_with("qwen2_5"))
    without_template(tmp_path / "run")
    run = StoredRun(tmp_path / "run")
    (stored,) = run.trajectories()
    again = envsdk.make("envsdk/GuessNumber-v1", renderer=stored.renderer, tokenizer=run.tokenizer_of(stored))
    assert again.renderer.chosen_because == ""
    assert replay_trajectory(stored, again) == []
