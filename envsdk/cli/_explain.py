"""`envsdk explain`: print what an error means, why it happens, and what to do."""

import importlib
import inspect
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any

import typer

from ..errors import UnknownName
from ._output import print_text


@dataclass(frozen=True, slots=True)
class ErrorExplanation:
    """The explanation of an error class.

    Attributes:
        name: The name of the class.
        why: Why it happens.
        do: What to do.
        see: The page of `docs/` that has more, with an anchor.
        module: The module of the class.
        message: A typical message; empty if nothing raises the class itself.
        example: Python code that raises the error with this message, or empty.
    """

    name: str
    why: str
    do: str
    see: str
    module: str = "envsdk.errors"
    message: str = ""
    example: str = ""

    @property
    def error(self) -> type[Exception]:
        """The class."""
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def meaning(self) -> str:
        """The first sentences of the docstring of the class."""
        return " ".join((inspect.getdoc(self.error) or "").split("\n\n")[0].split())


def explanations() -> dict[str, ErrorExplanation]:
    """Return the explanation of each public error by the name of its class."""
    text = (files("envsdk.cli") / "explanations.toml").read_text(encoding="utf-8")
    read: dict[str, dict[str, Any]] = tomllib.loads(text)
    return {name: ErrorExplanation(name, **entry) for name, entry in read.items()}


def find_explanation(name: str) -> ErrorExplanation:
    """Return the explanation of an error.

    Args:
        name: The name of a class. Its module may precede it, and upper and lower case are the same.

    Raises:
        UnknownName: If no error has that name. The message suggests similar names.
    """
    known = explanations()
    by_lower_case = {key.lower(): entry for key, entry in known.items()}
    found = by_lower_case.get(name.rpartition(".")[2].lower())
    if found is None:
        raise UnknownName.of("error", name, known, "`envsdk explain` lists all errors")
    return found


def explain(
    name: Annotated[str | None, typer.Argument(help="The name of an error. Default: list all errors.")] = None,
) -> None:
    """Explain an error: what it means, a typical message, why it happens, and what to do."""
    if name is None:
        for entry in explanations().values():
            print_text(entry.name, style="bold")
            print_text(f"    {entry.meaning}")
        return
    entry = find_explanation(name)
    print_text(entry.name, style="bold")
    print_text(entry.meaning)
    parts = {
        "A typical message": entry.message,
        "Why it happens": entry.why,
        "What to do": entry.do,
        "An example that raises it": entry.example.strip(),
        "More": f"docs/{entry.see}",
    }
    for heading, text in parts.items():
        if text:
            print_text()
            print_text(f"{heading}:", style="bold")
            for line in text.split("\n"):
                print_text(f"    {line}".rstrip())
