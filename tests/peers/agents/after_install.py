"""Installs the packages of npm that agents in Node use into the environment, where there is npm."""

import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("openai@7.57.0", "@anthropic-ai/sdk@1.12.0")


def main() -> None:
    if npm := shutil.which("npm"):
        folder = Path(sys.prefix) / "node"
        folder.mkdir(exist_ok=True)
        options = ("--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run((npm, "install", *options, *PACKAGES), check=True)


if __name__ == "__main__":
    main()
