"""Every public error is explained, and the explanations are true: examples raise what they show."""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documentation.errors import PAGE, errors_page
from documentation.names import ROOTS, public_names
from typer.testing import CliRunner

import envsdk
from envsdk import errors
from envsdk.cli import app
from envsdk.cli._explain import ErrorExplanation, explanations, find_explanation

ENTRIES = explanations()
WITH_EXAMPLE = [entry for entry in ENTRIES.values() if entry.example]
WITHOUT_EXAMPLE = [entry for entry in ENTRIES.values() if entry.message and not entry.example]
NO_MESSAGE = {"EnvsdkError"}  # nothing raises it itself


def by_name(entry: ErrorExplanation) -> str:
    return entry.name


def public_errors() -> Iterator[type[Exception]]:
    """The errors of `envsdk.errors`, and those of other modules that the reference lists."""
    for module in ("envsdk.errors", "envsdk._registry", *(public.module for public in public_names())):
        for value in vars(importlib.import_module(module)).values():
            is_error = isinstance(value, type) and issubclass(value, (errors.EnvsdkError, Warning))
            if is_error and value.__module__.startswith("envsdk") and not value.__name__.startswith("_"):
                yield value


def test_every_public_error_has_an_explanation():
    assert {error.__name__ for error in public_errors()} <= set(ENTRIES)


def test_every_explanation_is_that_of_an_error():
    for entry in ENTRIES.values():
        assert issubclass(entry.error, (errors.EnvsdkError, Warning)), entry.name
        assert entry.meaning.endswith("."), entry.name


def test_every_explanation_has_a_message():
    assert {entry.name for entry in ENTRIES.values() if not entry.message} == NO_MESSAGE


@pytest.mark.parametrize("entry", WITH_EXAMPLE, ids=by_name)
def test_an_example_raises_the_error_with_the_message(
    entry: ErrorExplanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(entry.error) as raised:
        exec(compile(entry.example, "example.py", "exec"), {"envsdk": envsdk, "__name__": "example"})
    assert type(raised.value) is entry.error
    assert str(raised.value) == entry.message


@pytest.mark.parametrize("entry", WITHOUT_EXAMPLE, ids=by_name)
def test_a_message_without_an_example_has_the_form_of_one_in_the_source(entry: ErrorExplanation):
    assert any(form.fullmatch(entry.message) for form in forms_of_messages(entry.name))


def test_the_page_has_an_entry_for_each_error():
    assert PAGE.read_text(encoding="utf-8") == errors_page(), "run `make errors-page`"


def test_explain_prints_the_entry_of_an_error():
    printed = run("explain", "UnknownName")
    entry = ENTRIES["UnknownName"]
    for part in (entry.meaning, entry.message, entry.why, entry.do, f"docs/{entry.see}"):
        assert part in printed


@pytest.mark.parametrize("name", ["envsdk.errors.UnknownName", "unknownname"])
def test_an_error_is_found_with_its_module_and_in_lower_case(name: str):
    assert find_explanation(name).name == "UnknownName"


def test_explain_suggests_names_that_are_similar_to_a_misspelled_one():
    with pytest.raises(errors.UnknownName, match="Did you mean 'UndeclaredBreak'"):
        find_explanation("UndeclaredBreaks")


def test_explain_without_a_name_lists_all_errors():
    printed = run("explain")
    assert all(entry.meaning in printed for entry in ENTRIES.values())


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def forms_of_messages(name: str) -> Iterator[re.Pattern[str]]:
    """The texts and f-strings of the files that name an error, as patterns."""
    for source in sources():
        if name in source:
            yield from forms_in(source)


@functools.cache
def sources() -> list[str]:
    folders = zip(ROOTS, ("envsdk", "envsdk_renderers", "envsdk_environments"), strict=True)
    return [file.read_text(encoding="utf-8") for root, package in folders for file in (root / package).rglob("*.py")]


@functools.cache
def forms_in(source: str) -> list[re.Pattern[str]]:
    return [form for node in ast.walk(ast.parse(source)) if (form := form_of(node))]


def form_of(node: ast.AST) -> re.Pattern[str] | None:
    """The pattern of a text with at least 12 fixed characters."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts: list[Any] = [node]
    elif isinstance(node, ast.JoinedStr):
        parts = node.values
    else:
        return None
    fixed = [part.value if isinstance(part, ast.Constant) else None for part in parts]
    if sum(len(part or "") for part in fixed) < 12:
        return None
    return re.compile("".join(".*" if part is None else re.escape(part) for part in fixed), flags=re.DOTALL)
