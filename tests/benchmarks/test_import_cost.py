"""How long it takes to start Python and import the package; tests/core/test_imports.py says what may be imported."""

import os
import subprocess
import sys
from time import perf_counter

import pytest


@pytest.mark.parametrize(
    ("statement", "without", "at_most_s"),
    [("import envsdk", "pass", 0.15), ("from envsdk import Env, Turn", "import gymnasium, pydantic.main", 0.3)],
)
def test_importing_is_fast(benchmark, report, statement, without, at_most_s):
    base_s = []

    def time_what_we_add_to():
        start = perf_counter()
        run(without)
        base_s.append(perf_counter() - start)
        return (statement,), {}

    benchmark.pedantic(run, setup=time_what_we_add_to, rounds=10, warmup_rounds=1)
    if benchmark.enabled:
        note = f"{min(base_s):.3g} s of it: {without}"
        report(f"python -c '{statement}'", benchmark.stats.stats.min, "s", at_most=at_most_s, note=note)


def run(statement: str) -> None:
    """Start a new Python, which keeps what it compiles, as a user's does."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", statement], check=True, env=environ)
