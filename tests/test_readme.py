"""The README's code runs as it is, as a program and in a notebook."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from documents import CHECKOUT, code_of, run_code_of
from nbclient import NotebookClient

from envsdk import Message, ToolCall

README = CHECKOUT / "README.md"


def test_the_readmes_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope = run_code_of(README)
    assert len(scope["samples"]) == 1
    assert all(trajectory.reward == 1.0 for trajectory in scope["many"])
    answer_after_a_call(scope["Shop"]())


def test_the_readmes_examples_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    cells = [nbformat.v4.new_code_cell(block) for block in code_of(README)]
    last = "assert len(samples) == 1 and all(trajectory.reward == 1.0 for trajectory in many)"
    notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(last)])
    NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}, timeout=60
    ).execute()


def answer_after_a_call(env: Any) -> None:
    env.reset(seed=0)
    call = ToolCall(name="price", arguments={"item": env.item})
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=(call,))))
    price = env.messages()[-1].content
    _, reward, terminated, _, _ = env.step(env.renderer.reply(Message(role="assistant", content=f"It costs {price}.")))
    assert (reward, terminated) == (1.0, True)
