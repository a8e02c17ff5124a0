"""Names with options as one text, as the command line and `history=` take them: `compact:every=10`."""

import json
from typing import Any

from .errors import ConfigError


def specification(text: str) -> str | dict[str, Any]:
    """Read a name with options: `compact:every=10`, or JSON. A name without options stays as it is.

    Raises:
        ConfigError: If it is neither.
    """
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is no JSON: {error}") from error
    name, _, options = text.partition(":")
    if not options:
        return name
    pairs = [option.partition("=") for option in options.split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise ConfigError(f"{text!r} is no name with options; write it as name:key=value,key=value or as JSON")
    return {"name": name, **{key.strip(): value_of(value) for key, _, value in pairs}}


def value_of(text: str) -> Any:
    """A value as JSON, or as Python writes it; any other text is that text."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text
