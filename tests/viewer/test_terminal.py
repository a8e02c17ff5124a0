"""`envsdk view --terminal`, driven by keys: the list, one episode, its tokens, and what a record cannot do."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from terminal_attacks import ATTACKS, obeyed
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input
from typer.testing import CliRunner

import envsdk
from envsdk.cli import app as cli
from envsdk.errors import ConfigError, InvalidFilter
from envsdk.messages import Message
from envsdk.rollouts import Rollouts
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._resources import Resources
from envsdk.viewer._sources import Source
from envsdk.viewer.terminal._app import TerminalViewer
from envsdk.viewer.terminal._episode import StyledLine, wrapped_lines
from envsdk.viewer.terminal._lines import LineView
from envsdk.viewer.terminal._list import EpisodeLines
from envsdk.viewer.terminal._tokens import shade

EPISODES = [
    envsdk.rollout(
        envsdk.make("envsdk/LongNotes-v1", history={"name": "summarize", "threshold": 2500}), "reference", seed=0
    ),
    envsdk.rollout(envsdk.make("envsdk/Delegate-v1"), "reference", seed=1),
    envsdk.rollout(envsdk.make("envsdk/Calculator-v1"), "random", seed=2),
]
WIDTH, HEIGHT = 80, 24
Driver = Callable[[Pilot[None]], Awaitable[None]]


def drive(paths: list[Path], driver: Driver, *, size: tuple[int, int] = (WIDTH, HEIGHT), **options: Any) -> None:
    """Run the program without a terminal, and let a function press keys."""

    async def run() -> None:
        app = TerminalViewer(Resources([Source(path) for path in paths]), **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await settled(pilot)
            await driver(pilot)

    asyncio.run(run())


async def settled(pilot: Pilot[None]) -> None:
    """Wait until all that was begun is done and drawn."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> str:
    """Press keys; return what the screen shows then."""
    for key in keys:
        pilot.app.post_message(Key(key, key if len(key) == 1 else None))
        await pilot.pause()
    await settled(pilot)
    return screen(pilot)


async def answer(pilot: Pilot[None], key: str, text: str) -> str:
    """Press a key that asks for a line of text, and answer."""
    await press(pilot, key)
    pilot.app.screen.query_one(Input).value = text
    return await press(pilot, "enter")


