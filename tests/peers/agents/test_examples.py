"""The same agent in each framework: one sample, and the loop of the example can train it."""

import re
import subprocess
import sys

import pytest
import real_models

EXAMPLES = real_models.CHECKOUT / "examples"
AGENTS = ["agent_openai", "agent_anthropic", "agent_openai_agents", "agent_pydantic_ai"]


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_of_a_framework_looks_up_the_price(name: str) -> None:
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "reward 1, 2 requests, 1 sample" in run.stdout


@pytest.mark.parametrize("name", ["agent_openai_agents", "agent_pydantic_ai"])
def test_the_agent_of_a_framework_is_trained(name: str) -> None:
    pytest.importorskip("torch.nn")
    command = [sys.executable, EXAMPLES / "train_agent.py", name, "--updates", "1"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = re.search(r"\|k1\| is at most (\S+)$", run.stdout.strip())
    assert found, run.stdout
    assert float(found[1]) < 1e-5
