"""Real containers: podman with runc, docker, and images that debootstrap, pip and npm fill, since there is no registry.

`CONTAINERS_CONF` and `CONTAINERS_STORAGE_CONF` choose the runtime and a storage of these tests; docker's daemon is one
of these tests, without a bridge. The images are made once, in `.cache/containers`. Without podman, runc and
debootstrap, or without root, the tests are skipped; those of docker also without dockerd.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsdk.containers import ContainerConfig, prune

CHECKOUT = Path(__file__).resolve().parents[3]
CACHE = CHECKOUT / ".cache" / "containers"
PACKAGES = "python3,git,nodejs,ca-certificates"
PYTHON_AGENTS = ("mini-swe-agent==2.4.6", "smolagents[openai]==1.26.0", "openai==3.54.0")
NODE_AGENTS = ("@qwen-code/qwen-code@0.24.4",)
AGENT = '''#!/usr/bin/env python3
"""An agent program of a few lines: it asks for a command, runs it, and returns its output."""

import json, os, subprocess, sys, urllib.request

messages = [{"role": "user", "content": sys.argv[-1]}]
for _ in range(8):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append({"role": "assistant", "content": reply["content"]})
    if reply["content"] == "done":
        break
    ran = subprocess.run(reply["content"], shell=True, capture_output=True, text=True)
    messages.append({"role": "user", "content": ran.stdout + ran.stderr})
'''


def need(*programs: str) -> None:
    """Skip what needs programs, or root, that this machine does not have."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"not installed: {', '.join(missing)}" if missing else "it needs root")


def started(with_agents: bool = True) -> Iterator[None]:
    """A configuration of podman for machines without systemd, and its images."""
    images = {"python:3.12-slim": make_python} | ({"my-agent:1": make_agents} if with_agents else {})
    need("podman", "runc", "debootstrap", *(("npm",) if with_agents else ()))
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "containers.conf").write_text('[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n')
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{CACHE}/storage"\nrunroot = "{CACHE}/run"\n'
    (CACHE / "storage.conf").write_text(storage)
    os.environ["CONTAINERS_CONF"] = str(CACHE / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(CACHE / "storage.conf")
    for name, make in images.items():
        if subprocess.run(("podman", "image", "exists", name), check=False).returncode:
            make()
    yield
    asyncio.run(prune("podman", everything=True))


podman = pytest.fixture(scope="session", autouse=True)(started)


@pytest.fixture(scope="session")
def docker() -> Iterator[None]:
    """A daemon of docker with the image `python:3.12-slim`."""
    need("docker", "dockerd")
    with tempfile.TemporaryDirectory() as folder, (CACHE / "dockerd.log").open("wb") as log:
        host = f"unix://{folder}/docker.sock"
        files = (f"--data-root={CACHE}/docker", f"--exec-root={folder}/run", f"--pidfile={folder}/pid")
        without = ("--bridge=none", "--iptables=false", "--ip6tables=false")
        daemon = subprocess.Popen(("dockerd", *files, f"--host={host}", *without), stdout=log, stderr=log)
        os.environ["DOCKER_HOST"] = host
        try:
            ends_at = time.monotonic() + 60
            while subprocess.run(("docker", "info"), check=False, capture_output=True).returncode:
                assert daemon.poll() is None and time.monotonic() < ends_at, f"dockerd: see {log.name}"
                time.sleep(0.5)
            if subprocess.run(
                ("docker", "image", "inspect", "python:3.12-slim"), check=False, capture_output=True
            ).returncode:
                saved = CACHE / "saved.tar"
                subprocess.run(("podman", "save", "--quiet", "--output", saved, "python:3.12-slim"), check=True)
                subprocess.run(("docker", "load", "--quiet", "--input", saved), check=True)
                saved.unlink()
            yield
            asyncio.run(prune("docker", everything=True))
        finally:
            del os.environ["DOCKER_HOST"]
            daemon.terminate()
            daemon.wait()


def make_python() -> None:
    """Make `python:3.12-slim`, which is Debian with Python, git and Node."""
    root = CACHE / "root"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "stable", root), check=True)
    packed = CACHE / "root.tar"
    subprocess.run(("tar", "-C", root, "-cf", packed, "--exclude=./var/cache/apt", "."), check=True)
    shutil.rmtree(root)
    subprocess.run(("podman", "import", packed, "docker.io/library/python:3.12-slim"), check=True, capture_output=True)
    packed.unlink()


def install(folder: str, *packages: str) -> str:
    """Install packages for the Python of `python:3.12-slim` into a folder, and return where they are in an image."""
    shown = ("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    ran = ("podman", "run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
    version = subprocess.run(
        (*ran, "python:3.12-slim", *shown), check=True, capture_output=True, text=True
    ).stdout.strip()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"--python-version={version}")
    subprocess.run((*pip, f"--target={folder}", *packages), check=True)
    return f"/usr/local/lib/python{version}/dist-packages"


def make_agents() -> None:
    """Make `my-agent:1`, which has agent programs of PyPI and npm as well, and one of a few lines."""
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        packages = install(f"{folder}/packages", *PYTHON_AGENTS)
        subprocess.run(("npm", "install", "--silent", f"--prefix={folder}", *NODE_AGENTS), check=True)
        Path(folder, "my-agent").write_text(AGENT)
        Path(folder, "my-agent").chmod(0o755)
        Path(folder, "Dockerfile").write_text(
            "FROM docker.io/library/python:3.12-slim\n"
            f"COPY packages {packages}\n"
            "COPY node_modules /opt/node_modules\n"
            "COPY my-agent /usr/local/bin/\n"
        )
        name = "docker.io/library/my-agent:1"
        subprocess.run(("podman", "build", "--quiet", f"--tag={name}", folder), check=True, capture_output=True)


@pytest.fixture(scope="session", params=["podman", "docker"])
def small(request: pytest.FixtureRequest) -> ContainerConfig:
    """A container with small limits, of each engine."""
    request.getfixturevalue(request.param)
    limits = {"memory_mib": 128, "processes": 64, "disk_mib": 64, "output_kib": 16}
    return ContainerConfig(image="python:3.12-slim", engine=request.param, **limits)
