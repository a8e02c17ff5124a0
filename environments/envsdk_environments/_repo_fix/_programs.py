"""The correct programs, and the expressions whose values their tests check."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

EXPRESSIONS: Mapping[str, tuple[str, ...]] = {
    "compression": (
        "run_lengths('aaabcc')",
        "expand([('a', 3), ('b', 1)])",
        "references('abcabcabcd')",
        "resolve(['a', 'b', (2, 4)])",
        "run_lengths('')",
        "references('abab', 2)",
        "references('aaaaaaaa')",
        "resolve(references('to be or not to be, that is the question'))",
        "references('abcdefghijklmnopqrsabc')",
        "references('xyzxy')",
    ),
    "dates": (
        "is_leap(2000), is_leap(1900), is_leap(2024), is_leap(2023)",
        "days_in(2024, 2), days_in(2023, 2), days_in(2023, 12)",
        "day_number((2024, 3, 1))",
        "add_days((2023, 12, 31), 1)",
        "between((2023, 1, 1), (2024, 1, 1))",
        "add_days((2024, 2, 28), 2)",
        "add_days((2023, 11, 30), 400)",
        "between((2019, 12, 31), (2021, 3, 1))",
        "day_number((2023, 1, 31)), day_number((2023, 12, 31))",
        "add_days((2024, 1, 31), 0)",
    ),
    "expressions": (
        "evaluate('1 + 2 * 3')",
        "evaluate('(1 + 2) * 3')",
        "evaluate('10 - 4 - 3')",
        "evaluate('-2 * -3')",
        "tokens('12+(3 - 45)')",
        "evaluate('100 / 7 / 2')",
        "evaluate('2 * (3 + 4) - -5')",
        "evaluate('7')",
        "evaluate('--8')",
        "evaluate('((2))*((3)+1)')",
    ),
    "graphs": (
        "distances({'a': {'b': 2, 'c': 5}, 'b': {'c': 1}}, 'a')",
        "order({'a': {'b': 1}, 'b': {'c': 1}, 'c': {}})",
        "order({'a': {'b': 1}, 'b': {'a': 1}})",
        "distances({'a': {'b': 4}, 'b': {'a': 4}}, 'b')",
        "distances({'a': {'b': 7, 'c': 3}, 'c': {'b': 3, 'd': 9}, 'b': {'d': 1}}, 'a')",
        "order({'x': {'z': 1}, 'y': {'z': 1}, 'w': {'x': 1}})",
        "distances({}, 'q')",
        "order({})",
        "order({'a': {'c': 1, 'b': 1}, 'b': {'c': 1}})",
    ),
    "intervals": (
        "merge([(1, 3), (2, 5), (8, 9)])",
        "intersect([(1, 5)], [(3, 8)])",
        "total([(1, 3), (2, 5)])",
        "merge([(4, 6), (1, 4)])",
        "merge([(3, 3), (5, 2)])",
        "merge([(1, 10), (2, 3)])",
        "intersect([(1, 3)], [(3, 5)])",
        "intersect([(0, 4), (6, 9)], [(2, 7)])",
        "total([])",
        "total([(0, 1), (5, 9), (1, 2)])",
    ),
    "inventory": (
        "stock([('nut', 5, 1), ('bolt', 2, 3), ('nut', -5, 2)])",
        "revenue([('nut', 5, 1), ('nut', -2, 3), ('nut', -1, 4)])",
        "profit([('nut', 2, 1), ('nut', 2, 2), ('nut', -3, 5)])",
        "reorder([('nut', 5, 1), ('bolt', 2, 3), ('nut', -4, 2)], 2)",
        "stock([])",
        "revenue([('nut', 5, 1)])",
        "profit([('a', 4, 3), ('b', 1, 9), ('a', -4, 5), ('b', -1, 7)])",
        "reorder([('a', 1, 1), ('b', 9, 1)], 5)",
        "profit([('a', 1, 1), ('a', 5, 2), ('a', -1, 4), ('a', -2, 4)])",
    ),
    "matrix": (
        "transpose([[1, 2, 3], [4, 5, 6]])",
        "multiply([[1, 2], [3, 4]], [[5, 6], [7, 8]])",
        "power([[1, 1], [1, 0]], 10)",
        "determinant([[2, 3], [1, 4]])",
        "power([[2, 0], [0, 3]], 0)",
        "determinant([[1, 2, 3], [4, 5, 6], [7, 8, 10]])",
        "determinant([])",
        "multiply([[1, 2, 3]], [[1], [2], [3]])",
        "power([[0, 1], [1, 1]], 7)",
    ),
    "records": (
        "split_line('a,\"b,c\",d')",
        "join_line(['a', 'b,c', 'say \"x\"'])",
        "group(['town,sold', 'Rome,3', 'Oslo,4', 'Rome,5'], 'town', 'sold')",
        'split_line(\'"he said ""no""",2\')',
        "split_line('')",
        "split_line(',,')",
        "group(['n,x', '1,a', '2', '3,a'], 'x', 'n')",
        "join_line([])",
        "split_line(join_line(['1,5', '', '\"']))",
    ),
    "roman": (
        "[to_roman(n) for n in (1, 4, 9, 14, 40)]",
        "from_roman('MCMXCIV')",
        "to_roman(3999)",
        "[from_roman(to_roman(n)) for n in (5, 58, 444)]",
        "[to_roman(n) for n in (90, 99, 400, 500, 888)]",
        "from_roman('III'), from_roman('VIII')",
        "[from_roman(to_roman(n)) == n for n in range(1, 200)].count(True)",
        "to_roman(1000), to_roman(1)",
    ),
    "scores": (
        "points([('A', 'B', 2, 1), ('B', 'C', 0, 0)])",
        "differences([('A', 'B', 2, 1), ('B', 'A', 3, 0)])",
        "ranking([('A', 'B', 0, 1), ('C', 'A', 2, 2)])",
        "streak([('A', 'B', 2, 1), ('B', 'A', 0, 1), ('A', 'C', 0, 0)], 'A')",
        "ranking([('A', 'B', 1, 1), ('C', 'D', 3, 3)])",
        "points([('A', 'B', 0, 4)])",
        "streak([('A', 'B', 1, 0), ('B', 'A', 1, 0), ('A', 'B', 1, 0)], 'A')",
        "streak([('C', 'B', 1, 0)], 'A')",
        "differences([('A', 'B', 5, 2), ('C', 'A', 1, 1)])",
    ),
    "searching": (
        "first_at_least([1, 3, 5, 7], 4)",
        "count([1, 2, 2, 2, 5], 2)",
        "occurrences('banana', 'ana')",
        "edit_distance('kitten', 'sitting')",
        "[first_at_least([2, 4, 6], n) for n in range(8)]",
        "count([], 1), count([3, 3], 3)",
        "occurrences('aaa', 'a'), occurrences('ab', 'abc')",
        "edit_distance('', 'abc'), edit_distance('abc', ''), edit_distance('same', 'same')",
        "edit_distance('flaw', 'lawn')",
    ),
    "wrapping": (
        "wrap('the quick brown fox', 10)",
        "justify('a bb c', 10)",
        "table([('apple', 5), ('fig', 120)])",
        "wrap('one', 2)",
        "wrap('', 5)",
        "wrap('aa bb cc', 5)",
        "justify('word', 8)",
        "justify('a b c d', 11)",
        "table([('x', 'longer', 1)])",
        "wrap('abc de fgh ijk', 6)",
    ),
}
"""The values that a program's tests check, by its name. Those in the first half are in its visible tests."""


