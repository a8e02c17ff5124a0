"""`make bench` reports the rows that cost more than in the last release, by more than their noise."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from regressions import __main__ as program
from regressions.comparing import NOISES, SMALLEST_MARGIN, better, compare
from regressions.figures import Figure, Stored, figure_of, read, summarized, write

costs = st.floats(1e-3, 1e3)
noises = st.floats(0, 0.5)


def figure(value: float, *, lower_is_better: bool = True, unit: str = "x", test: str = "t") -> Figure:
    return Figure(value, unit, lower_is_better, test)


def verdict(stored: float, noise: float, measured: float, *, lower_is_better: bool = True) -> str:
    row = Stored(stored, noise, "x", lower_is_better)
    return compare({"row": row}, {"row": figure(measured, lower_is_better=lower_is_better)})[0].verdict


@given(costs, noises)
def test_a_change_within_the_noise_is_not_reported(cost: float, noise: float):
    margin = 0.99 * max(SMALLEST_MARGIN, NOISES * noise)
    assert verdict(cost, noise, cost * (1 + margin)) == "same"
    assert verdict(cost, noise, cost / (1 + margin)) == "same"


@given(costs, noises)
def test_a_change_beyond_the_noise_is_reported(cost: float, noise: float):
    margin = 1.01 * max(SMALLEST_MARGIN, NOISES * noise)
    assert verdict(cost, noise, cost * (1 + margin)) == "slower"
    assert verdict(cost, noise, cost / (1 + margin)) == "faster"


@given(costs, noises, costs)
def test_where_more_is_better_less_is_slower(stored: float, noise: float, measured: float):
    assert verdict(measured, noise, stored, lower_is_better=False) == verdict(stored, noise, measured)


def test_a_cost_that_appears_where_there_was_none_is_slower():
    assert verdict(0.0, 0.0, 1.0) == "slower"
    assert verdict(0.0, 0.0, 0.0) == "same"


def test_rows_that_are_new_or_missing_are_named_and_what_got_slower_comes_first():
    stored = {name: Stored(1.0, 0.0, "x", True) for name in ("same", "slower", "missing", "other unit")}
    measured = {"same": figure(1.0), "slower": figure(2.0), "new": figure(1.0), "other unit": figure(1.0, unit="KB")}
    changes = compare(stored, measured)
    assert changes[0].row == "slower" and "2.00 times" in str(changes[0])
    expected = {name: name for name in ("same", "slower", "missing", "new")} | {"other unit": "missing"}
    assert {change.row: change.verdict for change in changes} == expected


def test_times_and_rates_are_stored_as_multiples_of_the_yardstick():
    """A machine that is twice as slow gives the same figures."""
    for scale in (1.0, 2.0):
        yardstick: dict[str, Any] = {"test": "t", "yardstick_s": 0.01 * scale, "higher_is_better": False}
        assert figure_of(5.0 * scale, "ms", **yardstick)[:3] == (pytest.approx(0.5), "yardsticks", True)
        assert figure_of(7.0 * scale, "ns a token", **yardstick)[:3] == (
            pytest.approx(7e-7),
            "yardsticks a token",
            True,
        )
        assert figure_of(300 / scale, "steps/s", **yardstick)[:3] == (pytest.approx(3.0), "steps a yardstick", False)
        assert figure_of(1.5, "x", **yardstick)[:3] == (1.5, "x", True)
    assert not figure_of(100, "x as fast", test="t", yardstick_s=1.0, higher_is_better=True).lower_is_better


def test_a_row_is_stored_as_the_median_of_all_runs_with_its_noise():
    runs = [{"row": figure(value), "once": figure(1.0)} for value in (1.0, 1.2, 0.9)]
    del runs[1]["once"]
    assert summarized(runs) == {"row": Stored(1.0, pytest.approx(0.2), "x", True)}


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.tuples(costs, noises, st.booleans())))
def test_stored_figures_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: Any):
    path = tmp_path_factory.mktemp("figures") / "figures.json"
    stored = {
        name: Stored(float(f"{cost:.4g}"), round(noise, 3), "x", low) for name, (cost, noise, low) in rows.items()
    }
    write(path, stored, {"version": "1.0"})
    assert read(path) == stored


def test_of_two_figures_the_one_that_was_disturbed_less_counts():
    assert better(figure(2.0), figure(1.0)).value == 1.0
    assert better(figure(2.0, lower_is_better=False), figure(1.0, lower_is_better=False)).value == 2.0


class Runs:
    """Gives the figures of one run after the other in place of running benchmarks."""

    def __init__(self, *runs: dict[str, float]) -> None:
        self.runs, self.selected = list(runs), list[list[str]]()

    def __call__(self, selected: Any) -> dict[str, Figure]:
        self.selected.append(list(selected))
        return {name: figure(value, test=f"test_{name}") for name, value in self.runs.pop(0).items()}


@pytest.fixture
def against(tmp_path: Path) -> list[str]:
    path = tmp_path / "figures.json"
    write(path, {name: Stored(1.0, 0.0, "x", True) for name in "ab"}, {"version": "1.0"})
    return ["--against", str(path)]


def test_a_row_that_stays_slower_fails(monkeypatch: pytest.MonkeyPatch, capsys: Any, against: list[str]):
    monkeypatch.setattr(program, "measure", Runs({"a": 1.0, "b": 2.0}, {"b": 1.6}, {"b": 1.8}))
    assert program.main(against) == 1
    assert "slower   b: 1.60 times the stored cost (noise: 10%)" in capsys.readouterr().out


def test_a_row_that_was_only_disturbed_is_measured_again_and_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, against: list[str]
):
    runs = Runs({"a": 1.0, "b": 2.0}, {"b": 1.0})
    monkeypatch.setattr(program, "measure", runs)
    assert program.main(against) == 0
    assert runs.selected[1] == ["test_b"]
    assert "no row got slower" in capsys.readouterr().out


def test_figures_of_a_release_are_stored_and_the_same_costs_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "figures.json"
    monkeypatch.setattr(program, "measure", Runs({"a": 1.0}, {"a": 1.1}, {"a": 1.05}, {"a": 1.1}))
    assert program.main(["--release", "--runs", "3", "--against", str(path)]) == 0
    assert program.main(["--against", str(path)]) == 0
