"""The problems: for each kind, a function that computes the answer, the question, and how its numbers are drawn."""

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from envsdk.authoring.tasks import Split, draw_in_split

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]
Arguments: TypeAlias = dict[str, Any]


class Problem(NamedTuple):
    """A question, a program that answers it, and a function that computes the answer."""

    question: str
    solution: str | None
    answer: Callable[[], str]


class Kind(NamedTuple):
    """Problems that differ in numbers."""

    solve: Callable[..., int]
    """Computes the answer. Its source is also the solution program."""
    question: str
    """The question, with the function's parameters as format fields."""
    draw: Callable[[np.random.Generator], Arguments]
    """Draws the function's arguments."""


def random_problem(rng: np.random.Generator, difficulty: Difficulty, split: Split) -> Problem:
    """Draw a problem of the split."""
    kinds = KINDS[difficulty]

    def draw() -> tuple[Kind, Arguments]:
        kind = kinds[int(rng.integers(len(kinds)))]
        return kind, kind.draw(rng)

    kind, arguments = draw_in_split(split, draw, _question)
    program = _program(kind.solve, arguments)
    return Problem(_question((kind, arguments)), program, partial(_answer, kind.solve, arguments))


def _question(drawn: tuple["Kind", Arguments]) -> str:
    kind, arguments = drawn
    return kind.question.format(**arguments)


def _answer(solve: Callable[..., int], arguments: Mapping[str, Any]) -> str:
    return str(solve(**arguments))


