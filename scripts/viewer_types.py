"""Writes the types of the viewer's JSON as TypeScript: `python scripts/viewer_types.py`. `make page` runs it.

`envsdk/viewer/_json.py` has the types. The names lose their ending `JSON`.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from envsdk.viewer import _json

FILE = Path(__file__).parent.parent / "viewer" / "src" / "types.ts"
_HEAD = (
    "// The JSON of the viewer. scripts/viewer_types.py writes this file from envsdk/viewer/_json.py: do not edit it.\n"
)
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", Any: "unknown"}


def typescript() -> str:
    """Return the types, in the order of `_json.py`."""
    alias = "export type Range = [context: string, start: number, stop: number];\n"
    kinds = [kind for kind in vars(_json).values() if typing.is_typeddict(kind) or is_dataclass(kind)]
    return "\n".join([_HEAD, alias, *map(_interface, kinds)])


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
    FILE.write_text(typescript(), encoding="utf-8")
