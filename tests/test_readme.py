"""The README's code runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_readmes_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 6
    scope: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), scope)
    assert len(scope["samples"]) == 1
    assert all(trajectory.reward == 1.0 for trajectory in scope["many"])


def test_the_readmes_commands_are_make_targets() -> None:
    text = README.read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", (README.parent / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"demo", "test", "lint", "bench"} <= targets
    assert set(re.findall(r"`?make (\w+)`?", text)) <= targets
