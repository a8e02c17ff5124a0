"""The documents are true where a program can tell: their code runs, and what they refer to is there."""

import re
from pathlib import Path

import pytest
from documents import CHECKOUT, PAGES, anchors_of, code_of, name_of, prose_of, run_code_of
from markdown_it import MarkdownIt

# The others name packages that are not installed here, have tests of their own (tests/trainers, tests/adapters), or
# print something, which tests/test_code_blocks.py compares.
RUNNABLE = [
    "CONTRIBUTING.md",
    "docs/trainers/trl.md",
    *(f"docs/how-to/{name}.md" for name in ("scale", "servers", "tasks")),
    *(f"docs/{name}.md" for name in ("agents", "environments", "forgetting", "images", "programs", "renderers")),
    *(f"docs/{name}.md" for name in ("rollouts", "samples", "sub-agents", "trainers/trl", "viewer")),
]
TARGET = re.compile(r"^(\w[\w-]*):", flags=re.MULTILINE)
FOLDERS = "envsdk|tests|docs|examples|scripts|renderers|environments"
PATH = re.compile(rf"`((?:{FOLDERS})/(?:[\w-]+/)*(?:\w[\w.-]*\.[a-z]+)?)`")


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_code_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of(CHECKOUT / name)
    run_code_of(CHECKOUT / name)


def test_every_link_to_a_file_of_the_project_resolves() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
            if link.startswith(("http://", "https://")):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{name_of(page)} links to {link}"
            assert target.is_relative_to(CHECKOUT), f"{name_of(page)} links to {link}, outside the project"
            assert not anchor or anchor in anchors_of(target), f"{name_of(page)} links to {link}, which is no heading"


def test_every_path_that_a_page_names_exists() -> None:
    named = [(name_of(page), path) for page in PAGES for path in PATH.findall(prose_of(page))]
    assert [(page, path) for page, path in named if not (CHECKOUT / path).exists()] == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(TARGET.findall((CHECKOUT / "Makefile").read_text(encoding="utf-8")))
    for page in PAGES:
        named = re.findall(
            r"^make ([a-z][\w-]*)|`make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        unknown = {first or second for first, second in named} - targets
        assert not unknown, f"{name_of(page)} names {', '.join(sorted(unknown))}"


def test_every_table_of_a_page_renders_with_equal_columns() -> None:
    for page in PAGES:
        text = prose_of(page)
        rendered = sum(token.type == "tr_open" for token in MarkdownIt("commonmark").enable("table").parse(text))
        written, before = 0, 0
        for line in text.split("\n"):
            if not line.lstrip().startswith("|"):
                before = 0
                continue
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert before in (0, cells), (
                f"{name_of(page)}: a row of a table has other columns than the row before: {line}"
            )
            before = cells
            written += "---" not in line
        assert rendered == written, f"{name_of(page)} has {written} rows of tables, and {rendered} are rendered"
