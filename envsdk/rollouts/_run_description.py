"""The files of a run folder that describe it: `run.json`, what was configured, and `manifest.json`, what was stored."""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .._untrusted import MAX_DESCRIPTION_BYTES, parse_json, read_file
from ..errors import InvalidRecord, RunFolderError, what_is_invalid
from ..trajectories._fragments import fragment
from ._unequal import MISSING, Unequal, unequal

CHANGES = "changes"
"""Where a configuration has what changed while the run went on, because that was allowed: a list, in order."""
_CHANGEABLE = ("made_by", "config", "options", "code", "limits", "rows")
"""What may be allowed to change, because the stored episodes are still read in the same way."""
_ADDED = ("options", "code", "rows")
"""What earlier versions did not record."""
_PACKAGES = ("envsdk", "gymnasium", "numpy", "openai-harmony", "pydantic", "tiktoken", "tokenizers", "transformers")
"""What tokens, random numbers and tasks depend on."""


class _Described(BaseModel):
    """A JSON file of a run folder."""

    file_name: ClassVar[str]
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the file of a folder; None if there is none.

        Raises:
            RunFolderError: If it is damaged, or another version of envsdk wrote it.
            OSError: If it cannot be read.
        """
        path = folder / cls.file_name
        try:
            return cls.model_validate(parse_json(read_file(path, MAX_DESCRIPTION_BYTES, inside=folder)))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise RunFolderError(f"{path} is damaged, or of another version: {what_is_invalid(error)}") from error
        except ValueError as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error

    def write(self, folder: Path) -> None:
        """Write the file: it is complete and on disk, or as it was before.

        Raises:
            OSError: If it cannot be written.
        """
        path = folder / self.file_name
        unfinished = path.with_name(f".{path.name}.unfinished")
        with unfinished.open("wb") as file:
            file.write(orjson.dumps(self.model_dump(), option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync(folder)


class StoredRenderer(BaseModel):
    """A renderer of a run.

    Attributes:
        specification: Its name and options.
        chosen_because: Why `renderer="auto"` chose it; empty if it was named.
        tokenizer: The fingerprint of its tokenizer.
        vocab_size: The number of ids of the model.
        folder: The folder of the tokenizer's files, inside the run folder.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    specification: dict[str, Any]
    tokenizer: str
    vocab_size: int
    folder: str = Field(pattern=r"^tokenizer(-[0-9]{1,4})?$")
    chosen_because: str = ""


class RunDescription(_Described):
    """What a run was configured with; it never changes.

    Attributes:
        configuration: What the caller of the run gave.
        renderers: The renderer of each role; the first is that of the environment.
        trajectories: The name of the file of trajectories.
        versions: The versions of Python, envsdk, and the packages that tokens and tasks depend on.
        created: When the run began: ISO 8601, in UTC.
    """

    file_name: ClassVar[str] = "run.json"

    kind: Literal["run"] = "run"
    schema_version: Literal[1] = 1
    configuration: dict[str, Any]
    renderers: dict[str, StoredRenderer] = Field(min_length=1)
    trajectories: Literal["trajectories.jsonl", "trajectories.jsonl.zst"]
    versions: dict[str, str]
    created: str

    @property
    def compared(self) -> dict[str, Any]:
        """What has to be the same in a run that continues this one."""
        described = self.model_dump(include={"configuration", "renderers", "trajectories"})
        described["configuration"].pop(CHANGES, None)
        for renderer in described["renderers"].values():
            del renderer["chosen_because"]  # another version may word it differently
        return described


class Manifest(_Described):
    """What was stored, at some moment of the run.

    Attributes:
        is_complete: Whether the run came to its end.
        episodes: How many episodes are stored.
        by_status: How many of them ended with each status.
        by_error_kind: How many of them failed, by whose error it was; `unknown` if nobody recorded that.
        bytes: The length of the file of trajectories. A run that was killed may have written more.
        sha256: The SHA-256 of the first `bytes` bytes of it.
        updated: When this was written: ISO 8601, in UTC.
    """

    file_name: ClassVar[str] = "manifest.json"

    kind: Literal["manifest"] = "manifest"
    schema_version: Literal[1] = 1
    is_complete: bool = False
    episodes: int = 0
    by_status: dict[str, int] = Field(default_factory=dict)
    by_error_kind: dict[str, int] = Field(default_factory=dict)
    bytes: int = 0
    sha256: str
    updated: str


def now() -> str:
    """Return the time: ISO 8601, in UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Return the versions of Python, envsdk, and the packages that tokens and tasks depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a part of a distribution
            continue
    return found


def as_json(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as `run.json` will hold it.

    Raises:
        RunFolderError: If it cannot be written as JSON.
    """
    try:
        return json.loads(orjson.dumps(fragment(dict(configuration))))
    except InvalidRecord as error:
        raise RunFolderError(f"the configuration of the run cannot be stored: {error}") from error


def is_changeable(difference: Unequal) -> bool:
    """Return whether a difference between two descriptions may be allowed."""
    _, _, place = difference.path.partition("configuration.")
    return place.partition(".")[0] in _CHANGEABLE


def is_unknown(difference: Unequal) -> bool:
    """Return whether a difference is only that an earlier version of envsdk did not record something."""
    _, _, place = difference.path.partition("configuration.")
    return difference.stored == MISSING and place in _ADDED


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return each difference between what a folder holds and what was given: where it is, and both values."""
    return [described(one) for one in unequal(dict(stored), dict(given))]


def described(difference: Unequal) -> str:
    """Return a difference between what a folder holds and what was given: where it is, and both values."""
    return f"{difference.path}: {difference.stored} in the folder, {difference.given} now"


def counted(counts: Counter[str]) -> dict[str, int]:
    """Return counts in the order of their names."""
    return {name: counts[name] for name in sorted(counts)}


def sync(folder: Path) -> None:
    """Wait until the names of the files in a folder are on disk."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
