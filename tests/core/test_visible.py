"""Whatever a record holds, a terminal that shows it obeys nothing of it."""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import envsdk_environments
import envsdk_renderers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from terminal_attacks import ATTACKS, obeyed
from typer.testing import CliRunner

import envsdk
from envsdk import Env, Message, Turn, cli, errors
from envsdk._visible import brief, on_one_line, shorten, visible
from envsdk.cli import _output as output
from envsdk.cli._check import print_check, print_end
from envsdk.cli._play import Game
from envsdk.cli._show import lines_of, print_lines
from envsdk.cli._summaries import TrajectoryReport, table
from envsdk.testing._environments import EnvCheck, EnvReport
from envsdk.trajectories._trajectory import Trajectory

TEXTS = st.lists(st.sampled_from(ATTACKS) | st.text(max_size=8), max_size=4).map("".join)
OURS = re.compile(r"\x1b\[[0-9;]*m")
"""The codes of colors and styles that we write ourselves."""


def drawn(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()
    for name in ("console", "errors"):
        monkeypatch.setattr(output, name, Console(file=written, force_terminal=is_terminal, width=100))
    return written


@pytest.fixture(params=[False, True], ids=["file", "terminal"])
def written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    written = drawn(request.param, monkeypatch)
    yield written
    printed = written.getvalue()
    if not request.param:
        assert "\x1b" not in printed
    assert printed
    assert not obeyed(OURS.sub("", printed))


@given(text=st.text() | TEXTS)
def test_visible_text_has_no_character_that_is_obeyed_and_keeps_all_others(text: str) -> None:
    assert not obeyed(visible(text))
    assert not obeyed(on_one_line(text)) and not {"\n", "\t"} & {*on_one_line(text)}
    assert visible("A ñ 漢 👩‍👩‍👧 ا\n\t[bold] \\x1b") == "A ñ 漢 👩‍👩‍👧 ا\n\t[bold] \\x1b"
    assert visible(visible(text)) == visible(text)


@given(text=st.text(" ab", max_size=60), chars=st.integers(8, 40))
def test_a_string_is_shortened_between_words_with_a_mark(text: str, chars: int) -> None:
    short = shorten(text, chars)
    if len(text) <= chars:
        assert short == text
        return
    kept = short.removesuffix("…")
    assert len(short) <= chars and kept != short and text.startswith(kept)
    assert text[len(kept)] == " " or " " not in text[chars // 2 + 1 : chars - 1]


def test_no_message_cuts_a_value_by_a_format() -> None:
    assert brief(["a word"] * 9, 20) == "['a word', 'a…"
    folders = (Path(package.__file__ or "").parent for package in (envsdk, envsdk_environments, envsdk_renderers))
    files = {file: file.read_text() for folder in folders for file in folder.rglob("*.py")}
    assert len(files) > 300
    assert not [file for file, text in files.items() if re.search(r"\{[^{}]*:\.\d+\}", text)]


EPISODE = envsdk.rollout("envsdk/Delegate-v1", "reference", seed=0)


def hostile(text: str) -> Trajectory:
    """A trajectory that has a text wherever it holds text."""
    call = {"name": text, "arguments": {text: text}}
    message = Message.model_construct(
        role="assistant", content=text, reasoning=text, tool_calls=(), errors=(text, text)
    )
    called = message.model_copy(update={"tool_calls": (envsdk.ToolCall.model_construct(**call, id=text),)})
    logs = {
        name + text: replace(
            log,
            parent=None if log.parent is None else log.parent + text,
            role=text,
            stop_reason=text,
            error=text,
            messages=[message, called],
            reward=1.0,
        )
        for name, log in EPISODE.contexts.items()
    }
    steps = [
        replace(
            step,
            context=step.context + text,
            base=step.base + text,
            break_=None
            if step.break_ is None
            else replace(step.break_, context=step.context + text, base=step.base + text, detail=text),
            rewards={text: 1.0},
            reply=1,
        )
        for step in EPISODE.steps
    ]
    return replace(EPISODE, id=text, stop_reason=text, error=text, contexts=logs, steps=steps)


class Echo(Env):
    """Says something, whatever is answered."""

    text = ""

    def start(self) -> Turn:
        tool: Any = {"type": "function", "function": {"name": "look", "description": self.text, "parameters": {}}}
        return Turn(self.text or "Well?", tools=[tool], stop=[self.text] if self.text else ())

    def respond(self, reply: Message) -> Turn:
        return Turn(self.text, reward={self.text or "a": 1.0}, metrics={self.text: 2.0}, terminated=True)


def checks_of(text: str) -> EnvReport:
    return EnvReport(text, [EnvCheck(text, verdict, text, 0, text) for verdict in ("PASS", "FAIL", "NOT POSSIBLE")])


def print_everything(text: str) -> None:
    """Print a text in each way that the command line has."""
    print_lines(lines_of(hostile(text)))
    output.print_text(text, style="bold")
    print(checks_of(text), file=output.console.file)
    output.print_json({text: text})
    output.print_error(text)
    output.print_failures([hostile(text)])
    report = TrajectoryReport.of([EPISODE], [])
    facts = replace(report.tally, breaks={text: 2}, stop_reasons={text: 1}, metrics={text: 1.0})
    report = replace(report, tally=facts)
    output.print_table(table(text, [((text, text), report)], ("environment", "history")))
    checks = checks_of(text)
    with pytest.raises(AssertionError) as failed:
        checks.raise_if_failed()
    print(failed.value, file=output.console.file)
    for as_json in (False, True):
        with pytest.raises(cli.typer.Exit):
            print_end("environment", checks, as_json=as_json)
    for check in checks.checks:
        print_check(check)


@settings(max_examples=settings.default.max_examples // 4)
@given(text=TEXTS)
def test_nothing_of_a_record_is_obeyed_by_a_terminal(text: str) -> None:
    for is_terminal in (False, True):
        with pytest.MonkeyPatch.context() as monkeypatch:
            written = drawn(is_terminal, monkeypatch)
            print_everything(text)
        printed = written.getvalue()
        assert is_terminal or "\x1b" not in printed
        assert not obeyed(OURS.sub("", printed)), obeyed(OURS.sub("", printed))


@pytest.mark.matrix
@pytest.mark.parametrize("text", ATTACKS[:-2])
def test_nothing_that_is_played_is_obeyed(text: str, written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    env = Echo()
    env.text = text
    env.render_mode = "ansi"
    lines = iter([":tools", ":prompt", "/nothing " + text, text + "!", "Done.", "Done."])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    Game(env).play(0)
    print(env.render(), file=written)


def test_markup_and_emoji_codes_are_printed_as_they_are(written: io.StringIO) -> None:
    text = "[bold red]markup[/] [link=http://example.com]link[/link] :warning: [/]"
    output.print_text(text)
    output.print_error(text)
    assert OURS.sub("", written.getvalue()) == f"{text}\n{text}\n"


@pytest.mark.parametrize("kind", [errors.ConfigError, ValueError])
def test_nothing_that_an_error_says_is_obeyed(
    kind: type[Exception], written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        logging.getLogger("envsdk").warning("it says %s", ATTACKS[0], exc_info=kind(ATTACKS[1]))
        warnings.warn(ATTACKS[2], stacklevel=1)
        raise kind("".join(ATTACKS))

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        logging.captureWarnings(False)
    assert ended.value.code == (2 if kind is errors.ConfigError else 1)
    assert all(escaped in written.getvalue() for escaped in (r"\x1b[2J", r"\x1b]0;title\x07", r"\x1b]8;;"))


def test_a_stored_trajectory_is_shown_with_its_escapes_written_out(tmp_path: Path, written: io.StringIO) -> None:
    said = Message(role="user", content="\x1b]0;title\x07\x9b2J\r\u202e")
    log = replace(EPISODE.contexts["main"], messages=[said, *EPISODE.contexts["main"].messages[1:]])
    stored = replace(EPISODE, contexts={**EPISODE.contexts, "main": log})
    (tmp_path / "trajectories.jsonl").write_bytes(stored.to_json() + b"\n")
    assert CliRunner().invoke(cli.app, ["show", str(tmp_path / "trajectories.jsonl")]).exit_code == 0
    assert r"\x1b]0;title\x07\x9b2J\r\u202e" in written.getvalue()
