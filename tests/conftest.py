"""Both vocabularies and Qwen3's renderer on each; and how hypothesis draws.

Hypothesis draws the same examples in every run; `--hypothesis-profile=explore` looks for new ones.
"""

import pytest
import real_models
from hypothesis import HealthCheck, settings

from envsdk import Renderer, get_renderer, load_tokenizer
from envsdk.rendering.tokenizers import Tokenizer

# A slow machine fails no test.
SLOW = [HealthCheck.too_slow]
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=SLOW)
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=SLOW)
settings.load_profile("repeatable")


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
    parser.addoption("--full", action="store_true", help="the large matrices, too: see `make test-all`")


@pytest.fixture(scope="session")
def is_full(request: pytest.FixtureRequest) -> bool:
    """Whether tests that draw from something large take all of it."""
    return bool(request.config.getoption("--full"))
