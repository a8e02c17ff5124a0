"""Containers for Harbor's tasks: the engine and the images of the peer `containers`."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.containers.conftest import CACHE, CHECKOUT, install, started


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """The engine, and the image that tasks start from."""
    for _ in started(with_agents=False):
        subprocess.run(("podman", "tag", "python:3.12-slim", "docker.io/library/ubuntu:24.04"), check=True)
        yield


@pytest.fixture(scope="session")
def image(engine: None) -> Iterator[str]:
    """An image that has envsdk, for exported tasks."""
    name = "docker.io/library/envsdk-tasks:1"
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", CHECKOUT)
        subprocess.run(build, check=True)
        packages = install(f"{folder}/packages", *map(str, Path(folder).glob("*.whl")))
        lines = ("FROM docker.io/library/python:3.12-slim", f"COPY packages {packages}")
        Path(folder, "Dockerfile").write_text("\n".join(lines))
        subprocess.run(("podman", "build", "--quiet", f"--tag={name}", folder), check=True, capture_output=True)
    yield name
    subprocess.run(("podman", "rmi", "--force", name), check=True, capture_output=True)
