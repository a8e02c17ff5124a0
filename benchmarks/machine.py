"""Where and of what a run was made: the machine, the commit, the day."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import CHECKOUT

LOAD = "load at the start"
"""How many processes waited for a core or ran, on average over the last minute."""


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the system and the interpreter."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        LOAD: round(os.getloadavg()[0], 1),
    }


def commit() -> str:
    """Return the commit of the checkout, and whether files differ from it."""
    found = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    return f"{found} with local changes" if _git("status", "--porcelain", "--untracked-files=no") else found


def today() -> str:
    """Return the day, in UTC."""
    return datetime.now(UTC).date().isoformat()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