def _program(solve: Callable[..., int], arguments: Mapping[str, Any]) -> str:
    """Return a program that prints what the function returns."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"{_source(solve)}\n\nprint({solve.__name__}({given}))\n"


_source = functools.cache(inspect.getsource)


def _from(rng: np.random.Generator, least: int, most: int) -> int:
    return int(rng.integers(least, most + 1))


def _range(rng: np.random.Generator, most: int, width: int) -> Arguments:
    first = _from(rng, 1, most)
    return {"first": first, "last": first + _from(rng, width // 2, width)}


def _recurrence(rng: np.random.Generator) -> Arguments:
    modulus = _from(rng, 10_000, 99_999)
    return {"x": _from(rng, 1, 9999), "factor": _from(rng, 2, 999), "addend": _from(rng, 1, 999), "modulus": modulus}


# Easy: a loop.


def recurrence(x: int, factor: int, addend: int, modulus: int, times: int) -> int:
    """Add up the values of a linear recurrence."""
    total = 0
    for _ in range(times):
        x = (factor * x + addend) % modulus
        total += x
    return total


def draw_recurrence(rng: np.random.Generator) -> Arguments:
    """Numbers for `recurrence`."""
    return {**_recurrence(rng), "times": _from(rng, 200, 999)}


RECURRENCE = (
    "Start with x = {x}. {times} times, replace x by the remainder of {factor} * x + {addend} divided by {modulus}. "
    "What is the sum of the {times} values that x takes then?"
)


def digit_sums(first: int, last: int, divisor: int) -> int:
    """Add up numbers by the sum of their digits."""
    return sum(n for n in range(first, last + 1) if sum(map(int, str(n))) % divisor == 0)


def draw_digit_sums(rng: np.random.Generator) -> Arguments:
    """Numbers for `digit_sums`."""
    return {**_range(rng, 99_999, 2000), "divisor": _from(rng, 3, 11)}


DIGIT_SUMS = (
    "What is the sum of all whole numbers from {first} to {last}, both included, whose digits add up to a multiple of "
    "{divisor}?"
)


def square_remainders(first: int, last: int, modulus: int) -> int:
    """Add up remainders of squares."""
    return sum(n * n % modulus for n in range(first, last + 1))


def draw_square_remainders(rng: np.random.Generator) -> Arguments:
    """Numbers for `square_remainders`."""
    return {**_range(rng, 99_999, 2000), "modulus": _from(rng, 100, 9999)}


SQUARE_REMAINDERS = (
    "For each whole number n from {first} to {last}, both included, take the remainder of n * n divided by {modulus}. "
    "What is the sum of these remainders?"
)


# Medium: a well-known algorithm.


def primes(first: int, last: int, modulus: int, remainder: int) -> int:
    """Add up primes of a residue class, by a sieve."""
    is_prime = bytearray([1]) * (last + 1)
    for n in range(2, int(last**0.5) + 1):
        if is_prime[n]:
            is_prime[n * n :: n] = bytes(len(range(n * n, last + 1, n)))
    return sum(n for n in range(max(first, 2), last + 1) if is_prime[n] and n % modulus == remainder)


def draw_primes(rng: np.random.Generator) -> Arguments:
    """Numbers for `primes`."""
    modulus = int(rng.choice([5, 7, 11, 13]))
    return {**_range(rng, 20_000, 8000), "modulus": modulus, "remainder": _from(rng, 1, modulus - 1)}


PRIMES = (
    "What is the sum of all prime numbers from {first} to {last} that leave the remainder {remainder} when they are "
    "divided by {modulus}?"
)


def longest_descent(first: int, last: int) -> int:
    """Find the number from which 3n + 1 takes the most steps."""

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    return max(range(first, last + 1), key=steps)


def draw_longest_descent(rng: np.random.Generator) -> Arguments:
    """Numbers for `longest_descent`."""
    return _range(rng, 999_999, 400)


LONGEST_DESCENT = (
    "From a whole number n, go on to n / 2 if n is even, and to 3 * n + 1 if n is odd, until you are at 1. From which "
    "of the numbers from {first} to {last}, both included, does that take the most steps? If there are several, give "
    "the smallest."
)


def circle(people: int, start: int, step: int) -> int:
    """Find who is left in a circle."""
    standing = list(range(1, people + 1))
    at = start - 1
    while len(standing) > 1:
        at = (at + step - 1) % len(standing)
        standing.pop(at)
    return standing[0]


def draw_circle(rng: np.random.Generator) -> Arguments:
    """Numbers for `circle`."""
    people = _from(rng, 500, 3000)
    return {"people": people, "start": _from(rng, 1, people), "step": _from(rng, 2, 999)}


CIRCLE = (
    "{people} people stand in a circle and are numbered from 1 to {people} in their order. You count them off, "
    "beginning with number {start}, which is 1: whoever is number {step} of the count leaves the circle, and the count "
    "begins again at 1 with the next one who still stands. What is the number of the last one?"
)


def orders(lines: str, kind: str, divisor: int) -> int:
    """Add up the value of some of the lines of a table."""
    total = 0
    for line in lines.splitlines():
        _, of_kind, quantity, price = line.split(",")
        if of_kind == kind and int(quantity) % divisor != 0:
            total += int(quantity) * int(price)
    return total


def draw_orders(rng: np.random.Generator) -> Arguments:
    """A table for `orders`, and what is asked of it."""
    kinds = ("book", "lamp", "pen", "rug")
    numbers = rng.integers((1000, 0, 1, 100), (10_000, len(kinds), 100, 10_000), size=(40, 4)).tolist()
    lines = [f"{number},{kinds[kind]},{quantity},{price}" for number, kind, quantity, price in numbers]
    return {"lines": "\n".join(lines), "kind": kinds[_from(rng, 0, 3)], "divisor": _from(rng, 2, 5)}


ORDERS = (
    "Each line is an order: its number, the kind of thing, the quantity and the price of one, with commas between. "
    "What is the sum of quantity times price, of the orders of the kind {kind!r} whose quantity is no multiple of "
    "{divisor}?\n\n{lines}"
)


# Hard: an algorithm that has to be designed.


def rising_sum(length: int, x: int, factor: int, addend: int, modulus: int) -> int:
    """Find the largest sum of an increasing subsequence, by dynamic programming."""
    numbers = [x]
    while len(numbers) < length:
        numbers.append((factor * numbers[-1] + addend) % modulus)
    best: list[int] = []
    for i, number in enumerate(numbers):
        best.append(number + max((best[j] for j in range(i) if numbers[j] < number), default=0))
    return max(best)


def draw_rising_sum(rng: np.random.Generator) -> Arguments:
    """Numbers for `rising_sum`."""
    return {"length": _from(rng, 200, 400), **_recurrence(rng)}


RISING_SUM = (
    "A list has {length} numbers. The first is {x}, and each next one is the remainder of {factor} times the one "
    "before, plus {addend}, divided by {modulus}. Choose some of the numbers, so that in the order of the list each "
    "one chosen is greater than the one chosen before. What is the largest sum they can have?"
)


def cheapest_way(size: int, a: int, b: int, c: int, modulus: int) -> int:
    """Find the cheapest way through a grid, by Dijkstra's algorithm."""
    import heapq

    def cost(row: int, column: int) -> int:
        return (a * row * row + b * row * column + c * column * column) % modulus + 1

    queue, done = [(cost(0, 0), 0, 0)], set[tuple[int, int]]()
    while True:
        total, row, column = heapq.heappop(queue)
        if row == column == size - 1:
            return total
        if (row, column) in done:
            continue
        done.add((row, column))
        for r, s in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= r < size and 0 <= s < size:
                heapq.heappush(queue, (total + cost(r, s), r, s))


