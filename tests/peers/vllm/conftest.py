"""SmolLM2-135M-Instruct in a real vLLM server on the CPU, and the same model in transformers, in float32."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import smollm2
import torch
import transformers
from safetensors.torch import load_file, save_file
from vllm_server import VLLMServer


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
