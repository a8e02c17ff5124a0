"""`envsdk show` takes a run or a file, and a number, an id or a filter, and folds what is long."""

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import envsdk
from envsdk.cli import app
from envsdk.errors import ConfigError, InvalidFilter, InvalidRecord
from envsdk.rollouts import Rollouts
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._transcript import TranscriptPart, transcript

NOTES = envsdk.rollout(
    envsdk.make("envsdk/LongNotes-v1", history={"name": "summarize", "threshold": 2500}), "reference", seed=0
)
LONG = "\n".join(f"line {number}" for number in range(50))


def show(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    Rollouts("envsdk/MathChat-v0", "reference", seeds=range(3), group_size=2, out=folder).run()
    return folder


def test_an_episode_is_chosen_by_its_number_its_id_or_a_filter(run):
    first = show(run)
    assert first == show(run, 1) == show(run / "trajectories.jsonl", "1")
    id_ = first.partition(": ")[0]
    assert show(run, id_) == first
    both = show(run, f"group:{id_.partition('#')[0]} status:terminated")
    assert both.count(": terminated, ") == 2 and both.startswith(first)


def test_a_text_in_the_contents_chooses_and_what_was_found_is_printed_first(tmp_path):
    delegated = envsdk.rollout("envsdk/Delegate-v1", "reference", seed=1)
    write_jsonl(tmp_path / "trajectories.jsonl", [NOTES, delegated])
    shown = show(tmp_path, 'text:"FOUNDED in"')
    assert NOTES.id not in shown
    head, *found = shown.split("\n")[:5]
    assert head.startswith(delegated.id)
    assert found[0].startswith("found in step 14 · main · result: ")
    assert "further messages" in found[3]
    folded = next(m for m in NOTES.contexts["main"].messages if m.role == "tool" and len(m.content) > 1000)
    words = folded.content[-60:].strip()
    assert words in show(tmp_path, f'text:"{words}"')


def test_an_id_chooses_its_episode_only_although_others_contain_it(tmp_path):
    write_jsonl(tmp_path / "some.jsonl", [replace(NOTES, id="a/10"), replace(NOTES, id="a/1")])
    shown = show(tmp_path / "some.jsonl", "a/1")
    assert shown.startswith("a/1: ") and "a/10: " not in shown


@pytest.mark.parametrize("which", ["0", "7", "reward<-5", "nothing-like-this"])
def test_what_no_episode_matches_is_refused_with_how_many_there_are(run, which):
    with pytest.raises(ConfigError, match="it has 6"):
        show(run, which)


def test_a_filter_that_is_wrong_is_explained(run):
    with pytest.raises(InvalidFilter, match="unknown"):
        show(run, "rewards<1")


def test_lines_after_the_chosen_one_are_not_read_and_a_damaged_one_is_named(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_bytes(NOTES.to_json() + b"\n{damaged\n")
    assert show(file, 1).startswith(NOTES.id)
    with pytest.raises(InvalidRecord, match="line 2"):
        show(file, 2)
    file.write_bytes(NOTES.to_json())
    with pytest.raises(ConfigError, match="bytes of an incomplete line"):
        show(file)


@pytest.mark.parametrize(
    ("kind", "text", "shown", "left_out"),
    [
        ("reasoning", LONG, "line 0\nline 1\nline 2", "47 lines"),
        ("result", "x" * 3000, "x" * 800, "2,200 characters"),
        ("text", LONG, LONG[: LONG.index("\nline 20")], "30 lines"),
        ("reply", LONG, LONG, ""),
        ("call", LONG, LONG, ""),
        ("reasoning", "short", "short", ""),
    ],
)
def test_long_reasoning_results_and_texts_are_folded_and_what_the_model_wrote_is_not(kind, text, shown, left_out):
    assert TranscriptPart(kind, text).folded() == (shown, left_out)


def test_full_prints_what_is_folded_and_the_messages_that_a_context_began_with(tmp_path):
    write_jsonl(tmp_path / "some.jsonl", [NOTES])
    short, full = show(tmp_path / "some.jsonl"), show(tmp_path / "some.jsonl", 1, "--full")
    assert "messages of main" in short and "left out" in short
    assert "messages of main" not in full and "left out" not in full
    for name, log in NOTES.contexts.items():
        assert full.count(f"\n{name} · ") >= len(log.messages)
    assert len(short.splitlines()) < len(full.splitlines())


def test_a_break_has_its_reason_and_its_cost():
    entries = [*transcript(NOTES)]
    breaks = [break_ for entry in entries for break_ in entry.breaks]
    rewrites = [break_ for break_ in breaks if break_.startswith("summary: ")]
    declared = [break_ for break_ in NOTES.breaks if break_.reason == "summary"]
    for one, text in zip(declared, rewrites, strict=True):
        assert f"{one.kept:,} kept, {one.dropped:,} dropped" in text
    assert "observed again" in rewrites[0]


def test_the_steps_of_a_transcript_are_those_of_the_episode_each_once():
    steps = [step for entry in transcript(NOTES) for step in entry.steps]
    assert sorted(steps) == [index for index, step in enumerate(NOTES.steps) if step.reply is not None]


def test_a_pager_shows_episodes_on_a_terminal_and_hostile_text_is_inert(tmp_path):
    hostile = replace(NOTES, id="\x1b]0;title\x07\x9b31m\u202e")
    write_jsonl(tmp_path / "some.jsonl", [hostile])
    parent, child = pty.openpty()
    pager = f"{sys.executable} -c 'import sys; print(sys.stdin.read()[:200], \"paged\")'"
    environment = {**os.environ, "MANPAGER": pager}
    command = [sys.executable, "-m", "envsdk", "show", str(tmp_path / "some.jsonl")]
    with subprocess.Popen(command, stdin=child, stdout=child, env={**environment, "TERM": "xterm"}) as process:
        os.close(child)
        printed = b""
        try:
            while chunk := os.read(parent, 4096):
                printed += chunk
        except OSError:  # the end of a terminal on Linux
            pass
        assert process.wait() == 0
    os.close(parent)
    assert b"paged" in printed
    assert rb"\x1b]0;title\x07" in printed
    assert b"\x1b]" not in printed and b"\x07" not in printed
