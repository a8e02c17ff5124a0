"""The documents are true where a program can tell: their code runs, and what they refer to is there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from documents import CHECKOUT, FILE, PAGES, anchors_of, blocks_of, code_of, name_of, prose_of, run_code_of
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
WALKED = [
    "docs/start.md",
    *(name_of(page) for folder in ("tutorials", "how-to") for page in (CHECKOUT / "docs" / folder).glob("*.md")),
]
"""The pages whose commands a newcomer enters as they are printed, in order; CI runs those of the README."""
NEED_SERVERS = {"docs/how-to/gateway.md", "docs/how-to/servers.md", "docs/how-to/traces.md"}
FIGURES = {"docs/tutorials/learn-to-fold.md", "docs/tutorials/train-with-trl.md"}
"""Pages whose output has figures of a training run, which differ between machines."""
TARGET = re.compile(r"^(\w[\w-]*):", flags=re.MULTILINE)
FOLDERS = "envsdk|tests|docs|examples|scripts|renderers|environments"
PATH = re.compile(rf"`((?:{FOLDERS})/(?:[\w-]+/)*(?:\w[\w.-]*\.[a-z]+)?)`")


@pytest.mark.usefixtures("quick_checks")
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


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone, installed as the README says."""
    folder = tmp_path_factory.mktemp("clone") / "envsdk"
    subprocess.run(["git", "clone", "--quiet", CHECKOUT, folder], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
    subprocess.run([folder / ".venv/bin/python", "-m", "pip", "install", "--quiet", "-e", folder], check=True)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({*WALKED} - NEED_SERVERS))
def test_the_commands_of_a_page_print_what_it_shows_when_they_are_entered_in_order(
    name: str, clone: Path, tmp_path: Path
) -> None:
    script = ["set -e", f"source {shlex.quote(str(clone))}/.venv/bin/activate"]
    installs = re.findall(r"`(pip install -e [^`]+)` in the clone", prose_of(CHECKOUT / name))
    script += [f"(cd {shlex.quote(str(clone))} && {install}) >&2" for install in installs]
    shown: dict[int, str] = {}
    commands, before = 0, ""
    for block in blocks_of(CHECKOUT / name):
        if block.reason:
            continue
        if file := FILE.match(block.code):
            script.append(f"cat > {file[1]} <<'END OF FILE'\n{block.code}END OF FILE")
        elif block.language == "bash":
            code = block.code.replace("<this repository>", str(clone)).replace("CLONE", str(clone))
            script += [code, r"printf '\0'"]
            commands += 1
        elif block.language == "text" and before == "bash" and name not in FIGURES:
            shown[commands - 1] = block.code
        before = block.language
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "PYTHON"))}
    environment |= {"COLUMNS": "120", "PIP_CONSTRAINT": str(CHECKOUT / "tests" / "constraints.txt")}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=clone if any(code.startswith("pip install -e '.[") for code in script) else tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = done.stdout.split("\0")
    for number, text in shown.items():
        assert [line.rstrip() for line in printed[number].splitlines()][-text.count("\n") :] == text.splitlines(), name
