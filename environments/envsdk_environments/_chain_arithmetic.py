"""A chain of arithmetic steps in one turn, with a strict answer format."""

import importlib
import importlib.util
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from pydantic import BaseModel, Field, field_validator, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import MissingPackage, TaskError

from ._scoring import TaskData, decline

Operation: TypeAlias = Literal["add", "subtract", "multiply", "divide", "subtract_from"]
Step: TypeAlias = tuple[Operation, int]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
CORRECT, FORMAT = 0.9, 0.1
MAX_DIGITS = 20
"""The longest whole number that is read, so that no conversion takes long."""
MAX_CHARS = 80
"""The longest answer in a box, in characters."""
MAX_DENOMINATOR = 10_000
DECIMAL_PLACES = 12
"""The number of decimal places that are compared."""

_SYSTEM = {
    "integer": (
        "Work through the steps in order. End with a line that contains only the answer, a whole number in digits, as "
        "in this example:\nAnswer: -42"
    ),
    "latex": (
        "Work through the steps in order, with exact arithmetic. Give the answer once, boxed in LaTeX, as a whole "
        "number, a fraction or a decimal, as in this example:\n\\boxed{-\\frac{3}{4}}"
    ),
}
_IN_WORDS: dict[Operation, tuple[str, ...]] = {
    "add": ("Add {}.", "Increase the result by {}.", "Add {} more."),
    "subtract": ("Subtract {}.", "Take away {}.", "Reduce the result by {}."),
    "multiply": ("Multiply by {}.", "Take {} times that.", "Multiply what you have by {}."),
    "divide": ("Divide by {}.", "Split that into {} equal parts and keep one.", "Take one of {} equal parts of it."),
    "subtract_from": ("Subtract the result from {}.", "Take {} and subtract what you have from it."),
}
_IN_SYMBOLS: dict[Operation, str] = {
    "add": "x = x + {}",
    "subtract": "x = x - {}",
    "multiply": "x = x * {}",
    "divide": "x = x / {}",
    "subtract_from": "x = {} - x",
}
_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

_INTEGER = re.compile(f"-?[0-9]{{1,{MAX_DIGITS}}}")
_WHOLE = f"[0-9]{{1,{MAX_DIGITS}}}"
_GROUPED = r"[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3}){1,6}"
_FRACTION = rf"\\[dt]?frac(?:\{{-?{_WHOLE}\}}\{{{_WHOLE}\}}|[0-9][0-9])"
_LATEX = re.compile(rf"[-+]?(?:(?:{_GROUPED}|{_WHOLE})(?:\.{_WHOLE})?|{_WHOLE}/{_WHOLE}|(?:{_WHOLE})?{_FRACTION})")
"""One number and nothing to compute, so that the library is fast and the task itself is not an answer."""


class ChainArithmeticConfig(EnvConfig):
    """The difficulty of the chains, their style, and the format of the answer."""

    split: Split = "train"
    """No chain is in both splits."""
    difficulty: Literal["easy", "medium", "hard"] = "medium"
    """Easy, medium and hard chains have 5, 8 and 16 steps, with numbers up to 50, 99 and 999."""
    style: Literal["words", "symbols", "mixed"] = "mixed"
    """The style of the chain; `mixed` draws one of the two for each episode."""
    answers: Literal["integer", "latex"] = "integer"
    """The answer format. `latex` also has fractions in its chains, and needs `pip install 'envsdk[math]'`."""

    @field_validator("answers")
    @classmethod
    def _has_what_it_needs(cls, answers: str) -> str:
        if answers == "latex" and importlib.util.find_spec("math_verify") is None:
            raise MissingPackage("LaTeX is read by math-verify, which is not installed: pip install 'envsdk[math]'")
        return answers


