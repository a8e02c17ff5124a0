"""Files of records: what a damaged record does to everything that reads it, and what a full disk leaves behind."""

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trainers.episodes import delegated, kept, played, stripped

from envsdk import Trajectory, UndeclaredBreak, tree_batch
from envsdk.diagnostics import cost
from envsdk.errors import ConfigError, InvalidRecord, StorageError, UnknownName
from envsdk.trainers.atif import to_atif
from envsdk.trajectories.records import read_jsonl, write_jsonl

READERS: dict[str, Callable[[Trajectory], Any]] = {
    "samples": Trajectory.samples,
    "prompts": lambda trajectory: list(trajectory.prompts()),
    "tree size": Trajectory.tree_size,
    "tree": tree_batch,
    "tree of several": lambda trajectory: tree_batch([kept(), trajectory]),
    "cost": cost,
    "atif": to_atif,
}


def copy_of(trajectory: Trajectory) -> Trajectory:
    return Trajectory.from_json(trajectory.to_json())


def parents(trajectory: Trajectory, **changed: str | None) -> Trajectory:
    for name, parent in changed.items():
        trajectory.contexts[name if name == "main" else f"main/researcher-{name[-1]}"].parent = parent
    return trajectory


def step(trajectory: Trajectory, index: int, **changed: Any) -> Trajectory:
    for name, value in changed.items():
        setattr(trajectory.steps[index], name, value)
    return trajectory


def cut(trajectory: Trajectory, *fields: str) -> Trajectory:
    log = trajectory.contexts["main"]
    for field in fields:
        setattr(log, field, getattr(log, field)[:-1])
    return trajectory


DAMAGES: dict[str, tuple[Callable[[Trajectory], Trajectory], str]] = {
    "its own parent": (lambda t: parents(t, main="main"), "context 'main' has the parent 'main', which is itself"),
    "a child that is its own parent": (lambda t: parents(t, r1="main/researcher-1"), "which is itself"),
    "a cycle of two": (
        lambda t: parents(t, r1="main/researcher-2", r2="main/researcher-1"),
        "context 'main/researcher-1' has the parent 'main/researcher-2', which comes after it",
    ),
    "a root with a parent": (lambda t: parents(t, main="main/researcher-1"), "context 'main' .* comes after it"),
    "a parent that is missing": (lambda t: parents(t, r1="nobody"), "the parent 'nobody', which is not in the record"),
    "an unknown context": (lambda t: step(t, 1, context="nobody"), "step 2 is in the context 'nobody', which is not"),
    "an unknown base": (lambda t: step(t, 1, base="nobody"), "step 2 is in the context 'nobody', which is not"),
    "a start too early": (lambda t: step(t, 0, start=-1), "step 1 points outside the log"),
    "an action before its observation": (lambda t: step(t, 0, action_start=-5), "step 1 points outside the log"),
    "an action beyond the log": (lambda t: step(t, 0, action_start=10**9), "step 1 points outside the log"),
    "keeping more than there is": (lambda t: step(t, 0, keep=5), "step 1 keeps 5 tokens of 'main', which has 0"),
    "keeping less than nothing": (lambda t: step(t, 0, keep=-5), "step 1 keeps -5 tokens|no break declares it"),
    "half a token": (
        lambda t: step(t, 0, keep=0.0),
        "step 1 keeps 0.0 tokens and has the bounds .*; expected integers",
    ),
    "a bound that is a text": (lambda t: step(t, 0, start="0"), "expected integers"),
    "no parts": (lambda t: step(t, 0, parts=None), "step 1 is damaged: TypeError"),
    "a token too few": (lambda t: cut(t, "tokens", "logprobs"), "points outside the log of its context 'main'"),
    "a log-probability too few": (lambda t: cut(t, "logprobs"), "context 'main' has .* tokens and .* logprobs"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_whatever_reads_a_damaged_trajectory_refuses_it(
    reader: Callable[[Trajectory], Any], damage: Callable[[Trajectory], Trajectory], message: str
) -> None:
    with pytest.raises((InvalidRecord, UndeclaredBreak), match=message):
        reader(damage(copy_of(delegated())))


@pytest.mark.parametrize("trajectory", [delegated(), played()], ids=lambda trajectory: trajectory.env)
def test_every_context_is_in_exactly_one_atif_document(trajectory: Trajectory) -> None:
    def ids(document: dict[str, Any]) -> Iterator[str]:
        yield document["trajectory_id"]
        for child in document.get("subagent_trajectories", ()):
            yield from ids(child)

    found = [name for document in to_atif(trajectory) for name in ids(document)]
    assert sorted(found) == sorted(f"{trajectory.id}/{name}" for name in trajectory.contexts)


@pytest.mark.parametrize("use", [Trajectory.samples, lambda t, loss: tree_batch(t, loss=loss)], ids=["samples", "tree"])
def test_an_unknown_loss_rule_is_refused_with_those_that_are_like_it(use: Callable[..., Any]) -> None:
    with pytest.raises(UnknownName, match=r"No loss rule is named 'laststep'\. Did you mean 'last_step'\?"):
        use(stripped(), "laststep")
    for loss in (None, 5, ["all"]):
        with pytest.raises(ConfigError, match="or a function of a Step"):
            use(stripped(), loss)


# Full disks.


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel writes no file beyond that many bytes, as on a disk with that much space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def lines(*trajectories: Trajectory) -> int:
    return sum(len(trajectory.to_json()) + 1 for trajectory in trajectories)


@pytest.mark.parametrize("fits", [0, 1, 2])
def test_a_disk_that_fills_up_keeps_every_record_that_was_whole(tmp_path: Path, fits: int) -> None:
    path, trajectories = tmp_path / "t.jsonl", [kept(), stripped(), delegated()]
    path.write_bytes(b"what was there\n")
    with (
        files_of_at_most(lines(*trajectories[:fits]) + 1000),
        pytest.raises(StorageError, match="File too large") as seen,
    ):
        write_jsonl(path, trajectories)
    assert isinstance(seen.value, OSError)
    unfinished = tmp_path / "t.jsonl.unfinished"
    assert (f"The first {fits} records are in {str(unfinished)!r}" in str(seen.value)) == bool(fits)
    assert [found.id for found in read_jsonl(unfinished, Trajectory)] == [t.id for t in trajectories[:fits]]
    assert path.read_bytes() == b"what was there\n"


def test_a_device_without_space_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.unfinished").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"t\.jsonl' cannot be written: No space left on device"):
        write_jsonl(tmp_path / "t.jsonl", [kept()])


def not_there(tmp_path: Path) -> Sequence[Path]:
    (tmp_path / "folder").mkdir()
    return Path("/proc/t.jsonl"), tmp_path / "nowhere" / "t.jsonl", tmp_path / "folder"


def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    for path in not_there(tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            write_jsonl(path, [kept()])
