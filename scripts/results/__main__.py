"""Trains the runs of docs/results.md that have no log yet, and writes the page: `python -m results [GAME ...]`."""

import os
import subprocess
import sys

from peer_environments import made

from .page import CHECKOUT, HERE, write_page


def main() -> int:
    """Train in an environment of its own, `.venvs/results`, with one thread; then write the page."""
    environment = made("results", HERE / "requirements.txt")
    if environment is None:
        return 1
    paths = os.pathsep.join(str(CHECKOUT / name) for name in ("scripts", "tests"))
    options = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [environment / "bin" / "python", "-m", "results.training", *sys.argv[1:]]
    status = subprocess.run(command, env=options, check=False).returncode
    write_page()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
