"""Runs the tests against other projects, each in a virtual environment of its own: `tests/peers/run.py [peer ...]`.

A peer is a folder beside this file. Its `requirements.txt` pins the project and what that imports beyond our own
requirements, all of it, since it is installed with `--no-deps`; its `test_*.py` compare us with the project. A script
`after_install.py`, if there is one, completes the environment. The environment is `.venvs/<peer>`: made when it is not
there, made anew when what goes into it has changed.
"""

import argparse
import hashlib
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

PEERS = Path(__file__).resolve().parent
CHECKOUT = PEERS.parent.parent
DATA = CHECKOUT / "tests" / "requirements-data.txt"


def main() -> int:
    names = sorted(file.parent.name for file in PEERS.glob("*/requirements.txt"))
    parser = argparse.ArgumentParser(description="Run the tests against other projects, in environments of their own.")
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"one of {', '.join(names)}; all if none is named")
    chosen = parser.parse_args().peers or names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown peer {', '.join(unknown)}; known: {', '.join(names)}")
    failed = [name for name in chosen if not passes(name)]
    print(f"peers: {len(chosen) - len(failed)} passed, {len(failed)} failed {' '.join(failed)}".rstrip())
    return 1 if failed else 0


def passes(name: str) -> bool:
    """Run the tests of one peer. An environment that cannot be filled is a failure, too."""
    print(f"peer {name}", flush=True)
    requirements = PEERS / name / "requirements.txt"
    environment = CHECKOUT / ".venvs" / name
    stamp = environment / ".installed"
    wanted = contents(requirements)
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(environment, clear=True, with_pip=True)
        if not install(environment / "bin" / "python", requirements):
            return False
        stamp.write_text(wanted)
    # As a script, not with -m: that would put the checkout first on the path, whose folders have names of peers.
    return run(environment / "bin" / "pytest", PEERS / name)


def contents(requirements: Path) -> str:
    """Digest what an environment is made of: the peer's pins, the data, what of the project file an install reads."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    installed = repr((sys.version, project["project"], project["tool"]["hatch"]))
    script = after_install(requirements)
    completed = script.read_bytes() if script.is_file() else b""
    return hashlib.sha256(requirements.read_bytes() + DATA.read_bytes() + installed.encode() + completed).hexdigest()


def install(python: Path, requirements: Path) -> bool:
    """Fill an environment: our package, editable, in versions that suit the peer; then the peer and the data.

    Of a peer that asks for a newer Python, what we compare with runs on ours: its test says so if not.
    """
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    alone = (*pip, "--no-deps", "--ignore-requires-python")
    installed = run(*pip, "-e", ".[test]", "-c", requirements) and run(*alone, "-r", DATA, "-r", requirements)
    script = after_install(requirements)
    return installed and (not script.is_file() or run(python, script))


def after_install(requirements: Path) -> Path:
    return requirements.with_name("after_install.py")


def run(*command: str | Path) -> bool:
    return subprocess.run(command, cwd=CHECKOUT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
