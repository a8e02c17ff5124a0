"""Every environment that comes with envsdk keeps what every environment promises; new ones are found by themselves."""

import pytest
from matrices import SLOW_CHECKS
from real_models import FAMILIES

import envsdk
from envsdk.testing import _environments as environments
from envsdk.testing import check_env

ENVS = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]
IMAGES = ("ChartReader", "CropZoom", "GridScreen")
SLOW_OF = ("SearchInline-v1", "Calculator-v1", "KuhnPoker-v1", "MathChat-v0", "Delegate-v1")
"""The environments that make the slow checks in a short run, one each."""
REPEATING = (
    "gymnasium checker",
    "calls out of order",
    "copies",
    "no global random state",
    "tool errors",
    "every option",
    "forks",
    "step and rollout",
    "specification",
    "declared observations",
    "history policies",
    "reset clears state",
)


@pytest.mark.parametrize("id", ENVS)
def test_it_keeps_what_every_environment_promises(id: str, is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run makes each slow check once, and two of the checks that repeat episodes with each environment."""
    number = ENVS.index(id)
    left_out = {*SLOW_CHECKS, *REPEATING} - {
        REPEATING[at % len(REPEATING)] for at in (number, number + len(REPEATING) // 2)
    }
    left_out -= {check for check, of in zip(SLOW_CHECKS, SLOW_OF, strict=True) if id == f"envsdk/{of}"}
    checks = {name: check for name, check in environments.CHECKS.items() if is_full or name not in left_out}
    monkeypatch.setattr(environments, "CHECKS", checks)
    check_env(id, seeds=4 if is_full else 1).raise_if_failed()


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
