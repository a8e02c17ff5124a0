"""Stored samples, as far as it needs neither pyarrow nor datasets; the rest is in tests/peers/datasets."""

import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainers.episodes import copy_of, kept

from envsdk import Sample
from envsdk.errors import InvalidRecord, InvalidSample
from envsdk.trainers.tables import read_parquet, to_dataset, write_parquet
from envsdk.trajectories.records import write_jsonl


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for use in (
        lambda: write_parquet(tmp_path / "a.parquet", kept().samples()),
        lambda: list(read_parquet(tmp_path / "a.parquet")),
    ):
        with pytest.raises(ImportError, match="need pyarrow, which is not installed: pip install pyarrow"):
            use()
    with pytest.raises(ImportError, match="need datasets, which is not installed"):
        to_dataset(kept().samples())
    assert list(tmp_path.iterdir()) == []


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["arrays", "values", "aligned", "ragged", "a"]), inner)
    ),
    max_leaves=6,
)
LINE = json.loads(kept().samples()[0].to_json())


@given(name=st.sampled_from([*LINE]), value=ANYTHING)
def test_a_line_with_anything_in_a_field_is_a_sound_sample_or_refused(name: str, value: Any):
    with suppress(InvalidRecord, InvalidSample):
        Sample.from_json(json.dumps({**LINE, name: value})).validate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", [2**40]),
        ("tokens", [1.5, 2.0]),
        ("tokens", ["1"]),
        ("mask", [0, 1]),
        ("extra", [1]),
        ("breaks", None),
    ],
)
def test_what_an_array_does_not_hold_is_no_sample_and_never_another_value(name: str, value: Any):
    with pytest.raises(InvalidRecord, match="the sample is damaged"):
        Sample.from_json(json.dumps({**LINE, name: value}))


@pytest.mark.parametrize("line", [b"", b"[" * 99999, b"\xff", None, 5, b"[]"])
def test_what_is_no_line_of_json_is_refused(line: Any):
    with pytest.raises(InvalidRecord):
        Sample.from_json(line)


@pytest.mark.parametrize("value", [{(1, 2): 3}, ["\ud800"]], ids=["a tuple as key", "half a letter"])
def test_a_line_that_cannot_be_written_is_named_and_leaves_nothing_behind(tmp_path: Path, value: Any):
    samples = [kept().samples()[0], copy_of(kept().samples()[0])]
    samples[1].metadata["value"] = value
    with pytest.raises(InvalidRecord, match=r"^record 1: .* cannot be written"):
        write_jsonl(tmp_path / "samples.jsonl", samples)
    with pytest.raises(ConnectionError):
        write_jsonl(tmp_path / "samples.jsonl", (raised(ConnectionError()) for _ in samples))
    assert list(tmp_path.iterdir()) == []


def raised(error: Exception) -> Any:
    raise error
