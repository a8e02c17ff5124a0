"""Writes tools, and reads the arguments of Harmony's calls, as JSON. Knows nothing about tokens.

Keys are unique, and values are what `ToolCall` accepts. A call that cannot be read has an error, and its text as its
arguments.
"""

import json
from typing import Any, cast

from pydantic import ValidationError

from envsdk.errors import RenderError
from envsdk.messages import ToolCall, with_unique_keys


def json_text(value: Any, what: str) -> str:
    """Write a value as transformers' `tojson` does.

    Raises:
        RenderError: If the value is not JSON; the error calls it `what`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # an unpaired surrogate cannot be encoded
        return text
    except (TypeError, ValueError) as error:
        raise RenderError(f"a {what} is not JSON: {error}") from error


def read_arguments(name: str, text: str) -> ToolCall:
    """Read the arguments of a call of `name`, which have to be an object (Harmony)."""
    try:
        value: Any = json.loads(text, object_pairs_hook=with_unique_keys)
        call = ToolCall(name="", arguments=cast("dict[str, Any]", value) if isinstance(value, dict) else "")
    except ValidationError as error:
        return _broken(name, text, error.errors()[0]["msg"].removeprefix("Value error, "))
    except (ValueError, RecursionError) as error:
        return _broken(name, text, error)
    if not isinstance(value, dict):
        error = "a tool call's arguments are not a JSON object"
        return ToolCall(name=name, arguments=text, error=error, raw=text)
    return call.model_copy(update={"name": name})


def _broken(name: str, text: str, why: object) -> ToolCall:
    return ToolCall(name=name, arguments=text, error=f"a tool call is not valid JSON: {why}", raw=text)
