"""The program of `make test-gpu` on a CPU: all of it but the GPU's kernels."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu.attention import Measurement, check

RUN = Path(__file__).resolve().parents[2] / "gpu" / "run.py"


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++, which FlexAttention needs on a CPU")
def test_on_a_cpu_all_ways_are_exact_and_the_trainer_trains_all_tokens(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    options = ["--device", "cpu", "--shape", "tiny", "--steps", "2", "--repetitions", "1", "--out", out]
    done = subprocess.run([sys.executable, RUN, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert [(row["dtype"], row["way"]) for row in found["rows"]] == [
        (dtype, way) for dtype in ("float32", "bfloat16") for way in ("separate", "runs", "flex")
    ]
    assert found["trainer"]["trained_tokens"] == found["trainer"]["sampled_tokens"] > 0


def test_a_tree_that_is_not_exact_is_a_problem() -> None:
    rounding = {"logprob_difference": 1e-3, "max_logprob_difference": 1e-2, "gradient_difference": 1e-2}
    for dtype, limit in (("float32", "0.001"), ("bfloat16", "0.0015")):
        separate = Measurement(2, dtype, "separate", 9, **rounding)
        tree = Measurement(2, dtype, "runs", 9, **rounding | {"logprob_difference": 2e-3})
        check(tree, separate)
        assert tree.problem is not None and tree.problem.endswith(f"expected at most {limit}")
