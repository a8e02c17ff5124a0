"""The progress display and the log of a run: what they show, and that they never slow a run or end it."""

import asyncio
import contextlib
import io
import math
import os
import pickle
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from toy_policies import in_any_vocabulary

from envsdk import Action, Env, Message, Turn, errors
from envsdk.rollouts import PlayStatistics, Rollouts, Statistics
from envsdk.rollouts import _progress as progress
from envsdk.rollouts import _reporting as reporting
from envsdk.rollouts import _trackers as trackers
from envsdk.rollouts._statistics import Rates, scalars
from envsdk.trajectories._tally import Tally

Values = dict[str, float]


class Scored(Env):
    """Three steps with named rewards and metrics. Every fourth seed fails."""

    def start(self) -> Turn:
        self.said = 0
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        if (self.episode.seed or 0) % 4 == 3:
            raise RuntimeError("no")
        rewards = {"right": 0.5, "short": 0.25}
        return Turn("More.", reward=rewards, metrics={"words": 2}, terminated=self.said == 3)


@in_any_vocabulary
async def answers(prompt: np.ndarray, **_: object) -> Action:
    await asyncio.sleep(0)
    return Action([5, 6], [-0.5, -0.5])


@in_any_vocabulary
async def answers_slowly(prompt: np.ndarray, **_: object) -> Action:
    await asyncio.sleep(0.05)
    return Action([5, 6], [-0.5, -0.5])


def answers_when(condition: Callable[[], bool]) -> Any:
    @in_any_vocabulary
    async def answer(prompt: np.ndarray, **_: object) -> Action:
        while not condition():
            await asyncio.sleep(0.01)
        return Action([5, 6], [-0.5, -0.5])

    return answer


def logged(env: Any = Scored, policy: Any = answers, **arguments: Any) -> list[tuple[int, Values]]:
    """Run, and return what a function got."""
    found: list[tuple[int, Values]] = []
    run_of(env, policy, log_to=lambda step, values: found.append((step, dict(values))), **arguments).run()
    return found


def run_of(env: Any = Scored, policy: Any = answers, **arguments: Any) -> Rollouts:
    return Rollouts(env, policy, **{"seeds": range(8), "group_size": 1, **arguments})


# The values.


def test_a_function_gets_the_statistics_at_the_end_of_a_run() -> None:
    ((step, values),) = logged()
    assert step == values["rollouts/episodes"] == values["rollouts/total"] == 8
    assert values["rollouts/failures/environment"] == values["rollouts/errors/RuntimeError"] == 2
    assert values["rollouts/reward_mean"] == 2.25
    assert values["rewards/right"] + values["rewards/short"] == 2.25
    assert values["metrics/words"] == 6
    assert values["stop_reasons/terminated"] == 6
    assert values["stop_reasons/error"] == 2
    assert values["rollouts/steps"] == 6 * 3 + 2
    assert values["rollouts/sampled_tokens"] == 2 * 20
    assert values["rollouts/steps_per_second"] > 0
    assert values["rollouts/tokens_per_second"] == pytest.approx(2 * values["rollouts/steps_per_second"])
    waiting = [value for name, value in values.items() if name.startswith("rollouts/waiting/")]
    assert sum(waiting) == pytest.approx(1)
    assert values["rollouts/lag_p50_s"] <= values["rollouts/lag_p99_s"] <= values["rollouts/lag_max_s"]
    assert all(math.isfinite(value) for value in values.values())


def test_names_from_records_cannot_control_a_terminal() -> None:
    statistics = Statistics(tally=Tally(scored=1, rewards={"\x1b[2Jclear\n": 1.0, "x" * 500: 1.0}))
    names = [name for name in scalars(statistics) if name.startswith("rewards/")]
    assert names == [r"rewards/\x1b[2Jclear\n", "rewards/" + "x" * 100]


def test_steps_count_before_their_episode_ends() -> None:
    found: list[tuple[int, Values]] = []

    async def run() -> None:
        rollouts = run_of(policy=answers_slowly, seeds=[0, 1])
        running = asyncio.create_task(rollouts.arun())
        while rollouts.statistics.play.steps < 2:
            await asyncio.sleep(0)
        found.append((rollouts.statistics.episodes, scalars(rollouts.statistics)))
        await running

    asyncio.run(run())
    ((episodes, values),) = found
    assert episodes == 0
    assert values["rollouts/steps"] == 2


def test_rates_are_those_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    statistics = Statistics()
    rates = Rates(statistics)
    for second in range(200):
        clock[0] = float(second)
        statistics.tally += Tally(episodes=1 if second < 100 else 3)
        rates.count()
    assert rates.scalars()["rollouts/episodes_per_second"] == 3.0


