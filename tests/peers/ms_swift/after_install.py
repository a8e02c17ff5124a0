"""Installs the TRL that ms-swift's trainers need, next to the one whose data the tests read.

The tests of this environment read templates of TRL 1.16, and ms-swift's trainers import TRL below 1.0. So TRL 0.29
is in a folder of its own, which conftest.py puts on the path for the import. Running it again changes nothing.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

TRL = "trl==0.29.1"
FOLDER = Path(sysconfig.get_path("purelib")) / "trl_of_ms_swift"


def main() -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade")
    subprocess.run([*pip, "--target", str(FOLDER), TRL], check=True)


if __name__ == "__main__":
    main()
