"""Agent programs by their recipes: `ProgramEnv(agent=, task=)`. docs/agents.md has the real programs."""

import json
import sys
from pathlib import Path
from string import Template
from typing import Any

import pytest

import envsdk
from envsdk.errors import ConfigError, EpisodeError
from envsdk.gateway import Endpoint, ProgramEnv, ProgramResult, agents
from envsdk.gateway._agents import prepared_agent

PROGRAM = f"""#!{sys.executable}
import json, os, sys, urllib.request
config = json.load(open(os.environ["HOME"] + "/.pi/agent/models.json"))["providers"]["envsdk"]
body = {{"model": config["models"][0]["id"], "messages": [{{"role": "user", "content": sys.argv[-1]}}]}}
headers = {{"authorization": "Bearer " + config["apiKey"], "content-type": "application/json"}}
request = urllib.request.Request(config["baseUrl"] + "/chat/completions", json.dumps(body).encode(), headers)
answer = json.load(urllib.request.urlopen(request))
print(config["models"][0]["contextWindow"], answer["choices"][0]["message"]["content"])
"""


class Answered(ProgramEnv):
    def score(self, result: ProgramResult) -> float:
        return float(result.stdout == "5000 It is 42.\n")

    def reference_reply(self) -> str:
        assert self.messages()[-1].content == "What is $40 + 2?"
        return "It is 42."


@pytest.fixture
def pi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with the name and the configuration of a known agent."""
    (tmp_path / "pi").write_text(PROGRAM)
    (tmp_path / "pi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("pi")
@pytest.mark.parametrize(
    "options",
    [
        {"task": "What is $40 + 2?"},
        {"tasks": ["What is $40 + 2?"]},
        {"tasks": [{"prompt": "What is $40 + 2?"}]},
    ],
)
def test_an_agent_gets_its_task_the_endpoint_and_the_size_of_the_context(options: dict[str, Any]) -> None:
    env = Answered(agent="pi", limits={"max_context_tokens": 5000}, **options)
    assert envsdk.rollout(env, "reference", seed=0).reward == 1.0


@pytest.mark.usefixtures("pi")
def test_an_agent_without_a_score_is_not_scored() -> None:
    class Unscored(ProgramEnv):
        def reference_reply(self) -> str:
            return "It is 42."

    trajectory = envsdk.rollout(Unscored(agent="pi", task="Answer."), "reference", seed=0)
    assert (trajectory.status, trajectory.reward, len(trajectory.steps)) == ("terminated", 0.0, 1)


def test_what_an_agent_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"agent.*no recipe.*qwen-code"):
        Answered(agent="qwen", task="Answer.")
    with pytest.raises(ConfigError, match="give task="):
        Answered(agent="pi").reset(seed=0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises((ConfigError, EpisodeError), match="'pi' is not an executable file, or not on the PATH"):
        Answered(agent="pi", task="Answer.").reset(seed=0)


@pytest.mark.parametrize("name", agents)
def test_a_recipe_names_a_pinned_package_and_fills_everything(name: str, tmp_path: Path) -> None:
    endpoint = Endpoint("http://h/s/1/v1", "http://h/s/1", "sk-key")
    command, environ = prepared_agent(name, "A task.", endpoint, 5000, tmp_path, "/home")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert agents[name]["install"].startswith(("npm:", "pypi:"))
    assert agents[name]["install"].rpartition("@")[2][0].isdigit()
    assert command[-1] == "A task."
    assert environ["HOME"] == "/home"
    assert len(files) == len(agents[name].get("files", {}))
    for text in [*command, *environ.values(), *(file.read_text() for file in files)]:
        assert not list(Template(text).get_identifiers())
    for file in files:
        assert file.suffix != ".json" or json.loads(file.read_text())
