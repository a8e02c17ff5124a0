"""Runs the tests against other projects, each in a virtual environment of its own: `tests/peers/run.py [peer ...]`.

A peer is a folder beside this file. Its `test_*.py` compare us with the project. `scripts/peer_environments.py` makes
its environment from its `requirements.txt`.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

PEERS = Path(__file__).resolve().parent
sys.path.append(str(PEERS.parent.parent / "scripts"))

from peer_environments import made, run  # noqa: E402 (found in the folder above)


def main() -> int:
    names = sorted(file.parent.name for file in PEERS.glob("*/requirements.txt"))
    parser = argparse.ArgumentParser(description="Run the tests against other projects, in environments of their own.")
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"one of {', '.join(names)}; all if none is named")
    parser.add_argument("--full", action="store_true", help="run all rows of large matrices, and what takes long")
    parser.add_argument("--jobs", type=int, default=1, help="run the tests of so many peers at the same time")
    arguments = parser.parse_args()
    chosen = arguments.peers or names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown peer {', '.join(unknown)}; known: {', '.join(names)}")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        passed = pool.map(partial(passes, options=["--full"] * arguments.full), chosen)
        failed = [name for name, has_passed in zip(chosen, passed, strict=True) if not has_passed]
    print(f"peers: {len(chosen) - len(failed)} passed, {len(failed)} failed {' '.join(failed)}".rstrip())
    return 1 if failed else 0


def passes(name: str, options: list[str]) -> bool:
    """Run the tests of one peer. An environment that cannot be filled is a failure, too."""
    print(f"peer {name}", flush=True)
    environment = made(name, PEERS / name / "requirements.txt")
    # As a script, not with -m: that would put the checkout first on the path, whose folders have names of peers.
    return environment is not None and run(environment / "bin" / "pytest", PEERS / name, *options)


if __name__ == "__main__":
    sys.exit(main())
