"""The folders of `envsdk` are layers: each module imports only from layers below its own, and imports have no cycle.

Imports inside functions and under `TYPE_CHECKING` count like all others, so neither can hide a cycle.
"""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import envsdk

ROOT = Path(envsdk.__file__).parents[1]
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(layer.split())
    for layer in (
        "_visible",
        "_describing _spans",
        "errors",
        "_arguments",
        "_packages _untrusted",
        "images",
        "messages limits _specifications _palette",
        "_cards",
        "rendering",
        "contexts",
        "history",
        "_registry",
        "trajectories",
        "episodes",
        "authoring",
        "policies",
        "rollouts",
        "tree",
        "diagnostics",
        "credit",
        "trainers sandbox",
        "containers",
        "gateway",
        "adapters",
        "viewer",
        "rewards testing",
        "cli",
        "__main__",
    )
)
"""From the ground up. What is on one line does not import each other."""
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
PLUGINS = {"envsdk_renderers", "envsdk_environments"}


def modules_of(package: str, root: Path = ROOT) -> dict[str, Path]:
    """The modules of a package by name."""
    names = {}
    for file in (root / package).rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


@functools.cache
def statements_of(file: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, those inside functions included."""
    tree = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a module imports, anywhere in it."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (full if (full := f"{module}.{alias.name}") in known else module for alias in node.names)


@functools.cache
def imports_within(package: str, root: Path = ROOT) -> dict[str, set[str]]:
    """Each module of a package with the modules of it that it imports."""
    known = modules_of(package, root)
    return {name: set(imports_of(name, file, known)) & known.keys() for name, file in known.items()}


def cycle_in(package: str, root: Path = ROOT) -> list[str]:
    """The modules of a cycle of imports; an empty list if there is none."""
    graph = {name: imported - {name, package} for name, imported in imports_within(package, root).items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def folder_of(name: str) -> str:
    """The folder or file at the root of `envsdk` that a module is in; an empty string for `envsdk` itself."""
    return name.partition(".")[2].partition(".")[0]


def test_a_module_imports_only_from_layers_below_its_own():
    upward = {
        f"{name} imports {imported}"
        for name, found in imports_within("envsdk").items()
        for imported in found
        if folder_of(name)
        and folder_of(imported) != folder_of(name)
        and (not folder_of(imported) or LEVEL[folder_of(imported)] >= LEVEL[folder_of(name)])
    }
    assert not upward


def test_each_folder_is_in_one_layer():
    folders = {folder_of(name) for name in modules_of("envsdk")} - {""}
    assert folders == LEVEL.keys()
    assert len(LEVEL) == sum(map(len, LAYERS))


@pytest.mark.parametrize("package", ["envsdk", "renderers/envsdk_renderers", "environments/envsdk_environments"])
def test_imports_have_no_cycle(package: str):
    *folders, name = package.split("/")
    assert not cycle_in(name, ROOT.joinpath(*folders))


def test_the_core_imports_no_renderer_and_no_environment():
    known = modules_of("envsdk")
    found = {name: set(imports_of(name, file, known)) for name, file in known.items()}
    assert not {name for name, imported in found.items() if {i.partition(".")[0] for i in imported} & PLUGINS}


def test_a_cycle_under_type_checking_or_in_a_function_is_found(tmp_path: Path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import second\n")
    (package / "second.py").write_text("def function():\n    from .first import something\n")
    assert set(cycle_in("package", tmp_path)) == {"package.first", "package.second"}
