"""The public names of envsdk, read from its source: the reference lists them, and a test checks that it does."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
ROOTS = (CHECKOUT, CHECKOUT / "renderers", CHECKOUT / "environments")
PACKAGES = {
    "envsdk": "Environments, rollouts and samples",
    "envsdk.errors": "Error classes",
    "envsdk.messages": "Messages, parts and tool schemas",
    "envsdk.images": "Images",
    "envsdk.limits": "Limits and stop reasons",
    "envsdk.authoring": "For authors",
    "envsdk.authoring.tasks": "Tasks and splits",
    "envsdk.history": "History policies",
    "envsdk.policies": "Policies and model servers",
    "envsdk.rollouts": "Rollouts, run folders and evaluation",
    "envsdk.rollouts.scores": "Scores and comparisons of runs",
    "envsdk.rollouts.evaluation": "Evaluation of suites",
    "envsdk.gateway": "Agent programs",
    "envsdk.tree": "Tree batches",
    "envsdk.trainers.sft": "Supervised samples",
    "envsdk.credit": "Advantages",
    "envsdk.diagnostics": "Diagnostics and cost",
    "envsdk.rewards": "Rewards",
    "envsdk.sandbox": "The sandbox",
    "envsdk.containers": "Containers",
    "envsdk.trajectories.records": "Files of records",
    "envsdk.viewer": "Runs, episodes and tokens for a viewer",
    "envsdk.viewer.reporting": "Reports on runs",
    "envsdk.testing": "Conformance checks",
    "envsdk.testing.masks": "Checks of masks",
    "envsdk.rendering.exporting": "Exported chat templates",
    "envsdk.rendering.renderer": "Renderers",
    "envsdk.rendering.family": "The base class of families of renderers",
    "envsdk.rendering.reading": "Replies read while they are sampled",
    "envsdk.rendering.emission": "What a renderer writes to",
    "envsdk.rendering.tokenizers": "Tokenizers",
    "envsdk.trainers": "Trainer adapters",
    "envsdk.adapters": "Adapters for tasks and tools",
    "envsdk_renderers": "Built-in families of renderers",
    "envsdk_environments": "Built-in environments",
}
"""The public packages and modules, each with the heading of its page."""


class Public(NamedTuple):
    """The public names of a module."""

    module: str
    names: tuple[str, ...]


def public_names() -> list[Public]:
    """Return the public names of each public module, in the order of the reference."""
    return [Public(module, names_of(file_of(module))) for module in PACKAGES] + trainers()


def trainers() -> list[Public]:
    """Return the public names of the modules of trainers: those with a `CAPABILITY`, and the package `foreign`."""
    files = sorted(file_of("envsdk.trainers").parent.glob("[a-z]*.py"))
    names = sorted([file.stem for file in files if "CAPABILITY = " in file.read_text("utf-8")] + ["foreign"])
    return [Public(f"envsdk.trainers.{name}", names_of(file_of(f"envsdk.trainers.{name}"))) for name in names]


def names_of(file: Path) -> tuple[str, ...]:
    """Return the public names of a module: its `__all__`, or the names that it or its stub defines or imports."""
    stub = file.with_suffix(".pyi")
    tree = ast.parse((stub if stub.is_file() else file).read_text(encoding="utf-8"))
    names = list(dict.fromkeys(name for node in tree.body for name in _defined(node)))
    listed = [node for node in tree.body if isinstance(node, ast.Assign) and _is_all(node)]
    if listed:
        everything: list[str] = ast.literal_eval(listed[0].value)
        names = sorted(everything, key=lambda name: (name in names, names.index(name) if name in names else 0))
    module = ".".join(
        file.relative_to(next(root for root in reversed(ROOTS) if file.is_relative_to(root))).with_suffix("").parts
    )
    package = module.removesuffix(".__init__")
    return tuple(name for name in names if not name.startswith("_") and not is_package(f"{package}.{name}"))


def is_package(name: str) -> bool:
    """Return whether a dotted name is one of our packages."""
    return any((root / Path(*name.split(".")) / "__init__.py").is_file() for root in ROOTS)


def file_of(module: str) -> Path:
    """Return the source file of a module."""
    path = Path(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next(root / name for root in ROOTS for name in candidates if (root / name).is_file())


def _is_all(node: ast.Assign) -> bool:
    target = node.targets[0]
    return isinstance(target, ast.Name) and target.id == "__all__"


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names if alias.asname == alias.name and node.module)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
