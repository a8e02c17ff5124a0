"""Lets the tests, and the processes that they start, import the environments of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    """Pass over what inspect_ai 0.3 leaves open: it never closes the stream of a sample's events."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed <MemoryObjectReceiveStream:ResourceWarning")
