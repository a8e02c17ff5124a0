"""`envsdk onpolicy` on a real vLLM: the server is on-policy, and one with other weights is not."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from vllm_server import MODEL_NAME, VLLMServer

from envsdk.cli import app

pytestmark = pytest.mark.filterwarnings("default")


def run(server: VLLMServer, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Compare the server with the model in the folder, and return the exit status and the report."""
    sampler = ("--policy", f"vllm:{server.url}", "--model", str(folder), "--policy-option", f"model={MODEL_NAME}")
    options = ("--policy-option", "max_tokens=24", "--option", 'limits={"max_steps": 3, "end_on_cut": false}')
    result = CliRunner().invoke(app, ["onpolicy", *sampler, *options, "--json", *arguments])
    assert isinstance(result.exception, SystemExit | None), result.output
    print(result.stdout)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("history", ["keep", "strip", "compact:every=2"])
def test_a_server_with_the_same_weights_is_healthy(
    vllm_server: VLLMServer, model_folder: Path, compared: Counter[str], history: str
) -> None:
    code, report = run(vllm_server, model_folder, "--history", history)
    assert (code, report["verdict"], report["failed"]) == (0, "healthy", 0)
    assert report["tokens"]["share"] == 1.0
    found = report["kl"]["all"]
    assert max(abs(found["k1"]), found["k2"], found["k3"]) < 1e-5
    assert found["tokens"] == report["sampled"] > 200
    compared["log-probabilities"] += found["tokens"]


def test_a_server_with_other_weights_is_not(vllm_server: VLLMServer, changed_model_folder: Path) -> None:
    code, report = run(vllm_server, changed_model_folder)
    assert (code, report["tokens"]["share"]) == (1, 1.0)
    assert report["verdict"] != "healthy"
