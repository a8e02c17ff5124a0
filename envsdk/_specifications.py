"""Names with options in one string, as the command line and `history=` accept them: `compact:every=10`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from ._visible import brief
from .errors import ConfigError

_COMMA = re.compile(r",(?![^\[]*\])")
"""A comma that is not in a list."""


def specification(text: str) -> str | dict[str, Any]:
    """Return a mapping for a name with options, `planned:at=[8,20],max_tokens=900` or JSON; a name alone unchanged.

    Raises:
        ConfigError: If the string has another form.
    """
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{brief(text)} begins like JSON but is not JSON: {error}") from error
    name, _, options = text.partition(":")
    if not options:
        return name
    pairs = [option.partition("=") for option in _COMMA.split(options)]
    if not all(key and equals for key, equals, _ in pairs):
        raise ConfigError(f"{brief(text)} is not a name with options; write name:key=value,key=value or JSON")
    return {"name": name, **{key.strip(): value_of(value) for key, _, value in pairs}}


def as_option(given: Mapping[str, Any]) -> str:
    """Return a name with options as the command line takes it, which `specification` reads."""
    options = [f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in given.items() if key != "name"]
    return ":".join([given["name"], *filter(None, [",".join(options)])])


def value_of(text: str) -> Any:
    """Return the value of a string that is JSON, or Python's True, False or None; any other string unchanged."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text
