"""Both vocabularies and Qwen3's renderer on each; and how much of large matrices a run takes.

`make test` takes a few rows of each large matrix (see `matrices.py`) and a few examples of each hypothesis property.
`--full` (`make test-all`) takes all rows, and more examples. Hypothesis draws the same examples in every run;
`--hypothesis-profile=explore` looks for new ones.
"""

import gc
import os
from collections.abc import Generator
from typing import Any

import matrices
import pytest
import real_models
from hypothesis import HealthCheck, settings

from envsdk import Renderer, get_renderer, load_tokenizer
from envsdk.rendering.tokenizers import Tokenizer
from envsdk.testing._environments import CHECKS

os.environ["ENVSDK_TEMPLATE_CACHE"] = "off"  # what an earlier run measured is not tested again

# A slow machine fails no test.
SLOW = [HealthCheck.too_slow]
REPEATABLE: dict[str, Any] = {"derandomize": True, "deadline": None, "database": None, "suppress_health_check": SLOW}
settings.register_profile("short", max_examples=8, **REPEATABLE)
settings.register_profile("full", max_examples=100, **REPEATABLE)
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=SLOW)


@pytest.fixture(scope="session", params=["embedded", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return load_tokenizer("embedded" if request.param == "embedded" else real_models.qwen3_folder())


@pytest.fixture(scope="session", params=[True, False], ids=["thinking", "direct"])
def enable_thinking(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="session")
def renderer(tokenizer: Tokenizer, enable_thinking: bool) -> Renderer:
    """Qwen3's renderer: on both vocabularies, with and without thinking."""
    return get_renderer("qwen3", tokenizer, enable_thinking=enable_thinking)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all rows of large matrices (`make test-all`)")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "short")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage collection visit what the whole run needs: ten thousand items, and what they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def is_full(request: pytest.FixtureRequest) -> bool:
    """Whether tests that draw from something large take all of it."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def quick_checks(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the slowest checks of environments in a short run, where it is the call of `check_env` that matters."""
    if not is_full:
        quick = {name: kind for name, kind in CHECKS.items() if name not in matrices.SLOW_CHECKS}
        monkeypatch.setattr("envsdk.testing._environments.CHECKS", quick)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the full run has, but nothing that is named with its parameters on the command line."""
    if config.getoption("--full") or any("[" in argument for argument in config.args):
        return
    kept = matrices.short_run(items)
    of_kept = set(kept)
    left_out = len(items) - len(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in of_kept])
    items[:] = kept
    config.stash[LEFT_OUT] = left_out
    if hasattr(config, "workeroutput"):  # pytest-xdist sends it to the process that reports
        config.workeroutput["left_out"] = left_out


LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report how many rows of large matrices only the full run has."""
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out} rows of large matrices were left out; `make test-all` runs them")
