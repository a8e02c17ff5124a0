"""Images on a real vLLM from the command line: `envsdk gateway`, `envsdk rollout` and `envsdk replay`."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from vision_models import picture
from vision_server import Served
from vllm_server import MODEL_NAME

from envsdk import Sample
from envsdk.diagnostics import forward_logprobs, kl
from envsdk.rollouts._stored_run import StoredRun

pytestmark = pytest.mark.filterwarnings("default")

ENVSDK = str(Path(sys.executable).with_name("envsdk"))


def options(served: Served) -> list[str]:
    """The server as the policy, and the model's renderer."""
    policy = ("--policy", f"vllm:{served.url}", "--model", MODEL_NAME, "--policy-option", "max_tokens=8")
    return [*policy, "--policy-option", "seed=0", "--renderer", "auto", "--tokenizer", str(served.folder)]


def check(served: Served, samples: list[Sample], compared: Counter[str]) -> None:
    found = kl(samples, forward_logprobs(served.model, samples, vision=served.renderer.vision)).all
    print(found)
    assert max(abs(found.k1), found.k2, found.k3) < 1e-5
    compared["log-probabilities"] += found.tokens


def test_a_program_sends_images_to_the_gateway(served: Served, tmp_path: Path, compared: Counter[str]) -> None:
    command = [ENVSDK, "gateway", *options(served), "--limit", "end_on_cut=false", "--port", "0", "--out", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        url = gateway.stdout.readline().split()[2]
        try:
            ask(httpx.post(url, json={}, timeout=600.0).json())
        finally:
            gateway.terminate()
    (trajectory,) = StoredRun(tmp_path / "run").trajectories()
    (sample,) = trajectory.samples()
    assert [placed.image for placed in sample.media] == [picture(number).data for number in (1, 2, 1)]
    assert len(list((tmp_path / "run" / "media").iterdir())) == 2
    assert trajectory.breaks == []
    check(served, [sample], compared)


def ask(session: dict[str, Any]) -> None:
    """Show three pictures, of which two are the same, and send the whole conversation each time."""
    messages: list[Any] = []
    with openai.OpenAI(base_url=session["openai_base_url"], api_key=session["key"]) as client:
        for number in (1, 2, 1):
            image = {"type": "image_url", "image_url": {"url": picture(number).data.url}}
            messages.append({"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]})
            completion = client.chat.completions.create(model="any", messages=messages)
            messages.append({"role": "assistant", "content": completion.choices[0].message.content})


def test_a_run_with_images_is_repeated(served: Served, tmp_path: Path, compared: Counter[str]) -> None:
    limits = ("--option", 'limits={"end_on_cut": false}')
    called("rollout", "envsdk/ChartReader-v0", *options(served), *limits, "--seeds", "4", "--out", tmp_path / "run")
    assert "4 of 4 episodes are the same, 0 differ" in called("replay", tmp_path / "run")
    samples = [sample for one in StoredRun(tmp_path / "run").trajectories() for sample in one.samples()]
    assert [len(sample.media) for sample in samples] == [1] * 4
    check(served, samples, compared)


def called(*arguments: str | Path) -> str:
    """Run `envsdk` and return what it prints."""
    done = subprocess.run([ENVSDK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
