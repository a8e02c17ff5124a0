"""Real containers: podman with runc, and an image that debootstrap makes, since there is no registry here.

`CONTAINERS_CONF` and `CONTAINERS_STORAGE_CONF` choose the runtime and a storage of these tests. The images are made
once, in `.cache/containers`. Without podman, runc and debootstrap, or without root, the tests are skipped.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsdk.containers import ContainerConfig, prune

CHECKOUT = Path(__file__).resolve().parents[3]
CACHE = CHECKOUT / ".cache" / "containers"
PACKAGES = "python3,git,nodejs,ca-certificates"
NEEDED = ("podman", "runc", "debootstrap")
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


def why_not() -> str | None:
    """Why no container can run here, or None."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "debootstrap needs root"


def started() -> Iterator[None]:
    """A configuration of podman for machines without systemd, and its images."""
    if reason := why_not():
        pytest.skip(reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "containers.conf").write_text('[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n')
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{CACHE}/storage"\nrunroot = "{CACHE}/run"\n'
    (CACHE / "storage.conf").write_text(storage)
    os.environ["CONTAINERS_CONF"] = str(CACHE / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(CACHE / "storage.conf")
    if subprocess.run(("podman", "image", "exists", "python:3.12-slim"), check=False).returncode:
        make_images()
    yield
    asyncio.run(prune("podman", everything=True))


engine = pytest.fixture(scope="session", autouse=True)(started)


def make_images() -> None:
    """Make `python:3.12-slim`, which is Debian with Python, and `my-agent:1`, which has an agent program as well."""
    root = CACHE / "root"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "stable", root), check=True)
    version = subprocess.run(
        ("chroot", root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"),
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    packages = root / "usr" / "local" / "lib" / f"python{version}" / "dist-packages"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"--python-version={version}")
    subprocess.run((*pip, "--target", packages, "mini-swe-agent==2.4.6", "openai==3.54.0"), check=True)
    agent = root / "usr" / "local" / "bin" / "my-agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    packed = CACHE / "root.tar"
    subprocess.run(("tar", "-C", root, "-cf", packed, "--exclude=./var/cache/apt", "."), check=True)
    for name in ("python:3.12-slim", "my-agent:1"):
        subprocess.run(("podman", "import", packed, f"docker.io/library/{name}"), check=True, capture_output=True)
    packed.unlink()
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def small() -> ContainerConfig:
    """A container with small limits."""
    return ContainerConfig(image="python:3.12-slim", memory_mib=128, processes=64, disk_mib=64, output_kib=16)
