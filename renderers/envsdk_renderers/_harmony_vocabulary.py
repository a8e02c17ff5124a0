"""Loads the encoding of openai-harmony, without a network if possible.

The library reads one file, `o200k_base.tiktoken`, from the folder in `TIKTOKEN_ENCODINGS_BASE`, or downloads it. The
tokenizer of a gpt-oss model has the same ranks as ids, so the file is written from it into a cache folder once.
"""

import base64
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from envsdk.errors import TokenizerError
from envsdk.rendering.tokenizers import Tokenizer

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

BASE = "TIKTOKEN_ENCODINGS_BASE"
FILE = "o200k_base.tiktoken"
_RANKS = 199_998  # the first ids of a gpt-oss tokenizer
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"  # what tiktoken and the library check


def load_encoding(tokenizer: Tokenizer) -> "HarmonyEncoding":
    """Load the library's encoding.

    Args:
        tokenizer: A gpt-oss tokenizer, whose ranks replace the file if it is missing.

    Raises:
        TokenizerError: If none of the three ways works; the error lists them.
    """
    folder = os.environ.get(BASE) or _folder_of(tokenizer)
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


def _folder_of(tokenizer: Tokenizer) -> str | None:
    """Return the cache folder with the file, which is written from a tokenizer if needed; None if its ranks differ."""
    file = cache_folder() / FILE
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256:
        return str(file.parent)
    if tokenizer.vocab_size < _RANKS:
        return None
    pieces = tokenizer.token_bytes(np.arange(_RANKS, dtype=np.int32))
    content = b"".join(b"%b %d\n" % (base64.b64encode(piece), rank) for rank, piece in enumerate(pieces))
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
