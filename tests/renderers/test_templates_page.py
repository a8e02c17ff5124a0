"""The code of docs/templates.md runs, with a real tokenizer in the folder that it names."""

from pathlib import Path
from typing import Any

import pytest
from documents import CHECKOUT, code_of
from envsdk_environments._calculator import Calculator
from real_models import qwen3_folder

PAGE = CHECKOUT / "docs" / "templates.md"


def test_the_code_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "path" / "to" / "a").mkdir(parents=True)
    (tmp_path / "path" / "to" / "a" / "model").symlink_to(qwen3_folder())
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"MyEnv": Calculator, "tools": Calculator(tokenizer="embedded").tools}
    for block in code_of(PAGE):
        exec(compile(block, str(PAGE), "exec"), scope)
    assert scope["env"].renderer.name == scope["renderer"].name == "fixed_base"
