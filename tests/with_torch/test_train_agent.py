"""An agent program is trained by the loop of the example that trains an environment."""

import re
import subprocess
import sys

import pytest
from example_programs import EXAMPLES

pytest.importorskip("torch.nn")

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.full
def test_an_agent_learns_to_call_its_tool_in_a_few_updates():
    command = [sys.executable, EXAMPLES / "train_agent.py", "agent_openai", "--updates", "5"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = re.search(r"mean reward (\S+) before and (\S+) after; \|k1\| is at most (\S+)$", run.stdout.strip())
    assert found, run.stdout
    before, after, k1 = map(float, found.groups())
    assert after > before + 0.1
    assert k1 < 1e-5