@cache
def source_of(name: str) -> str:
    """Return the correct source code of a program."""
    return Path(__file__).with_name("programs").joinpath(f"{name}.txt").read_text(encoding="utf-8")


@cache
def values_of(name: str) -> tuple[str, ...]:
    """Return the correct values of its expressions, as Python writes them."""
    namespace: dict[str, Any] = {}
    exec(compile(source_of(name), f"{name}.py", "exec"), namespace)
    return tuple(repr(eval(expression, namespace)) for expression in EXPRESSIONS[name])


class Mutation(NamedTuple):
    """A change of one place of a program."""

    start: int
    stop: int
    text: str


_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_OPERATORS = {"+": "-", "-": "+", "*": "+", "//": "*", "%": "//"}


@cache
def mutations_of(name: str) -> tuple[Mutation, ...]:
    """Return the mutations of a program, in the order of its text.

    Comparisons, operators, `and` and `or`, `max` and `min`, and numbers are changed.
    """
    source = source_of(name)
    lines: list[int] = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def place_of(node: Any) -> tuple[int, int]:
        places: list[int] = [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset]
        return lines[places[0] - 1] + places[1], lines[places[2] - 1] + places[3]

    found: list[Mutation] = []

    def swap(left: ast.AST, right: ast.AST, swaps: Mapping[str, str]) -> None:
        start, stop = place_of(left)[1], place_of(right)[0]
        old = source[start:stop].strip("() \n")
        if old in swaps:
            place = source.index(old, start, stop)
            found.append(Mutation(place, place + len(old), swaps[old]))

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            swap(node.left, node.comparators[0], _COMPARISONS)
        elif isinstance(node, ast.BinOp):
            swap(node.left, node.right, _OPERATORS)
        elif isinstance(node, ast.BoolOp):
            swap(node.values[0], node.values[1], {"and": "or", "or": "and"})
        elif isinstance(node, ast.AugAssign):
            swap(node.target, node.value, {"+=": "-=", "-=": "+="})
        elif isinstance(node, ast.Name) and node.id in ("max", "min"):
            found.append(Mutation(*place_of(node), "min" if node.id == "max" else "max"))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            found.append(Mutation(*place_of(node), str(node.value + 1)))
    return tuple(sorted(found))


def mutated(name: str, mutation: Mutation) -> str:
    """Return the source code with a mutation."""
    source = source_of(name)
    return source[: mutation.start] + mutation.text + source[mutation.stop :]


CAUGHT: Mapping[str, tuple[int, ...]] = {
        "compression": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 18, 19, 24, 25, 26, 27, 28, 29, 32, 33, 36, 37, 38,
        39, 40, 41, 42),
        "dates": (0, 1, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33,
        34, 37, 40, 41, 42, 43, 44, 45, 46, 47, 49, 50, 51),
        "expressions": (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26),
        "graphs": (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13),
        "intervals": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14),
        "inventory": (0, 1, 2, 3, 7, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 25, 26, 29),
        "matrix": (0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 26, 28, 29),
        "records": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26),
        "roman": (0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 22, 23),
        "scores": (0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 23, 24, 25, 27),
        "searching": (3, 5, 7, 8, 10, 12, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 32),
        "wrapping": (0, 3, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21),
}  # fmt: skip
"""The mutations that a visible test catches, without running long, as indices of `mutations_of`."""
