"""The folder of versions: `make docs-version`."""

import json
from pathlib import Path

import pytest
from documentation.versions import add_version


def site(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "index.html").write_text(text)
    return folder


def test_the_newest_version_is_the_latest_in_whatever_order_they_are_added(tmp_path: Path):
    target = tmp_path / "versions"
    for version in ("0.9", "0.10", "0.2.1"):
        add_version(version, target, site(tmp_path / version, version))
    listed = json.loads((target / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == ["0.10", "0.9", "0.2.1"]
    assert [entry["aliases"] for entry in listed] == [["latest"], [], []]
    assert (target / "latest" / "index.html").read_text() == "0.10"
    assert (target / "0.9" / "index.html").read_text() == "0.9"
    assert "latest/" in (target / "index.html").read_text()


@pytest.mark.parametrize("version", ["", "latest", "0.3rc1", "../0.3", "0..3", "٣"])
def test_a_version_that_is_not_made_of_numbers_is_refused_and_changes_nothing(version: str, tmp_path: Path):
    with pytest.raises(ValueError, match="expected numbers with dots"):
        add_version(version, tmp_path / "versions", site(tmp_path / "site", "text"))
    assert not (tmp_path / "versions").exists()


def test_adding_a_version_again_replaces_it(tmp_path: Path):
    target = tmp_path / "versions"
    add_version("0.3", target, site(tmp_path / "old", "old"))
    add_version("0.3", target, site(tmp_path / "new", "new"))
    assert (target / "0.3" / "index.html").read_text() == (target / "latest" / "index.html").read_text() == "new"
    assert len(json.loads((target / "versions.json").read_text())) == 1
