"""SmolLM2-135M-Instruct in a real vLLM server on the CPU, and the same model in transformers, in float32."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import smollm2
import torch
import transformers
from vllm_server import VLLMServer


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return smollm2.model_folder()


@pytest.fixture(scope="session")
def vllm_server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """A server that is up. A test that kills it starts it again."""
    with VLLMServer(model_folder, tmp_path_factory.mktemp("vllm") / "server.log") as server:
        yield server


@pytest.fixture(scope="session")
def transformers_model(model_folder: Path) -> Any:
    """What the server serves, for log-probabilities to compare with."""
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
