"""Check the wheel of a release as a user meets it, and write its notes: `make release` runs it after the build.

Each supported Python that this machine has gets a new virtual environment with the wheel and nothing of the clone. In
an empty folder and without a network, it runs `envsdk demo` and the README's code. The notes, `dist/notes.md`, are the
section of the version in CHANGELOG.md.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from documents import CHECKOUT, code_of
from versions import find, run, supported

import envsdk

DIST = CHECKOUT / "dist"
OFFLINE = ("unshare", "--net", "--map-root-user")


def main() -> int:
    """Write the notes and check the wheel; return 1 if something fails, or if no supported Python was found."""
    text = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(
        rf"^## \[{re.escape(envsdk.__version__)}\] - .*?(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE
    )
    if section is None:
        print(f"CHANGELOG.md has no section '## [{envsdk.__version__}] - DATE'; envsdk/__init__.py has this version")
        return 1
    (DIST / "notes.md").write_text(section[0], encoding="utf-8")
    (wheel,) = DIST.glob(f"envsdk-{envsdk.__version__}-*.whl")
    found = {version: find(version, os.environ.get("PATH", "")) for version in supported()}
    outcomes = {version: works(wheel, python) for version, python in found.items() if python}
    for version, python in found.items():
        outcome = "not found" if python is None else "works" if outcomes[version] else "fails"
        print(f"{wheel.name} with Python {version}: {outcome}")
    return 0 if outcomes and all(outcomes.values()) else 1


def works(wheel: Path, python: str) -> bool:
    """Install a wheel with a Python, and run the demo and the README's code in an empty folder, without a network."""
    with tempfile.TemporaryDirectory() as folder:
        environment, empty = Path(folder, "venv"), Path(folder, "empty")
        empty.mkdir()
        bin_ = environment / "bin"
        pip = (bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if not (run(python, "-m", "venv", environment) and run(*pip, wheel)):
            return False
        program = "\n".join(code_of(CHECKOUT / "README.md"))
        variables = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "HOME": str(empty), "HF_HUB_OFFLINE": "1"}
        offline = (
            OFFLINE if subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode == 0 else ()
        )
        for command in (("envsdk", "demo", "--seeds", "2"), ("python", "-c", program)):
            ended = subprocess.run(
                [*offline, *command], cwd=empty, env=variables, capture_output=True, text=True, check=False
            )
            if ended.returncode:
                print(ended.stdout, ended.stderr, sep="\n")
                return False
    return True


if __name__ == "__main__":
    sys.exit(main())
