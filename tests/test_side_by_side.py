"""The program of `make bench-peers`: figures, targets, the page, and the workers. Nothing is timed."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from documents import CHECKOUT
from hypothesis import given
from hypothesis import strategies as st

import benchmarks.__main__ as program
from benchmarks import worker
from benchmarks.contender import NotMeasured, contender
from benchmarks.formats import digits, figure
from benchmarks.measuring import measure
from benchmarks.page import anchor, page
from benchmarks.pool import Pool, Taken
from benchmarks.prompt_rows import PROMPT_ROWS
from benchmarks.results import Cell, Measured, Results, RowResult
from benchmarks.row import Bound, Entry, Growth, Row, ahead, at_most
from benchmarks.rows import ROWS
from benchmarks.verdicts import verdicts

NAMES = ("envsdk", "limit", "slow", "slower")


def made_row(**changes: Any) -> Row:
    fields: dict[str, Any] = {
        "id": "made",
        "title": "A made row: two sizes",
        "measures": "Nothing.",
        "contenders": tuple(Entry(name, "envsdk") for name in NAMES),
        "sizes": (10, 100),
        "size_name": "T",
        "quick_sizes": (10,),
        "limit": "limit",
    }
    return Row(**{**fields, **changes})


def made_result(row: Row, medians: Mapping[str, Sequence[float | str]]) -> RowResult:
    """Figures, or the reason why there are none, by contender and size."""

    def cell(size: Any, value: float | str) -> Cell:
        return Cell(size=size, reason=value) if isinstance(value, str) else Cell(size=size, values=[value] * 3)

    contenders = [
        Measured(name=name, environment="envsdk", cells=[cell(*pair) for pair in zip(row.sizes, values, strict=True)])
        for name, values in medians.items()
    ]
    return RowResult(
        id=row.id, date="2026-01-02", commit="0123456789ab", machine={"cores": 2}, repetitions=3, contenders=contenders
    )


FIGURES = {"envsdk": (2e-4, 2e-4), "limit": (1e-4, 0.5e-4), "slow": (1e-3, 1e-2), "slower": (3e-3, "too slow")}


# Figures.


def test_a_figure_is_the_median_and_its_spread_the_half_distance_of_the_quartiles():
    cell = Cell(size=1, values=[1.0, 2.0, 3.0, 4.0, 100.0])
    assert cell.median == 3.0
    assert cell.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    assert Cell(size=1, reason="too slow").median is None


@given(st.floats(-2, 3), st.floats(1e-6, 10))
def test_growth_is_the_exponent_of_a_power(exponent: float, factor: float):
    cells = [Cell(size=size, values=[factor * size**exponent]) for size in (10, 50, 200, 1000)]
    assert Measured(name="x", environment="x", cells=cells).growth == pytest.approx(exponent, abs=1e-6)


@given(st.floats(1e-9, 1e9))
def test_a_written_figure_is_within_one_percent(value: float):
    scales = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    number, unit = figure(value, "s").split(" ")
    assert math.isclose(float(number.replace(",", "")) * scales[unit], value, rel_tol=0.01)
    assert digits(1234.5) == "1,234"


# Targets.


@pytest.mark.parametrize(
    ("target", "is_met", "detail"),
    [
        (at_most(4, "limit"), True, "4x at T = 100"),
        (at_most(3, "limit"), False, "4x at T = 100; missed by a factor of 1.33"),
        (at_most(3, "limit", at=(10,)), True, "2x"),
        (ahead(50, "slow", at=(100,)), True, "50x ahead"),
        (ahead(50, "slow"), False, "5x ahead at T = 10; missed by a factor of 10.00"),
        (ahead(5, "slow", "slower"), True, "5x ahead of slow at T = 10"),
        (ahead(5, "slower", at=(100,)), None, "at 100: slower: too slow"),
        (ahead(5, "slower", at=(7,)), None, "no figure at these sizes"),
        (Growth(0.1), True, "T^0.00"),
        (Bound(1e-4), False, "200 µs; missed by a factor of 2.00"),
    ],
)
def test_a_target_is_met_or_missed_by_a_factor_at_its_worst_size(target: Any, is_met: bool | None, detail: str):
    row = made_row(targets=(target,))
    [verdict] = verdicts(row, made_result(row, FIGURES))
    assert (verdict.is_met, verdict.detail) == (is_met, detail)


def test_a_target_without_our_figure_is_not_met():
    row = made_row(targets=(at_most(3, "limit"), Growth(0.1), Bound(1.0)))
    found = verdicts(row, made_result(row, {**FIGURES, "envsdk": ("it raised", "it raised")}))
    assert [verdict.is_met for verdict in found] == [None, None, None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_compares_envsdk_with_contenders_and_sizes_that_it_has(row: Row):
    names = [entry.name for entry in row.contenders]
    assert "envsdk" in names
    assert len(set(names)) == len(names)
    assert row.limit is None or row.limit in names
    assert set(row.quick_sizes) <= set(row.sizes)
    compared = [target for target in row.targets if hasattr(target, "of")]
    assert {name for target in compared for name in target.of} <= set(names)
    assert {size for target in compared for size in target.at} <= set(row.sizes)


def test_rows_have_names_of_their_own():
    assert len({row.id for row in ROWS}) == len({anchor(row.title) for row in ROWS}) == len(ROWS)
    assert set(PROMPT_ROWS) <= set(ROWS)


# The page.


def test_the_page_states_figures_reasons_targets_and_where_it_was_measured():
    row = made_row(targets=(at_most(3, "limit"), ahead(5, "slow")))
    text = page(Results(rows=[made_result(row, FIGURES)]), [row])
    assert "Measured on 2026-01-02 at commit `0123456789ab`" in text
    assert "| **envsdk** | 200 µs ± 0 % | 200 µs ± 0 % | T^0.00 |" in text
    assert "| slower | 3 ms ± 0 % (15x) | too slow |  |" in text
    assert (
        "Target: at most 3x the limit (limit) at every size. Measured: 4x at T = 100; missed by a factor of 1.33"
        in text
    )
    assert "(#a-made-row-two-sizes)" in text


def test_a_row_that_is_measured_again_replaces_its_figures():
    row = made_row()
    before, after = made_result(row, FIGURES), made_result(row, {**FIGURES, "slow": (1.0, 1.0)})
    other = made_result(made_row(id="other"), FIGURES)
    assert Results(rows=[before, other]).replaced(after).rows == [other, after]


def test_a_part_of_a_row_replaces_nothing_that_is_published(tmp_path: Path):
    docs = CHECKOUT / "docs"
    assert program.output(docs, is_part=False) == docs
    assert program.output(tmp_path, is_part=True) == tmp_path
    with pytest.raises(SystemExit, match="leave out --out docs"):
        program.output(docs, is_part=True)


def test_the_published_page_is_what_the_program_writes_of_the_published_figures():
    results = Results.model_validate_json((CHECKOUT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
    text = (CHECKOUT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert text == page(results, ROWS)
    assert all(f"](benchmarks/{result.id}.svg)" in text for result in results.rows)
    sizes = {row.id: row.sizes for row in ROWS}
    assert all(
        tuple(cell.size for cell in contender.cells) == sizes[result.id]
        for result in results.rows
        for contender in result.contenders
    )


def test_no_published_cell_shows_an_exception():
    text = (CHECKOUT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert not re.findall(r"\w*(?:Error|Exception|Traceback)\b", text)


# Measuring.


class MadePool(Pool):
    """Returns figures without a process, and counts."""

    cap_s = 60.0

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.caps: set[float | None] = set()
        self.order: list[str] = []

    def describe(self, environment: str, row: str, name: str, size: Any) -> dict[str, Any]:
        if name == "absent":
            raise NotMeasured("no such package")
        return {"note": f"the note of {name}"}

    def repeat(self, environment: str, row: str, name: str, size: Any, *, cap_s: float | None = None) -> Taken:
        self.order.append(name)
        self.caps.add(cap_s)
        if name == "failing" and self.order.count(name) == 3:
            raise NotMeasured("too slow")
        return Taken(1.0, self.seconds)

    def drop(self) -> None:
        self.order.append("-")


def measured_by(pool: MadePool, *names: str, **changes: Any) -> RowResult:
    row = made_row(contenders=tuple(Entry(name, "envsdk") for name in names), **changes)
    return measure(row, pool, sizes=(10,), repetitions=5, budget_s=10.0)


def test_contenders_alternate_between_repetitions():
    pool = MadePool()
    measured_by(pool, "a", "b")
    assert "".join(pool.order) == "ab" + "ab" + "ba" + "ab" + "ba" + "ab" + "-"


def test_a_contender_that_fails_is_listed_with_the_reason():
    result = measured_by(MadePool(), "a", "absent", "failing")
    cells = {contender.name: contender.cells[0] for contender in result.contenders}
    assert (len(cells["a"].values), cells["a"].reason) == (5, None)
    assert (cells["absent"].values, cells["absent"].reason) == ([], "no such package")
    assert (cells["failing"].values, cells["failing"].reason) == ([], "too slow")
    assert result.named("a").note == "the note of a"


def test_what_takes_long_gets_fewer_repetitions_but_three():
    assert len(measured_by(MadePool(seconds=6.0), "a").named("a").cells[0].values) == 3
    assert len(measured_by(MadePool(seconds=1.0), "a").named("a").cells[0].values) == 5


# A worker.


def test_a_worker_prepares_repeats_and_drops(monkeypatch: pytest.MonkeyPatch):
    closed: list[int] = []

    class Figures:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self) -> float:
            return 2.0 * self.size

        def close(self) -> None:
            closed.append(self.size)

    contender("made", "figures", note="as made", packages=("numpy",))(Figures)
    answers = worker.Worker()
    given = {"row": "made", "name": "figures", "size": 21}
    assert answers.answer({"do": "prepare", **given})["note"] == "as made"
    assert answers.answer({"do": "repeat", **given}) == {"value": 42.0}
    assert answers.answer({"do": "drop"}) == {}
    assert closed == [21]


@pytest.mark.full
def test_a_worker_says_in_words_why_there_is_no_figure(capsys: pytest.CaptureFixture[str]):
    def fails() -> float:
        raise ZeroDivisionError

    contender("made", "failing")(lambda _: fails)
    given = {"row": "made", "name": "failing", "size": 1}
    answers = worker.Worker()
    assert answers.answer({"do": "prepare", **given, "name": "other"}) == {
        "reason": "not measured: its package cannot be imported here"
    }
    answers.answer({"do": "prepare", **given})
    assert answers.answer({"do": "repeat", **given}) == {"reason": "not measured: it failed"}
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.full
def test_a_worker_answers_from_a_process_of_its_own(tmp_path: Path):
    pool = Pool(tmp_path, cap_s=60.0)
    try:
        assert pool.describe("envsdk", "reply", "envsdk", 1000)["note"]
        assert pool.repeat("envsdk", "reply", "envsdk", 1000).value > 0
        with pytest.raises(NotMeasured, match="its package cannot be imported"):
            pool.describe("envsdk", "reply", "nobody", 1000)
        pool.drop()
    finally:
        pool.close()
