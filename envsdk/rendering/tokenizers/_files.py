"""Read the files in a model's folder from which a tokenizer is made.

A snapshot of a Hugging Face cache consists of links into another folder, so neighbors are looked up next to the link,
not next to the file that it points to.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from ..._untrusted import MAX_DESCRIPTION_BYTES, read_file
from ..._visible import type_of
from ...errors import InvalidRecord, TokenizerError

VOCABULARY = "tokenizer.json"
TEMPLATES = ("additional_chat_templates/default.jinja", "chat_template.jinja")  # as transformers prefers them
_CONFIG, GENERATION = "config.json", "generation_config.json"
# The second is a legacy of transformers before 5: what the first one does not specify.
TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json")
_TEXTS = (*TEMPLATES, *TOKENIZER, _CONFIG, GENERATION)


DATA = Path(__file__).parent / "data"


class ModelFiles(NamedTuple):
    """The files from which a tokenizer is made. Two values are equal if and only if no file has changed.

    The vocabulary is megabytes long, so it is compared by its state on disk; the other files are compared by content.
    """

    folder: str
    vocabulary: str
    """The absolute path of the `tokenizer.json`; an empty string if it is not read from a file."""
    state: tuple[int, ...]
    texts: tuple[tuple[str, bytes], ...]
    """The content of each other file that exists."""

    @classmethod
    def read(cls, folder: Path, vocabulary: Path | None = None) -> "ModelFiles":
        """Read what a folder specifies besides the vocabulary; `vocabulary` is the `tokenizer.json`, if it is used."""
        found = [name for name in _TEXTS if (folder / name).is_file()]
        try:
            texts = tuple((name, read_file(folder / name, MAX_DESCRIPTION_BYTES)) for name in found)
        except (OSError, InvalidRecord) as error:
            raise TokenizerError(f"The tokenizer's files in {folder} cannot be read: {error}") from error
        if vocabulary is None:
            return cls(str(folder), "", (), texts)
        return cls(str(folder), str(vocabulary.absolute()), state_of(vocabulary), texts)

    @property
    def vocab_size(self) -> int | None:
        """The number of ids of the model, if its configuration specifies it; multimodal models nest it."""
        config = self.json(_CONFIG)
        text_config = config.get("text_config")
        nested = cast("dict[str, Any]", text_config) if isinstance(text_config, dict) else {}
        sizes = (config.get("vocab_size"), nested.get("vocab_size"))
        return next((size for size in sizes if isinstance(size, int) and not isinstance(size, bool)), None)

    def json(self, name: str) -> dict[str, Any]:
        """The content of a JSON file; empty if there is no such file."""
        text = dict(self.texts).get(name)
        try:
            value: Any = {} if text is None else orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise TokenizerError(f"{name} in {self.folder} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise TokenizerError(f"{name} in {self.folder} holds {type_of(value)}; expected an object")
        return cast("dict[str, Any]", value)


def state_of(file: Path) -> tuple[int, ...]:
    """Return a value that changes with each change of a file."""
    status = file.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=32)
def snapshot(repo_id: str) -> Path:
    """Return the folder of a model of the Hugging Face hub, cached or downloaded. It is constant within a process.

    `HF_HUB_OFFLINE` and the variables for the location of the cache are respected.

    Raises:
        TokenizerError: If the hub does not have the model, or cannot be reached and the cache does not have it.
    """
    import huggingface_hub

    hub: Any = huggingface_hub
    try:
        return Path(hub.snapshot_download(repo_id, allow_patterns=[VOCABULARY, *_TEXTS]))
    except Exception as error:  # the hub's, the network's, the operating system's
        match type(error).__name__:
            case "LocalEntryNotFoundError" | "ConnectError" | "ConnectionError" | "OfflineModeIsEnabled":
                raise TokenizerError(
                    "the hub cannot be reached, and its cache on this machine lacks the model"
                ) from None
            case "RepositoryNotFoundError" | "GatedRepoError":
                raise TokenizerError(
                    "the hub has no such model, or you may not read it: log in with `hf auth login`"
                ) from None
            case kind:
                raise TokenizerError(f"{kind}: {str(error).partition(chr(10))[0]}") from error


def cached_snapshot(repo_id: str) -> Path | None:
    """Return the folder of a model of the Hugging Face hub if it is cached, else None. Nothing is downloaded."""
    import huggingface_hub

    try:
        file = huggingface_hub.try_to_load_from_cache(repo_id, _CONFIG)
    except ValueError:  # not a valid model id
        return None
    return Path(file).parent if isinstance(file, str) else None


def corpus() -> str:
    """Return the text for which two libraries must give the same ids before one replaces the other.

    It contains many scripts, code, numbers, whitespace, and rare characters.
    """
    return (DATA / "corpus.txt").read_bytes().decode()
