"""Samples as Parquet and as data sets, written and read by the real packages."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet
import pytest
from core.test_tree import trajectories
from hypothesis import given
from hypothesis import strategies as st
from trainers.episodes import all_kinds, copy_of, kept, refuses_every_defect, run_page, stripped

from envsdk import Sample, Trajectory
from envsdk._visible import type_of
from envsdk.errors import InvalidRecord, InvalidSample, StorageError
from envsdk.policies import Aligned, Ragged
from envsdk.trainers.foreign import from_steps
from envsdk.trainers.tables import from_row, read_parquet, to_dataset, write_parquet


def every_kind() -> list[Sample]:
    samples = [copy_of(sample) for trajectory in all_kinds() for sample in trajectory.samples()]
    for index, sample in enumerate(samples):
        sample.metadata["index"] = index
        sample.group_id = "g" if index % 2 else None
        if index % 3 == 0:
            sample.advantage = np.where(sample.mask, np.float32(index), np.float32(0))
        if index % 3 == 1:
            sample.extra = {
                "experts": np.arange(2 * len(sample), dtype=np.int16).reshape(-1, 2),
                "request": ["a", *[None] * (len(sample.temperature) - 1)],
                "routed_experts": Aligned(np.arange(len(sample), dtype=np.uint8)[:, None, None], "all", 255),
                "sampling_mask": Ragged.of([[token] * (token % 3) for token in sample.tokens]),
            }
        if index % 5 == 1:
            sample.reference_logprobs = np.where(sample.mask, np.float32(-0.5), np.float32(0))
            sample.stream_weights = {"rl": sample.mask.astype(np.float32), "ce": np.zeros(len(sample), np.float32)}
        if index % 4 == 3:
            sample.logprobs = None
    return samples


def are_equal(found: Iterable[Sample], given: Iterable[Sample]) -> int:
    count = 0
    for one, other in itertools.zip_longest(found, given):
        assert one.to_json() == other.to_json()
        for field in fields(Sample):
            assert type(getattr(one, field.name)) is type(getattr(other, field.name)), field.name
        count += 1
    return count


def test_parquet_gives_back_what_it_was_given(tmp_path: Path, compared: Counter[str]):
    samples = every_kind()
    assert write_parquet(tmp_path / "samples.parquet", iter(samples)) == len(samples)
    compared["samples"] += are_equal(read_parquet(tmp_path / "samples.parquet"), samples)
    assert [file.name for file in tmp_path.iterdir()] == ["samples.parquet"]


def test_a_table_has_columns_that_others_can_read(tmp_path: Path):
    write_parquet(tmp_path / "samples.parquet", every_kind())
    table = pyarrow.parquet.read_table(tmp_path / "samples.parquet")
    assert [str(table.schema.field(name).type) for name in ("tokens", "mask", "logprobs", "reward", "role")] == [
        "list<element: int32>",
        "list<element: bool>",
        "list<element: float>",
        "double",
        "string",
    ]
    assert table.column("tokens")[0].as_py() == every_kind()[0].tokens.tolist()


def test_an_advantage_for_a_whole_sample_is_there_for_each_token(tmp_path: Path):
    (sample,) = map(copy_of, kept().samples())
    sample.advantage = 0.25
    write_parquet(tmp_path / "samples.parquet", [sample])
    (again,) = read_parquet(tmp_path / "samples.parquet")
    assert again.advantage.tolist() == [0.25] * len(sample)


def test_many_samples_are_written_and_read_group_by_group(tmp_path: Path, compared: Counter[str]):
    samples = [sample for _ in range(400) for sample in stripped().samples()]
    assert write_parquet(tmp_path / "samples.parquet", samples) == 2400
    assert pyarrow.parquet.ParquetFile(tmp_path / "samples.parquet").num_row_groups == 3
    compared["samples"] += are_equal(read_parquet(tmp_path / "samples.parquet"), samples)


def test_no_samples_are_a_table_without_rows(tmp_path: Path):
    assert write_parquet(tmp_path / "none.parquet", []) == 0
    assert list(read_parquet(tmp_path / "none.parquet")) == []
    assert len(to_dataset([])) == 0


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path):
    file = tmp_path / "samples.parquet"
    write_parquet(file, kept().samples())
    before = file.read_bytes()
    spoiled = copy_of(kept().samples()[0])
    spoiled.mask[:] = False
    with pytest.raises(InvalidSample, match="no token is trained"):
        write_parquet(file, [*kept().samples(), spoiled])
    assert file.read_bytes() == before


def test_a_data_set_gives_back_what_it_was_given(tmp_path: Path, compared: Counter[str]):
    samples = every_kind()
    dataset = to_dataset(samples)
    assert isinstance(dataset, datasets.Dataset) and len(dataset) == len(samples)
    compared["samples"] += are_equal(map(from_row, dataset), samples)
    dataset.save_to_disk(tmp_path / "saved")
    compared["samples"] += are_equal(map(from_row, datasets.load_from_disk(tmp_path / "saved")), samples)
    short = dataset.map(lambda row: {"length": len(row["tokens"])}).filter(lambda row: row["length"] < 100)
    assert len(short) == sum(len(sample) < 100 for sample in samples) > 0
    rows = dataset.with_format("numpy")
    compared["samples"] += are_equal([from_row(rows[0])], samples[:1])


@given(trajectory=trajectories())
def test_samples_of_any_trajectory_survive(trajectory: Trajectory):
    samples = trajectory.samples(include_failed=True)
    are_equal(map(from_row, to_dataset(samples)), samples)


def test_what_is_not_sound_is_neither_written_nor_read(tmp_path: Path):
    refuses_every_defect(to_dataset)
    refuses_every_defect(lambda samples: write_parquet(tmp_path / "samples.parquet", samples))
    row: dict[str, Any] = to_dataset(kept().samples())[0]
    for column, value in (("mask", row["mask"][:-1]), ("logprobs", [0.5] * len(row["mask"])), ("reward", float("inf"))):
        with pytest.raises((InvalidSample, InvalidRecord)):
            from_row({**row, column: value})


def test_another_table_is_refused():
    row: dict[str, Any] = to_dataset(kept().samples())[0]
    with pytest.raises(InvalidRecord, match="the row has no step_ids, tokens"):
        from_row({name: value for name, value in row.items() if name not in ("tokens", "step_ids")})
    with pytest.raises(InvalidRecord, match="schema version 99; this version of envsdk reads 2"):
        from_row({**row, "schema": 99})


@pytest.mark.parametrize("kind", ["empty", "text", "cut off", "a folder", "another table", "a list of texts"])
def test_a_file_that_is_no_table_of_samples_is_named(tmp_path: Path, kind: str):
    file = tmp_path / "given.parquet"
    write_parquet(file, every_kind())
    if kind == "a folder":
        file = tmp_path
    elif kind in ("another table", "a list of texts"):
        column = [1, 2] if kind == "another table" else [["a"], ["b"]]
        pyarrow.parquet.write_table(pyarrow.table({"tokens": column}), file)
    else:
        file.write_bytes({"empty": b"", "text": b"tokens,mask\n1,0\n"}.get(kind, file.read_bytes()[:-100]))
    with pytest.raises(InvalidRecord, match=f"^{file}"):
        list(read_parquet(file))


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        list(read_parquet(tmp_path / "none.parquet"))
    with pytest.raises(StorageError, match="No such file or directory"):
        write_parquet(tmp_path / "none" / "samples.parquet", kept().samples())


def test_no_damaged_file_gives_other_values_without_an_error(tmp_path: Path, compared: Counter[str]):
    samples = [*stripped().samples(), *all_kinds()[3].samples()]
    for sample in samples:
        sample.advantage = np.where(sample.mask, np.float32(0.5), np.float32(0))
    write_parquet(tmp_path / "sound.parquet", samples)
    sound, lines, rng = (tmp_path / "sound.parquet").read_bytes(), [one.to_json() for one in samples], Random(0)
    file = tmp_path / "damaged.parquet"
    for number in range(60):
        damaged = bytearray(sound)
        for _ in range(1 + number % 3):
            damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
        file.write_bytes(damaged)
        try:
            assert [one.to_json() for one in read_parquet(file)] == lines
            compared["harmless"] += 1
        except (InvalidRecord, InvalidSample) as error:
            assert str(error).startswith(str(file))
            compared["refused"] += 1
    assert compared["refused"] > 20


def test_a_file_whose_page_seems_to_have_no_rows_is_refused(tmp_path: Path):
    file = tmp_path / "samples.parquet"
    write_parquet(file, kept().samples())
    sound, lost = file.read_bytes(), 0
    for at in range(len(sound)):
        if sound[at : at + 3] == b"\x15\x00\x15":  # the type of a page, which no checksum covers
            file.write_bytes(sound[: at + 1] + b"\x02" + sound[at + 2 :])
            try:
                assert [one.to_json() for one in read_parquet(file)] == [kept().samples()[0].to_json()]
            except InvalidRecord as error:
                lost += "0 of its 1 rows can be read" in str(error)
    assert lost


UNWRITABLE: dict[str, Callable[[Sample], Any]] = {
    "half a letter in a text": lambda sample: setattr(sample, "stop_reason", "\ud800"),
    "half a letter in metadata": lambda sample: sample.metadata.update(task="\ud800"),
    "half a letter in extra": lambda sample: sample.extra.update(request=["\ud800"]),
    "a key that is a tuple": lambda sample: sample.metadata.update(scores={(1, 2): 3}),
    "a value that holds itself": lambda sample: sample.metadata.update(itself=sample.metadata),
    "a segment that no column holds": lambda sample: setattr(sample, "segment_index", 2**40),
    "a group that is a number": lambda sample: setattr(sample, "group_id", 5),
    "no break": lambda sample: sample.breaks.append({1}),
}


@pytest.mark.parametrize("spoil", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_cannot_be_written_is_named_and_leaves_nothing_behind(tmp_path: Path, spoil: Callable[[Sample], Any]):
    (short,) = from_steps([([1], [2], [-1.0])], id="short").samples()
    samples = [*[short] * 1003, copy_of(short)]
    spoil(samples[1003])
    for write in (partial(write_parquet, tmp_path / "samples.parquet"), to_dataset):
        with pytest.raises(InvalidSample, match=r"^sample 1003, of trajectory 'short'"):
            write(samples)
    assert list(tmp_path.iterdir()) == []


def test_samples_that_stop_coming_leave_nothing_behind(tmp_path: Path):
    def stops() -> Iterator[Sample]:
        yield from kept().samples()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write_parquet(tmp_path / "samples.parquet", stops())
    assert list(tmp_path.iterdir()) == []


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40), st.text(max_size=2)), max_size=3),
    st.sampled_from(["[]", "{}", "[1]", '{"arrays": 1}', '{"arrays": {"a": {}}, "values": {}}', "[{}]", "[" * 99999]),
)


ROW: dict[str, Any] = to_dataset(kept().samples())[0]


@given(column=st.sampled_from([*ROW]), value=VALUES)
def test_a_row_with_anything_in_a_column_is_a_sound_sample_or_refused(column: str, value: Any):
    with suppress(InvalidRecord, InvalidSample):
        from_row({**ROW, column: value}).validate()


def test_what_is_no_row_is_refused():
    for value in (None, [], "row"):
        with pytest.raises(InvalidRecord, match=f"the row is {type_of(value)}"):
            from_row(value)  # type: ignore[arg-type]


def test_the_code_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page("tables")


def test_tables_have_what_hugging_face_trainers_read_on_request(tmp_path: Path):
    samples = stripped().samples()
    longest = max(map(len, samples))
    dataset = to_dataset(samples, max_length=longest + 3, pad_token_id=9)
    write_parquet(tmp_path / "samples.parquet", samples, max_length=longest + 3, pad_token_id=9)
    rows = pyarrow.parquet.read_table(tmp_path / "samples.parquet").to_pylist()
    for found, row, sample in zip(dataset, rows, samples, strict=True):
        padding = longest + 3 - len(sample)
        assert found["input_ids"] == row["input_ids"] == [*sample.tokens.tolist(), *[9] * padding]
        expected = [int(token) if trained else -100 for token, trained in zip(sample.tokens, sample.mask, strict=True)]
        assert found["labels"] == row["labels"] == [*expected, *[-100] * padding]
        assert found["attention_mask"] == row["attention_mask"] == [1] * len(sample) + [0] * padding
    are_equal(read_parquet(tmp_path / "samples.parquet"), samples)
    with pytest.raises(InvalidSample, match=f"but max_length is {longest - 1}: .*truncate=True"):
        to_dataset(samples, max_length=longest - 1)
    assert {len(row["labels"]) for row in to_dataset(samples, max_length=4, truncate=True)} == {4}
