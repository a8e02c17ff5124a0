import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session", autouse=True)
def servers_end_at_once() -> Iterator[None]:
    """Let uvicorn look often whether it should end: each test with a server would wait for that."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture(scope="session", autouse=True)
def clients_read_no_certificates() -> Iterator[None]:
    """Name a folder without certificates: each client would read those of all authorities, for 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(Path(__file__).parent))
        yield
