"""Runs the tests with each Python that the project supports and this machine has: `tests/versions.py [version ...]`.

The supported versions are those of the project file's classifiers. An interpreter is one on the PATH (`python3.12`), or
one that uv or pyenv knows. Each has a virtual environment of its own, `.venvs/python3.12`: made when it is not there,
made anew when what goes into it has changed.
"""

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))

from peer_environments import CHECKOUT, CONSTRAINTS, DATA, contents, run

CLASSIFIER = "Programming Language :: Python :: "
PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)"
TESTS = ("-n", "2", "--dist", "worksteal", "--benchmark-disable")


def main() -> int:
    """Run the tests; return 1 if some fail, if a version that was named is missing, or if none was found."""
    known = supported()
    parser = argparse.ArgumentParser(description="Run the tests with each supported version of Python.")
    parser.add_argument(
        "versions", nargs="*", metavar="version", help=f"one of {', '.join(known)}; all if none is named"
    )
    named = parser.parse_args().versions
    if unknown := [version for version in named if version not in known]:
        parser.error(f"unsupported version {', '.join(unknown)}; supported: {', '.join(known)}")
    found = {version: find(version, os.environ.get("PATH", "")) for version in named or known}
    outcomes = {
        version: "passed" if passes(version, python) else "failed" for version, python in found.items() if python
    }
    for version, python in found.items():
        print(f"Python {version}: {outcomes.get(version, 'not found')} {python or ''}".rstrip())
    is_bad = "failed" in outcomes.values() or not outcomes or (bool(named) and len(outcomes) < len(found))
    return int(is_bad)


def supported() -> list[str]:
    """Return the versions of the project file's classifiers."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return [name.removeprefix(CLASSIFIER) for name in project["classifiers"] if name.startswith(f"{CLASSIFIER}3.")]


def find(version: str, path: str) -> str | None:
    """Return an interpreter of a version that runs and can make virtual environments, or None.

    Args:
        version: As in `3.12`.
        path: The folders to look in, as in the environment variable PATH.
    """
    for candidate in candidates(version, path):
        said = output(candidate, "-I", "-c", PROBE)
        found, _, executable = said.partition(" ")
        if found == version:
            return executable
    return None


def candidates(version: str, path: str) -> Iterator[str]:
    """Interpreters that may be of a version. One on the PATH may be a version manager's link that starts nothing."""
    for folder in filter(None, path.split(os.pathsep)):
        yield str(Path(folder, f"python{version}"))
    if found := output("uv", "python", "find", "--system", "--no-python-downloads", version):
        yield found
    if prefix := output("pyenv", "prefix", version):
        yield str(Path(prefix, "bin", "python"))


def output(*command: str) -> str:
    """Return what a command writes; nothing if it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=CHECKOUT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def passes(version: str, python: str) -> bool:
    """Run all tests with one version. An environment that cannot be filled is a failure, too."""
    print(f"Python {version}: {python}", flush=True)
    environment = CHECKOUT / ".venvs" / f"python{version}"
    executable, stamp = environment / "bin" / "python", environment / ".installed"
    wanted = f"{python}\n{contents(DATA)}"
    if not stamp.is_file() or stamp.read_text() != wanted:
        pip = (executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        made = run(python, "-m", "venv", "--clear", environment)
        if not (made and run(*pip, "-e", ".[test]", "-c", CONSTRAINTS) and run(*pip, "--no-deps", "-r", DATA)):
            return False
        stamp.write_text(wanted)
    return run(executable, "-m", "pytest", *TESTS)


if __name__ == "__main__":
    sys.exit(main())
