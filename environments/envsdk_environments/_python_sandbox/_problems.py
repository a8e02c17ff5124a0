"""The problems: for each kind, a function that computes the answer, the question, and how its numbers are drawn."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from envsdk.authoring.tasks import Split, draw_in_split

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]
Arguments: TypeAlias = dict[str, Any]


class Problem(NamedTuple):
    """A question, a program that answers it, and a function that computes the answer."""

    question: str
    solution: str | None
    answer: Callable[[], int | str]


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """Problems that differ in numbers."""

    solve: Callable[..., int]
    """Computes the answer. Its source is also the solution program."""
    question: str
    """The question, with the function's parameters as format fields."""
    draw: Callable[[np.random.Generator], Arguments]
    """Draws the function's arguments."""


_source = cache(inspect.getsource)


def random_problem(rng: np.random.Generator, difficulty: Difficulty, split: Split) -> Problem:
    """Draw a problem of the split."""
    kinds = KINDS[difficulty]

    def draw() -> tuple[ProblemKind, Arguments]:
        kind = kinds[int(rng.integers(len(kinds)))]
        return kind, kind.draw(rng)

    kind, arguments = draw_in_split(split, draw, lambda drawn: drawn[0].question.format(**drawn[1]))
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    program = f"{_source(kind.solve)}\n\nprint({kind.solve.__name__}({given}))\n"
    return Problem(kind.question.format(**arguments), program, partial(kind.solve, **arguments))


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


def digit_sums(first: int, last: int, divisor: int) -> int:
    """Add up numbers by the sum of their digits."""
    return sum(n for n in range(first, last + 1) if sum(map(int, str(n))) % divisor == 0)


def square_remainders(first: int, last: int, modulus: int) -> int:
    """Add up remainders of squares."""
    return sum(n * n % modulus for n in range(first, last + 1))


# Medium: a well-known algorithm.


def primes(first: int, last: int, modulus: int, remainder: int) -> int:
    """Add up primes of a residue class, by a sieve."""
    is_prime = bytearray([1]) * (last + 1)
    for n in range(2, int(last**0.5) + 1):
        if is_prime[n]:
            is_prime[n * n :: n] = bytes(len(range(n * n, last + 1, n)))
    return sum(n for n in range(max(first, 2), last + 1) if is_prime[n] and n % modulus == remainder)


def _draw_primes(rng: np.random.Generator) -> Arguments:
    modulus = int(rng.choice([5, 7, 11, 13]))
    return {**_range(rng, 20_000, 8000), "modulus": modulus, "remainder": _from(rng, 1, modulus - 1)}


def longest_descent(first: int, last: int) -> int:
    """Find the number from which 3n + 1 takes the most steps."""

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    return max(range(first, last + 1), key=steps)


def circle(people: int, start: int, step: int) -> int:
    """Find who is left in a circle."""
    standing = list(range(1, people + 1))
    at = start - 1
    while len(standing) > 1:
        at = (at + step - 1) % len(standing)
        standing.pop(at)
    return standing[0]


def orders(lines: str, kind: str, divisor: int) -> int:
    """Add up the value of some of the lines of a table."""
    total = 0
    for line in lines.splitlines():
        _, of_kind, quantity, price = line.split(",")
        if of_kind == kind and int(quantity) % divisor != 0:
            total += int(quantity) * int(price)
    return total


def _draw_orders(rng: np.random.Generator) -> Arguments:
    kinds = ("book", "lamp", "pen", "rug")
    numbers = rng.integers((1000, 0, 1, 100), (10_000, len(kinds), 100, 10_000), size=(40, 4)).tolist()
    lines = [f"{number},{kinds[kind]},{quantity},{price}" for number, kind, quantity, price in numbers]
    return {"lines": "\n".join(lines), "kind": kinds[_from(rng, 0, 3)], "divisor": _from(rng, 2, 5)}


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


def _draw_cheapest_way(rng: np.random.Generator) -> Arguments:
    a, b, c = rng.integers(1, 100, size=3).tolist()
    return {"size": _from(rng, 25, 45), "a": a, "b": b, "c": c, "modulus": _from(rng, 50, 999)}


