"""Keeps what trackers write in a folder of the test run."""

import os
import tempfile
from pathlib import Path

import pytest

_FOLDER = tempfile.TemporaryDirectory()
os.environ["TRACKIO_DIR"] = _FOLDER.name  # trackio reads it when it is imported


@pytest.fixture
def trackio_folder() -> Path:
    return Path(_FOLDER.name)
