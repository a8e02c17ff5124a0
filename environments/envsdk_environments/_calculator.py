"""Arithmetic with a calculator as a tool."""

import re
from fractions import Fraction
from typing import ClassVar

from pydantic import BaseModel, Field, field_validator

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ToolError

from ._scoring import TaskData, end_with_verdict, last_word

MAX_CHARS = 200
"""The longest expression that is computed, which also bounds the size of numbers and the depth of parentheses."""
MAX_NUMBERS = 4
_TOKEN = re.compile(r"\s*([0-9]+(\.[0-9]+)?|[-+*/()])")
_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}


class CalculatorConfig(ToolEnvConfig):
    """The difficulty of the expressions."""

    operands: int = Field(default=5, ge=2, le=12)
    """The number of numbers in an expression."""
    max_number: int = Field(default=999, ge=2, le=10**6)
    """The largest number in an expression."""
    split: Split = "train"
    """No expression is in both splits."""


class CalculatorTask(TaskData):
    """An expression, whose value is the answer."""

    expression: str

    @field_validator("expression")
    @classmethod
    def _has_a_value(cls, expression: str) -> str:
        try:
            evaluate(expression)
        except ToolError as error:
            raise ValueError(str(error)) from error
        return expression


class Calculator(ToolEnv):
    """Compute an expression with a calculator that takes a few numbers at a time.

    Exercises: splitting a problem into parts, calling a tool several times, and using its results. Reward: `correct`, 1
    if the last word of the answer is the value, as a whole number or as a fraction in lowest terms. A task, if given,
    is `{"expression": "(2 + 3) * 4"}`.
    """

    Config: ClassVar[type[EnvConfig]] = CalculatorConfig
    Task: ClassVar[type[BaseModel] | None] = CalculatorTask
    default_limits: ClassVar[Limits] = Limits(max_steps=24)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Ask for the value of an expression."""
        config: CalculatorConfig = self.config
        self.expression = self.task.expression if self.task else draw_in_split(config.split, self._draw)
        self.value, self.operations = evaluate(self.expression)
        self.computed = 0
        return Turn(
            f"What is {self.expression}?",
            system="Use the calculator, then answer with the value alone, as a whole number or as a fraction like 3/4.",
        )

    @tool
    def calculate(self, expression: str) -> str:
        """Compute an expression of at most four numbers.

        Args:
            expression: Numbers, + - * / and parentheses, such as "(12 + 7) * 3".
        """
        if len(re.findall(r"[0-9.]+", expression)) > MAX_NUMBERS:
            raise ToolError(f"the expression has more than {MAX_NUMBERS} numbers; compute it in parts")
        value, _ = evaluate(expression)
        self.computed += 1
        return str(value)

    def finish(self, reply: Message) -> Turn:
        """Score the answer and end the episode."""
        is_right = last_word(reply.content).rstrip(".") == str(self.value)
        return end_with_verdict(is_right, self.value)

    def _draw(self) -> str:
        """Draw an expression with parentheses around every two parts, so that it can be computed in steps."""
        config: CalculatorConfig = self.config
        numbers = self.np_random.integers(1, config.max_number + 1, size=config.operands)
        parts = [str(number) for number in numbers]
        while len(parts) > 1:
            at = int(self.np_random.integers(len(parts) - 1))
            sign = "+-*"[int(self.np_random.integers(3))]
            parts[at : at + 2] = [f"({parts[at]} {sign} {parts[at + 1]})"]
        return parts[0][1:-1]

    def reference_reply(self) -> Message:
        """Compute one operation after the other, then answer."""
        if self.computed == len(self.operations):
            results = [message.content for message in self.messages() if message.role == "tool"]
            return Message(
                role="assistant", reasoning="All steps are done.", content=results[-1] if results else self.expression
            )
        operation = self.operations[self.computed]
        return Message.calling("calculate", {"expression": operation}, reasoning=f"Next, I compute {operation}.")


def evaluate(expression: str) -> tuple[Fraction, list[str]]:
    """Compute an expression of numbers, `+ - * /`, signs and parentheses exactly.

    Returns:
        The value, and the operations that lead to it in order, as expressions of one or two values each.

    Raises:
        ToolError: If the text is not such an expression, is too long, or divides by zero.
    """
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters; the limit is {MAX_CHARS}")
    reader = _ExpressionReader(expression)
    value = reader.sum(1)
    if reader.tokens:
        raise ToolError(f"{reader.tokens[-1]!r} is out of place in {expression!r}")
    return value, reader.operations


class _ExpressionReader:
    """Read an expression from left to right, and compute it on the way."""

    def __init__(self, expression: str) -> None:
        self.operations: list[str] = []
        self.tokens: list[str] = []
        """The tokens that are left to read, in reverse order."""
        position, end = 0, len(expression.rstrip())
        while position < end:
            match = _TOKEN.match(expression, position)
            if match is None:
                wrong = expression[position:].strip()[0]
                raise ToolError(f"{wrong!r} is not allowed: use numbers, + - * / and parentheses")
            self.tokens.insert(0, match.group().strip())
            position = match.end()

    def sum(self, precedence: int) -> Fraction:
        """Compute the next values that are joined by operators of at least this precedence."""
        value = self._value()
        while self.tokens and _STRENGTH.get(self.tokens[-1], 0) >= precedence:
            sign = self.tokens.pop()
            right = self.sum(_STRENGTH[sign] + 1)
            self.operations.append(f"{_written(value)} {sign} {_written(right)}")
            match sign:
                case "+":
                    value += right
                case "-":
                    value -= right
                case "*":
                    value *= right
                case _ if right:
                    value /= right
                case _:
                    raise ToolError("division by zero")
        return value

    def _value(self) -> Fraction:
        """Compute a number or a part in parentheses, with or without a sign."""
        token = self.tokens.pop() if self.tokens else "the end"
        if token in ("-", "+"):
            count = len(self.operations)
            value = self._value()
            if token == "-" and len(self.operations) > count:  # the sign of a number belongs to the number
                self.operations.append(f"-{_written(value)}")
            return -value if token == "-" else value
        if token == "(":
            value = self.sum(1)
            if not self.tokens or self.tokens.pop() != ")":
                raise ToolError("a parenthesis is not closed")
            return value
        if not token[0].isdigit():
            raise ToolError(f"expected a number, but found {token!r}")
        return Fraction(token)


def _written(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"({value})"
