"""SmolLM2-135M-Instruct in a real vLLM server on the CPU, and the same model in transformers, in float32.

Images are for small random models of Qwen's families.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import smollm2
import torch
import transformers
from safetensors.torch import load_file, save_file
from vision_server import FAMILIES, Served, serving
from vllm_checks import RecordingVLLM
from vllm_server import MODEL_NAME, VLLMServer

from envsdk.authoring._event_loops import run

TEMPLATE = Path(__file__).with_name("thinking_and_tools.jinja")
"""The model's own template has no tools. This one adds them and reasoning, as text that its vocabulary can spell."""


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return smollm2.model_folder()


@pytest.fixture(scope="session")
def vllm_server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """A server that is up, with the endpoints that change weights. A test that kills it starts it again."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with VLLMServer(model_folder, log, environment={"VLLM_SERVER_DEV_MODE": "1"}) as server:
        yield server


@pytest.fixture(scope="session")
def changed_model_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights in its first layer, as after an update: for `VLLMServer.load_weights`."""
    folder = tmp_path_factory.mktemp("changed") / "model"
    shutil.copytree(model_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.input_layernorm.weight"] *= 1.3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def transformers_model(model_folder: Path) -> Any:
    """What the server serves, for log-probabilities to compare with."""
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A vision model on a server."""
    with serving(request.param, tmp_path_factory.mktemp(request.param)) as one:
        yield one


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """What there is to compute is too little to share."""
    torch.set_num_threads(1)


@pytest.fixture
def policy_of(vllm_server: VLLMServer) -> Iterator[Callable[..., RecordingVLLM]]:
    """Make a policy on the server; its connections are closed after the test."""
    made: list[RecordingVLLM] = []

    def make(**options: Any) -> RecordingVLLM:
        made.append(RecordingVLLM(vllm_server.url, MODEL_NAME, **{"temperature": 0.8, "seed": 0, **options}))
        return made[-1]

    yield make
    for policy in made:
        run(policy.aclose())


@pytest.fixture
def env_options(model_folder: Path) -> Callable[..., dict[str, Any]]:
    """The options of an environment for the model, with short episodes."""

    def make(history: str = "keep", max_steps: int = 3) -> dict[str, Any]:
        renderer = {"name": "fixed_base", "template": TEMPLATE.read_text(encoding="utf-8")}
        # A reply that the policy cuts does not end the episode: the next turn closes it.
        limits = {"max_steps": max_steps, "max_context_tokens": 1000, "end_on_cut": False}
        return {"renderer": renderer, "tokenizer": str(model_folder), "history": history, "limits": limits}

    return make
