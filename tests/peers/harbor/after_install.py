"""Makes a second environment in this one, with a newer Python and the whole of harbor, if there is such a Python."""

import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
NEWER = Path(sys.prefix) / "newer"
VERSIONS = ("3.13", "3.12", "3.14")


def newer_python() -> str | None:
    """A Python that harbor runs on, or None."""
    named = [shutil.which(f"python{version}") for version in VERSIONS]
    of_pyenv = sorted(map(str, Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python")), reverse=True)
    for python in filter(None, [sys.executable, *named, *of_pyenv]):
        check = (python, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 12))")
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return python
    return None


if __name__ == "__main__" and (python := newer_python()):
    subprocess.run((python, "-m", "venv", NEWER), check=True)
    pip = (NEWER / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # With pytest, because the agent of the tests is in a file that imports it.
    subprocess.run((*pip, "harbor==0.25.0", "pytest", "-e", ".[gateway]"), cwd=CHECKOUT, check=True)
