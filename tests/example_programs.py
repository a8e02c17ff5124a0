"""The programs in examples/, as modules whose functions tests call."""

import importlib.util
import sys
from functools import cache
from typing import Any

import real_models

EXAMPLES = real_models.CHECKOUT / "examples"


@cache
def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
