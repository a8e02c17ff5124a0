"""The reference has an entry for every public name, every option of the command line, and every stored field."""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple, is_typeddict

import docstring_parser
import typer
from documentation.built import problems
from documentation.builtin import environments_page
from documentation.commands import commands_page
from documentation.formats import RECORDS, formats_page
from documentation.names import CHECKOUT, PACKAGES, names_of, public_names
from documentation.pages import LINK, configuration, path_of, relinked, site_pages
from documents import PAGES, code_of, name_of

import envsdk
from envsdk.cli import app


@cache
def pages() -> dict[str, str]:
    """The pages of the site."""
    return site_pages()


@cache
def entries() -> set[str]:
    """The paths that the reference has."""
    reference = "\n".join(text for path, text in pages().items() if path.startswith("reference/"))
    return set(re.findall(r"^(?:::: |- `)([\w.]+)", reference, flags=re.MULTILINE))


def has_entry(module: str, name: str) -> bool:
    return f"{module}.{name}" in entries()


def test_every_name_that_a_module_lists_has_an_entry():
    modules = {public.module: public.names for public in public_names()}
    for module in PACKAGES:
        names = modules[module]
        listed = getattr(importlib.import_module(module), "__all__", names)
        packages = {name for name in listed if f"{module}.{name}" in PACKAGES}
        assert set(listed) - packages == set(names), module
        assert [name for name in names if not has_entry(module, name)] == [], module


def test_every_module_without_an_underscore_has_a_page_and_there_are_at_most_400_names():
    documented = {public.module for public in public_names()}
    names: dict[str, tuple[str, ...]] = {}
    for package in (
        CHECKOUT / "envsdk",
        *(CHECKOUT / root / f"envsdk_{root}" for root in ("renderers", "environments")),
    ):
        for file in package.rglob("*.py"):
            parts = file.relative_to(package.parent).with_suffix("").parts
            if not any(part.startswith("_") and part != "__init__" for part in parts) and "scaffold" not in parts:
                names[".".join(parts).removesuffix(".__init__")] = names_of(file)
    assert {module for module, found in names.items() if found} - documented == {"envsdk.cli"}  # the entry point
    assert sum(map(len, names.values())) <= 400


def test_every_public_package_of_envsdk_has_a_page():
    packages = {name for name in envsdk.__all__ if f"envsdk.{name}" in PACKAGES}
    assert packages == {name for name in envsdk.__all__ if not callable(getattr(envsdk, name))}


def imports_of_documents() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for block in code_of(page):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "envsdk":
                    yield from ((name_of(page), str(node.module), alias.name) for alias in node.names)


def test_every_name_that_the_documents_import_has_an_entry():
    for page, module, name in imports_of_documents():
        assert f"{module}.{name}" in PACKAGES or has_entry(module, name), f"{page} imports {name} from {module}"


def test_every_option_of_the_command_line_is_listed():
    page = commands_page()
    for name, command in typer.main.get_command(app).commands.items():
        section = page.partition(f"## `envsdk {name}`\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]:
                assert f"`{option}`" in section, f"envsdk {name} {option}"


def test_every_option_of_every_environment_is_listed():
    page = environments_page()
    for name in (name for name in envsdk.list_envs() if name.startswith("envsdk/")):
        section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        assert all(f"| `{option}` |" in section for option in type(envsdk.make(name)).Config.model_fields), name


def test_every_field_of_a_record_is_listed():
    page = formats_page()
    for cls in (cls for classes in RECORDS.values() for cls in classes):
        section = page.partition(f"### {cls.__name__}\n")[2].partition("\n##")[0]
        names = cls.model_fields if hasattr(cls, "model_fields") else [field.name for field in fields(cls)]
        assert all(f"`{name}`" in section for name in names), cls


def test_every_page_of_the_documentation_is_in_the_navigation():
    navigation = configuration()
    for path in pages():
        assert f'"{path}"' in navigation, f"docs/zensical.toml lacks {path}"


def test_the_front_page_has_the_first_screen_of_the_readme_and_the_version():
    front = pages()["index.md"]
    assert all(code in front for code in code_of(CHECKOUT / "README.md")[:1])
    assert (
        f"Version {envsdk.__version__}" in front and "drawings/episode.svg" in front and "<!-- the version" not in front
    )


def test_a_link_that_leaves_the_documentation_leads_to_a_page_of_the_site():
    text = relinked(
        "docs/trainers/a.md", "[one](../../README.md#two) [three](../b.md) `[f](../c.md)`\n```\n[](../d.md)\n```\n"
    )
    assert text.startswith("[one](../index.md#two) [three](../b.md)")
    assert "[](../d.md)" in text
    assert relinked("README.md", "[one](docs/b.md) [two](CONTRIBUTING.md)") == "[one](b.md) [two](contributing.md)"
    assert relinked("docs/a.md", "| `a\\|b` | c \\| d |") == "| `a|b` | c \\| d |"
    assert path_of("docs/history.md") == "history.md"
    assert LINK.search("[home](https://example.org/page.html)") is None


def test_a_page_that_loads_something_from_elsewhere_is_reported(tmp_path: Path):
    (tmp_path / "index.html").write_text(
        '<script src="https://example.org/a.js"></script><a href="https://b.org">b</a>'
    )
    found = list(problems(tmp_path))
    assert found[0].startswith("index.html loads <script")
    assert [problem for problem in found if "b.org" in problem] == []
    assert "envsdk.Env has no entry in the reference" in found
    assert "ActionError has no entry among the errors" in found


def fields_without_a_meaning() -> Iterator[str]:
    for public in public_names():
        for name in public.names:
            cls = getattr(importlib.import_module(public.module), name)
            if isinstance(cls, type) and cls.__module__.startswith("envsdk"):
                yield from (f"{cls.__module__}.{name}.{field}" for field in undocumented(cls))


def undocumented(cls: type) -> set[str]:
    """The annotated attributes of a class that neither it nor a base explains; those of a trainer's own records may."""
    bases = [
        base for base in cls.__mro__ if base.__module__.startswith("envsdk") and base.__name__ == base.__qualname__
    ]
    if is_typeddict(cls) or cls not in bases:
        return set()
    return attributes_of(cls).annotated - {name for base in bases for name in attributes_of(base).explained}


class Attributes(NamedTuple):
    annotated: set[str]
    explained: set[str]


@cache
def classes_of(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@cache
def attributes_of(cls: type) -> Attributes:
    annotated = set[str]()
    explained = {item.arg_name for item in docstring_parser.parse(inspect.getdoc(cls) or "").params}
    body = classes_of(cls.__module__)[cls.__name__].body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            annotated.add(node.target.id)
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                explained.add(node.target.id)
    return Attributes(annotated, explained)


def test_every_field_of_a_public_class_is_explained():
    assert list(fields_without_a_meaning()) == []


def test_every_public_class_and_function_is_explained():
    values = [(public, name) for public in public_names() for name in public.names]
    named = {f"{p.module}.{n}": getattr(importlib.import_module(p.module), n) for p, n in values}
    own = {path: value for path, value in named.items() if getattr(value, "__module__", "").startswith("envsdk")}
    assert [path for path, value in own.items() if callable(value) and not inspect.getdoc(value)] == []
