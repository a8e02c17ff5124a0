"""How long it takes to start Python and import the package; see tests/core/test_imports.py for what is imported."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("statement", "at_most_s"), [("import envsdk", 0.15), ("from envsdk import Env, Turn", 0.3)])
def test_importing_is_fast(benchmark, report, statement, at_most_s):
    command = [sys.executable, "-c", statement]
    benchmark.pedantic(subprocess.run, args=(command,), kwargs={"check": True}, rounds=5, warmup_rounds=1)
    if benchmark.enabled:
        seconds = benchmark.stats.stats.min
        report(f"{statement}, start of Python included", seconds, "s", at_most=at_most_s)