class ChainArithmeticTask(TaskData):
    """A start value and the steps to apply to it."""

    start: int
    steps: tuple[Step, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _has_an_answer(self) -> "ChainArithmeticTask":
        if ("divide", 0) in self.steps:
            raise ValueError("a step divides by 0")
        value = self.values()[-1]
        if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
            raise ValueError(f"the answer has more than {MAX_DIGITS} digits")
        return self

    def values(self) -> list[Fraction]:
        """Return the value at the start and after each step."""
        values = [Fraction(self.start)]
        for operation, number in self.steps:
            values.append(_apply(values[-1], operation, number))
        return values


class ChainArithmetic(Env):
    r"""Do a chain of arithmetic steps, written in words or in symbols, and answer in a fixed format.

    Exercises: keeping track of a value over many steps without a tool, and keeping to a format. An episode has one
    step.

    Reward: `format`, 0.1 for one readable answer, and `correct`, 0.9 if it is right. An answer is a line `Answer: -42`,
    or `\boxed{-42}`: an optional minus sign and 1 to 20 digits. With `answers="latex"`, the answer is in a box: a whole
    number (also `1,234` and `1{,}234`), a decimal, or a fraction (`\frac{3}{4}`, `\tfrac34`, `3/4`, `1\frac{3}{4}`),
    with or without a sign. Decimals are compared in their first 12 places. Expressions that have to be computed are not
    accepted. If a reply has several answers, all of them must be readable and written alike; otherwise it has none. The
    reasoning does not count.

    A task, if given, is `{"start": 7, "steps": [["add", 5], ["multiply", 3]]}`; a step can also `subtract`, `divide` or
    `subtract_from`. Without LaTeX, the answer has to be a whole number.
    """

    Config: ClassVar[type[EnvConfig]] = ChainArithmeticConfig
    Task: ClassVar[type[BaseModel] | None] = ChainArithmeticTask
    default_limits: ClassVar[Limits] = Limits(max_steps=1)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Ask for the result of the chain."""
        config: ChainArithmeticConfig = self.config
        self.chain: ChainArithmeticTask = self.task or random_chain(self.np_random, config)
        self.values = self.chain.values()
        if config.answers == "integer" and self.values[-1].denominator > 1:
            raise TaskError(f"the answer {self.values[-1]} is not a whole number; use answers='latex' for fractions")
        steps = self.chain.steps
        if self.np_random.random() < 0.5 if config.style == "mixed" else config.style == "words":
            sentences = [f"Start with {_number_in_words(self.chain.start)}."]
            for (operation, number), choice in zip(steps, self.np_random.random(len(steps)).tolist(), strict=True):
                forms = _IN_WORDS[operation]
                sentences.append(forms[int(choice * len(forms))].format(_number_in_words(number)))
            question = " ".join([*sentences, "What is the result?"])
        else:
            lines = [_IN_SYMBOLS[name].format(number if number >= 0 else f"({number})") for name, number in steps]
            question = "\n".join([f"x = {self.chain.start}", *lines, "What is x at the end?"])
        return Turn(question, system=_SYSTEM[config.answers])

    def respond(self, reply: Message) -> Turn:
        """Score the answer."""
        in_latex = self.config.answers == "latex"
        answer, value = read_answer(reply.content, in_latex=in_latex), self.values[-1]
        is_right = answer is not None and (_is_latex_of(answer, value) if in_latex else int(answer) == value)
        reward = {"correct": CORRECT * is_right, "format": FORMAT * (answer is not None)}
        return Turn("Right." if is_right else f"No, it is {value}.", reward=reward, terminated=True)

    def reference_reply(self) -> Message:
        """Reason with the value after each step, then answer."""
        value = self.values[-1]
        answer = f"\\boxed{{{_as_latex(value)}}}" if self.config.answers == "latex" else f"Answer: {value}"
        return Message(role="assistant", reasoning=" -> ".join(map(str, self.values)), content=answer)

    null_reply = decline


# Answers.


def read_answer(content: str, *, in_latex: bool = False) -> str | None:
    """Return the answer of a reply as it is written, or None if it has no readable answer, or different ones."""
    pattern, first = _LATEX if in_latex else _INTEGER, None
    for claim in _claims(content, in_latex=in_latex):
        if claim is None or not pattern.fullmatch(claim) or first not in (None, claim):
            return None
        first = claim
    return first


def _claims(content: str, *, in_latex: bool) -> Iterator[str | None]:
    """Yield everything that is given as an answer; None for a box that is not closed within `MAX_CHARS`."""
    if not in_latex:
        for line in content.split("\n"):
            before, mark, claim = line.partition("Answer:")
            claim = claim.strip(" \t\r")
            if mark and not before.strip(" \t"):
                is_box = claim.startswith("\\boxed{") and claim.endswith("}")
                yield claim.removeprefix("\\boxed{")[:-1].strip() if is_box else claim
    for match in re.finditer(r"\\boxed\{", content):
        text, depth = content[match.end() : match.end() + MAX_CHARS + 1], 1
        for position, char in enumerate(text):
            depth += (char == "{") - (char == "}")
            if not depth:
                yield text[:position].strip()
                break
        else:
            yield None


def _is_latex_of(answer: str, value: Fraction) -> bool:
    """Return whether an answer that matches `_LATEX` has that value."""
    library = importlib.import_module("math_verify")
    # The library limits its time by alarms, which only the main thread can set. An answer takes a few milliseconds.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they warn that there is no time limit
    config = library.LatexExtractionConfig()
    parsed = library.parse(f"\\boxed{{{answer}}}", [config], parsing_timeout=None, fallback_mode="no_fallback")
    right = library.parse(f"\\boxed{{{_as_latex(value)}}}", [config], parsing_timeout=None)
    return bool(library.verify(right, parsed, float_rounding=DECIMAL_PLACES, timeout_seconds=None))


def _as_latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# Chains.


class _ChainSize(NamedTuple):
    steps: int
    max_term: int
    max_factor: int
    max_value: int


_SIZES = {
    "easy": _ChainSize(5, 50, 9, 1_000),
    "medium": _ChainSize(8, 99, 12, 100_000),
    "hard": _ChainSize(16, 999, 25, 10**9),
}


def random_chain(rng: np.random.Generator, config: ChainArithmeticConfig) -> ChainArithmeticTask:
    """Draw a chain of the configured difficulty and split."""
    size = _SIZES[config.difficulty]
    with_fractions = config.answers == "latex"

    def draw() -> tuple[int, list[Step]]:
        draws = (draw for _ in itertools.count() for draw in rng.random(64).tolist())
        start = 2 + int(next(draws) * (size.max_term - 1))
        value, steps = Fraction(start), list[Step]()
        while len(steps) < size.steps:
            operation = OPERATIONS[int(next(draws) * len(OPERATIONS))]
            numbers: Sequence[int] = range(2, size.max_term + 1)
            if operation in ("multiply", "divide"):
                numbers = range(2, size.max_factor + 1)
            if operation == "divide" and not with_fractions:
                numbers = [factor for factor in numbers if value.numerator % factor == 0]
            if not numbers:
                continue
            number = numbers[int(next(draws) * len(numbers))]
            result = _apply(value, operation, number)
            if result and abs(result) <= size.max_value and result.denominator <= MAX_DENOMINATOR:
                value = result
                steps.append((operation, number))
        return start, steps

    start, steps = draw_in_split(config.split, draw, lambda chain: f"{chain[0]} {chain[1]}")
    return ChainArithmeticTask(start=start, steps=tuple(steps))


def _apply(value: Fraction, operation: Operation, number: int) -> Fraction:
    match operation:
        case "add":
            return value + number
        case "subtract":
            return value - number
        case "multiply":
            return value * number
        case "divide":
            return value / number
        case "subtract_from":
            return number - value


def _number_in_words(number: int) -> str:
    """Write a number from 0 to 99 in words, any other in digits."""
    if not 0 <= number < 100:
        return str(number)
    tens, ones = divmod(number, 10)
    if tens < 2:
        return _ONES[number]
    return f"{_TENS[tens - 2]}-{_ONES[ones]}" if ones else _TENS[tens - 2]
