"""prime-rl is two folders of one checkout, `ENVSDK_PRIME_RL`, with images as references in its records (`MMRefs`)."""

import os
import sys
from pathlib import Path

import pytest
import torchvision_operators  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def checkout() -> None:
    if "ENVSDK_PRIME_RL" not in os.environ:
        pytest.skip("ENVSDK_PRIME_RL is not set to a checkout of prime-rl, which is not on the index")
    folder = Path(os.environ["ENVSDK_PRIME_RL"])
    sys.path[:0] = [str(folder / "src"), str(folder / "packages" / "prime-rl-configs" / "src")]
    import prime_rl

    prime_rl.__path__ = [f"{path}/prime_rl" for path in sys.path[:2]]
    if not (folder / "src" / "prime_rl" / "multimodal").is_dir():
        pytest.skip("this checkout of prime-rl has no references to images in its records")
