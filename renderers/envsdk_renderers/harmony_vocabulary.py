"""The encoding of openai-harmony, loaded without a network where that is possible.

The library reads one file, `o200k_base.tiktoken`, from the folder that `TIKTOKEN_ENCODINGS_BASE` names, or downloads
it. Whoever has a gpt-oss model has the same ranks in its `tokenizer.json`; they are written into a cache folder once.
"""

import base64
import hashlib
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envsdk.errors import TokenizerError
from envsdk.rendering.tokenizers import Tokenizer

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

BASE = "TIKTOKEN_ENCODINGS_BASE"
FILE = "o200k_base.tiktoken"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"  # what tiktoken and the library check


def load_encoding(tokenizer: Tokenizer) -> "HarmonyEncoding":
    """Load the library's encoding.

    Args:
        tokenizer: A gpt-oss tokenizer, whose ranks stand in for the file where it is not at hand.

    Raises:
        TokenizerError: If none of the three ways works; it lists them.
    """
    ranks: Mapping[bytes, int] = getattr(tokenizer, "ranks", {})
    folder = os.environ.get(BASE) or _folder_of(ranks)
    try:
        return _load(folder)
    except Exception as error:  # the library raises its own errors and the operating system's
        raise TokenizerError(
            f"the vocabulary of openai-harmony does not load: {error}. There are three ways: set {BASE} to a folder "
            f"with {FILE}; or give the tokenizer of a gpt-oss model, tokenizer='<folder with its tokenizer.json>', of "
            "which the file is made; or let the library download it, which needs a network"
        ) from error


@cache
def _load(folder: str | None) -> "HarmonyEncoding":
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    with _environment(BASE, folder):
        return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@contextmanager
def _environment(name: str, value: str | None) -> Generator[None, None, None]:
    """Set an environment variable for a moment."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None and before is None:
            del os.environ[name]
        elif before is not None:
            os.environ[name] = before


def _folder_of(ranks: Mapping[bytes, int]) -> str | None:
    """The cache folder with the file, which is made of the ranks if it is not there; None if they are others."""
    file = cache_folder() / FILE
    if file.is_file() and _sha256(file.read_bytes()) == SHA256:
        return str(file.parent)
    lines = [b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in sorted(ranks.items(), key=lambda r: r[1])]
    content = b"".join(lines)
    if _sha256(content) != SHA256:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(file)
    return str(file.parent)


def cache_folder() -> Path:
    """Where files are kept that can be made again: `$XDG_CACHE_HOME/envsdk`, by default `~/.cache/envsdk`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envsdk"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
