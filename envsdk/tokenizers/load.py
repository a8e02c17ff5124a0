"""Finding and loading tokenizers."""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from ..errors import TokenizerError, unknown_name
from .byte_level import as_encoding
from .chat_template import template_in_folder, template_of_object
from .kinds import HuggingFaceTokenizer, TiktokenTokenizer
from .protocol import Tokenizer

DATA = Path(__file__).parent.parent / "data"


def load_tokenizer(source: Any = "embedded", *, vocab_size: int | None = None) -> Tokenizer:
    """Load a tokenizer.

    Args:
        source: `"embedded"` (a small vocabulary of our own that needs no network), a folder with a `tokenizer.json`,
            such a file, the name of a tiktoken encoding (`"o200k_base"`), a Hugging Face id (`"Qwen/Qwen3-8B"`), or an
            object: a `tiktoken.Encoding`, a `tokenizers.Tokenizer`, a fast tokenizer of transformers, one of ours.
        vocab_size: How many ids the model has. By default what a `config.json` in the same folder says, else the
            named ids rounded up to a multiple of 1,024, since models pad their embedding. Every id below it is legal
            in an action.

    Returns:
        The tokenizer. Loading the same file again gives the same object.

    Raises:
        TokenizerError: If there is no such tokenizer, or its file cannot be read.
    """
    if isinstance(source, Tokenizer):
        if vocab_size not in (None, source.vocab_size):
            raise TokenizerError(f"{source!r} is loaded already; vocab_size={vocab_size} comes too late")
        return source
    if isinstance(source, (str, Path)):
        if str(source) == "embedded":
            return _load_file(DATA / "embedded.json", "embedded", vocab_size)
        path = Path(source)
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.is_file():
            return _load_file(file, str(source), vocab_size or _model_vocab_size(file.parent))
        return _load_by_name(str(source), vocab_size)
    return _load_object(source, vocab_size)


def _load_file(file: Path, name: str, vocab_size: int | None) -> Tokenizer:
    status = file.stat()
    return _load_file_once(str(file.resolve()), (status.st_mtime_ns, status.st_size), name, vocab_size)


@lru_cache(maxsize=32)
def _load_file_once(file: str, version: tuple[int, int], name: str, vocab_size: int | None) -> Tokenizer:
    try:
        specification = orjson.loads(Path(file).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise TokenizerError(f"{file} cannot be read as a tokenizer.json: {error}") from error
    tokenizer = _fastest(name, specification, vocab_size)
    tokenizer.chat_template = template_in_folder(Path(file).parent, tokenizer.control_tokens)
    return tokenizer


def _load_by_name(name: str, vocab_size: int | None) -> Tokenizer:
    import tiktoken

    if name in tiktoken.list_encoding_names():
        return TiktokenTokenizer(name, tiktoken.get_encoding(name), nfc=False, vocab_size=vocab_size)
    known = ["embedded", *tiktoken.list_encoding_names()]
    if difflib.get_close_matches(name, known, cutoff=0.8):
        # No model is called so; asking the hub would only take long.
        raise TokenizerError(str(unknown_name("tokenizer", name, known)))
    import transformers

    try:
        auto: Any = cast("Any", transformers).AutoTokenizer
        return _load_object(auto.from_pretrained(name), vocab_size)
    except (OSError, ValueError, ImportError) as error:
        raise TokenizerError(
            f"No tokenizer {name!r}: it is not 'embedded', not a folder or file with a tokenizer.json, not a tiktoken "
            f"encoding, and as a Hugging Face id it does not load: {type(error).__name__}: {error}"
        ) from error


def _load_object(source: Any, vocab_size: int | None) -> Tokenizer:
    import tiktoken
    import tokenizers

    if isinstance(source, tiktoken.Encoding):
        return TiktokenTokenizer(source.name, source, nfc=False, vocab_size=vocab_size)
    backend = getattr(source, "backend_tokenizer", source)
    if isinstance(backend, tokenizers.Tokenizer):
        name = getattr(source, "name_or_path", "") or type(source).__name__
        tokenizer = _fastest(name, orjson.loads(backend.to_str()), vocab_size)
        tokenizer.chat_template = template_of_object(source)
        return tokenizer
    raise TokenizerError(
        f"Cannot make a tokenizer of a {type(source).__name__}: give a name, a folder, a tokenizer.json, or an object "
        "of tiktoken, tokenizers or transformers (a fast one)"
    )


def _model_vocab_size(folder: Path) -> int | None:
    config = folder / "config.json"
    if not config.is_file():
        return None
    size = orjson.loads(config.read_bytes()).get("vocab_size")
    return size if isinstance(size, int) else None


def _fastest(name: str, specification: Mapping[str, Any], vocab_size: int | None) -> Tokenizer:
    """A tiktoken encoding where the ids are shown to be the same, else the `tokenizers` library's own."""
    if not isinstance(specification, Mapping) or not {"model", "added_tokens"} <= specification.keys():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TokenizerError(f"{name}: not the content of a tokenizer.json (no `model` or no `added_tokens` in it)")
    slow = HuggingFaceTokenizer(name, specification, vocab_size=vocab_size)
    encoding = as_encoding(name, specification)
    if encoding is None:
        return slow
    nfc = specification.get("normalizer") is not None
    fast = TiktokenTokenizer(name, encoding, nfc=nfc, vocab_size=vocab_size)
    corpus = (DATA / "corpus.txt").read_bytes().decode()
    return fast if np.array_equal(fast.encode(corpus), slow.encode(corpus)) else slow
