"""The episodes that are measured, and the table of what came out.

All of it is on Qwen3's real vocabulary. Speed is told as a ratio to something timed in the same run wherever that can
be, and no test fails because a machine is slow or busy. With `--benchmark-disable` no table is printed: with `--full`
the benchmarks run once, on something small; without it, none runs.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import real_models
from prose import SEARCH, Prose
from regressions.figures import Figure, figure_of
from regressions.yardstick import time_s

from envsdk import Action, Env, Message, ToolCall, Trajectory, Turn, load_tokenizer
from envsdk.messages import ToolSchema
from envsdk.rendering.tokenizers import Tokenizer


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if config.getoption("benchmark_disable") and not config.getoption("--full") else None


PERIOD = 90  # step n and step n + 90 say the same


class Talk(Env):
    """Answers each reply with the next words: as the tool that it offers, or as a user."""

    prose: Prose
    answer_words: int
    tools: list[ToolSchema] | None

    def start(self) -> Turn:
        self.answers = 0
        return Turn("Find out all about it.", system="Think first.", tools=self.tools)

    def respond(self, reply: Message) -> Turn:
        text = self.answer(self.answers)
        self.answers += 1
        return Turn(Message(role="tool", content=text) if self.tools else text)

    def answer(self, step: int) -> str:
        """What it says to the reply of a step."""
        return self.prose.words(self.answer_words, start=step % PERIOD * self.answer_words)


class Playback:
    """A talk, and a model that says what was written down before.

    Args:
        env: The talk.
        reasoning: How many words of reasoning a reply has.
        content: How many words it has behind that, the fewest and the most; the last 20 of them as a call's argument.
    """

    def __init__(self, env: Talk, *, reasoning: int, content: tuple[int, int]) -> None:
        self.env = env
        rng = Random(0)
        self._actions: list[Action] = []
        for _ in range(PERIOD):
            tokens = env.renderer.reply(self._reply(rng.randrange(10**6), reasoning, rng.randint(*content)))
            self._actions.append(Action(tokens, np.full(len(tokens), -0.5, dtype=np.float32)))

    def _reply(self, start: int, reasoning: int, content: int) -> Message:
        words = self.env.prose.words
        thought = words(reasoning, start=start)
        start += reasoning
        if not self.env.tools:
            return Message(role="assistant", reasoning=thought, content=words(content, start=start))
        call = ToolCall(name="search", arguments={"query": words(20, start=start + content - 20)})
        return Message(
            role="assistant", reasoning=thought, content=words(content - 20, start=start), tool_calls=(call,)
        )

    def action(self, step: int) -> Action:
        """What the model samples at a step."""
        return self._actions[step % PERIOD]

    def play(self, steps: int) -> None:
        """Run an episode from its start, so many steps long."""
        self.env.reset(seed=0)
        for step in range(steps):
            self.env.step(self.action(step))

    def trajectory(self, steps: int) -> Trajectory:
        """Run an episode from its start, so many steps long, which is its limit."""
        self.play(steps)
        trajectory = self.env.trajectory
        assert trajectory is not None, "the talk has another limit of steps"
        return trajectory


MakePlayback = Callable[..., Playback]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(real_models.qwen3_folder())


@pytest.fixture(scope="session")
def prose() -> Prose:
    return Prose()


@pytest.fixture(scope="session")
def make_playback(tokenizer: Tokenizer, prose: Prose) -> MakePlayback:
    """Make what is measured: under `keep` a model that calls a tool, under `strip` one that a user answers."""

    def make(
        history: str,
        *,
        reasoning: int = 100,
        content: tuple[int, int] = (100, 100),
        answer: int = 200,
        max_steps: int = 10_000,  # more than an episode may have without a limit
    ) -> Playback:
        talk = Talk(renderer="qwen3", tokenizer=tokenizer, history=history, limits={"max_steps": max_steps})
        talk.prose, talk.answer_words, talk.tools = prose, answer, [SEARCH] if history == "keep" else None
        return Playback(talk, reasoning=reasoning, content=content)

    return make


# The table.


class Row(NamedTuple):
    """A line of the table."""

    what: str
    measured: str
    target: str
    verdict: str


_ROWS = pytest.StashKey[list[Row]]()
_FIGURES = pytest.StashKey[dict[str, Figure]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="write the rows as figures that can be compared into this file")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without measurements, a benchmark runs once. The full run has its other rows, and those with a server."""
    seen = set[str]()
    for item in items:
        if config.getoption("benchmark_disable") and Path(__file__).parent in item.path.parents:
            name = item.nodeid.partition("[")[0]
            if name in seen or "load" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.full)
            seen.add(name)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Add a line to the table: what was measured and its target, if it has one; `note` says what it is made of.

    With `--figures`, the yardstick is measured before and after the test, and times are written as multiples of it.
    """
    rows = request.config.stash.setdefault(_ROWS, [])
    figures = request.config.stash.setdefault(_FIGURES, {})
    measured: list[tuple[str, float, str, bool]] = []
    is_compared = request.config.getoption("--figures", None) is not None
    before_s = time_s() if is_compared else 0.0

    def add(
        what: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
    ) -> None:
        text = f"{_short(value)} {unit}" + (f" ({note})" if note else "")
        measured.append((what, value, unit, at_least is not None))
        if at_most is not None:
            rows.append(Row(what, text, f"at most {_short(at_most)} {unit}", _verdict(value <= at_most)))
        elif at_least is not None:
            rows.append(Row(what, text, f"at least {_short(at_least)} {unit}", _verdict(value >= at_least)))
        else:
            rows.append(Row(what, text, "", ""))

    yield add
    if is_compared and measured:
        yardstick_s, test = (before_s + time_s()) / 2, request.node.nodeid
        for what, value, unit, is_higher in measured:
            figures[what] = figure_of(value, unit, test, yardstick_s=yardstick_s, higher_is_better=is_higher)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path = config.getoption("--figures", None)
    if path is not None:
        figures = {name: figure._asdict() for name, figure in config.stash.get(_FIGURES, {}).items()}
        path.write_text(json.dumps(figures), encoding="utf-8")
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    lines = [Row("what", "measured", "target", ""), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(Row._fields))]
    terminalreporter.section("cost, on Qwen3's vocabulary")
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())
