"""The README's code runs as it stands."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from envsdk import Env, Message

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_readmes_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 17
    scope: dict[str, object] = {"__name__": "readme"}
    for block in BLOCKS:
        exec(compile(block, str(README), "exec"), scope)
    assert len(scope["samples"]) == 1
    assert all(trajectory.reward == 1.0 for trajectory in scope["many"])
    answer_after_a_call(scope["Shop"]())
    think_once_more(scope["Careful"]())


def test_the_readmes_examples_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    cells = [nbformat.v4.new_code_cell(block) for block in BLOCKS]
    last = "assert len(samples) == 1 and all(trajectory.reward == 1.0 for trajectory in many)"
    notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(last)])
    NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}, timeout=60
    ).execute()


def answer_after_a_call(env: Env) -> None:
    env.reset(seed=0)
    call = {"name": "price", "arguments": {"item": env.item}}
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=[call])))
    price = env.messages()[-1].content
    _, reward, terminated, _, _ = env.step(env.renderer.reply(Message(role="assistant", content=f"It costs {price}.")))
    assert (reward, terminated) == (1.0, True)


def think_once_more(env: Env) -> None:
    env.reset(seed=0)
    env.step(env.renderer.tokenizer.encode(" It is 3."))
    tokenizer = env.renderer.tokenizer
    closed = [tokenizer.token_id("</think>"), *tokenizer.encode("\n\n7"), env.renderer.stop_token_ids[0]]
    env.step([*tokenizer.encode(" No."), *closed])
    reply = next(message for message in env.messages() if message.role == "assistant")
    assert reply.reasoning == "Let me think. It is 3. Wait, let me check that. No."


def test_the_readmes_commands_are_make_targets() -> None:
    text = README.read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", (README.parent / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"demo", "test", "lint", "bench"} <= targets
    assert set(re.findall(r"`?make (\w+)`?", text)) <= targets
