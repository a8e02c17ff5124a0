"""Every environment that comes with envsdk keeps what every environment promises; new ones are found by themselves."""

import pytest
from real_models import FAMILIES

import envsdk
from envsdk.testing import _environments as environments
from envsdk.testing import check_env

ENVS = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]
SLOW = ("same bytes in another process", "garbage replies", "injected text", "enormous replies", "cut replies")
IMAGES = ("ChartReader", "CropZoom", "GridScreen")
REPEATING = (
    "every option",
    "reset clears state",
    "copies",
    "forks",
    "step and rollout",
    "history policies",
    "tool errors",
)


@pytest.mark.parametrize("id", ENVS)
def test_it_keeps_what_every_environment_promises(id: str, is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run makes one of the slow checks of each third environment until it has made each of them once.

    Of the checks that repeat episodes, it makes one for each environment.
    """
    number = ENVS.index(id)
    chosen = {REPEATING[number % len(REPEATING)], *SLOW[number // 3 : number // 3 + (number % 3 == 0)]}
    left_out = set[str]() if is_full else {*SLOW, *REPEATING} - chosen
    checks = {name: check for name, check in environments.CHECKS.items() if name not in left_out}
    monkeypatch.setattr(environments, "CHECKS", checks)
    seeds = 4 if is_full else 1
    check_env(id, seeds=seeds).raise_if_failed()


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("history", ["keep", "strip", {"name": "compact", "every": 2}], ids=str)
@pytest.mark.parametrize("id", [name for name in ENVS if not any(shown in name for shown in IMAGES)])
def test_it_is_solved_with_every_family_and_history_policy(id: str, family: str, history: object) -> None:
    env = envsdk.make(id, history=history, **FAMILIES[family]())
    trajectory = envsdk.rollout(env, "reference", seed=5)
    assert (trajectory.status, trajectory.reward) == ("terminated", pytest.approx(env.reward_range[1]))
    samples = [sample.validate() for sample in trajectory.samples()]
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.sampled_tokens
