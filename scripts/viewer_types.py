"""Writes what the page of the viewer shares with Python: `python scripts/viewer_types.py`. `make page` runs it.

The types of the JSON are those of `envsdk/viewer/_json.py`; the names lose their ending `JSON`. The colors and the
legend are those of `envsdk/_palette.py`.
"""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from envsdk._palette import LEGEND, SHADES
from envsdk.viewer import _json

FOLDER = Path(__file__).parent.parent / "viewer" / "src"
_HEAD = "// scripts/viewer_types.py writes this file from envsdk/viewer/_json.py and _palette.py: do not edit it.\n"
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", Any: "unknown"}


def files() -> dict[str, str]:
    """Return the files by name: the types in the order of `_json.py` with the legend, and the colors of both themes."""
    alias = "export type Range = [context: string, start: number, stop: number];\n"
    kinds = [kind for kind in vars(_json).values() if typing.is_typeddict(kind) or is_dataclass(kind)]
    legend = f"export const LEGEND: Record<string, string> = {json.dumps(LEGEND, indent=2)};\n"
    light = "".join(f"  --{name}: {one.light};\n  --{name}-text: {one.light_text};\n" for name, one in SHADES.items())
    dark = "".join(f"  --{name}: {one.dark};\n  --{name}-text: {one.dark_text};\n" for name, one in SHADES.items())
    css = f'/* Written by scripts/viewer_types.py. */\n:root {{\n{light}}}\n:root[data-theme="dark"] {{\n{dark}}}\n'
    return {"types.ts": "\n".join([_HEAD, alias, legend, *map(_interface, kinds)]), "palette.css": css}


def _interface(kind: Any) -> str:
    lines = [f"export interface {_name(kind)} {{"]
    for field, hint in typing.get_type_hints(kind).items():
        optional = "?" if field in getattr(kind, "__optional_keys__", ()) else ""
        lines.append(f"  {field}{optional}: {_type_of(hint)};")
    return "\n".join([*lines, "}\n"])


def _name(kind: Any) -> str:
    return kind.__name__.removesuffix("JSON")


def _type_of(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint == _json.RangeJSON:
        return "Range"
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(_type_of, arguments))
    if origin is typing.Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin is Mapping:
        return f"Record<string, {_type_of(arguments[1])}>"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"[{', '.join(map(_type_of, arguments))}]"
    if origin in (list, tuple):
        item = _type_of(arguments[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    return _name(hint)


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
