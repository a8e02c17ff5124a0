"""The programs in examples/ run; those that need torch are run by tests/with_torch, those of frameworks by peers."""

import subprocess
import sys

import pytest
from example_programs import EXAMPLES


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_loop", "sample 1 of 1"),
        ("best_of_n", "best: "),
        ("agent_openai", "reward 1, 2 requests, 1 sample"),
        ("agent_anthropic", "reward 1, 2 requests, 1 sample"),
    ],
)
def test_an_example_runs(name: str, says: str) -> None:
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
