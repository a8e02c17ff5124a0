"""Every block of code in the documents runs in a test, is checked by one, or states why not.

A comment before a block, `<!-- not run: REASON -->`, is for what no machine of ours can run. Such a block is checked as
far as a program can: Python compiles and imports names that exist, and commands have options that exist.
"""

import ast
import contextlib
import importlib
import inspect
import io
import pkgutil
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from documents import CHECKOUT, FILE, PAGES, Block, blocks_of
from test_documents import RUNNABLE
from typer.testing import CliRunner

from envsdk.cli import app
from envsdk.errors import SandboxUnavailable
from envsdk.rollouts import Rollouts
from envsdk.rollouts.evaluation import Suite
from envsdk.sandbox import check_isolation

COMPARED = (
    *("docs/errors.md", "docs/how-to/custom-renderers.md", "docs/programs.md"),
    *("docs/tutorials/learn-to-fold.md", "docs/tutorials/train-with-trl.md"),
)
"""Pages whose blocks of text have a test of their own. In the others, each is the output of the block before it."""
RUN_BY = {
    "README.md": "tests/test_readme.py",
    "docs/adapters.md": "tests/adapters/page.py",
    "docs/adapters/inspect.md": "tests/peers/inspect_ai/test_inspect.py",
    "docs/adapters/verifiers.md": "tests/peers/verifiers/test_verifiers.py",
    **{f"docs/adapters/{name}.md": "tests/peers/games/test_games.py" for name in ("gem", "pettingzoo", "textarena")},
    "docs/adapters/harbor.md": "tests/peers/harbor/test_tasks.py",
    "docs/errors.md": "tests/core/test_explain.py",
    "docs/how-to/custom-renderers.md": "tests/renderers/test_custom_renderers_page.py",
    "docs/how-to/containers.md": "tests/peers/containers/test_programs.py",
    "docs/how-to/gateway.md": "tests/gateway/test_page.py",
    "docs/programs.md": "tests/gateway/test_page.py",
    "docs/templates.md": "tests/renderers/test_templates_page.py",
    "docs/tutorials/learn-to-fold.md": "tests/with_torch/test_fold_tutorial.py",
    "docs/tutorials/train-with-trl.md": "tests/peers/trl/test_tutorial.py",
    "docs/trainers/ms_swift.md": "tests/peers/ms_swift/test_ms_swift.py",
    "docs/trainers/tables.md": "tests/peers/datasets/test_tables.py",
    "docs/trainers/tinker.md": "tests/peers/tinker/test_cookbook.py",
    **{f"docs/trainers/{name}.md": f"tests/trainers/test_{name}.py" for name in ("atif", "foreign")},
    **dict.fromkeys(
        (f"docs/trainers/{name}.md" for name in ("plain", "prime_rl", "skyrl", "slime")),
        "tests/trainers/test_adapters.py",
    ),
}
"""The pages whose code a test of their own runs. The others are in `RUNNABLE`."""
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
WITH_OUTPUT = sorted({block.page for block in BLOCKS if block.language == "text"} - set(COMPARED))
"""Pages whose code runs when its output is compared."""
SHELL = ("bash", "sh")
COMMANDS = typer.main.get_command(app)
EXTRAS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_the_test_that_runs_a_page_names_it():
    for name, test in RUN_BY.items():
        stem = Path(name).stem.lower()
        source = (CHECKOUT / test).read_text(encoding="utf-8").lower()
        assert (CHECKOUT / name).is_file(), name
        assert any(text in source for text in (f'run_page("{stem}")', f"{stem}.md", f"{stem}_page", f'"{stem}"')), name


def test_every_block_has_a_language():
    assert [block.where for block in BLOCKS if not block.language] == []


def test_no_code_is_indented_instead_of_fenced():
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        without_lists = re.sub(r"^(\d+\.|[-*]) .*\n(\n* {4}.*\n)*", "", text, flags=re.MULTILINE)
        assert not re.findall(r"^\S.*\n\n {4,}\S.*$", without_lists, flags=re.MULTILINE)


