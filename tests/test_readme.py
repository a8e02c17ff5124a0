"""The README's code runs as it is in a notebook; `test_code_blocks.py` runs it as a program.

A short run has another notebook: `tests/viewer/test_notebook.py`.
"""

from pathlib import Path

import nbformat
import pytest
from documents import CHECKOUT, code_of
from nbclient import NotebookClient

README = CHECKOUT / "README.md"


@pytest.mark.full
def test_the_readmes_examples_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    cells = [nbformat.v4.new_code_cell(block) for block in code_of(README)]
    last = "assert len(samples) == 1 and len(tree) < tree.tokens_separate"
    notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(last)])
    NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}, timeout=600
    ).execute()


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