def screen(pilot: Pilot[None]) -> str:
    """Return the text of the screen, by line."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def lines(pilot: Pilot[None]) -> Any:
    return pilot.app.screen.query_one(LineView)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "trajectories.jsonl", EPISODES)
    return tmp_path


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its tokenizer."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    Rollouts("envsdk/Calculator-v1", "random", seeds=range(2), group_size=1, max_concurrency=1, out=folder).run()
    return folder


@pytest.mark.full
def test_the_list_has_a_line_for_each_episode_fits_80_columns_and_is_sorted_by_any_column(run):
    async def driver(pilot: Pilot[None]) -> None:
        shown = screen(pilot).split("\n")
        assert len(shown) == HEIGHT and all(len(line) <= WIDTH for line in shown)
        assert [line.split()[0] for line in shown[2:5]] == ["1", "2", "3"]
        assert "3 summary" in shown[2] and EPISODES[0].id in "".join(shown)
        assert "3 episodes" in shown[-2]
        await press(pilot, "s", "s", "s", "r")
        assert "steps▼" in screen(pilot)
        rows = [one.row for one in pilot.app.screen.source.listed]
        assert [row.steps for row in rows] == sorted((len(t.steps) for t in EPISODES), reverse=True)
        await press(pilot, "S", "S", "S")
        assert [one.row.line for one in pilot.app.screen.source.listed] == [1, 2, 3]

    drive([run], driver)


@pytest.mark.full
def test_the_filter_language_chooses_and_a_wrong_filter_is_explained_where_it_is_typed(run):
    async def driver(pilot: Pilot[None]) -> None:
        assert "1 of 1" in await answer(pilot, "slash", "break:summary")
        assert "filter: break:summary" in screen(pilot)
        assert "1 of 3" in await press(pilot, "escape")
        assert "'rewards' is unknown" in await answer(pilot, "slash", "rewards<1")
        pilot.app.screen.query_one(Input).value = "role:researcher"
        assert "1 of 1" in await press(pilot, "enter")
        await press(pilot, "slash")
        assert "filter: role:researcher" in await press(pilot, "x", "escape")

    drive([run], driver)


def test_an_episode_is_shown_with_its_steps_breaks_and_folded_reasoning(run):
    async def driver(pilot: Pilot[None]) -> None:
        assert "main · system" in await press(pilot, "enter")
        assert "step 1 of" in await press(pilot, "n")
        assert "▸ thinking: There is nothing" in screen(pilot)
        assert "▾ thinking:" in await press(pilot, "enter")
        assert "▾ thinking:" not in await press(pilot, "enter")
        assert "──✂── summary: " in await press(pilot, "b")
        assert "observed again" in screen(pilot)
        assert "no further" in await press(pilot, "G", "b")
        assert "step 1 of" in await press(pilot, "g", "n")
        await answer(pilot, "slash", "Yorwenbel")
        assert "yorwenbel" in screen(pilot).lower()
        assert EPISODES[1].id in await press(pilot, "right_square_bracket")
        assert "3 episodes" in await press(pilot, "escape")

    drive([run], driver)


@pytest.mark.full
def test_messages_that_a_context_began_with_are_one_line_until_they_are_opened(run):
    async def driver(pilot: Pilot[None]) -> None:
        await press(pilot, "enter")
        source = pilot.app.screen.source
        entry = next(n for n, entry in enumerate(source.entries) if entry.kind == "inherited")
        lines(pilot).move_to(source.starts[entry])
        count = len(source)
        what = f"main/summary-1 · {len(source.entries[entry].inherited)} messages of main"
        assert f"▸ {what}" in await press(pilot)
        assert f"▾ {what}" in await press(pilot, "enter")
        assert len(source) > count + 22

    drive([run], driver)


@pytest.mark.full
def test_the_contents_are_searched_and_a_result_is_opened_where_the_text_is(run):
    async def driver(pilot: Pilot[None]) -> None:
        shown = await answer(pilot, "slash", 'text:"FOUNDED in"')
        assert "1 of 1" in shown and "found in step 14 · main · result: " in shown
        await press(pilot, "enter")
        episode_screen = pilot.app.screen
        assert EPISODES[1].id in screen(pilot)
        assert "founded in" in episode_screen.source.line(lines(pilot).cursor, WIDTH).plain
        marked = [line for y in range(HEIGHT) for line in lines(pilot).render_line(y) if line.text == "founded in"]
        assert marked
        await press(pilot, "escape")
        assert "0 of 0" in await answer(pilot, "slash", "text:nowhere")
        assert "1 of 2" in await answer(pilot, "slash", '-text:"founded in"')

    drive([run], driver)


@pytest.mark.full
def test_the_drawing_of_the_contexts_leads_to_their_steps(run):
    async def driver(pilot: Pilot[None]) -> None:
        await press(pilot, "j", "enter", "n")
        shown = await press(pilot, "c")
        assert "● step 1 · main" in " ".join(shown.split())
        assert "├─╮" in shown and "├─╯" in shown and "handoff to main/researcher-1" in shown
        await press(pilot, "j", "j", "enter")
        assert pilot.app.screen.entry.steps == (1,)
        await press(pilot, "c", "escape")
        assert pilot.app.screen.entry.steps == (1,)

    drive([run], driver)


@pytest.mark.full
def test_episodes_are_grouped_by_their_task(run_folder, tmp_path):
    groups = [
        envsdk.rollout("envsdk/GuessNumber-v1", policy, seed=seed)
        for policy in ("reference", "random")
        for seed in range(2)
    ]
    write_jsonl(tmp_path / "trajectories.jsonl", groups)

    async def driver(pilot: Pilot[None]) -> None:
        shown = (await press(pilot, "t")).split("\n")[2:8]
        assert [line.split()[0] for line in shown] == [
            *("envsdk/GuessNumber-v1/0", "1", "3", "envsdk/GuessNumber-v1/1", "2", "4")
        ]
        assert "2 episodes · mean reward" in shown[0]
        await press(pilot, "g", "enter")  # a heading has nothing to open
        assert "4 episodes" in screen(pilot)
        await press(pilot, "j", "enter", "right_square_bracket")
        assert groups[2].id in screen(pilot)
        await press(pilot, "escape", "t")
        assert [line.split()[0] for line in screen(pilot).split("\n")[2:6]] == ["1", "2", "3", "4"]

    drive([tmp_path], driver)


@pytest.mark.full
def test_two_episodes_of_a_task_are_compared_from_where_they_diverge(tmp_path):
    made = [envsdk.rollout("envsdk/GuessNumber-v1", policy, seed=0) for policy in ("reference", "random", "reference")]
    for number, own in enumerate(made):
        own.id = f"episode-{number}"
    write_jsonl(tmp_path / "trajectories.jsonl", made)
    prompt = made[0].steps[0].action_start

    async def driver(pilot: Pilot[None]) -> None:
        shown = await press(pilot, "c")
        assert "episode-0  │  episode-1" in shown
        assert "── they diverge here ──" in shown and "2 equal messages" in shown
        assert f"first different token of main: {prompt}" in shown
        left, right = next(line for line in shown.split("\n") if "step 1" in line).split("│")
        assert "step 1" in left and "step 1" in right
        assert "no further difference" in await press(pilot, "g", "N")
        await press(pilot, "escape", "m", "j", "j", "c")
        assert "all messages are the same" in screen(pilot)
        await press(pilot, "escape", "m", "c")
        assert "Mark an episode with m" in screen(pilot)

    drive([tmp_path], driver)


@pytest.mark.full
def test_tokens_have_ids_texts_masks_roles_and_shades(run_folder):
    source = Source(run_folder)
    source.refresh()
    trajectory = source.trajectory(1)
    step = trajectory.steps[0]
    mask = trajectory.samples()[0].mask

    async def driver(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "n", "t")
        tokens = pilot.app.screen.source
        assert len(tokens) == len(trajectory.contexts["main"].tokens)
        assert lines(pilot).cursor == step.action_start
        for index in range(0, step.stop, 7):
            position, id_, number, in_mask = tokens.line(index, WIDTH).plain.split()[:4]
            assert (int(position), int(id_)) == (index, trajectory.contexts["main"].tokens[index])
            assert (int(number), int(in_mask)) == (1, mask[index])
        assert "sampled" in screen(pilot)
        segments = [segment for y in range(HEIGHT) for segment in lines(pilot).render_line(y)]
        expected = shade(float(trajectory.contexts["main"].logprobs[step.action_start + 1])).bgcolor
        assert any(segment.style and segment.style.bgcolor == expected for segment in segments)
        assert "1 of" in await answer(pilot, "slash", "1")
        assert "is not a number" in await answer(pilot, "slash", "x")

    drive([run_folder], driver)


@pytest.mark.full
def test_the_prompt_of_a_step_is_what_the_model_saw(run):
    prompts = [prompt.prompt for prompt in EPISODES[0].prompts()]
    number = next(n for n, step in enumerate(EPISODES[0].steps) if step.break_ and step.break_.reason == "summary")

    async def driver(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "b", "p")
        source = pilot.app.screen.source
        ids = [int(source.line(index, WIDTH).plain.split()[1]) for index in range(len(source))]
        assert ids == prompts[number].tolist()
        await press(pilot, "escape", "g", "n", "t")
        assert f"{EPISODES[0].steps[1].start + 1:,} of" in await press(pilot, "n")
        assert f"{EPISODES[0].steps[0].start + 1:,} of" in await press(pilot, "N")

    drive([run], driver)


@pytest.mark.full
def test_bytes_that_are_not_a_whole_character_are_visible_and_control_tokens_are_marked(run_folder, tmp_path):
    env = envsdk.make("envsdk/Calculator-v1", limits={"max_steps": 1})
    with_folder = tmp_path / "run"
    shutil.copytree(run_folder, with_folder)
    env.reset(seed=0)
    env.step(np.arange(env.renderer.tokenizer.vocab_size, dtype=np.int32))
    (with_folder / "trajectories.jsonl").write_bytes(env.trajectory.to_json() + b"\n")

    async def driver(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "t")
        source = pilot.app.screen.source
        texts = [source.line(index, WIDTH) for index in range(len(source))]
        assert not {c for text in texts for c in obeyed(text.plain)}
        assert any(text.plain.rstrip().endswith("\\xe2") for text in texts)
        assert any("<|im_end|>" in text.plain for text in texts)

    drive([with_folder], driver)


def hostile() -> Any:
    text = "".join(attack for attack in ATTACKS if attack != "\ud800") + "[bold]x[/] [@click=app.quit]y[/]"
    message = Message(role="assistant", content=text, reasoning=text, errors=(text,))
    log = EPISODES[1].contexts["main"]
    contexts = {**EPISODES[1].contexts, "main": replace(log, messages=[message] * len(log.messages))}
    return replace(EPISODES[1], id=text, task=text, error=text, status="error", stop_reason="error", contexts=contexts)


def test_nothing_in_a_record_changes_the_terminal(tmp_path):
    write_jsonl(tmp_path / "some.jsonl", [hostile(), *EPISODES[:1]])

    async def driver(pilot: Pilot[None]) -> None:
        everything = screen(pilot)
        for keys in (["enter"], ["f"], ["n"], ["slash", "z", "enter"], ["t"], ["escape", "p"]):
            everything += await press(pilot, *keys)
        assert not obeyed(everything)
        assert "\\x1b[2J" in everything and "[bold]x[/]" in everything

    drive([tmp_path / "some.jsonl"], driver, size=(200, 50))


def test_a_damaged_line_is_shown_as_damaged_and_the_others_work(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"{\x1b]0;x\x07damaged\n" + EPISODES[1].to_json() + b"\n")

    async def driver(pilot: Pilot[None]) -> None:
        assert "damaged" in screen(pilot)
        assert "This line is damaged" in await press(pilot, "enter")
        assert "main · system" in await press(pilot, "down", "enter")

    drive([file], driver)


@pytest.mark.full
def test_episodes_of_a_run_in_progress_appear_and_the_cursor_stays_on_its_episode(run):
    file = run / "trajectories.jsonl"

    async def driver(pilot: Pilot[None]) -> None:
        await press(pilot, "r", "down")
        chosen = pilot.app.screen.current.row.id
        with file.open("ab") as more:
            more.write(replace(EPISODES[0], id="new").to_json() + b"\n")
        for _ in range(300):
            await pilot.pause(0.1)
            if "4 episodes" in screen(pilot):
                break
        assert "4 episodes" in screen(pilot) and "following" in screen(pilot)
        assert pilot.app.screen.current.row.id == chosen
        file.write_bytes(EPISODES[2].to_json() + b"\n")
        pilot.app.screen.read_rows()
        await settled(pilot)
        assert "1 of 1 · 1 episode" in screen(pilot)

    drive([run], driver, follow=True)


@pytest.mark.full
def test_the_keys_are_listed_and_everything_is_shown_after_a_change_of_the_size(run):
    async def driver(pilot: Pilot[None]) -> None:
        listed = await press(pilot, "question_mark")
        assert "Filter" in listed and "Page down" in listed and "Quit" in listed
        await press(pilot, "escape")
        await press(pilot, "enter", "n")
        entry = pilot.app.screen.entry
        await pilot.resize_terminal(40, 12)
        await settled(pilot)
        assert pilot.app.screen.entry is entry
        assert all(len(line) <= 40 for line in screen(pilot).split("\n"))

    drive([run], driver)


def test_only_the_lines_in_sight_are_made_and_several_runs_are_one_list(run, run_folder, monkeypatch):
    """So the number of episodes and tokens does not matter."""
    made: list[int] = []
    line = EpisodeLines.line

    def counted(source: EpisodeLines, index: int, width: int) -> Any:
        made.append(index)
        return line(source, index, width)

    monkeypatch.setattr(EpisodeLines, "line", counted)
    (run / "trajectories.jsonl").write_bytes((EPISODES[2].to_json() + b"\n") * 200)

    async def driver(pilot: Pilot[None]) -> None:
        assert "202 episodes" in screen(pilot)
        assert screen(pilot).split("\n")[3].startswith("run ")
        made.clear()
        await press(pilot, "end")
        assert 0 < len({*made}) <= 2 * HEIGHT and max(made) == 201

    drive([run, run_folder], driver)


@pytest.mark.parametrize("width", [1, 7, 40])
def test_wrapped_lines_fit_and_lose_nothing(width):
    for text in ("", "a b c", "word " * 30, "x" * 100, "漢字かな " * 20, "👩‍👩‍👧 ا ñ" * 9):
        pieces = [*wrapped_lines([StyledLine(text, "")], max(width, 2))]
        assert "".join(piece.text for piece in pieces) == text


def test_options_that_do_not_fit_are_refused_and_a_missing_package_names_the_extra(run, monkeypatch):
    def view(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["view", str(run), *arguments]).exception

    assert isinstance(view("--terminal", "--html", "x.html"), ConfigError)
    assert isinstance(view("--terminal", "--filter", "rewards<1"), InvalidFilter)
    monkeypatch.setitem(sys.modules, "textual", None)
    assert "envsdk[terminal]" in str(view("--terminal"))


TMUX = shutil.which("tmux")


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed: the real terminal is not tested")
def test_it_runs_in_a_real_terminal_and_leaves_it_as_it_was(tmp_path):
    write_jsonl(tmp_path / "some.jsonl", [hostile(), *EPISODES[1:]])
    socket = str(tmp_path / "socket")

    def tmux(*arguments: str) -> str:
        done = subprocess.run([str(TMUX), "-S", socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def until(text: str) -> str:
        for _ in range(300):
            if text in (shown := tmux("capture-pane", "-p", "-t", "viewer")):
                return shown
            time.sleep(0.1)
        raise AssertionError(f"the terminal never showed {text!r}; it shows:\n{shown}")

    environment = [f"{name}={os.environ[name]}" for name in ("PYTHONPATH", "PATH") if name in os.environ]
    command = f"{sys.executable} -m envsdk view {tmp_path / 'some.jsonl'} --terminal; echo left; exec sleep 60"
    given = [argument for one in environment for argument in ("-e", one)]
    tmux("-f", "/dev/null", "new-session", "-d", "-s", "viewer", "-x", "80", "-y", "24", *given, "sh", "-c", command)
    try:
        assert EPISODES[2].stop_reason in until("3 episodes")
        title = tmux("display-message", "-p", "-t", "viewer", "#{pane_title}")
        tmux("send-keys", "-t", "viewer", "Enter")
        until("line 1 of")
        tmux("send-keys", "-t", "viewer", "f", "n", "t")
        until("position")
        assert tmux("display-message", "-p", "-t", "viewer", "#{pane_title}") == title
        tmux("send-keys", "-t", "viewer", "q", "q", "q")
        assert "3 episodes" not in until("left")
    finally:
        tmux("kill-server")
