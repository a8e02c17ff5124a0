"""The example that trains summaries with the value of breaks."""

from typing import Any

import pytest
from example_programs import example

from envsdk.rollouts import BreakValue, break_values

pytest.importorskip("torch.nn")

pytestmark = pytest.mark.filterwarnings("default")


def test_each_summary_of_a_game_has_a_value(monkeypatch: pytest.MonkeyPatch):
    example("train_reinforce")  # which the module imports by this name
    credit = example("break_credit")
    for name, value in {"WARM_UP_GAMES": 100, "WARM_UP_STEPS": 40, "TOKENS": 1}.items():
        monkeypatch.setattr(credit, name, value)
    values: list[BreakValue] = []

    def kept(*given: Any, **options: Any) -> list[BreakValue]:
        values.extend(found := break_values(*given, **options))
        return found

    monkeypatch.setattr(credit, "break_values", kept)
    assert len(credit.train(credit.warm_up(0), 0, 1, 2)) == 1
    assert values and all(value.pairs == 1 and value.break_.reason == "summary" for value in values)
