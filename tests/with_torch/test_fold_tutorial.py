"""docs/tutorials/learn-to-fold.md shows examples/learn_to_fold.py, and prints what it says."""

import runpy

import pytest
from documents import CHECKOUT, blocks_of
from example_programs import EXAMPLES

pytest.importorskip("torch.nn")
BLOCKS = blocks_of(CHECKOUT / "docs" / "tutorials" / "learn-to-fold.md")
EXAMPLE = EXAMPLES / "learn_to_fold.py"
RULES, *SHOWN = sorted(
    (block.code for block in BLOCKS if block.language == "python"), key=lambda c: "share in" not in c
)
RULES_PRINT, EXAMPLE_PRINTS = (block.code for block in BLOCKS if block.language == "text")


def test_the_page_shows_the_code_of_the_example() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    assert len(SHOWN) == 3
    for code in SHOWN:
        assert code.strip() in source


def test_the_rules_of_the_page_earn_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(RULES, runpy.run_path(str(EXAMPLE)))
    assert capsys.readouterr().out.strip() == RULES_PRINT.strip()


def test_the_model_of_the_page_learns_when_to_fold(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.strip() == EXAMPLE_PRINTS.strip()
