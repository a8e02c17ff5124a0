"""Containers for Harbor's tasks: the engine and the images of the peer `containers`."""

import subprocess
from collections.abc import Iterator

import pytest
from peers.containers.conftest import started


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """The engine, and the image that tasks start from."""
    for _ in started():
        subprocess.run(("podman", "tag", "python:3.12-slim", "docker.io/library/ubuntu:24.04"), check=True)
        yield
