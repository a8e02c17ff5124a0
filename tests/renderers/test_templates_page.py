"""The code of docs/templates.md runs, with a small tokenizer and a real template in the folder that it names."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import real_models
from documents import CHECKOUT, code_of
from envsdk_environments._calculator import Calculator

from envsdk.rendering.tokenizers._files import DATA

PAGE = CHECKOUT / "docs" / "templates.md"


def test_the_code_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = tmp_path / "path" / "to" / "a" / "model"
    model.mkdir(parents=True)
    shutil.copy(DATA / "embedded.json", model / "tokenizer.json")
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (model / "chat_template.jinja").write_text(real_models.template("qwen3"))
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"MyEnv": Calculator, "tools": Calculator(tokenizer="embedded").tools}
    for block in code_of(PAGE):
        exec(compile(block, str(PAGE), "exec"), scope)
    assert scope["env"].renderer.name == scope["renderer"].name == "fixed_base"
