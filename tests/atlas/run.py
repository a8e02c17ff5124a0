"""Installs agent programs, drives each through the scenarios, and writes docs/agents.md: `run.py [agent ...]`.

Each program is installed in a pinned version: those of npm in .venvs/npm/NAME, those of PyPI in .venvs/atlas-NAME.
docs/agents.json keeps the rows of agents that are not driven this time.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.append(str(TESTS))

from atlas.drive import CHECKOUT, SCENARIOS, Agent, drive  # noqa: E402 (found in the folder above)
from atlas.page import written  # noqa: E402
from envsdk.gateway._agents import agents as recipes  # noqa: E402

HERE = Path(__file__).parent
PROGRAMS: Mapping[str, Mapping[str, Any]] = tomllib.loads((HERE / "programs.toml").read_text())
ROWS = CHECKOUT / "docs" / "agents.json"
PAGE = CHECKOUT / "docs" / "agents.md"


def folder_of(name: str) -> Path:
    """Return the folder that an agent is installed into."""
    entry = PROGRAMS[name]
    return CHECKOUT / ".venvs" / (f"npm/{name}" if "npm" in entry else f"atlas-{entry['venv']}")


def agent_of(name: str) -> Agent:
    """Return an agent of programs.toml."""
    entry = PROGRAMS[name]
    options = {key: value for key, value in entry.items() if key in {field.name for field in fields(Agent)}}
    if name in recipes:
        version = recipes[name]["install"].rpartition("@")[2]
    else:
        pins = (HERE / "requirements" / f"{entry['venv']}.txt").read_text().split()
        package = entry.get("package", name)
        version = next(pin.partition("==")[2] for pin in pins if pin.partition("==")[0] == package)
        program = HERE / "frameworks" / f"{name.replace('-', '_')}_program.py"
        options |= {"command": ["python", str(program), "$task"]}
        options |= {"resumed": ["python", str(program), "--resume", "$task"]}
    programs = folder_of(name) / ("node_modules/.bin" if "npm" in entry else "bin")
    return Agent(name=name, version=version, path=str(programs), **options)


def stored_rows() -> dict[str, Any]:
    """Return the rows of docs/agents.json."""
    return json.loads(ROWS.read_text()) if ROWS.is_file() else {}


def install(name: str) -> bool:
    """Install an agent, unless it is in that version; return whether it is there."""
    entry, folder = PROGRAMS[name], folder_of(name)
    if "npm" not in entry:
        requirements = HERE / "requirements" / f"{entry['venv']}.txt"
        wanted = requirements.read_text()
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        command = (*pip, "--no-deps", "-r", requirements)
    elif shutil.which("npm"):
        wanted = "\n".join(entry["npm"])
        command = ("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", *entry["npm"])
    else:
        print(f"{name} needs npm, which is not installed")
        return False
    stamp = folder / ".installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return True
    folder.mkdir(parents=True, exist_ok=True)
    if "npm" not in entry:
        venv.create(folder, clear=True, with_pip=True)
    is_installed = subprocess.run(command, check=False).returncode == 0
    if is_installed:
        stamp.write_text(wanted)
    return is_installed


def main() -> int:
    """Drive the agents that are named, or all."""
    parser = argparse.ArgumentParser(description="Drive agent programs through the scenarios of docs/agents.md.")
    parser.add_argument(
        "agents", nargs="*", metavar="agent", help=f"one of {', '.join(PROGRAMS)}; all if none is named"
    )
    parser.add_argument("--scenario", action="append", help="only this scenario; may be repeated")
    options = parser.parse_args()
    chosen = options.agents or list(PROGRAMS)
    if unknown := [name for name in chosen if name not in PROGRAMS]:
        parser.error(f"unknown agent {', '.join(unknown)}; known: {', '.join(PROGRAMS)}")
    missing = [name for name in chosen if not install(name)]
    for name in chosen:
        if name in missing:
            continue
        agent = agent_of(name)
        known = stored_rows().get(name, {})
        rows = known.get("scenarios", {}) if known.get("version") == agent.version else {}
        for scenario in SCENARIOS:
            if options.scenario and scenario.name not in options.scenario:
                continue
            if scenario.can and scenario.can not in agent.can:
                rows.pop(scenario.name, None)
                continue
            rows[scenario.name] = drive(agent, scenario)
            print(f"{name}: {scenario.name}: {'; '.join(rows[scenario.name]['problems']) or 'as expected'}", flush=True)
        stored = stored_rows() | {name: {"version": agent.version, "scenarios": rows}}
        ordered = {each: stored[each] for each in PROGRAMS if each in stored}
        ROWS.write_text(json.dumps(ordered, indent=1) + "\n")
        PAGE.write_text(written({each: agent_of(each) for each in ordered}, ordered))
    print(f"agents: {len(chosen) - len(missing)} driven, {len(missing)} not installed {' '.join(missing)}".rstrip())
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
