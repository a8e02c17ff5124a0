"""Options of an environment that are taken from a stored record only on request, because they affect the machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ImportString

Trust: TypeAlias = Literal["imports", "isolation", "paths"]
"""The kinds of options that need trust: imports, the isolation of programs, and paths of files to open."""

_IMPORT_STRING: Any = ImportString


@dataclass(frozen=True, slots=True)
class NeedsTrust:
    """Marks an option that a replay takes from a record only on request: `Annotated[str, NeedsTrust("paths")]`.

    Attributes:
        kind: The kind of trust that is required: `envsdk replay --trust-paths` for `"paths"`, and so on.
    """

    kind: Trust


def options_that_need_trust(config: type[BaseModel]) -> Mapping[str, Trust]:
    """Return the options with a mark, and those whose type is an import path or a path in the file system."""
    fields = config.model_fields.items()
    return {name: kind for name, field in fields if (kind := _kind_of(field.annotation, *field.metadata)) is not None}


def _kind_of(*parts: Any) -> Trust | None:
    """Return the kind of the first part of a type that needs trust. The marks of an `Annotated` are parts, too."""
    for part in parts:
        if isinstance(part, NeedsTrust):
            return part.kind
        if _IMPORT_STRING in (part, type(part)):
            return "imports"
        if isinstance(part, type) and issubclass(part, PurePath):
            return "paths"
        if (kind := _kind_of(*get_args(part))) is not None:
            return kind
    return None