def test_statistics_of_workers_add_up_and_can_be_sent() -> None:
    total = PlayStatistics(steps=1, sampled_tokens=2)
    total.merge(pickle.loads(pickle.dumps(PlayStatistics(steps=3, sampled_tokens=4, waiting_s={"policy": 1.0}))))
    assert (total.steps, total.sampled_tokens, total.waiting_s) == (4, 6, {"policy": 1.0})
    statistics = Statistics(tally=Tally(rewards={"right": 1.0}))
    assert pickle.loads(pickle.dumps(statistics)) == statistics


# Trackers.


def test_a_tracker_gets_values_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.Tracker, "every_s", 0.1)
    steps: list[int] = []
    run_of(policy=answers_when(lambda: len(steps) >= 2), log_to=lambda step, values: steps.append(step)).run()
    assert len(steps) >= 3
    assert steps == sorted(steps)
    assert steps[0] < 8 == steps[-1]


@pytest.mark.full
def test_a_tracker_that_fails_is_logged_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers.Tracker, "every_s", 0.03)
    calls: list[int] = []

    def fails(step: int, values: Mapping[str, float]) -> None:
        calls.append(step)
        raise SystemExit(3) if len(calls) % 2 else KeyError("mine")

    assert len(run_of(policy=answers_when(lambda: len(calls) >= 2), log_to=fails).run()) == 8
    messages = [one.getMessage() for one in caplog.records if "log_to" in one.getMessage()]
    assert messages == ["the function log_to failed; the run continues: SystemExit: 3"]


@pytest.mark.full
def test_a_tracker_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(trackers.Tracker, "every_s", 0.03)
    monkeypatch.setattr(trackers.FunctionTracker, "end_s", 0.2)
    release = threading.Event()
    calls: list[int] = []
    returned: list[int] = []

    def hangs(step: int, values: Mapping[str, float]) -> None:
        calls.append(step)
        release.wait(600)
        returned.append(step)

    assert len(run_of(policy=answers_when(lambda: bool(calls)), log_to=hangs).run()) == 8
    assert len(calls) == 1 and returned == []
    assert "update() of the function log_to took longer than 0.2 s" in caplog.text
    release.set()


class CannotBegin(trackers.FunctionTracker):
    name = "my tracker"

    def begin(self) -> None:
        raise PermissionError("no account")


