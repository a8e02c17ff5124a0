"""The reference of the file formats, made from the dataclasses and models that are written and read."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import docstring_parser

from envsdk.contexts._protocol import Break
from envsdk.gateway._description import description as description_of
from envsdk.gateway._management import OpenRequest, RewardRequest
from envsdk.messages import Message, TextPart, ToolCall
from envsdk.rollouts._run_description import Manifest, RunDescription, StoredRenderer
from envsdk.trajectories._context_log import ContextLog
from envsdk.trajectories._roles import Roles
from envsdk.trajectories._samples import Sample
from envsdk.trajectories._steps import Origin, Part, Step
from envsdk.trajectories._trajectory import Trajectory
from envsdk.trajectories.records import SCHEMA_VERSION

from .commands import cell

INTRODUCTION = f"""# File formats

All files are JSON. A file of records, `*.jsonl`, has one record per line. Each record has the keys `schema`, which is
{SCHEMA_VERSION} in this version of envsdk, and `kind`, which is `trajectory` or `sample`, followed by exactly the
fields listed here. The same record gives the same bytes. Another schema, an unknown field, a missing field or a value
of another type is an [`InvalidRecord`](../errors.md#invalidrecord) with the number of the line.

`Int32s`, `Int16s`, `Float32s` and `Bools` are lists of numbers with the range of that type; NaN is `null`. `Json` is
any value of JSON. `Count` is an integer from 0 to 2**31 - 1. The fields in *italics* are left out where they are empty.

| file | record | written by | read by |
|---|---|---|---|
| `trajectories.jsonl` (or `.zst`) | [`Trajectory`](#trajectory) | `RunFolder` | `StoredRun`, `read_jsonl` |
| `samples.jsonl` | [`Sample`](#sample) | `write_jsonl` | `read_jsonl` |
| `run.json` | [`RunDescription`](#rundescription) | `RunFolder` | `StoredRun` |
| `times.jsonl` | `id`, `ended` (ISO 8601, UTC), `duration_s` | `RunFolder` | `envsdk view` |
| `manifest.json` | [`Manifest`](#manifest) | `RunFolder` | `StoredRun` |
| `tokenizer/` | the tokenizer's files | `Tokenizer.save` | `load_tokenizer` |

[Run folders](../how-to/scale.md#run-folders) explains what a run folder survives. What `envsdk import` reads is
described where it is read: [`from_requests`][envsdk.gateway.from_requests] for logged requests,
[`from_atif`][envsdk.gateway.from_atif] for ATIF, and [`from_steps`][envsdk.trainers.foreign.from_steps] for token ids.
The gateway describes its [requests](#requests-of-the-gateway) in OpenAPI at `/openapi.json`.
"""
RECORDS: dict[str, tuple[type[Any], ...]] = {
    "Trajectories": (Trajectory, ContextLog, Step, Part, Origin, Break, Message, ToolCall, TextPart),
    "Samples": (Sample, Roles),
    "Run folders": (RunDescription, StoredRenderer, Manifest),
    "Requests of the gateway": (OpenRequest, RewardRequest),
}
"""The classes that are stored or sent, by heading."""


def formats_page() -> str:
    """Return the page of the file formats."""
    parts = [INTRODUCTION]
    for heading, classes in RECORDS.items():
        parts.append(f"## {heading}\n")
        if OpenRequest in classes:
            parts.append(gateway_paths())
        parts.extend(record(cls) for cls in classes)
    return "\n".join(parts)


def gateway_paths() -> str:
    """Return the table of the gateway's paths, from its own description."""
    paths: dict[str, dict[str, Any]] = description_of(OpenRequest, RewardRequest, has_token=True)["paths"]
    found = [
        f"| `{method.upper()}` | `{path}` | {operation['summary']} |\n"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method in ("get", "post")
    ]
    return "".join([GATEWAY, "\n| method | path | what it does |\n|---|---|---|\n", *found])


GATEWAY = """[The gateway](../how-to/gateway.md) opens a session with an `OpenRequest` and rewards it
with a `RewardRequest`. The bodies of the requests of a model are those of Chat Completions, Responses and Anthropic
Messages.
"""


def record(cls: type[Any]) -> str:
    """Return the table of the stored fields of a class."""
    parsed = docstring_parser.parse(inspect.getdoc(cls) or "")
    head = f"### {cls.__name__}\n\n{parsed.short_description}\n\n| field | type | meaning |\n|---|---|---|\n"
    return head + "".join(rows(cls, parsed))


def rows(cls: type[Any], parsed: docstring_parser.Docstring) -> Iterator[str]:
    """Yield a row for each field of a class.

    Raises:
        KeyError: If a field is not documented.
    """
    meanings = {parameter.arg_name: parameter.description or "" for parameter in parsed.params}
    left_out = {field.name for field in getattr(cls, "__dataclass_fields__", {}).values() if field.metadata}
    for name, annotation, own in stored_fields(cls):
        meaning = own or meanings.get(name, CONSTANTS.get(name, ""))
        if not meaning:
            raise KeyError(f"{cls.__name__}.{name} is not documented")
        shown = f"*`{name}`*" if name in left_out else f"`{name}`"
        yield f"| {shown} | `{annotation}` | {cell(meaning)} |\n"


CONSTANTS = {"kind": "What the file is.", "schema_version": "The version of its format."}


def stored_fields(cls: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name and the annotation of each field, as the source has them, and the docstring that follows."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        annotation = ast.unparse(_Plain().visit(node.annotation))
        if annotation.startswith("ClassVar") or node.target.id.startswith("_"):
            continue
        own = following.value if isinstance(following, ast.Expr) else None
        yield node.target.id, annotation, str(own.value) if isinstance(own, ast.Constant) else ""


class _Plain(ast.NodeTransformer):
    """Replaces each `Annotated` by the type in it."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Return the type in an `Annotated`, and anything else with its parts."""
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return self.generic_visit(node)
