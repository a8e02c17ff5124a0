"""Which rows of a matrix a short run takes."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st
from matrices import Row, covering

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def matrix(sizes: list[int]) -> list[Row]:
    """Every row of a matrix whose parameters have that many values."""
    return [dict(zip("abcd", values, strict=False)) for values in product(*map(range, sizes))]


@given(sizes=SIZES)
def test_each_value_of_each_parameter_is_in_a_row_and_rows_are_few(sizes: list[int]) -> None:
    rows = matrix(sizes)
    chosen = [rows[at] for at in covering(rows)]
    assert {item for row in chosen for item in row.items()} == {item for row in rows for item in row.items()}
    assert len(chosen) == max(sizes)


@given(sizes=SIZES)
def test_each_pair_of_values_is_in_a_row_where_pairs_are_wanted(sizes: list[int]) -> None:
    rows = matrix(sizes)
    chosen = covering(rows, pairs=True)
    pairs = [
        {pair for at in some for pair in combinations(sorted(rows[at].items()), 2)}
        for some in (chosen, [*range(len(rows))])
    ]
    assert pairs[0] == pairs[1]
    assert chosen == sorted(set(chosen))


def test_a_full_product_of_two_parameters_has_no_fewer_rows_with_all_pairs() -> None:
    assert len(covering(matrix([3, 4]), pairs=True)) == 12
    assert len(covering(matrix([2, 2, 7]), pairs=True)) == 14


def test_rows_that_are_no_product_are_covered_too() -> None:
    assert covering([{"a": 1}, {"a": 1}, {"a": 2}]) == [0, 2]
    assert covering([{}]) == []
