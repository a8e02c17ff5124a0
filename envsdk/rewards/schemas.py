"""A scorer of replies that are to be JSON of a given form. It needs the package jsonschema when it is used."""

import copy
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..messages import check_json
from ..packages import load
from .scorer import check_count


@dataclass(frozen=True, slots=True)
class json_schema:  # noqa: N801 - it is called like a function
    """1 if the reply is JSON that fits a schema, else 0; the target does not matter.

    The whole reply has to be JSON, with white space around it at most; `extract` takes it out of a code block. NaN and
    infinity are no JSON, and neither is what is nested deeper than 64 levels. A `format` in the schema says something
    and checks nothing, as usual. `$ref` may point into the schema alone: nothing is loaded from elsewhere. A `pattern`
    in it may take long; see `regex`. So may `uniqueItems`, which takes the square of the items: a longer `max_chars`
    lets a reply take minutes.

    Attributes:
        schema: A JSON schema, of the draft that its `$schema` names, or of the latest that jsonschema knows.
        max_chars: A longer reply scores 0.

    Raises:
        ConfigError: If it is no JSON schema.
        ImportError: If jsonschema is not installed.
    """

    schema: Mapping[str, Any] | bool
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        check_count("max_chars", self.max_chars)
        object.__setattr__(self, "schema", copy.deepcopy(self.schema))
        if not isinstance(self.schema, (dict, bool)):
            raise ConfigError(f"the schema is {self.schema!r:.80}; expected a JSON schema: a dict")
        try:
            _validator_class(self.schema).check_schema(self.schema)
        except _jsonschema().exceptions.SchemaError as error:
            where = "/".join(map(str, error.path)) or "the top"
            raise ConfigError(f"it is no JSON schema: at {where}: {error.message}") from error

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply.

        Raises:
            ConfigError: If the schema refers to something that is not there, or to itself without end.
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
        registry = importlib.import_module("referencing").Registry()  # an empty one: it loads nothing
        try:
            return float(_validator_class(self.schema)(self.schema, registry=registry).is_valid(value))
        except importlib.import_module("referencing.exceptions").Unresolvable as error:
            raise ConfigError(f"the schema refers to {error.ref!r}, which is not in it") from error
        except RecursionError as error:
            raise ConfigError("the schema refers to itself without end") from error
        except ArithmeticError:  # a number beyond all floats, where the schema computes with it
            return 0.0


def _validator_class(schema: Mapping[str, Any] | bool) -> Any:
    jsonschema = _jsonschema()
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)


def _jsonschema() -> Any:
    needed = ("referencing", "jsonschema")  # jsonschema brings the other since 4.18
    return [load(module, "json_schema needs", "pip install 'envsdk[json-schema]'") for module in needed][-1]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
