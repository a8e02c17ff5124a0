"""A run folder keeps what it has reported, whatever happens, and can be read on its own."""

import asyncio
import contextlib
import copy
import errno
import json
import logging
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import real_models
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk import Renderer, Trajectory, get_renderer
from envsdk.errors import InvalidRecord, RunFolderError, StorageError
from envsdk.rollouts import RunFolder, StoredRun, rollout_many
from envsdk.rollouts._run_folder import Journal
from envsdk.rollouts._stored_run import read_batches
from envsdk.rollouts._unequal import unequal
from envsdk.viewer._sources import Source

CONFIGURATION = {
    "env": "envsdk/GuessNumber-v1",
    "seeds": [0, 1, 2],
    "group_size": 2,
    "env_options": {"history": "keep"},
}
FILES = {False: "trajectories.jsonl", True: "trajectories.jsonl.zst"}


@pytest.fixture(scope="module")
def renderers() -> dict[str, Renderer]:
    return {"main": get_renderer("qwen3", "embedded", enable_thinking=False)}


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    return rollout_many("envsdk/GuessNumber-v1", "random", seeds=range(6))


both_formats = pytest.mark.parametrize("compress", [False, True], ids=["plain", "zst"])


@pytest.fixture
def create(tmp_path: Path, renderers: dict[str, Renderer]) -> Iterator[Callable[..., RunFolder]]:
    """Makes or opens the run folder of a test, and closes it at the end."""
    opened: list[RunFolder] = []

    def make(configuration: Any = CONFIGURATION, *, path: Path = tmp_path / "run", **options: Any) -> RunFolder:
        opened.append(RunFolder.create(path, configuration, renderers, **options))
        return opened[-1]

    yield make
    for folder in opened:
        with contextlib.suppress(StorageError):
            folder.close()


def append(folder: RunFolder, trajectories: Sequence[Trajectory]) -> list[Any]:
    """Append trajectories at the same time; return None for each, or why it failed."""

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(folder.append, trajectories), return_exceptions=True)

    return asyncio.run(all_of_them())


def numbered(episodes: Sequence[Trajectory], numbers: Sequence[int]) -> list[Trajectory]:
    made = [copy.copy(episodes[number % len(episodes)]) for number in numbers]
    for number, trajectory in zip(numbers, made, strict=True):
        trajectory.id = f"episode-{number}"
    return made


def manifest(folder: RunFolder | StoredRun) -> dict[str, Any]:
    return json.loads((folder.path / "manifest.json").read_bytes())


# Storing and reading.


@both_formats
def test_what_was_appended_is_read_back(
    create: Callable[..., RunFolder], episodes: list[Trajectory], compress: bool
) -> None:
    folder = create(compress=compress)
    assert append(folder, episodes) == [None] * len(episodes)
    folder.close(is_complete=True)
    run = RunFolder.open(folder.path)
    assert {trajectory.to_json() for trajectory in run.trajectories()} == {one.to_json() for one in episodes}
    assert run.configuration == CONFIGURATION
    assert run.manifest is not None
    assert run.manifest.is_complete
    assert (run.manifest.episodes, run.manifest.by_status) == (6, {"truncated": 6})
    assert {"python", "envsdk", "numpy", "tokenizers"} <= run.description.versions.keys()


@pytest.mark.parametrize(
    "family", ["qwen3", *(pytest.param(name, marks=pytest.mark.full) for name in ("harmony", "fixed_base"))]
)
def test_a_run_is_decoded_without_the_environment_and_without_a_hub(family: str, tmp_path: Path) -> None:
    options = real_models.FAMILIES[family]()
    with contextlib.closing(envsdk.make("envsdk/GuessNumber-v1", **options)) as env:
        trajectory = envsdk.rollout(env, "reference", seed=3)
        folder = RunFolder.create(tmp_path, {}, {"main": env.renderer})
        append(folder, [trajectory])
        folder.close()
    script = f"""
import sys, socket
socket.socket.connect = None
from envsdk.rollouts import StoredRun
run = StoredRun({str(tmp_path)!r})
[trajectory] = run.trajectories()
assert run.tokenizer_of(trajectory, "main").fingerprint == trajectory.tokenizer == run.renderer.tokenizer.fingerprint
assert run.renderer.specification() == trajectory.renderer
sys.stdout.buffer.write(run.tokenizer.decode(list(trajectory.prompts())[-1].prompt).encode())
assert "envsdk_environments" not in sys.modules
"""
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=_environment())
    last = list(trajectory.prompts())[-1].prompt
    assert shown.stdout.decode() == env.renderer.tokenizer.decode(last)


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TIKTOKEN_CACHE_DIR": "/nowhere", "HF_HOME": "/nowhere"}


