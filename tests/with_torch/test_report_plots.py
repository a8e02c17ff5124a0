"""The plots of a report, drawn by matplotlib."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_runs import HOSTILE, episode, episodes

from envsdk.trajectories.records import write_jsonl
from envsdk.viewer.reporting import report, write_plots


def test_each_plot_is_a_png_and_an_svg(tmp_path: Path):
    for name, shift in (("a", 0.0), ("b", 0.25)):
        (tmp_path / name).mkdir()
        made = episodes([[shift], [0.5 + shift], ["Oops: no"]])
        write_jsonl(tmp_path / name / "trajectories.jsonl", made)
    found = report(tmp_path / "a", tmp_path / "b")
    written = write_plots(found, tmp_path / "plots")
    assert {path.stem for path in written} == {"rewards", "lengths", "endings", "cost", "comparison-2"}
    for path in written:
        data = path.read_bytes()
        assert (
            data.startswith(b"\x89PNG") if path.suffix == ".png" else ElementTree.fromstring(data).tag.endswith("svg")
        )
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in write_plots(found, tmp_path / "plots")] == before


@pytest.mark.parametrize("rewards", [[], [["Oops: no"]], [[0.5]], [[None]]], ids=["empty", "failed", "one", "none"])
def test_a_run_without_figures_has_fewer_plots(tmp_path: Path, rewards: list):
    write_jsonl(tmp_path / "trajectories.jsonl", episodes(rewards))
    names = {path.stem for path in write_plots(report(tmp_path), tmp_path / "plots")}
    assert ("rewards" in names) == (rewards == [[0.5]])


def test_hostile_names_are_text_in_a_plot(tmp_path: Path):
    made = [
        replace(episode(f"t{number}", 0, float(number)), history={"name": text.encode("utf-8", "replace").decode()})
        for number, text in enumerate(HOSTILE)
    ]
    folder = tmp_path / "$\\frac{1}{0}$ _run"
    folder.mkdir()
    write_jsonl(folder / "trajectories.jsonl", made)
    assert write_plots(report(folder, folder), tmp_path / "plots")
