"""The server that tests share."""

from collections.abc import Iterator

import pytest
from openenv_servers import FIVE, served


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a server with five environments."""
    with served(*(f"envsdk/{name}" for name in FIVE), "--port", "0") as (url, _):
        yield url
