"""The programs in examples/ run; those that need torch are run by tests/with_torch, those of frameworks by peers."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from documents import CHECKOUT
from example_programs import EXAMPLES

from envsdk.errors import SandboxUnavailable
from envsdk.sandbox import check_isolation

INDEX = (CHECKOUT / "examples" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("own_loop", "sample 1 of 1"),
        ("best_of_n", "best: "),
        ("agent_openai", "reward 1, 2 requests, 1 sample"),
        ("agent_anthropic", "reward 1, 2 requests, 1 sample"),
        ("first_environment", "terminated, reward 1.2: [{'reward': 0.0}, {'solved': 1.0, 'early': 0.2}]"),
        ("sandbox_tool", "reward 1 after 3 steps"),
        ("sub_agents", "the editor saw: 'bees: 40000\\nants: 250000'"),
        ("self_play", "baselines for the next batch: {'first': 0.34, 'second': -0.34}"),
        ("custom_history", "  edit, results of tools: kept 329 tokens, dropped 69"),
        ("read_stream", "the message: 'One moment.' with 1 call"),
        ("sample_tokens", "between them, thinking_stripped kept 28 tokens and dropped 38"),
        pytest.param("compare_policies", "lapses 0.1: reward 0.81 +- 0.05, pass@4 1.00", marks=pytest.mark.full),
        ("context_tools", "all          1.00"),
        ("resume_run", "finished: 12 episodes, each once: True, kept: True"),
    ],
)
def test_an_example_prints_what_it_teaches(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "sandbox_tool":
        try:
            check_isolation("auto")
        except SandboxUnavailable as error:
            pytest.skip(f"programs cannot be isolated here: {error}")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert part in capsys.readouterr().out


def test_the_index_lists_every_example_once() -> None:
    listed = re.findall(r"^\| `(\w+\.py)` \|", INDEX, flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_an_example_has_less_than_a_hundred_lines() -> None:
    short, _, long = INDEX.partition("## Longer programs")
    for path in EXAMPLES.glob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert f"`{path.name}`" in (short if lines < 100 else long), f"{path.name} has {lines} lines"
