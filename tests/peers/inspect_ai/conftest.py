"""Lets the tests, and the processes that they start, import the environments of this folder."""

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

LEFT_OPEN = "Unclosed <MemoryObjectReceiveStream"
"""inspect_ai 0.3 never closes the stream of a sample's events."""


def pytest_configure(config: pytest.Config) -> None:
    """Pass over what inspect_ai leaves open."""
    config.addinivalue_line("filterwarnings", f"ignore:{LEFT_OPEN}:ResourceWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Pass over it also when pytest collects what is left at the end."""
    warnings.filterwarnings("ignore", LEFT_OPEN, ResourceWarning)
