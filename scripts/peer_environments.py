"""Makes the virtual environments of other projects, for `make test-peers` and `make bench-peers`.

An environment is `.venvs/<name>`: it is made if it is missing, and made again if its inputs have changed. Its
`requirements.txt` pins the project and all that the project imports beyond our own requirements, because it is
installed with `--no-deps`. A script `after_install.py` next to it, if there is one, completes the environment.
"""

import hashlib
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PEERS = CHECKOUT / "tests" / "peers"
DATA = CHECKOUT / "tests" / "requirements-data.txt"
CONSTRAINTS = CHECKOUT / "tests" / "constraints.txt"
"""The versions that a peer gets where its own requirements do not pin them."""


def made(name: str, requirements: Path) -> Path | None:
    """Return the folder of an environment, and create it first if needed; None if that failed."""
    environment = CHECKOUT / ".venvs" / name
    stamp = environment / ".installed"
    wanted = contents(requirements)
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(environment, clear=True, with_pip=True)
        if not install(environment / "bin" / "python", requirements):
            return None
        stamp.write_text(wanted)
    return environment


def contents(requirements: Path) -> str:
    """Return a digest of an environment's inputs: the peer's pins, the data, and the project file's requirements."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    installed = repr((sys.version, project["project"], project["tool"]["hatch"]))
    script = after_install(requirements)
    completed = script.read_bytes() if script.is_file() else b""
    files = b"".join(file.read_bytes() for file in (requirements, DATA, CONSTRAINTS))
    return hashlib.sha256(files + installed.encode() + completed).hexdigest()


def install(python: Path, requirements: Path) -> bool:
    """Fill an environment: our package, editable, in versions that suit the peer; then the peer and the data.

    If a peer requires a newer Python, the parts that we compare with still run on ours; its test fails if they do not.
    """
    pinned = {name_of(line) for line in requirements.read_text().splitlines()}
    others = python.parents[1] / "constraints.txt"
    others.write_text("\n".join(line for line in CONSTRAINTS.read_text().splitlines() if name_of(line) not in pinned))
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    alone = (*pip, "--no-deps", "--ignore-requires-python")
    ours = (*pip, "-e", ".[test]", "-c", requirements, "-c", others)
    installed = run(*ours) and run(*alone, "-r", DATA, "-r", requirements)
    script = after_install(requirements)
    return installed and (not script.is_file() or run(python, script))


def name_of(requirement: str) -> str:
    """Return the package that a line of a file of requirements pins."""
    return requirement.partition("==")[0].strip().lower().replace("_", "-")


def after_install(requirements: Path) -> Path:
    """Return the path of the script that completes an environment."""
    return requirements.with_name("after_install.py")


def run(*command: str | Path) -> bool:
    """Run a command in the checkout; return whether it succeeded."""
    return subprocess.run(command, cwd=CHECKOUT, check=False).returncode == 0