def test_each_role_has_its_renderer_and_each_tokenizer_is_stored_once(tmp_path: Path) -> None:
    renderers = {
        "main": get_renderer("qwen3", "embedded"),
        "judge": get_renderer("role_colon", "embedded"),
        "other": get_renderer("qwen3", real_models.qwen3_folder()),
    }
    RunFolder.create(tmp_path, {}, renderers).close()
    run = StoredRun(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("tokenizer*")) == ["tokenizer", "tokenizer-2"]
    assert {role: one.specification() for role, one in run.renderers.items()} == {
        role: one.specification() for role, one in renderers.items()
    }
    assert set(run.tokenizers) == {one.tokenizer.fingerprint for one in renderers.values()}


def test_a_context_whose_tokenizer_is_not_in_the_folder_is_logged_once(
    create: Callable[..., RunFolder], episodes: list[Trajectory], caplog: pytest.LogCaptureFixture
) -> None:
    folder, others = create(), numbered(episodes, range(2))
    for trajectory in others:
        trajectory.tokenizer = "0123456789abcdef"
    append(folder, others)
    assert [record.getMessage().count("0123456789abcdef") for record in caplog.records] == [1]
    with pytest.raises(RunFolderError, match="does not have the tokenizer 0123456789abcdef"):
        StoredRun(folder.path).tokenizer_of(others[0], "main")


