"""The folder of a command: its path is the same in each episode, and nothing of another episode is in it."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from toy_policies import in_any_vocabulary

import envsdk
from envsdk import Action, Trajectory, rollout
from envsdk.errors import ConfigError
from envsdk.gateway import Endpoint, ProgramEnv, ProgramResult, _program_folders
from envsdk.gateway._program_folders import claimed_folder
from envsdk.rollouts import Rollouts, StoredRun, replay_run

ASK = """
import json, os, sys, tempfile, urllib.request
def ask(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    urllib.request.urlopen(request).read()
places = [os.getcwd(), *(os.environ[name] for name in ("HOME", "TMPDIR", "PWD", "MINE")), tempfile.gettempdir()]
ask(f"I am in {[*places, sys.argv[1]]}. {os.listdir()} {os.listdir(os.environ['HOME'])} {sorted(os.listdir('..'))}")
for folder in (".", os.environ["HOME"], os.environ["TMPDIR"]):
    open(folder + "/left", "w").close()
ask("Good bye.")
"""


class Places(ProgramEnv):
    """Tells the model where it is, and what is there, and then leaves files."""

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        (folder / "ask.py").write_text(ASK)
        self.command = [sys.executable, "ask.py", folder / "ask.py"]
        self.environ = {"MINE": f"{folder}:{endpoint.model}"}

    def score(self, result: ProgramResult) -> float:
        assert result.returncode == 0, result.stderr
        return float((result.folder / "left").exists())

    def null_reply(self) -> str:
        return "Fine."


def prompts(trajectory: Trajectory) -> list[list[int]]:
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0), trajectory.error
    return [prompt.tolist() for _, prompt, _ in trajectory.prompts()]


def text_of(trajectory: Trajectory) -> str:
    return envsdk.load_tokenizer("embedded").decode(prompts(trajectory)[0])


def together(number: int) -> Any:
    """A policy that answers when as many episodes have asked."""
    arrived: list[str] = []
    all_here = asyncio.Event()

    @in_any_vocabulary
    async def policy(prompt: Any, **_: Any) -> Action:
        arrived.append("")
        if len(arrived) >= number:
            all_here.set()
        await all_here.wait()
        return Action([1, 2])

    return policy


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder of all folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with claimed_folder(lambda mark: None) as folder:
        return folder.path.parent


needs_mounts = pytest.mark.skipif(not _program_folders._launcher_command(), reason="needs Linux that allows mounts")


@needs_mounts
def test_parallel_episodes_see_one_path_and_not_the_files_of_others(root: Path) -> None:
    trajectories = Rollouts(Places, together(3), seeds=[0], group_size=3, max_concurrency=3).run()
    assert sorted(path.name for path in root.iterdir()) == ["1", "2", "3"]
    assert len({str(prompts(trajectory)) for trajectory in trajectories}) == 1
    work, home, tmp = (root / name for name in ("work", "home", "tmp"))
    seen = [str(work), str(home), str(tmp), str(work), f"{work}:envsdk", str(tmp), f"{work}/ask.py"]
    assert f"I am in {seen}. ['ask.py'] [] ['home', 'tmp', 'work']" in text_of(trajectories[0])


def test_without_mounts_parallel_episodes_have_numbered_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_program_folders, "_launcher_command", list)
    trajectories = Rollouts(Places, together(2), seeds=[0], group_size=2, max_concurrency=2).run()
    texts = sorted(map(text_of, trajectories))
    assert all(f"I am in ['{root}/{n}/work', '{root}/{n}/home'" in text for n, text in enumerate(texts, start=1))
    assert prompts(rollout(Places(), "null", seed=0)) == prompts(rollout(Places(), "null", seed=0))
    assert [path for path in root.rglob("*") if path.parent != root] == []


@pytest.mark.full
def test_a_replay_repeats_each_episode_of_a_group(root: Path, tmp_path: Path) -> None:
    Rollouts(Places, "null", seeds=[0], group_size=2, max_concurrency=1, out=tmp_path / "run").run()
    results = list(replay_run(StoredRun(tmp_path / "run"), trust=["imports"]))
    assert [(result.refused, list(result.differences)) for result in results] == [(None, [])] * 2


RUN = """
from envsdk import rollout
from envsdk.gateway import ProgramEnv, _program_folders
if not {mounts}:
    _program_folders._launcher_command = list

class Killed(ProgramEnv):
    command = ["sh", "-c", "mkdir a; touch a/file; chmod 0 a; setsid sleep {seconds} & wait"]

rollout(Killed(), "null", seed=0)
"""


def is_asleep(seconds: str) -> bool:
    """Return whether a process sleeps for that time."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
    return False


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("mounts", [True, False])
def test_what_a_killed_run_left_is_ended_and_removed_by_the_next(root: Path, mounts: bool) -> None:
    seconds = f"3{time.time_ns()}"
    script = RUN.format(seconds=seconds, mounts=mounts)
    with subprocess.Popen([sys.executable, "-c", script], env={"TMPDIR": str(root.parent), "PATH": os.defpath}) as run:
        while not is_asleep(seconds):
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
    assert any((root / "1" / "work").iterdir())
    assert mounts or is_asleep(seconds)
    assert "['ask.py'] []" in text_of(rollout(Places(), "null", seed=0))
    assert not is_asleep(seconds)
    assert [path.name for path in root.iterdir()] == ["1"]


def test_a_folder_that_cannot_be_emptied_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "1" / "left").touch()
    monkeypatch.setattr(_program_folders, "_empty", lambda folder: None)
    with claimed_folder(lambda mark: None) as folder:
        assert folder.path == root / "2"


def test_a_folder_of_another_owner_is_refused(root: Path) -> None:
    (root / "1").rmdir()
    root.rmdir()
    root.symlink_to(root.parent)
    with pytest.raises(ConfigError, match="or is a link"), claimed_folder(lambda mark: None):
        pass


@pytest.mark.matrix(every=2)
@needs_mounts
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("yes | head -n 1", (0, "y\n", "")),  # Python ignores SIGPIPE
        ("exit 3", (3, "", "")),
        ("kill -TERM $$", (-15, "", "")),
        ("kill -KILL $$", (-9, "", "")),
        ("echo $$ $PPID; grep -q _launcher.py /proc/1/cmdline && echo its own", (0, "2 1\nits own\n", "")),
        ("sleep 1000 & exit 4", (4, "", "")),
    ],
)
@pytest.mark.usefixtures("root")
def test_a_program_ends_as_without_mounts_and_sees_its_own_processes(script: str, expected: tuple[Any, ...]) -> None:
    class Ended(Places):
        def prepare(self, folder: Path, endpoint: Endpoint) -> None:
            super().prepare(folder, endpoint)
            self.command = ["sh", "-c", f"{sys.executable} ask.py x; {script}"]

        def score(self, result: ProgramResult) -> float:
            return float((result.returncode, result.stdout, result.stderr) == expected)

    assert rollout(Ended(), "null", seed=0).reward == 1.0


def test_variables_that_are_not_strings_are_refused() -> None:
    class Numbers(Places):
        def prepare(self, folder: Path, endpoint: Endpoint) -> None:
            super().prepare(folder, endpoint)
            self.environ = {"MINE": 1}  # type: ignore[dict-item]

    with pytest.raises(ConfigError, match="expected a mapping of strings"):
        rollout(Numbers(), "null", seed=0)
