"""The reference of the built-in environments and renderers, with their options."""

import inspect
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import docstring_parser

import envsdk

from .commands import cell
from .formats import stored_fields

WITHOUT_MEMBERS = "    options:\n      heading_level: 3\n      members: false\n"
ENVIRONMENTS = """# Options of the built-in environments

`envsdk.make(id, **options)` makes an environment. It also accepts the options of [`Env`][envsdk.Env].
"""
RENDERERS = """# Options of the built-in renderers

`envsdk.get_renderer(name, tokenizer, **options)` makes a renderer. [Renderers](../renderers.md) compares them.
"""


def environments_page() -> str:
    """Return the page of the built-in environments."""
    parts = [ENVIRONMENTS]
    for name in envsdk.list_envs():
        if name.startswith("envsdk/"):
            cls = type(envsdk.make(name))
            parts.append(f"## `{name}`\n\n::: {cls.__module__}.{cls.__qualname__}\n{WITHOUT_MEMBERS}")
            parts.append("".join(["| option | type | default | meaning |\n|---|---|---|---|\n", *options(cls.Config)]))
    return "\n".join(parts)


def options(config: Any) -> Iterator[str]:
    """Yield a row for each option of an environment, with those of its base classes.

    Raises:
        KeyError: If an option is not documented.
    """
    for cls in config.__mro__:
        if not cls.__module__.startswith("envsdk"):
            continue
        explained = {
            item.arg_name: item.description for item in docstring_parser.parse(inspect.getdoc(cls) or "").params
        }
        for name, annotation, own in stored_fields(cls):
            default = config.model_fields[name].get_default(call_default_factory=True)
            meaning = own or explained[name] or ""
            yield f"| `{name}` | `{annotation}` | `{default!r}` | {cell(meaning)} |\n"


def renderers_page() -> str:
    """Return the page of the built-in renderers."""
    points = sorted(entry_points(group="envsdk.renderers"), key=lambda point: point.name)
    built_in = [point for point in points if point.module.startswith("envsdk_renderers")]
    parts = [f"## `{point.name}`\n\n::: {point.value.replace(':', '.')}\n{WITHOUT_MEMBERS}" for point in built_in]
    return "\n".join([RENDERERS, *parts])