@both_formats
def test_many_appends_at_the_same_time_share_a_batch_and_all_are_stored(
    create: Callable[..., RunFolder], episodes: list[Trajectory], compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    write = Journal.append

    def counted(self: Journal, lines: Sequence[bytes]) -> None:
        batches.append(len(lines))
        assert threading.current_thread() is not threading.main_thread()
        write(self, lines)

    monkeypatch.setattr(Journal, "append", counted)
    folder = create(compress=compress)
    assert append(folder, numbered(episodes, range(200))) == [None] * 200
    folder.close()
    assert sum(batches) == 200
    assert len(batches) < 60
    assert {trajectory.id for trajectory in StoredRun(folder.path).trajectories()} == {
        f"episode-{n}" for n in range(200)
    }


def test_a_run_is_read_while_it_is_written(create: Callable[..., RunFolder], episodes: list[Trajectory]) -> None:
    folder = create()
    append(folder, episodes[:2])
    with (folder.path / FILES[False]).open("ab") as file:
        file.write(episodes[2].to_json()[:100])
    assert [trajectory.id for trajectory in StoredRun(folder.path).trajectories()] == [one.id for one in episodes[:2]]


def test_a_run_whose_manifest_is_missing_and_a_line_that_was_cut_are_reported(
    create: Callable[..., RunFolder], episodes: list[Trajectory], caplog: pytest.LogCaptureFixture
) -> None:
    folder = create()
    append(folder, episodes[:2])
    folder.close(is_complete=True)
    StoredRun(folder.path)
    assert not caplog.messages
    (folder.path / "manifest.json").unlink()
    os.truncate(folder.path / FILES[False], (folder.path / FILES[False]).stat().st_size - 10)
    assert len(list(StoredRun(folder.path).trajectories())) == 1
    missing, cut = caplog.messages
    assert "has no manifest.json, so its trajectories are not verified" in missing
    assert "of a line that was cut off" in cut


def test_an_id_is_stored_once(create: Callable[..., RunFolder], episodes: list[Trajectory]) -> None:
    folder = create()
    first, second = append(folder, [episodes[0], episodes[0]])
    assert first is None
    assert isinstance(second, RunFolderError)


def test_a_trajectory_that_is_not_json_fails_alone(
    create: Callable[..., RunFolder], episodes: list[Trajectory]
) -> None:
    folder, wrong = create(), copy.copy(episodes[0])
    wrong.config = {1: "a key that is not a text", "a": "\ud800"}
    results = append(folder, [wrong, episodes[1]])
    assert isinstance(results[0], InvalidRecord)
    assert results[1] is None
    assert append(folder, [episodes[0]]) == [None]


def test_a_canceled_append_is_stored_or_not_and_others_go_on(
    create: Callable[..., RunFolder], episodes: list[Trajectory]
) -> None:
    folder = create()

    async def cancel_one() -> None:
        task = asyncio.create_task(folder.append(episodes[0]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await folder.append(episodes[1])

    asyncio.run(cancel_one())
    folder.close()
    assert episodes[1].id in {trajectory.id for trajectory in StoredRun(folder.path).trajectories()}


def test_nothing_is_appended_to_a_folder_that_was_closed(
    create: Callable[..., RunFolder], episodes: list[Trajectory]
) -> None:
    folder = create()
    folder.close()
    folder.close()
    [error] = append(folder, episodes[:1])
    assert isinstance(error, RunFolderError)


# Who may write.


def test_a_folder_in_use_is_refused_in_the_same_process_and_in_another(
    create: Callable[..., RunFolder], tmp_path: Path
) -> None:
    folder = create()
    with pytest.raises(RunFolderError, match="is in use"):
        create()
    script = f"""
from envsdk import get_renderer
from envsdk.rollouts import RunFolder
RunFolder.create({str(folder.path)!r}, {{}}, {{"main": get_renderer("qwen3", "embedded")}})
"""
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "is in use" in other.stderr
    folder.close()
    create()


def test_another_configuration_is_refused_with_each_difference(
    create: Callable[..., RunFolder], episodes: list[Trajectory], renderers: dict[str, Renderer]
) -> None:
    folder = create()
    append(folder, episodes[:1])
    folder.close()
    changed = {"env": "envsdk/GuessNumber-v1", "seeds": [0, 9, 2], "group_size": 2, "env_options": {}, "policy": "null"}
    with pytest.raises(RunFolderError) as raised:
        create(changed, resume=True)
    listed = str(raised.value).partition("What changed: ")[2].partition(". Go back")[0].split("; ")
    assert listed == [
        "configuration.seeds[1]: 1 in the folder, 9 now",
        "configuration.env_options.history: 'keep' in the folder, nothing now",
        "configuration.policy: nothing in the folder, 'null' now",
    ]
    with pytest.raises(RunFolderError, match=r"enable_thinking: False in the folder, nothing now"):
        RunFolder.create(folder.path, CONFIGURATION, {"main": get_renderer("qwen3", "embedded")}, resume=True)
    with pytest.raises(RunFolderError, match=r"trajectories: 'trajectories.jsonl' in the folder"):
        create(resume=True, compress=True)


def test_numbers_that_are_equal_are_no_difference_but_true_is_not_1() -> None:
    assert not list(unequal({"timeout_s": 600, "seeds": [1]}, {"timeout_s": 600.0, "seeds": [1]}))
    assert list(unequal({"a": 1}, {"a": True})) == [("a", "1", "True")]
    assert list(unequal({"seeds": [1]}, {"seeds": [1, 2]})) == [("seeds", "[1]", "[1, 2]")]


def test_a_folder_with_trajectories_is_continued_only_on_request(
    create: Callable[..., RunFolder], episodes: list[Trajectory]
) -> None:
    folder = create(resume=True)
    append(folder, episodes[:2])
    folder.close()
    with pytest.raises(RunFolderError, match="--resume"):
        create()
    again = create(resume=True)
    assert list(again.finished) == [one.id for one in episodes[:2]]
    first = again.finished[episodes[0].id]
    assert (first.status, first.error_kind) == ("truncated", None)
    append(again, episodes[2:])
    again.close(is_complete=True)
    assert [one.id for one in StoredRun(folder.path).trajectories()] == [one.id for one in episodes]


def test_a_run_without_a_trajectory_is_replaced(create: Callable[..., RunFolder]) -> None:
    create().close()
    folder = create({"env": "another"})
    assert StoredRun(folder.path).configuration == {"env": "another"}


def test_a_folder_of_something_else_is_left_alone(create: Callable[..., RunFolder], tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / FILES[True]).write_bytes(b"something")
    with pytest.raises(RunFolderError, match="not a run folder"):
        create()
    with pytest.raises(RunFolderError, match="not a run folder"):
        StoredRun(path)
    assert (path / FILES[True]).read_bytes() == b"something"


def test_other_versions_are_logged_when_a_run_continues(
    create: Callable[..., RunFolder], episodes: list[Trajectory], caplog: pytest.LogCaptureFixture
) -> None:
    folder = create()
    append(folder, episodes[:1])
    folder.close()
    file = folder.path / "run.json"
    file.write_text(file.read_text().replace('"python": "3', '"python": "2'))
    create(resume=True)
    assert "python: '2" in caplog.text


# Damage.


@pytest.fixture(scope="module")
def stored(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Trajectory], renderers: dict[str, Renderer]
) -> dict[bool, Path]:
    """For both formats, a run of three batches that was killed: its manifest is the one of its beginning."""
    folders: dict[bool, Path] = {}
    for compress in (False, True):
        path = folders[compress] = tmp_path_factory.mktemp("stored") / "run"
        folder = RunFolder.create(path, CONFIGURATION, renderers, compress=compress)
        first = (path / "manifest.json").read_bytes()
        for number in range(0, 6, 2):
            append(folder, episodes[number : number + 2])
        folder.close()
        (path / "manifest.json").write_bytes(first)
    return folders


def reopened(path: Path, renderers: dict[str, Renderer], *, compress: bool) -> list[str]:
    """Continue a run: return its ids, after it was continued and opened again."""
    with RunFolder.create(path, CONFIGURATION, renderers, resume=True, compress=compress) as folder:
        found = list(folder.finished)
    with RunFolder.create(path, CONFIGURATION, renderers, resume=bool(found), compress=compress) as folder:
        assert list(folder.finished) == found
    assert [trajectory.id for trajectory in StoredRun(path).trajectories()] == found
    return found


def ends_of_batches(file: Path) -> list[tuple[int, int]]:
    """How many lines there are up to the end of each batch, and where that is."""
    count, ends = 0, [(0, 0)]
    for batch in read_batches(file):
        count += len(batch.lines)
        ends.append((count, batch.stop))
    return ends


@both_formats
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_a_run_that_was_cut_at_any_byte_keeps_its_whole_batches(
    data: st.DataObject,
    compress: bool,
    stored: dict[bool, Path],
    episodes: list[Trajectory],
    renderers: dict[str, Renderer],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("cut") / "run"
    shutil.copytree(stored[compress], path)
    file = path / FILES[compress]
    ends = ends_of_batches(file)
    near = st.builds(
        lambda end, off: min(max(end + off, 0), ends[-1][1]), st.sampled_from([e for _, e in ends]), st.integers(-3, 3)
    )
    length = data.draw(st.one_of(near, st.integers(0, ends[-1][1])))
    os.truncate(file, length)
    whole = max(count for count, end in ends if end <= length)
    assert reopened(path, renderers, compress=compress) == [one.id for one in episodes[:whole]]


@both_formats
def test_what_the_manifest_counts_may_not_be_missing(
    create: Callable[..., RunFolder], episodes: list[Trajectory], compress: bool
) -> None:
    folder = create(compress=compress)
    append(folder, episodes)
    folder.close()
    file = folder.path / FILES[compress]
    os.truncate(file, file.stat().st_size - 1)
    stored = StoredRun(folder.path)
    whole = len(list(stored.trajectories(check=False)))
    assert whole < len(episodes) if compress else whole == len(episodes) - 1
    with pytest.raises(RunFolderError, match=rf"its end is missing.*read the {whole} of 6 episodes"):
        list(stored.trajectories())
    with pytest.raises(RunFolderError, match="its end is missing"):
        create(resume=True, compress=compress)
    assert "its end is missing" in damage_of(folder.path)
    file.unlink()
    with pytest.raises(RunFolderError, match=r"its end is missing.*read the 0 of 6 episodes"):
        list(stored.trajectories())
    with pytest.raises(RunFolderError, match="its end is missing"):
        create(resume=True, compress=compress)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_damaged_line_in_the_middle_is_reported_with_its_number(
    create: Callable[..., RunFolder], episodes: list[Trajectory], has_manifest: bool
) -> None:
    folder = create()
    append(folder, episodes)
    folder.close()
    file = folder.path / FILES[False]
    lines = file.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b'"seed":', b'"seat":')
    file.write_bytes(b"\n".join(lines))
    if not has_manifest:
        (folder.path / "manifest.json").unlink()
    with pytest.raises(RunFolderError, match="line 4 is damaged"):
        create(resume=True)
    with pytest.raises(RunFolderError, match="line 4"):
        list(StoredRun(folder.path).trajectories())


def test_a_change_that_can_be_read_is_found_by_the_checksum(
    create: Callable[..., RunFolder], episodes: list[Trajectory]
) -> None:
    folder = create()
    append(folder, episodes)
    folder.close()
    file = folder.path / FILES[False]
    file.write_bytes(file.read_bytes().replace(b'"seed":1', b'"seed":7', 1))
    with pytest.raises(RunFolderError, match="do not have the checksum"):
        create(resume=True)
    with pytest.raises(RunFolderError, match="do not have the checksum"):
        list(StoredRun(folder.path).trajectories())
    assert "do not have the checksum" in damage_of(folder.path)


def damage_of(path: Path) -> str:
    """What the last row of a viewer reports."""
    source = Source(path)
    source.refresh()
    return source.rows[-1].damage


def test_a_last_line_that_lost_its_middle_is_cut_off_like_a_torn_one(
    stored: dict[bool, Path],
    renderers: dict[str, Renderer],
    episodes: list[Trajectory],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "run"
    shutil.copytree(stored[False], path)
    file = path / FILES[False]
    data = bytearray(file.read_bytes())
    data[-200:-100] = bytes(100)
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert reopened(path, renderers, compress=False) == [one.id for one in episodes[:5]]
    assert "cut off" in caplog.text


def test_a_damaged_frame_is_reported_if_others_follow(
    stored: dict[bool, Path], renderers: dict[str, Renderer], episodes: list[Trajectory], tmp_path: Path, is_full: bool
) -> None:
    rng, intact = random.Random(0), (stored[True] / FILES[True]).read_bytes()
    end = ends_of_batches(stored[True] / FILES[True])[2][1]
    for number in range(200 if is_full else 15):
        path = tmp_path / str(number) / "run"
        shutil.copytree(stored[True], path)
        content = bytearray(intact)
        content[rng.randrange(end)] ^= rng.randrange(1, 256)
        (path / FILES[True]).write_bytes(content)
        try:
            found = reopened(path, renderers, compress=True)
        except RunFolderError as error:
            assert re.search(r"after line \d+: the frame at byte \d+ is damaged", str(error))
        else:  # such as another size of the window in a frame's header
            assert found == [one.id for one in episodes]


def test_an_id_that_is_stored_twice_is_refused(
    stored: dict[bool, Path], renderers: dict[str, Renderer], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(stored[False], path)
    file = path / FILES[False]
    first = file.read_bytes().split(b"\n")[0] + b"\n"
    with file.open("ab") as opened:
        opened.write(first)
    with pytest.raises(RunFolderError, match="twice, in the lines 1 and 7"):
        RunFolder.create(path, CONFIGURATION, renderers, resume=True)


@pytest.mark.parametrize("name", ["run.json", "manifest.json"])
def test_a_damaged_description_is_reported(
    name: str, stored: dict[bool, Path], renderers: dict[str, Renderer], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(stored[False], path)
    (path / name).write_text("{")
    with pytest.raises(RunFolderError, match=rf"{name} is damaged"):
        RunFolder.create(path, CONFIGURATION, renderers, resume=True)
    with pytest.raises(RunFolderError, match=rf"{name} is damaged"):
        StoredRun(path)


# A disk that is full, and a folder that is gone.


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writing beyond a size fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@both_formats
def test_on_a_full_disk_what_was_reported_is_kept_and_the_run_continues_later(
    create: Callable[..., RunFolder], episodes: list[Trajectory], compress: bool
) -> None:
    folder = create(compress=compress)
    assert append(folder, episodes[:2]) == [None, None]
    size = (folder.path / FILES[compress]).stat().st_size
    with largest_file(size + 50):
        errors = append(folder, episodes[2:])
        assert [type(error) for error in errors] == [StorageError] * 4
    assert "keeps the 2 episodes" in str(errors[0])
    assert "--resume" in str(errors[0])
    assert errors[0].errno == errno.EFBIG
    [later] = append(folder, [copy.copy(numbered(episodes, [7])[0])])
    assert isinstance(later, StorageError)
    folder.close()
    assert (folder.path / FILES[compress]).stat().st_size == size
    again = create(resume=True, compress=compress)
    assert list(again.finished) == [one.id for one in episodes[:2]]
    assert append(again, episodes[2:]) == [None] * 4


@pytest.mark.full
def test_a_small_disk_fills_up_and_the_run_continues_when_there_is_room(
    create: Callable[..., RunFolder], episodes: list[Trajectory], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this user may not mount a tmpfs: {mounted.stderr.strip()}")
    try:
        folder = create(path=disk / "run")
        results = append(folder, numbered(episodes, range(2000)))
        kept = {f"episode-{n}" for n, result in enumerate(results) if result is None}
        with contextlib.suppress(StorageError):
            folder.close()
        assert {type(result) for result in results} == {type(None), StorageError}
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = create(path=disk / "run", resume=True)
        assert kept <= again.finished.keys()
        left = [one for one in numbered(episodes, range(2000)) if one.id not in again.finished]
        assert append(again, left) == [None] * len(left)
        again.close()
        assert len(list(StoredRun(disk / "run").trajectories())) == 2000
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_removed_or_replaced_is_noticed(
    replaced: bool, create: Callable[..., RunFolder], episodes: list[Trajectory], tmp_path: Path
) -> None:
    folder = create()
    append(folder, episodes[:1])
    shutil.rmtree(folder.path)
    if replaced:
        folder.path.mkdir()
        (folder.path / FILES[False]).touch()
    [error] = append(folder, episodes[1:2])
    assert isinstance(error, StorageError)
    folder.close()
    assert not (folder.path / "manifest.json").exists()


def test_nothing_is_appended_to_lines_that_could_not_be_cut_off(
    create: Callable[..., RunFolder], episodes: list[Trajectory]
) -> None:
    folder = create()
    append(folder, episodes[:1])
    with (folder.path / FILES[False]).open("ab") as file:
        file.write(b"half a li")
    [error] = append(folder, episodes[1:2])
    assert isinstance(error, StorageError)
    folder.close()
    assert list(create(resume=True).finished) == [episodes[0].id]


def test_a_folder_that_cannot_be_made_is_a_storage_error(create: Callable[..., RunFolder], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        create(path=tmp_path / "file" / "run")


# kill -9.

KILLED_AGAIN_AND_AGAIN = """
import asyncio, copy, os, random, signal, sys, time
import orjson
from envsdk import Trajectory, get_renderer
from envsdk.rollouts import RunFolder, StoredRun
from envsdk.rollouts._stored_run import read_batches

path, lines, count, kills, compress = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "zst"
episodes = [Trajectory.from_json(line) for line in open(lines, "rb")]
renderers = {"main": get_renderer("qwen3", "embedded")}
rng = random.Random(compress)

async def play(folder, output):
    left = iter([n for n in range(count) if f"episode-{n}" not in folder.finished])
    async def work():
        for n in left:
            trajectory = copy.copy(episodes[n % len(episodes)])
            trajectory.id = f"episode-{n}"
            await folder.append(trajectory)
            os.write(output, f"{trajectory.id}\\n".encode())
    await asyncio.gather(*(work() for _ in range(32)))

def child(output):
    folder = RunFolder.create(path, {"count": count}, renderers, resume=True, compress=compress)
    os.write(output, b"begun\\n")
    asyncio.run(play(folder, output))
    folder.close(is_complete=True)

reported, torn = [], 0
for number in range(kills + 1):
    end, output = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end)
        child(output)
        os._exit(0)
    os.close(output)
    with open(end, "rb") as reader:
        begun = reader.readline()
        if number < kills:
            time.sleep(rng.random() * 0.06)
            os.kill(pid, signal.SIGKILL)
        words = reader.read().decode().split()
    _, status = os.waitpid(pid, 0)
    assert number < kills or status == 0, status
    file = StoredRun(path).path / ("trajectories.jsonl.zst" if compress else "trajectories.jsonl")
    stored = [orjson.loads(line)["id"] for batch in read_batches(file) for line in batch.lines]
    assert len(set(stored)) == len(stored)
    reported += words
    assert set(reported) <= set(stored), set(reported) - set(stored)
assert len(set(reported)) == len(reported)
assert sorted(stored) == sorted(f"episode-{n}" for n in range(count))
print(len(reported))
"""


@pytest.mark.full
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zst"])
def test_after_kill_9_at_random_moments_nothing_is_lost_and_nothing_is_there_twice(
    compress: bool, episodes: list[Trajectory], tmp_path: Path, is_full: bool
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(one.to_json() + b"\n" for one in episodes))
    count, kills = (4000, 30) if is_full else (100, 2)
    arguments = [tmp_path / "run", lines, str(count), str(kills), "zst" if compress else "plain"]
    script = [sys.executable, "-c", KILLED_AGAIN_AND_AGAIN, *map(str, arguments)]
    played = subprocess.run(script, capture_output=True, text=True)
    assert not played.returncode, played.stderr
    expected = {one.id: one.to_json() for one in numbered(episodes, range(count))}
    assert {one.id: one.to_json() for one in StoredRun(tmp_path / "run").trajectories()} == expected
