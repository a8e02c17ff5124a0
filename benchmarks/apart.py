"""Calls a function of `workloads` in a process of its own, so that a peer's process holds nothing but the peer.

With envsdk's tokenizer in the same process, transformers' tokenizers took twice the time.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))


def apart(name: str, *arguments: Any) -> Any:
    """Return what a function of `workloads` returns for arguments that are JSON.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    command = [sys.executable, "-P", __file__, json.dumps([name, *arguments])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Call the function that the command line names."""
    from benchmarks import workloads

    name, *arguments = json.loads(sys.argv[1])
    print(json.dumps(getattr(workloads, name)(*arguments)))


if __name__ == "__main__":
    main()