def draw_cheapest_way(rng: np.random.Generator) -> Arguments:
    """Numbers for `cheapest_way`."""
    a, b, c = rng.integers(1, 100, size=3).tolist()
    return {"size": _from(rng, 25, 45), "a": a, "b": b, "c": c, "modulus": _from(rng, 50, 999)}


CHEAPEST_WAY = (
    "A grid has {size} rows and {size} columns, counted from 0. The cell in row r and column s costs the remainder of "
    "{a} * r * r + {b} * r * s + {c} * s * s divided by {modulus}, plus 1. You go from row 0, column 0 to the opposite "
    "corner, each step up, down, left or right to the next cell, and pay for each cell you come to, the first and the "
    "last one included. What is the least that you can pay?"
)


def selections(numbers: list[int], target: int) -> int:
    """Count the ways to reach a sum, by dynamic programming."""
    ways = [1] + [0] * target
    for number in numbers:
        for total in range(target, number - 1, -1):
            ways[total] += ways[total - number]
    return ways[target]


def draw_selections(rng: np.random.Generator) -> Arguments:
    """Numbers for `selections`."""
    numbers = rng.integers(10, 151, size=30).tolist()
    return {"numbers": numbers, "target": sum(numbers) // 2 - _from(rng, 0, 200)}


SELECTIONS = (
    "In how many ways can some of the following numbers be chosen so that they add up to {target}? Numbers that occur "
    "several times are different ones.\n\n{numbers}"
)


KINDS: dict[Difficulty, list[Kind]] = {
    "easy": [
        Kind(recurrence, RECURRENCE, draw_recurrence),
        Kind(digit_sums, DIGIT_SUMS, draw_digit_sums),
        Kind(square_remainders, SQUARE_REMAINDERS, draw_square_remainders),
    ],
    "medium": [
        Kind(primes, PRIMES, draw_primes),
        Kind(longest_descent, LONGEST_DESCENT, draw_longest_descent),
        Kind(circle, CIRCLE, draw_circle),
        Kind(orders, ORDERS, draw_orders),
    ],
    "hard": [
        Kind(rising_sum, RISING_SUM, draw_rising_sum),
        Kind(cheapest_way, CHEAPEST_WAY, draw_cheapest_way),
        Kind(selections, SELECTIONS, draw_selections),
    ],
}
"""The kinds of problems of each difficulty."""
