"""`envsdk import`, as a user types it."""

import json
from pathlib import Path
from typing import Any

import pytest
from gateway.test_imports import exchange, said
from trainers.episodes import delegated, kept
from typer.testing import CliRunner

from envsdk import Sample, Trajectory
from envsdk.cli import app
from envsdk.errors import EnvsdkError
from envsdk.rollouts._stored_run import StoredRun
from envsdk.trainers.atif import to_atif
from envsdk.trajectories.records import read_jsonl

MODEL = ("--renderer", "qwen3", "--tokenizer", "embedded")


def run(file: Path, format: str, out: Path, *more: object) -> str:
    arguments = ["import", file, "--format", format, *MODEL, "--out", out, *more]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def write(path: Path, *lines: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_document_becomes_a_run_folder(tmp_path: Path):
    original = delegated()
    printed = run(write(tmp_path / "trial.json", *to_atif(original)), "atif", tmp_path / "run")
    stored = StoredRun(tmp_path / "run")
    (trajectory,) = stored.trajectories()
    assert stored.manifest is not None and stored.manifest.is_complete
    assert trajectory.id == original.id and stored.tokenizer_of(trajectory) == stored.tokenizer
    samples = list(read_jsonl(tmp_path / "run" / "samples.jsonl", Sample))
    assert [sample.tokens.tolist() for sample in samples] == [sample.tokens.tolist() for sample in original.samples()]
    assert f"trained: {original.sampled_tokens} tokens in {len(samples)} samples" in printed
    assert "notes" not in printed and "wrote 1 trajectories" in printed


def test_each_document_in_a_folder_is_an_episode_with_the_name_of_its_file(tmp_path: Path):
    for name in ("b", "a"):
        write(tmp_path / "job" / name / "trajectory.json", *to_atif(kept()))
    write(tmp_path / "job" / "a" / "result.json", {"reward": 1})
    run(tmp_path / "job", "atif", tmp_path / "run")
    assert [one.id for one in StoredRun(tmp_path / "run").trajectories()] == ["a/trajectory", "b/trajectory"]


def test_each_session_of_logged_requests_is_an_episode_and_what_is_missing_is_printed(tmp_path: Path):
    first, other = [said("user", "Name a color.")], [said("user", "Name a city.")]
    without = exchange([*first, said("assistant", "Red"), said("user", "Another.")], "Blue", [1, 2, 3, 9], [4])
    del without["response"]["prompt_token_ids"]
    file = write(
        tmp_path / "proxy.jsonl",
        exchange(first, "Red", [1, 2], [3], session="one"),
        exchange(other, "Bonn", [7, 8], [6], session="two"),
        {**without, "session": "one"},
    )
    printed = run(file, "requests", tmp_path / "run", "--reward", 0.5)
    trajectories = list(StoredRun(tmp_path / "run").trajectories())
    assert [(one.id, len(one.steps), one.reward) for one in trajectories] == [
        ("proxy/one", 1, 0.5),
        ("proxy/two", 1, 0.5),
    ]
    (supervised,) = read_jsonl(tmp_path / "run" / "sft.jsonl", Sample)
    assert supervised.logprobs is None and supervised.mask.any()
    assert "trained: 2 tokens in 2 samples" in printed
    assert f"supervised only: {supervised.mask.sum()} tokens in 1 samples" in printed
    assert "notes: 1 no_ids" in printed
    assert "proxy/one: record 1: record 1.response.prompt_token_ids are missing" in printed
    figures = json.loads(run(file, "requests", tmp_path / "other", "--json"))
    assert (figures["trained_tokens"], figures["sft_samples"], figures["samples"]) == (2, 1, 2)
    assert [(note["id"], note["kind"]) for note in figures["notes"]] == [("proxy/one", "no_ids")]


@pytest.mark.parametrize(
    ("format", "name", "text", "message"),
    [
        ("requests", "log.jsonl", "{}\n{", "log.jsonl, line 2: not JSON"),
        ("requests", "log.jsonl", "\n", "log.jsonl' has nothing to import: expected a .jsonl file"),
        ("requests", "log.jsonl", '{"session": "s", "request": 5}', r"log.jsonl, session 's': record 0\.request is 5"),
        ("atif", "log.json", "{}", r"log.json: document\.schema_version is missing"),
        ("atif", "absent.json", None, "absent.json' cannot be read"),
        ("atif", "", None, "has nothing to import: expected a .json file"),
    ],
)
def test_an_error_names_the_file_and_leaves_no_folder(
    tmp_path: Path, format: str, name: str, text: str | None, message: str
):
    file = tmp_path / "logs" / name
    (tmp_path / "logs").mkdir()
    if text is not None:
        file.write_text(text)
    with pytest.raises(EnvsdkError, match=message) as caught:
        run(file, format, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_import_does_not_write_into_another_run(tmp_path: Path):
    file = write(tmp_path / "trial.json", *to_atif(kept()))
    run(file, "atif", tmp_path / "run")
    with pytest.raises(EnvsdkError, match="holds trajectories of this run already"):
        run(file, "atif", tmp_path / "run")
    assert len(list(read_jsonl(tmp_path / "run" / "trajectories.jsonl", Trajectory))) == 1
