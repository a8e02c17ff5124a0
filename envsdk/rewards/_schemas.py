"""A scorer of JSON replies, which imports the package jsonschema when it is used."""

import copy
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._packages import load
from ..errors import ConfigError
from ..messages import check_json
from ._scorer import check_count


@dataclass(frozen=True, slots=True)
class json_schema:  # noqa: N801 - it is called like a function
    """Score 1 if the reply is JSON that is valid under a schema, else 0. The target is ignored.

    The whole reply must be JSON, apart from white space around it; use `extract` to take JSON out of a code block. NaN
    and infinity are not JSON, and a value that is nested deeper than 64 levels scores 0. As usual in JSON schema,
    `format` is not checked. `$ref` may refer only to the schema itself: nothing is loaded from elsewhere. A `pattern`
    may take exponential time; see `regex`. `uniqueItems` takes quadratic time, so with a larger `max_chars`, a reply
    may take minutes.

    Attributes:
        schema: A JSON schema, of the draft that its `$schema` names, or else of the latest draft that jsonschema knows.
        max_chars: The maximum length of a reply, in characters. A longer reply scores 0.

    Raises:
        ConfigError: If the schema is not valid.
        ImportError: If jsonschema is not installed.
    """

    schema: Mapping[str, Any] | bool
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        check_count("max_chars", self.max_chars)
        object.__setattr__(self, "schema", copy.deepcopy(self.schema))
        if not isinstance(self.schema, (dict, bool)):
            raise ConfigError(f"the schema is {self.schema!r:.80}; expected a JSON schema, a dict or a bool")
        try:
            _validator_class(self.schema).check_schema(self.schema)
        except _jsonschema().exceptions.SchemaError as error:
            where = "/".join(map(str, error.path)) or "the top"
            raise ConfigError(f"the schema is not a valid JSON schema: at {where}: {error.message}") from error

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply.

        Raises:
            ConfigError: If a `$ref` in the schema refers to something outside it, or is infinitely recursive.
        """
        if len(reply) > self.max_chars:
            return 0.0
        try:
            value = json.loads(reply, parse_constant=_refuse)
            check_json(value)
        except (ValueError, RecursionError):
            return 0.0
        return self._score(value)

    def _score(self, value: Any) -> float:
        registry = importlib.import_module("referencing").Registry()  # an empty registry loads nothing
        try:
            return float(_validator_class(self.schema)(self.schema, registry=registry).is_valid(value))
        except importlib.import_module("referencing.exceptions").Unresolvable as error:
            raise ConfigError(f"the schema refers to {error.ref!r}, which is not in it") from error
        except RecursionError as error:
            raise ConfigError("the schema refers to itself infinitely; expected a `$ref` chain that ends") from error
        except ArithmeticError:  # the schema computes with a number that is larger than any float
            return 0.0


def _validator_class(schema: Mapping[str, Any] | bool) -> Any:
    jsonschema = _jsonschema()
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)


def _jsonschema() -> Any:
    needed = ("referencing", "jsonschema")  # jsonschema installs referencing since 4.18
    return [load(module, "json_schema needs", "pip install 'envsdk[json-schema]'") for module in needed][-1]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
