"""SmolLM2-135M-Instruct as an ordinary folder."""

from pathlib import Path

import pytest
import smollm2


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return smollm2.model_folder()
