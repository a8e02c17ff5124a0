"""The page about trees shows what `make test-gpu` measured last."""

import json

import pytest
from gpu import run

ROW = {
    "steps": 16,
    "dtype": "bfloat16",
    "way": "runs",
    "tokens": 2590,
    "seconds": 0.12345,
    "peak_gib": 3.5,
    "logprob_difference": 0.0004,
    "gradient_difference": None,
    "problem": None,
}
TRAINER = {"steps": 16, "seconds": [1.0, 2.0], "sampled_tokens": 1000}
FOUND = {
    "day": "2030-01-01",
    "commit": "abc",
    "device": "A GPU",
    "versions": {"torch": "9.9"},
    "rows": [ROW, ROW | {"way": "flex", "seconds": None, "problem": "OutOfMemoryError: 80 | 81"}],
    "trainer": TRAINER,
}


def test_the_page_has_the_table_of_the_stored_run() -> None:
    text = run.PAGE.read_text(encoding="utf-8")
    assert run.replaced(text) == text, "run `make test-gpu`"


def test_a_run_becomes_a_table_that_names_the_machine_and_what_failed(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path / "gpu.json")
    run.RESULTS.write_text(json.dumps(FOUND))
    lines = run.replaced(run.PAGE.read_text(encoding="utf-8")).splitlines()
    assert "Measured on 2030-01-01 at commit abc: torch 9.9, GPU A GPU." in lines
    assert "| 16 | bfloat16 | runs | 2590 | 0.123 | 3.5 | 0.0004 |  |" in lines
    assert sum(line.endswith("OutOfMemoryError: 80 / 81 |") for line in lines) == 1
    assert any("1, 2 seconds, with all 1,000 sampled tokens" in line for line in lines)
