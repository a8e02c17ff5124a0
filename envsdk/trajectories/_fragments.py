"""Any value of an author or a policy as JSON that a record can contain."""

import json
import math
from typing import Any, cast

import numpy as np
import orjson

from .._visible import type_of
from ..errors import InvalidRecord


def fragment(value: Any) -> orjson.Fragment:
    """Return a value as JSON: integers of any length, NumPy's values as plain ones, other objects as their `repr`.

    Raises:
        InvalidRecord: If a key is not a string, a value contains itself, or a string is not valid Unicode.
    """
    try:
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        try:
            text = encoder.encode(value)
        except ValueError:  # JSON has neither NaN nor infinities
            text = encoder.encode(_finite(value))
        return orjson.Fragment(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"{type_of(value)} cannot be written as JSON: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("Any", value).tolist()
    return repr(value)


def _finite(value: Any) -> Any:
    """Return a value with each number that is not finite replaced by its `repr`."""
    match value:
        case float():
            return value if math.isfinite(value) else repr(float(value))
        case dict():
            return {key: _finite(item) for key, item in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_finite(item) for item in cast("list[Any]", value)]
        case np.ndarray() | np.generic():
            return _finite(cast("Any", value).tolist())
        case _:
            return value
