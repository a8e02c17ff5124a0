"""Loads the encoding of openai-harmony, without a network if possible.

The library reads one file, `o200k_base.tiktoken`, from the folder in `TIKTOKEN_ENCODINGS_BASE`, or downloads it. The
`tokenizer.json` of a gpt-oss model contains the same ranks, so the file is written from it into a cache folder once.
"""

import base64
import hashlib
import os
from collections.abc import Mapping
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
        tokenizer: A gpt-oss tokenizer, whose ranks replace the file if it is missing.

    Raises:
        TokenizerError: If none of the three ways works; the error lists them.
    """
    ranks: Mapping[bytes, int] = getattr(tokenizer, "ranks", {})  # tiktoken's tokenizers have them
    folder = os.environ.get(BASE) or _folder_of(ranks)
    try:
        return _load(folder)
    except Exception as error:  # the library raises its own errors and the operating system's
        raise TokenizerError(
            f"the vocabulary of openai-harmony does not load: {error}. There are three ways: set {BASE} to a folder "
            f"with {FILE}; or give the tokenizer of a gpt-oss model, tokenizer='<folder with its tokenizer.json>', "
            "from which the file is made; or let the library download it, which needs a network"
        ) from error


@cache
def _load(folder: str | None) -> "HarmonyEncoding":
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    before = os.environ.get(BASE)
    if folder is not None:
        os.environ[BASE] = folder
    try:
        return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    finally:
        if before is not None:
            os.environ[BASE] = before
        elif folder is not None:
            del os.environ[BASE]


def _folder_of(ranks: Mapping[bytes, int]) -> str | None:
    """Return the cache folder with the file, which is written from the ranks if needed; None if the ranks differ."""
    file = cache_folder() / FILE
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256:
        return str(file.parent)
    lines = [b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in sorted(ranks.items(), key=lambda r: r[1])]
    content = b"".join(lines)
    if hashlib.sha256(content).hexdigest() != SHA256:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(file)
    return str(file.parent)


def cache_folder() -> Path:
    """Return the folder for files that can be created again: `$XDG_CACHE_HOME/envsdk`, or `~/.cache/envsdk`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envsdk"
