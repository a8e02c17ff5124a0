"""Keeps measurements of chat templates on disk, for the next process.

There is one JSON file for each measurement. It is written to another name and then renamed, so that concurrent
processes never read half a file. A file that is missing, damaged or of another form is measured again. Nothing that is
read is executed, and nothing of a conversation is written.
"""

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jinja2
from pydantic import BaseModel, TypeAdapter, ValidationError

from .._harmony_vocabulary import cache_folder

VARIABLE = "ENVSDK_TEMPLATE_CACHE"
"""The environment variable with the folder of the measurements; `off` keeps none."""
VERSION = 3
"""The version of the code that measures. A test fails if that code changes and this number does not."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def remember(memory: dict[_Key, _Value], key: _Key, value: _Value, *, at_most: int = 512) -> None:
    """Add a value to a cache of bounded size in memory; drop the oldest one if it is full."""
    if len(memory) >= at_most:
        memory.pop(next(iter(tuple(memory))), None)  # other threads may share the cache
    memory[key] = value


@dataclass(frozen=True)
class Store:
    """The measurements of one template with one vocabulary and one set of options.

    Attributes:
        key: A hash of all of these.
    """

    key: str

    def measured(self, name: str, adapter: TypeAdapter[_Value], measure: Callable[[], _Value]) -> _Value:
        """Return a measurement that is on disk, or measure it and keep it.

        Args:
            name: The name of the measurement.
            adapter: Reads and writes it as JSON.
            measure: Measures it. What it raises is not kept.
        """
        given = os.environ.get(VARIABLE)
        if given == "off":
            return measure()
        try:
            folder = Path(given) if given else cache_folder() / "templates"
        except RuntimeError:  # the user has no home folder
            return measure()
        digest = _hash(str(VERSION), platform.python_version(), jinja2.__version__, self.key, name)
        file = folder / f"{digest}.json"
        with suppress(OSError, ValidationError):
            kept = _StoredValue.model_validate_json(file.read_bytes())
            if kept.checksum == _hash(digest, kept.value):
                return adapter.validate_json(kept.value)
        value = measure()
        with suppress(OSError):  # a full disk or a read-only folder only costs time
            text = adapter.dump_json(value).decode()
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".unfinished")
            try:
                with os.fdopen(descriptor, "wb") as unfinished:
                    unfinished.write(_StoredValue(value=text, checksum=_hash(digest, text)).model_dump_json().encode())
                Path(name).replace(file)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        return value


class _StoredValue(BaseModel):
    """The content of a file."""

    value: str
    """The measurement as JSON."""
    checksum: str


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:40]