def test_python_code_runs_or_states_why_not():
    blocks = of("python", "py")
    run = {*RUNNABLE, *RUN_BY, *WITH_OUTPUT}
    assert [block.where for block in blocks if not block.reason and block.page not in run] == []
    for block in blocks:
        for node in ast.walk(ast.parse(block.code)) if block.reason else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "envsdk":
                module = importlib.import_module(str(node.module))
                modules = {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
                assert all(alias.name in modules or hasattr(module, alias.name) for alias in node.names), block.where


def test_commands_have_options_that_exist():
    for block in of(*SHELL):
        assert block.language == "bash" or block.page in RUN_BY, f"{block.where} is run by no test"
        for words in commands_of(block.code) if block.language == "bash" else ():
            check_command(words, block)


def test_a_suite_is_one_that_evaluation_reads(tmp_path: Path):
    for block in of("toml"):
        if block.code.startswith("# pyproject.toml\n"):
            assert block.page in RUN_BY, f"{block.where} is installed by no test"
            continue
        (tmp_path / "suite.toml").write_text(block.code)
        assert Suite.read(tmp_path / "suite.toml").environments, block.where


def test_a_configuration_names_arguments_that_exist():
    for block in of("yaml"):
        for entry in yaml.safe_load(block.code):
            module, _, name = entry.pop("_target_").rpartition(".")
            known = {*arguments_of(getattr(importlib.import_module(module), name)), *arguments_of(Rollouts)}
            assert set(entry) - {"name"} <= known, block.where


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize("name", WITH_OUTPUT)
def test_an_output_is_what_the_block_before_it_prints(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    blocks = [block for block in blocks_of(CHECKOUT / name) if not block.reason]
    skip_without_a_sandbox(blocks)
    scope: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in blocks:
        if block.language == "text":
            assert block.code.rstrip() == printed.rstrip(), block.where
        elif file := FILE.match(block.code):
            (tmp_path / file[1]).write_text(block.code, encoding="utf-8")
            monkeypatch.delitem(sys.modules, file[1].removesuffix(".py"), raising=False)
        elif block.language == "python":
            printed = output_of(block, scope)
        elif block.language in SHELL:
            printed = "".join(map(printed_by, commands_of(block.code)))


def skip_without_a_sandbox(blocks: list[Block]) -> None:
    if any("envsdk.sandbox" in block.code for block in blocks):
        try:
            check_isolation("auto")
        except SandboxUnavailable as error:
            pytest.skip(f"programs cannot be isolated here: {error}")


def test_other_languages_are_not_used():
    known = {"python", "py", *SHELL, "toml", "yaml", "text"}
    assert [block.where for block in BLOCKS if block.language not in known and not block.reason] == []


def arguments_of(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def output_of(block: Block, scope: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(block.code, block.where, "exec"), scope)
    return output.getvalue()


def printed_by(words: list[str]) -> str:
    """What a command prints; nothing for one that is not ours."""
    if words[0] == "python" and Path(words[1]).is_file():
        with contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(words[1], run_name="__main__")
        return output.getvalue()
    if words[0] != "envsdk":
        return ""
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"


def commands_of(code: str) -> Iterator[list[str]]:
    for line in code.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            if words:
                yield words


def check_command(words: list[str], block: Block) -> None:
    program, *arguments = words
    if program == "envsdk":
        name, *rest = arguments
        command = COMMANDS.commands[name]
        context = click.Context(COMMANDS, info_name="envsdk")
        command.make_context(name, rest, parent=context)  # raises if an option does not exist or has a wrong value
    elif program == "pip":
        for extra in re.findall(r"envsdk\[(.*?)\]", " ".join(arguments)):
            assert set(extra.split(",")) <= set(EXTRAS), block.where
    elif program.endswith("python") and arguments[0].endswith(".py"):
        files = [other.code for other in BLOCKS if other.page == block.page and FILE.match(other.code)]
        if any(code.startswith(f"# {arguments[0]}\n") for code in files):
            return
        source = (CHECKOUT / arguments[0].removeprefix("CLONE/")).read_text(encoding="utf-8")
        assert all(word.partition("=")[0] in source for word in arguments if word.startswith("--")), block.where
    elif program.endswith("python") and arguments[:2] == ["-m", "pytest"]:
        assert (CHECKOUT / arguments[2]).is_file(), block.where
    else:
        assert program in ("make", "git", "cd", "source", "export") or block.reason, (
            f"{block.where}: {program} is run by no test"
        )
