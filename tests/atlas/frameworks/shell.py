"""What the programs here share: a tool, the task, and the endpoint."""

import os
import subprocess
import sys
from pathlib import Path

TASK = sys.argv[-1]
BASE_URL, API_KEY, MODEL = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["ENVSDK_MODEL"]
SYSTEM = "You work in a folder, with a shell."
RESEARCHER = "You are a sub-agent. Work on the task, and report what you found."
SESSION = Path(".agent/session.json")
SESSION.parent.mkdir(exist_ok=True)
IS_RESUMED = sys.argv[1] == "--resume" and SESSION.exists()


def shell(command: str) -> str:
    """Run a command of the shell, and return what it printed.

    Args:
        command: The command.
    """
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout
