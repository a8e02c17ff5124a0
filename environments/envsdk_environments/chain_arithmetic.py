"""A chain of arithmetic steps in one turn, with an answer that is read strictly."""

import functools
import importlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import MissingPackage, TaskError

Operation: TypeAlias = Literal["add", "subtract", "multiply", "divide", "subtract_from"]
Step: TypeAlias = tuple[Operation, int]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
CORRECT, FORMAT = 0.9, 0.1
MAX_DIGITS = 20
"""The longest whole number that is read; so no conversion of a number takes long."""
MAX_CHARS = 80
"""The longest answer in a box."""
MAX_DENOMINATOR = 10_000
DECIMAL_PLACES = 12
"""So many places of a decimal are compared."""

_SYSTEM = {
    "integer": (
        "Do the steps one after the other. End with a line that holds the answer alone, a whole number in digits, as "
        "in this example:\nAnswer: -42"
    ),
    "latex": (
        "Do the steps one after the other, exactly. Give the answer once, in LaTeX and in a box: a whole number, a "
        "fraction or a decimal, as in this example:\n\\boxed{-\\frac{3}{4}}"
    ),
}
_IN_WORDS: dict[Operation, tuple[str, ...]] = {
    "add": ("Add {}.", "Increase the result by {}.", "Put {} on top of that."),
    "subtract": ("Subtract {}.", "Take away {}.", "Reduce the result by {}."),
    "multiply": ("Multiply by {}.", "Take that {} times.", "Multiply what you have by {}."),
    "divide": ("Divide by {}.", "Split that into {} equal parts and keep one.", "Keep one of {} equal parts."),
    "subtract_from": ("Subtract the result from {}.", "Take {}, and remove from it what you have."),
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
"""One number, and nothing to compute: so the library takes no long time for any answer, and the task is no answer."""


class ChainArithmeticConfig(EnvConfig):
    """How hard the chains are, how they are told, and how they are answered."""

    split: Split = "train"
    """No chain of one split is in the other."""
    difficulty: Literal["easy", "medium", "hard"] = "medium"
    """5, 8 or 16 steps, with numbers of up to 50, 99 or 999."""
    style: Literal["words", "symbols", "mixed"] = "mixed"
    answers: Literal["integer", "latex"] = "integer"
    """`latex` has fractions in its chains, and needs `pip install 'envsdk[math]'`."""

    @field_validator("answers")
    @classmethod
    def _has_what_it_needs(cls, answers: str) -> str:
        if answers == "latex" and importlib.util.find_spec("math_verify") is None:
            raise MissingPackage("LaTeX is read by math-verify, which is not installed: pip install 'envsdk[math]'")
        return answers


class ChainArithmeticTask(BaseModel):
    """A number, and what is done to it."""

    model_config = ConfigDict(frozen=True)

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
        """The number at the start and after each step."""
        values = [Fraction(self.start)]
        for operation, number in self.steps:
            values.append(_apply(values[-1], operation, number))
        return values


class ChainArithmetic(Env):
    r"""Do a chain of arithmetic steps that is told in words or in symbols, and answer in a fixed format.

    Exercises: keeping track of a value over many steps without a tool, and keeping to a format. It has one turn.

    Reward: `format`, 0.1 for one answer that can be read, and `correct`, 0.9 if it is the right one. An answer is a
    line `Answer: -42`, or `\boxed{-42}`: an optional minus and up to 20 of the digits 0 to 9, no more. With
    `answers="latex"` it stands in a box: a whole number (`1,234` and `1{,}234`, too), a decimal, or a fraction
    (`\frac{3}{4}`, `\tfrac34`, `3/4`, `1\frac{3}{4}`), with or without a sign; a decimal is compared in its first 12
    places. Nothing that has to be computed is taken. All answers in a reply must be readable and written alike, else it
    has none. What stands in the reasoning does not count.

    A task, if there is one, is `{"start": 7, "steps": [["add", 5], ["multiply", 3]]}`; a step can also `subtract`,
    `divide` or `subtract_from`. Without LaTeX the answer has to be a whole number.
    """

    Config: ClassVar[type[EnvConfig]] = ChainArithmeticConfig
    Task: ClassVar[type[BaseModel] | None] = ChainArithmeticTask
    default_limits: ClassVar[Limits] = Limits(max_steps=1)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Tell the chain."""
        config: ChainArithmeticConfig = self.config
        self.chain: ChainArithmeticTask = self.task or random_chain(self.np_random, config)
        self.values = self.chain.values()
        if config.answers == "integer" and self.values[-1].denominator > 1:
            raise TaskError(f"the answer {self.values[-1]} is no whole number; answers='latex' takes fractions")
        in_words = self.np_random.random() < 0.5 if config.style == "mixed" else config.style == "words"
        question = _in_words(self.chain, self.np_random) if in_words else _in_symbols(self.chain)
        return Turn(question, system=_SYSTEM[config.answers])

    def respond(self, reply: Message) -> Turn:
        """Score the answer."""
        in_latex = self.config.answers == "latex"
        answer, value = read_answer(reply.content, in_latex=in_latex), self.values[-1]
        is_right = answer is not None and (_is_latex_of(answer, value) if in_latex else int(answer) == value)
        reward = {"correct": CORRECT * is_right, "format": FORMAT * (answer is not None)}
        return Turn("Right." if is_right else f"No, it is {value}.", reward=reward, terminated=True)

    def reference_reply(self) -> Message:
        """Say the value after each step, then answer."""
        value = self.values[-1]
        answer = f"\\boxed{{{_as_latex(value)}}}" if self.config.answers == "latex" else f"Answer: {value}"
        return Message(role="assistant", reasoning=" -> ".join(map(str, self.values)), content=answer)

    def null_reply(self) -> str:
        """Decline."""
        return "I do not know."


# Answers.


def read_answer(content: str, *, in_latex: bool = False) -> str | None:
    """The answer that a reply gives, as it is written; None if it gives none that can be read, or several."""
    pattern, first = _LATEX if in_latex else _INTEGER, None
    for claim in _claims(content, in_latex=in_latex):
        if claim is None or not pattern.fullmatch(claim) or first not in (None, claim):
            return None
        first = claim
    return first


def _claims(content: str, *, in_latex: bool) -> Iterator[str | None]:
    """All that is said to be the answer; None for a box that is not closed soon."""
    if not in_latex:
        for line in content.split("\n"):
            before, mark, claim = line.partition("Answer:")
            if mark and not before.strip(" \t"):
                yield _without_box(claim.strip(" \t\r"))
    for match in re.finditer(r"\\boxed\{", content):
        yield _until_closed(content[match.end() : match.end() + MAX_CHARS + 1])


def _without_box(claim: str) -> str:
    """The claim of a line, which may stand in a box."""
    is_box = claim.startswith("\\boxed{") and claim.endswith("}")
    return claim.removeprefix("\\boxed{")[:-1].strip() if is_box else claim


def _until_closed(text: str) -> str | None:
    """What stands before the brace that closes one which is open already."""
    depth = 1
    for position, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if not depth:
            return text[:position].strip()
    return None


def _is_latex_of(answer: str, value: Fraction) -> bool:
    """Whether an answer that `_LATEX` takes is that value."""
    library = _math_verify()
    # Its time limits are alarms, which only the main thread can set; what is asked here takes a few milliseconds.
    config = library.LatexExtractionConfig()
    parsed = library.parse(f"\\boxed{{{answer}}}", [config], parsing_timeout=None, fallback_mode="no_fallback")
    right = library.parse(f"\\boxed{{{_as_latex(value)}}}", [config], parsing_timeout=None)
    return bool(library.verify(right, parsed, float_rounding=DECIMAL_PLACES, timeout_seconds=None))


@functools.cache
def _math_verify() -> Any:
    """The library, without its warning that it has no time limit."""
    library = importlib.import_module("math_verify")
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).addFilter(lambda record: not record.getMessage().startswith("Timeout is disabled"))
    return library


def _as_latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# Chains.


class _Size(NamedTuple):
    steps: int
    max_term: int
    max_factor: int
    max_value: int


_SIZES = {
    "easy": _Size(5, 50, 9, 1_000),
    "medium": _Size(8, 99, 12, 100_000),
    "hard": _Size(16, 999, 25, 10**9),
}


def random_chain(rng: np.random.Generator, config: ChainArithmeticConfig) -> ChainArithmeticTask:
    """A chain of that difficulty and split."""
    size = _SIZES[config.difficulty]
    start, steps = draw_in_split(
        config.split,
        lambda: _random_steps(rng, size, with_fractions=config.answers == "latex"),
        lambda chain: f"{chain[0]} {chain[1]}",
    )
    return ChainArithmeticTask(start=start, steps=tuple(steps))


def _random_steps(rng: np.random.Generator, size: _Size, *, with_fractions: bool) -> tuple[int, list[Step]]:
    draws = _draws(rng)
    start = 2 + int(next(draws) * (size.max_term - 1))
    value, steps = Fraction(start), list[Step]()
    while len(steps) < size.steps:
        operation = OPERATIONS[int(next(draws) * len(OPERATIONS))]
        numbers = _numbers(operation, value, size, with_fractions=with_fractions)
        if not numbers:
            continue
        number = numbers[int(next(draws) * len(numbers))]
        result = _apply(value, operation, number)
        if result and abs(result) <= size.max_value and result.denominator <= MAX_DENOMINATOR:
            value = result
            steps.append((operation, number))
    return start, steps


def _draws(rng: np.random.Generator) -> Iterator[float]:
    """Random numbers from 0 to 1, drawn many at a time."""
    while True:
        yield from rng.random(64).tolist()


def _numbers(operation: Operation, value: Fraction, size: _Size, *, with_fractions: bool) -> Sequence[int]:
    """What a step may take as its number."""
    if operation not in ("multiply", "divide"):
        return range(2, size.max_term + 1)
    factors = range(2, size.max_factor + 1)
    if operation == "multiply" or with_fractions:
        return factors
    return [factor for factor in factors if value.numerator % factor == 0]


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


def _in_words(chain: ChainArithmeticTask, rng: np.random.Generator) -> str:
    choices: list[float] = rng.random(len(chain.steps)).tolist()
    told = [
        _IN_WORDS[operation][int(choice * len(_IN_WORDS[operation]))].format(_number_in_words(number))
        for (operation, number), choice in zip(chain.steps, choices, strict=True)
    ]
    return f"Start with {_number_in_words(chain.start)}. {' '.join(told)} What is the result?"


def _in_symbols(chain: ChainArithmeticTask) -> str:
    told = [
        _IN_SYMBOLS[operation].format(number if number >= 0 else f"({number})") for operation, number in chain.steps
    ]
    return "\n".join([f"x = {chain.start}", *told, "What is x at the end?"])


def _number_in_words(number: int) -> str:
    """A number below 100 in words, any other in digits."""
    if not 0 <= number < 100:
        return str(number)
    tens, ones = divmod(number, 10)
    if tens < 2:
        return _ONES[number]
    return f"{_TENS[tens - 2]}-{_ONES[ones]}" if ones else _TENS[tens - 2]
