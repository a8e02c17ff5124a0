"""Finding the interpreters that `make test-versions` runs the tests with."""

import os
import sys
from pathlib import Path

import pytest
import versions

MINE = f"{sys.version_info.major}.{sys.version_info.minor}"


def script(folder: Path, text: str) -> None:
    folder.mkdir()
    file = folder / f"python{MINE}"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture(autouse=True)
def _no_version_managers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def test_a_link_that_starts_nothing_and_another_version_are_passed_over(tmp_path: Path):
    script(tmp_path / "broken", "echo 'command not found' >&2; exit 127")
    script(tmp_path / "other", "echo 2.7 /usr/bin/python2.7")
    script(tmp_path / "good", f'exec {sys.executable} "$@"')
    path = os.pathsep.join(str(tmp_path / name) for name in ("missing", "broken", "other", "good"))
    found = versions.find(MINE, path)
    assert found
    assert Path(found).samefile(sys.executable)
    assert versions.find(MINE, str(tmp_path / "broken")) is None


@pytest.mark.parametrize(("manager", "answer"), [("uv", sys.executable), ("pyenv", sys.base_prefix)])
def test_version_managers_are_asked_where_the_path_has_none(
    manager: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / manager).write_text(f"#!/bin/sh\necho {answer}\n")
    (tmp_path / manager).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = versions.find(MINE, "")
    assert found
    assert Path(found).samefile(sys.executable)


def test_the_supported_versions_are_those_of_the_project_file():
    assert MINE in versions.supported()
    assert all(version.startswith("3.") for version in versions.supported())
