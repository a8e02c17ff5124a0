"""A run that is killed at any moment resumes where it was: no episode is lost, and none is there twice."""

import asyncio
import importlib
import json
import random
import runpy
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from killed_runs import PROGRAM, play, stored
from typer.testing import CliRunner

from envsdk import Action, Env, Message, Turn, errors
from envsdk.cli import app
from envsdk.policies import policy_of
from envsdk.rollouts import Rollouts, StoredRun
from envsdk.rollouts._run_folder import RunFolder
from envsdk.rollouts.evaluation import scored
from envsdk.viewer.reporting import report


@pytest.mark.parametrize(
    ("tasks", "kills", "executor", "env"),
    [
        (1, 1, "", ""),
        # That an image of which a kill left a part is written again is shown in tests/core/test_media.py.
        pytest.param(1, 1, "", "envsdk/GridScreen-v1", marks=pytest.mark.full),
        pytest.param(10, 4, "", "", marks=pytest.mark.full),
        pytest.param(40, 2, "processes", "", marks=pytest.mark.full),
        pytest.param(40, 4, "processes", "envsdk/GridScreen-v1", marks=pytest.mark.full),
        pytest.param(500, 30, "", "", marks=pytest.mark.full),
    ],
)
def test_a_run_that_is_killed_again_and_again_has_what_an_undisturbed_one_has(
    tmp_path: Path, tasks: int, kills: int, executor: str, env: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    whole = tmp_path / "whole"
    main = runpy.run_path(str(program), run_name="program")["main"]
    begun = time.monotonic()
    asyncio.run(main(str(whole), tasks, "", env))
    took = time.monotonic() - begun
    rng, out, reported = random.Random(0), tmp_path / "killed", set[str]()
    for _ in range(kills):
        now = play(program, out, tasks, executor, env, kill_after_s=rng.random() * took)
        assert reported.isdisjoint(now)  # nothing is reported twice
        reported |= set(now)
        if (out / "run.json").exists():
            assert reported <= stored(out).keys()  # nothing that was reported is lost
    now = play(program, out, tasks, executor, env)
    assert reported.isdisjoint(now)
    assert stored(out) == stored(whole)
    assert len(stored(out)) == tasks * 8
    assert files(out / "media") == files(whole / "media")
    assert bool(files(out / "media")) == bool(env)
    assert json.loads((out / "manifest.json").read_text())["is_complete"] is True


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by name; none if it does not exist."""
    return {file.name: file.read_bytes() for file in folder.glob("*")}


class Counts(Env):
    def start(self) -> Turn:
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        return Turn("Done.", reward=1.0, terminated=True)


def test_a_folder_of_another_run_is_refused_with_the_differences(tmp_path: Path) -> None:
    Rollouts(Counts, "random", seeds=range(3), group_size=2, out=tmp_path).run()
    with pytest.raises(errors.RunFolderError, match="resume"):
        Rollouts(Counts, "random", seeds=range(3), group_size=2, out=tmp_path)
    with pytest.raises(errors.RunFolderError, match="group_size: 2 in the folder, 4 now") as raised:
        Rollouts(
            Counts, "null", seeds=range(3), group_size=4, out=tmp_path, resume=True, env_options={"history": "strip"}
        )
    for difference in ("policy", "history.name", "episodes: 6 in the folder, 12 now", "the seeds or tasks"):
        assert difference in str(raised.value)


ENVIRONMENT = """
from envsdk import Env, Turn
from scoring_of_it import REWARD

class Changes(Env):
    def __init__(self, *, bonus=0.0, **options):
        super().__init__(**options)
        self.bonus = bonus

    def start(self):
        return Turn("Go.")

    def respond(self, reply):
        return Turn("Done.", reward=REWARD + self.bonus, terminated=True)
"""


def changing(folder: Path, *, doc: str = "", reward: float = 1.0) -> type[Env]:
    """Import the environment after writing its two modules."""
    for name in ("changing_environment", "scoring_of_it"):
        sys.modules.pop(name, None)
    (folder / "changing_environment.py").write_text(ENVIRONMENT + doc)
    (folder / "scoring_of_it.py").write_text(f"REWARD = {reward}\n")
    importlib.invalidate_caches()
    return importlib.import_module("changing_environment").Changes


@pytest.mark.parametrize(
    ("code", "options", "where"),
    [
        ({"doc": "# better"}, {}, "the source of changing_environment"),
        ({"reward": 2.0}, {}, "the source of scoring_of_it"),
        ({}, {"bonus": 0.5}, "configuration.options.bonus: nothing in the folder, 0.5 now"),
        ({}, {"tasks": [{"n": 1}, {"n": 3}]}, "the data of the tasks"),
        ({}, {"limits": {"max_steps": 7}}, "configuration.limits.max_steps: nothing in the folder, 7 now"),
    ],
)
def test_a_run_whose_environment_has_changed_continues_only_if_that_is_allowed(
    code: dict[str, Any], options: dict[str, Any], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    out, tasks = tmp_path / "run", {"tasks": [{"n": 1}, {"n": 2}]} if "tasks" in options else {}
    run = partial(Rollouts, policy="random", group_size=1, seeds=range(4), out=out)
    asyncio.run(leave(run(changing(tmp_path), env_options=tasks, max_concurrency=1)))
    before = len(stored(out))
    assert 0 < before < 4
    new = changing(tmp_path, **code)
    with pytest.raises(errors.RunFolderError, match="--allow-changed") as raised:
        run(new, env_options=tasks | options, resume=True)
    assert where in str(raised.value)
    with pytest.raises(errors.RunFolderError, match="another configuration") as raised:
        run(new, policy="null", env_options=tasks | options, resume=True, allow_changed=True)
    assert "--allow-changed" not in str(raised.value)
    run(new, env_options=tasks | options, resume=True, allow_changed=True).run()
    assert len(stored(out)) == 4
    (segment,) = RunFolder.open(out).description.segments
    assert segment.episodes == before
    assert where in segment.changed[0]
    first, second = report(out).runs  # each segment is reported as a run of its own
    assert (first.name, first.episodes, first.changes) == ("run, segment 1", before, "")
    assert (second.name, second.episodes) == ("run, segment 2", 4 - before)
    assert where in second.changes
    assert CliRunner().invoke(app, ["view", str(out), "--html", str(tmp_path / "page.html")]).exit_code == 0
    assert [result.score.episodes for result in scored(out).results] == [before, 4 - before]
    assert [len(list(StoredRun(out, segment=number).trajectories())) for number in (1, 2, -1)] == [
        *(before, 4 - before, 4 - before)
    ]
    with pytest.raises(errors.RunFolderError, match="has 2 segments, and no segment 3"):
        StoredRun(out, segment=3)
    assert run(new, env_options=tasks | options, resume=True).run() == []  # that is now what the folder expects


async def leave(rollouts: Rollouts) -> None:
    async with rollouts:
        async for _ in rollouts:
            break


def test_a_folder_of_an_earlier_version_continues_without_a_record_of_the_code(tmp_path: Path) -> None:
    asyncio.run(leave(Rollouts(Counts, "random", seeds=range(3), group_size=2, out=tmp_path, max_concurrency=1)))
    description = json.loads((tmp_path / "run.json").read_text())
    del description["configuration"]["code"], description["configuration"]["options"]
    (tmp_path / "run.json").write_text(json.dumps(description))
    Rollouts(Counts, "random", seeds=range(3), group_size=2, out=tmp_path, resume=True).run()
    assert len(stored(tmp_path)) == 6


def test_a_run_may_resume_with_other_deadlines_and_another_concurrency(tmp_path: Path) -> None:
    first = Rollouts(Counts, "random", seeds=range(4), group_size=2, out=tmp_path, max_concurrency=1)
    first.run()
    again = Rollouts(Counts, "random", seeds=range(4), group_size=2, out=tmp_path, resume=True, method_timeout_s=5)
    assert again.run() == []
    assert again.statistics.resumed == 8


def test_a_group_that_was_interrupted_comes_whole(tmp_path: Path) -> None:
    asyncio.run(_interrupt(tmp_path))
    rollouts = Rollouts(Counts, "random", seeds=range(3), group_size=3, out=tmp_path, resume=True)
    groups = asyncio.run(_groups(rollouts))
    assert sorted((group.id, group.is_whole, len(group.trajectories)) for group in groups) == [
        ("Counts/1", True, 3),
        ("Counts/2", True, 3),
    ]
    assert len(stored(tmp_path)) == 9


async def _groups(rollouts: Rollouts) -> list[Any]:
    return [group async for group in rollouts.groups()]


async def _interrupt(tmp_path: Path) -> None:
    async with Rollouts(Counts, "random", seeds=range(3), group_size=3, out=tmp_path, max_concurrency=1) as first:
        seen = 0
        async for _ in first:
            seen += 1
            if seen == 4:
                break


def test_what_failed_because_of_the_server_is_played_again(tmp_path: Path) -> None:
    rollouts = Rollouts(Counts, Gone(), seeds=range(2), group_size=2, out=tmp_path, max_retries=0)
    assert {one.error_kind for one in rollouts.run()} == {"infrastructure"}
    assert json.loads((tmp_path / "manifest.json").read_text())["is_complete"] is False
    Gone.is_gone = False
    again = Rollouts(Counts, Gone(), seeds=range(2), group_size=2, out=tmp_path, resume=True)
    assert {one.status for one in again.run()} == {"terminated"}
    assert len(stored(tmp_path)) == 4


class Gone:
    tokenizer = "any"
    is_gone = True

    def for_episode(self, env: Env, seed: int | None) -> Any:
        async def policy(prompt: Any, **_: Any) -> Any:
            if Gone.is_gone:
                raise errors.PolicyUnavailable("the server is gone")
            return Action([5], [-0.5])

        policy.tokenizer = "any"  # type: ignore[attr-defined]
        return policy


def test_a_full_disk_ends_the_run_which_resumes_where_it_was(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    rollouts = Rollouts("envsdk/Calculator-v1", "reference", seeds=range(4), group_size=4, out=tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        with pytest.raises(errors.StorageError, match="resume"):
            rollouts.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    kept = stored(tmp_path)
    assert 0 < len(kept) < 16
    again = Rollouts("envsdk/Calculator-v1", "reference", seeds=range(4), group_size=4, out=tmp_path, resume=True)
    assert len(again.run()) == 16 - len(kept)
    assert len(stored(tmp_path)) == 16


def test_a_run_is_extended_by_further_seeds(tmp_path: Path) -> None:
    Rollouts(Counts, "random", seeds=3, group_size=2, out=tmp_path).run()
    with pytest.raises(errors.RunFolderError, match=r"the seeds or tasks.*add --extend, or extend=True"):
        Rollouts(Counts, "random", seeds=5, group_size=2, out=tmp_path, resume=True)
    for seeds, group_size in ((range(2, 9), 2), (5, 3), (2, 2)):  # not the run's own seeds first
        with pytest.raises(errors.RunFolderError, match="another configuration"):
            Rollouts(Counts, "random", seeds=seeds, group_size=group_size, out=tmp_path, extend=True)
    more = Rollouts(Counts, "random", seeds=5, group_size=2, out=tmp_path, extend=True)
    assert {one.seed for one in more.run()} == {3, 4}
    assert len(stored(tmp_path)) == 10
    assert Rollouts(Counts, "random", seeds=5, group_size=2, out=tmp_path, resume=True).run() == []
    assert not StoredRun(tmp_path).description.segments


def test_a_file_that_was_cut_says_how_many_lines_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Rollouts(Counts, "random", seeds=4, out=tmp_path).run()
    file = tmp_path / "trajectories.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:5])
    with pytest.raises(errors.RunFolderError, match="read the 1 of 4 episodes that it has"):
        list(StoredRun(tmp_path).trajectories())
    assert len(list(StoredRun(tmp_path).trajectories(check=False))) == 1
    assert "after 1 lines, 3 lines are left out: 5 bytes of a line that was cut off" in caplog.text


class Named:
    tokenizer = "any"

    def __init__(self, token: int = 5) -> None:
        self.token, self.name = token, f"always {token}"

    def __call__(self, prompt: Any, **_: Any) -> Action:
        return Action([self.token], [0.0], "length")


def named_function(prompt: Any, *, token: int = 5, **_: Any) -> Action:
    return Action([token], [0.0], "length")


named_function.name = "one token"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "options", "name"),
    [("Named", {}, "always 5"), ("Named", {"token": 7}, "always 7"), ("named_function", {"token": 7}, "one token")],
)
def test_a_policy_of_ones_own_is_named_by_its_module_and_reported_by_its_name(
    policy: str, options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    made = policy_of(f"{__name__}:{policy}", **options)
    (one,) = Rollouts(Counts, made, seeds=1, env_options={"tokenizer": "embedded"}, out=tmp_path).run()
    assert [step.action.tolist() for step in one.prompts()] == [[options.get("token", 5)]]
    assert report(tmp_path).runs[0].policy == name
    with pytest.raises(errors.EnvsdkError, match="tokne"):
        policy_of(f"{__name__}:{policy}", tokne=7)