def selections(numbers: list[int], target: int) -> int:
    """Count the ways to reach a sum, by dynamic programming."""
    ways = [1] + [0] * target
    for number in numbers:
        for total in range(target, number - 1, -1):
            ways[total] += ways[total - number]
    return ways[target]


KINDS: dict[Difficulty, list[ProblemKind]] = {
    "easy": [
        ProblemKind(
            recurrence,
            "Start with x = {x}. Repeat {times} times: replace x with the remainder of {factor} * x + {addend} divided "
            "by {modulus}. What is the sum of the {times} new values of x?",
            lambda rng: {**_recurrence(rng), "times": _from(rng, 200, 999)},
        ),
        ProblemKind(
            digit_sums,
            "What is the sum of all whole numbers from {first} to {last}, inclusive, whose digits add up to a "
            "multiple of {divisor}?",
            lambda rng: {**_range(rng, 99_999, 2000), "divisor": _from(rng, 3, 11)},
        ),
        ProblemKind(
            square_remainders,
            "For each whole number n from {first} to {last}, inclusive, take the remainder of n * n divided by "
            "{modulus}. What is the sum of these remainders?",
            lambda rng: {**_range(rng, 99_999, 2000), "modulus": _from(rng, 100, 9999)},
        ),
    ],
    "medium": [
        ProblemKind(
            primes,
            "What is the sum of all prime numbers from {first} to {last} that leave a remainder of {remainder} when "
            "divided by {modulus}?",
            _draw_primes,
        ),
        ProblemKind(
            longest_descent,
            "Start with a whole number n. If n is even, replace it with n / 2; if it is odd, replace it with 3 * n + "
            "1; stop at 1. Which of the numbers from {first} to {last}, inclusive, takes the most steps? If there is a "
            "tie, give the smallest.",
            lambda rng: _range(rng, 999_999, 400),
        ),
        ProblemKind(
            circle,
            "{people} people stand in a circle, numbered from 1 to {people} in order. You count around the circle, "
            "starting at 1 with person {start}. The person who is counted as {step} leaves the circle, and the count "
            "starts again at 1 with the next person who is still there. What is the number of the last person left?",
            lambda rng: {"people": (n := _from(rng, 500, 3000)), "start": _from(rng, 1, n), "step": _from(rng, 2, 999)},
        ),
        ProblemKind(
            orders,
            "Each line is an order: its number, the kind of item, the quantity and the unit price, separated by "
            "commas. What is the sum of quantity times unit price over the orders of kind {kind!r} whose quantity is "
            "not a multiple of {divisor}?\n\n{lines}",
            _draw_orders,
        ),
    ],
    "hard": [
        ProblemKind(
            rising_sum,
            "A list has {length} numbers. The first is {x}, and each of the others is the remainder of {factor} times "
            "the previous number, plus {addend}, divided by {modulus}. Choose some of the numbers so that, in list "
            "order, each chosen number is greater than the one chosen before it. What is the largest possible sum of "
            "the chosen numbers?",
            lambda rng: {"length": _from(rng, 200, 400), **_recurrence(rng)},
        ),
        ProblemKind(
            cheapest_way,
            "A grid has {size} rows and {size} columns, counted from 0. The cell in row r and column s costs the "
            "remainder of {a} * r * r + {b} * r * s + {c} * s * s divided by {modulus}, plus 1. You go from row 0, "
            "column 0 to the opposite corner. Each step moves up, down, left or right to an adjacent cell. You pay for "
            "each cell that you visit, including the first and the last. What is the lowest possible total cost?",
            _draw_cheapest_way,
        ),
        ProblemKind(
            selections,
            "In how many ways can you choose some of the following numbers so that they add up to {target}? Equal "
            "numbers at different positions count as different choices.\n\n{numbers}",
            lambda rng: {
                "numbers": (numbers := rng.integers(10, 151, size=30).tolist()),
                "target": sum(numbers) // 2 - _from(rng, 0, 200),
            },
        ),
    ],
}
"""The kinds of problems of each difficulty."""
