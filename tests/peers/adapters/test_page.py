"""The page about adapters, all of it, with the real packages."""

from pathlib import Path

import pytest
from adapters import page


def test_the_code_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (server,) = page.other_files()
    Path("notes_server.py").write_text(server)
    page.run()