def test_a_tracker_that_cannot_begin_ends_the_run_before_any_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers._TRACKERS, "mine", lambda where: CannotBegin(print))
    before = threading.active_count()
    rollouts = run_of(log_to="mine")
    with pytest.raises(errors.ConfigError, match="my tracker could not begin: PermissionError: no account"):
        rollouts.run()
    assert rollouts.statistics.play.steps == 0
    assert threads_end(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_to": "mlflow"}, "'wandb:PROJECT/RUN'"),
        ({"log_to": 5}, "log_to is 5"),
        ({"log_to": "otel:here"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"log_to": answers}, "expected a plain one"),
        ({"progress": "on"}, "progress is 'on'"),
        ({"progress": 1}, "progress is 1"),
        ({"progress": None}, "progress is None"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        run_of(**arguments)


@pytest.mark.parametrize(
    ("log_to", "package", "extra"),
    [
        ("wandb:a/b", "wandb", "wandb"),
        ("tensorboard", "tensorboardX", "tensorboard"),
        ("otel", "opentelemetry.sdk.trace", "otel"),
    ],
)
def test_a_missing_package_is_named(log_to: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(errors.MissingPackage, match=rf"envsdk\[{extra}\]"):
        run_of(log_to=log_to)


# Progress.


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=30, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_display_shows_counts_speed_waiting_rewards_and_failures() -> None:
    console = terminal()
    run_of(progress=console).run()
    last = shown(console)
    for text in ("8/8 episodes", "steps/s (overall ", "tokens/s", "mean reward 2.25", "environment 2", "(p99)"):
        assert text in last
    assert "━" in last
    assert "waiting" in last


@pytest.mark.parametrize("ends", ["cancelled", "failed", "left"])
def test_the_display_ends_with_the_run_however_it_ends(ends: str) -> None:
    console = terminal()
    before, streams = threading.active_count(), (sys.stdout, sys.stderr)

    async def cancel() -> None:
        rollouts = run_of(policy=answers_slowly, progress=console, seeds=range(100), max_concurrency=4)
        running = asyncio.create_task(rollouts.arun())
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def leave() -> None:
        async with run_of(policy=answers_slowly, progress=console, seeds=range(100), max_concurrency=4) as rollouts:
            async for _ in rollouts:
                break

    async def fail() -> None:
        rollouts = run_of(policy=answers_slowly, progress=console, seeds=[3, 7], fail_fast=1)
        with pytest.raises(errors.RunFailed):
            await rollouts.arun()

    asyncio.run({"cancelled": cancel, "failed": fail, "left": leave}[ends]())
    assert shown(console).endswith("\x1b[?25h")  # the cursor is visible again
    assert (sys.stdout, sys.stderr) == streams
    assert threads_end(before)


def test_eta_is_the_time_that_the_episodes_left_take() -> None:
    values = scalars(Statistics(total=400, resumed=100, tally=Tally(episodes=100), began_at=0.0, ended_at=60.0))
    assert progress.counts(values) == "200/400 episodes in 0:01:00, about 0:02:00 left"


def test_text_from_records_is_shown_as_it_is() -> None:
    statistics = Statistics(total=2, tally=Tally(failures={"[red]\x1b[2J": 1}))
    console = terminal()
    console.print(progress.drawing_of(scalars(statistics) | Rates(statistics).scalars()))
    assert r"[red]\x1b[2J 1" in shown(console)


def test_without_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    updates: list[object] = []
    update = progress.ProgressLines.update

    def counted(self: progress.ProgressLines, *values: Any) -> None:
        update(self, *values)
        updates.append(values)

    monkeypatch.setattr(progress.ProgressLines, "every_s", 0.1)
    monkeypatch.setattr(progress.ProgressLines, "update", counted)
    run_of(policy=answers_when(lambda: len(updates) >= 2), progress=True).run()
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("rollouts: ")]
    assert len(lines) >= 3
    assert lines[-1].startswith("rollouts: 8/8 episodes in 0:00:0")
    assert "failures environment 2" in lines[-1]
    assert captured.out == ""


def test_auto_shows_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(seeds=range(3), progress="auto").run()
    assert capsys.readouterr().err == ""


def test_a_closed_standard_error_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(progress.ProgressLines, "every_s", 0.2)
    monkeypatch.setattr(sys, "stderr", closed)
    assert len(run_of(policy=answers_slowly, seeds=range(3), progress=True).run()) == 3
    assert [one.getMessage() for one in caplog.records if "progress" in one.getMessage()] == [
        "the progress lines failed; the run continues: I/O operation on closed file"
    ]
    monkeypatch.setattr(sys, "stderr", None)
    assert len(run_of(seeds=range(3), progress=True).run()) == 3


@pytest.mark.full
def test_a_terminal_that_is_closed_during_the_run_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w")
    monkeypatch.setattr(sys, "stderr", stream)

    async def run() -> int:
        rollouts = run_of(policy=answers_slowly, max_concurrency=1, progress="auto")
        running, written = asyncio.create_task(rollouts.arun()), b""
        while b"/8 episodes" not in written:
            written += await asyncio.to_thread(os.read, master, 100_000)
        os.close(master)
        return len(await running)

    assert asyncio.run(run()) == 8
    assert caplog.text.count("the progress display failed; the run continues") == 1
    with contextlib.suppress(OSError):  # what was not written
        stream.close()


class Stopped(io.StringIO):
    """A terminal that was stopped with Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.released.wait(600)
        self.written.append(text)
        return len(text)


def test_a_terminal_that_is_stopped_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.Display, "end_s", 0.2)
    stream = Stopped()
    console = Console(file=stream, force_terminal=True)
    rollouts = run_of(policy=answers_slowly, progress=console)
    assert len(rollouts.run()) == 8
    assert stream.written == []
    stream.released.set()


@pytest.mark.full
def test_rich_is_imported_when_it_is_used() -> None:
    program = """if True:
        import sys
        from envsdk.rollouts import Rollouts
        Rollouts("envsdk/GuessNumber-v1", "random", seeds=range(2), group_size=1, progress="auto").run()
        assert "rich" not in sys.modules
        Rollouts("envsdk/GuessNumber-v1", "random", seeds=range(2), group_size=1, progress=True).run()
        assert "rich" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_run_without_reporters_starts_no_thread_for_them() -> None:
    before = set(threading.enumerate())
    asyncio.run(reporting.Reporting(Statistics(), []).begin())
    assert set(threading.enumerate()) <= before


def threads_end(before: int) -> bool:
    deadline = time.monotonic() + 600
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    return threading.active_count() <= before
