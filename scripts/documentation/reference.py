"""The reference of the Python names: mkdocstrings replaces each line that starts with `:::` by its documentation."""

import importlib
from collections.abc import Iterator
from functools import cache
from typing import is_typeddict

from envsdk.cli._explain import explanations

from .builtin import environments_page, renderers_page
from .names import PACKAGES, Public, public_names

LISTING = "\n| page | names |\n|---|---|\n"


def reference_pages() -> dict[str, str]:
    """Return the pages by their path in the site."""
    modules = public_names()
    pages = {page_of(public.module): page(public) for public in modules}
    pages["reference/builtin-environments.md"] = environments_page()
    pages["reference/builtin-renderers.md"] = renderers_page()
    pages["reference/index.md"] = index(modules)
    return pages


def page_of(module: str) -> str:
    """Return the path of a module's page."""
    return f"reference/{module}.md"


@cache
def documented_paths() -> dict[str, str]:
    """Return, for each public name, the dotted path where it is documented: the first path of the same object."""
    first: dict[int, str] = {}
    paths: dict[str, str] = {}
    for public in public_names():
        for name in public.names:
            value = getattr(importlib.import_module(public.module), name)
            path = f"{public.module}.{name}"
            paths[path] = first.setdefault(id(value), path) if callable(value) else path
    return paths


def page(public: Public) -> str:
    """Return the page of a module. Names that another page documents are links to it."""
    heading = f"{PACKAGES[public.module]}: " if public.module in PACKAGES else ""
    parts = [f"# {heading}`{public.module}`\n", about(public.module)]
    elsewhere: list[str] = []
    explained = explanations()
    for name in public.names:
        path = f"{public.module}.{name}"
        known = documented_paths()[path]
        if known == path:
            is_record = is_typeddict(getattr(importlib.import_module(public.module), name))
            parts.append(f"::: {path}\n" + (FIELDS_WITHOUT_TEXT if is_record else ""))
            if name in explained:
                parts.append(f"[Why it happens, and what to do](../errors.md#{name.lower()})\n")
        else:
            elsewhere.append(f"- `{path}` is [`{known}`][{known}].")
    return "\n".join([*parts, *elsewhere, ""])


def about(module: str) -> str:
    """Return the docstring of a module."""
    return f"{importlib.import_module(module).__doc__ or ''}".strip().split("\n\n")[0] + "\n"


FIELDS_WITHOUT_TEXT = "    options:\n      show_if_no_docstring: true\n"
"""For the records of trainers, whose fields the trainers explain."""


def index(modules: list[Public]) -> str:
    """Return the list of the reference's pages."""
    rows = (
        f"| [`{public.module}`]({public.module}.md) | {', '.join(f'`{name}`' for name in public.names)} |\n"
        for public in modules
    )
    return "".join(["# Reference\n", INTRODUCTION, *others(), LISTING, *rows])


INTRODUCTION = """
These pages are made from the docstrings and types of the source, from the commands' own options, and from the
definitions of the stored records.
"""


def others() -> Iterator[str]:
    """Yield links to the pages that list no module."""
    yield "\n- [The command line](commands.md): every command with every option\n"
    yield "- [File formats](formats.md): run folders, trajectories and samples, field by field\n"
    yield "- [Built-in environments](builtin-environments.md) and [built-in renderers](builtin-renderers.md)\n"
    yield "- [Errors](../errors.md): what each error means, and what to do\n"
