"""A program that is a command: `prepare` may choose it."""

import sys
from pathlib import Path

import pytest
from toy_policies import in_any_vocabulary

from envsdk import Action, rollout
from envsdk.errors import ConfigError
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._programs import ProgramResult

ASK = """
import json, os, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["finish_reason"])
"""


@in_any_vocabulary
def answer(prompt, **_):
    return Action([1, 2], finish_reason="stop")


class Prepared(ProgramEnv):
    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        (folder / "ask.py").write_text(ASK)
        self.command = [sys.executable, folder / "ask.py"]

    def score(self, result: ProgramResult) -> float:
        assert result.returncode == 0, result.stderr
        return float(result.stdout == "stop\n")


def test_prepare_may_set_the_command() -> None:
    trajectory = rollout(Prepared(), answer, seed=0)
    assert (trajectory.status, trajectory.reward, len(trajectory.steps)) == ("terminated", 1.0, 1)


def test_an_environment_without_run_and_command_says_what_to_write() -> None:
    class Nothing(ProgramEnv):
        pass

    with pytest.raises(ConfigError, match=r"write run\(\), or set command"):
        rollout(Nothing(), answer, seed=0)
