"""Every environment that comes with envsdk keeps what every environment promises; new ones are found by themselves."""

import pytest

import envsdk
from envsdk.testing import check_env

ENVS = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]


@pytest.mark.parametrize("id", ENVS)
def test_it_keeps_what_every_environment_promises(id: str) -> None:
    check_env(id, seeds=4).raise_if_failed()
