"""The programs of the documentation run: those of the tutorial, and the first ones of README and of the TRL page."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trl import GRPOConfig

import envsdk

CHECKOUT = Path(__file__).resolve().parents[3]
PAGE = (CHECKOUT / "docs" / "tutorials" / "train-with-trl.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.full  # tests/test_documents.py enters the page, too
def test_the_small_model_of_the_tutorial_learns_with_stripped_thinking(tmp_path: Path):
    printed = ""
    for language, code in BLOCK.findall(PAGE):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", code)
            assert name
            (tmp_path / name[1]).write_text(code, encoding="utf-8")
        elif language == "bash" and code.startswith("python "):
            command = [sys.executable, *code.split()[1:]]
            run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ))
            assert run.returncode == 0, run.stderr
            printed = run.stdout
    assert "not trained: 0%\n" in printed
    first, last = map(float, re.findall(r"\d\.\d\d", printed))
    assert last > first + 0.1


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("env_id", ["envsdk/MathChat-v0", "envsdk/Delegate-v1"])
def test_the_first_example_trains_stripped_rollouts_and_sub_agents_without_options(
    model_folder: Path, tokenizer: Any, env_options: dict[str, dict[str, Any]], tmp_path: Path, env_id: str
):
    blocks = BLOCK.findall((CHECKOUT / "docs/trainers/trl.md").read_text(encoding="utf-8"))
    code = next(code for language, code in blocks if language == "python" and "tree_trainer" in code)
    tokenizer.save_pretrained(model_folder)
    small = 'num_generations=2, per_device_train_batch_size=2, max_steps=1, use_cpu=True, bf16=False, report_to="none"'
    for written, here in {
        '"Qwen/Qwen3-0.6B"': repr(str(model_folder)),
        "envsdk/GuessNumber-v1": env_id,
        "partial(envsdk.make, ": "partial(envsdk.make, **given, ",
        '"runs/guess", num_generations=8': f'{str(tmp_path)!r}, logging_steps=1, save_strategy="no", {small}',
        "max_completion_length=512": "max_completion_length=100",
    }.items():
        assert code.count(written) == 1
        code = code.replace(written, here)
    history = "strip" if "MathChat" in env_id else "keep"
    given = {**env_options[env_id], "history": history, "limits": {"max_steps": 24, "end_on_cut": False}}
    names: dict[str, Any] = {"envsdk": envsdk, "given": given}
    exec(code, names)
    (logged, *_) = names["trainer"].state.log_history
    assert np.isfinite(logged["loss"])
    assert logged["envsdk/dropped_share"] == 0.0
    assert any(len(trajectory.samples()) > 1 for trajectory in names["trainer"].rollout_func.trajectories)


@pytest.mark.filterwarnings("default")
def test_the_class_of_the_readme_is_trained_by_the_lines_after_it(model_folder: Path, tokenizer: Any, tmp_path: Path):
    blocks = [code for language, code in BLOCK.findall((CHECKOUT / "README.md").read_text()) if language == "python"]
    define, train = blocks[:2]
    tokenizer.save_pretrained(model_folder)
    small: dict[str, Any] = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 100}
    names: dict[str, Any] = {
        "args": GRPOConfig(
            str(tmp_path), max_steps=1, logging_steps=1, use_cpu=True, bf16=False, report_to="none", **small
        )
    }
    for written, here in {
        '"Qwen/Qwen3-0.6B"': repr(str(model_folder)),
        "    trl.reward_func,\n": "    trl.reward_func,\n    args,\n",
    }.items():
        assert train.count(written) == 1
        train = train.replace(written, here)
    exec(define, names)
    exec(train, names)
    (logged, *_) = names["trainer"].state.log_history
    assert np.isfinite(logged["loss"]) and len(names["trainer"].rollout_func.trajectories) == 2
