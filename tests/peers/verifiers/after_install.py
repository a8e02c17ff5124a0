"""Installs the environments that verifiers tests itself with, which are in its source distribution only."""

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

VERIFIERS = "verifiers==0.4.0"
FOLDER = "tests/v1/fixtures/"


def main() -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*pip, "--no-binary", "verifiers", "--dest", folder, VERIFIERS], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            for member in files.getmembers():
                if FOLDER in member.name and member.name.endswith("_v1.py"):
                    source = files.extractfile(member)
                    assert source is not None
                    (Path(sysconfig.get_path("purelib")) / Path(member.name).name).write_bytes(source.read())


if __name__ == "__main__":
    main()
