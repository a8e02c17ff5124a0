import pytest

from envsdk.policies import _client as client


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Retries come after milliseconds."""
    monkeypatch.setattr(client, "_FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(client, "_MAX_WAIT_S", 0.02)
