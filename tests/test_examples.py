"""The programs in examples/ run; those that need torch are run by tests/torch."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(("name", "says"), [("own_loop", "sample 1 of 1"), ("best_of_n", "best: ")])
def test_an_example_runs(name: str, says: str) -> None:
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
