"""Every environment that comes with envsdk keeps what every environment promises; new ones are found by themselves."""

import pytest

import envsdk
from envsdk.testing import _environments as environments
from envsdk.testing import check_env

ENVS = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]
SLOW = ("same bytes in another process", "garbage replies", "injected text", "enormous replies", "cut replies")


@pytest.mark.parametrize("id", ENVS)
def test_it_keeps_what_every_environment_promises(id: str, is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run makes one of the slow checks of each environment, and each of them of several environments."""
    number = ENVS.index(id)
    left_out = () if is_full else [SLOW[(number + k) % len(SLOW)] for k in range(1, len(SLOW))]
    checks = {name: check for name, check in environments.CHECKS.items() if name not in left_out}
    monkeypatch.setattr(environments, "CHECKS", checks)
    check_env(id, seeds=4 if is_full else 2).raise_if_failed()
