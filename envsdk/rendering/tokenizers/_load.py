"""Find and load tokenizers."""

import base64
import copy
import difflib
import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import orjson

from ..._untrusted import MAX_VOCABULARY_BYTES, check_values, read_file
from ..._visible import type_of
from ...errors import TokenizerError, UnknownName
from ._byte_level import as_encoding
from ._chat_template import template_in_files, template_in_options
from ._fast import FastokensTokenizer
from ._files import DATA, VOCABULARY, ModelFiles, cached_snapshot, corpus, snapshot
from ._kinds import HuggingFaceTokenizer, NamedTokenizer, TiktokenTokenizer, is_failure, reading
from ._protocol import Tokenizer
from ._saved import RANKS, SavedTokenizer, is_saved, state_of_saved

_log = logging.getLogger(__name__)
Backend = Literal["auto", "fastokens"]


def load_tokenizer(source: Any = None, *, vocab_size: int | None = None, backend: Backend = "auto") -> Tokenizer:
    """Load a tokenizer.

    Args:
        source: `"embedded"` (a small vocabulary of our own that needs no network), a folder with a `tokenizer.json`,
            such a file, a folder that `tokenizer.save(folder)` wrote, the name of a tiktoken encoding
            (`"o200k_base"`), a Hugging Face id (`"Qwen/Qwen3-8B"`), or an object: a `tiktoken.Encoding`, a
            `tokenizers.Tokenizer`, a fast tokenizer of transformers, or a `Tokenizer` of envsdk. None is the embedded
            vocabulary as a default, which no model knows: only the policies `random`, `reference` and `null` may
            sample from it.
        vocab_size: The number of ids of the model. By default, the number in a `config.json` in the same folder, else
            the number of named ids rounded up to a multiple of 1,024, since models pad their embedding. Every id below
            it is legal in an action.
        backend: The library that encodes. `"auto"` is tiktoken if it gives the same ids for a corpus, else the
            `tokenizers` library. `"fastokens"` (`pip install 'envsdk[fast]'`) is several times faster, but takes a
            second to load and more memory. The ids and the fingerprint are the same.

    Returns:
        The tokenizer. Loading the same folder again returns the same object as long as none of its files has changed.
        A Hugging Face id means the folder of its snapshot: in the hub's cache, or downloaded unless `HF_HUB_OFFLINE`
        is set. A transformers tokenizer that was loaded from a folder, or from an id in the cache, takes the size of
        its vocabulary and its end tokens from that folder; its vocabulary and chat template are those of the object.

    Raises:
        TokenizerError: If the tokenizer is not found, its file cannot be read, or fastokens (if chosen) cannot read it
            or gives different ids for the corpus.
        MissingPackage: If fastokens is chosen but not installed.
    """
    if backend not in get_args(Backend):
        raise TokenizerError(str(UnknownName.of("backend", backend, get_args(Backend))))
    tokenizer = _load(source, vocab_size)
    if backend == "auto" or isinstance(tokenizer, FastokensTokenizer):
        return tokenizer
    if not isinstance(tokenizer, NamedTokenizer):
        raise TokenizerError(
            f"backend='fastokens' needs a vocabulary, but {tokenizer!r} is an object of your own class"
        )
    return _with_fastokens(tokenizer)


_with_fastokens = lru_cache(maxsize=32)(FastokensTokenizer)


def _load(source: Any, vocab_size: int | None) -> Tokenizer:
    if source is None:
        return _default(vocab_size)
    if isinstance(source, Tokenizer):
        if vocab_size not in (None, source.vocab_size):
            raise TokenizerError(f"{source!r} is already loaded; give vocab_size={vocab_size} when loading it")
        return source
    if not isinstance(source, (str, Path)):
        return _load_object(source, vocab_size)
    path = Path(source)
    if str(source) == "embedded":
        file = DATA / "embedded.json"
    elif is_saved(path):
        return _load_saved(str(path.absolute()), state_of_saved(path), vocab_size)
    else:
        file = path / VOCABULARY if path.is_dir() else path
    return _load_file(file, str(source), vocab_size) if file.is_file() else _load_by_name(str(source), vocab_size)


@lru_cache(maxsize=32)
def _default(vocab_size: int | None) -> Tokenizer:
    """Return the embedded tokenizer as a separate object that is marked as the default."""
    tokenizer = copy.copy(load_tokenizer("embedded", vocab_size=vocab_size))
    tokenizer.is_default = True  # pyright: ignore[reportAttributeAccessIssue] - of our own classes, not of the protocol
    return tokenizer


def _load_file(file: Path, name: str, vocab_size: int | None) -> Tokenizer:
    """Load a `tokenizer.json`, whatever its name is, with what the files next to it specify."""
    return _load_files(ModelFiles.read(file.absolute().parent, file), name, vocab_size)


@lru_cache(maxsize=32)
def _load_files(files: ModelFiles, name: str, vocab_size: int | None) -> Tokenizer:
    """Load a tokenizer; all that the result depends on is an argument, so the cache never returns outdated objects."""
    with reading(f"{files.vocabulary} cannot be read as a tokenizer.json"):
        content = read_file(files.vocabulary, MAX_VOCABULARY_BYTES)
        check_values(content)
        tokenizer = _fastest(name, orjson.loads(content), vocab_size or files.vocab_size)
    tokenizer.chat_template = template_in_files(files, tokenizer.control_tokens)
    return tokenizer


@lru_cache(maxsize=32)
def _load_saved(folder: str, state: tuple[tuple[int, ...], ...], vocab_size: int | None) -> Tokenizer:
    """Load a tokenizer that was saved; `state` is that of its files, so the cache never returns outdated objects."""
    import tiktoken

    saved = SavedTokenizer.read(Path(folder))
    size = vocab_size or saved.vocab_size
    with reading(f"{folder}/{saved.vocabulary} cannot be read"):
        content = read_file(Path(folder) / saved.vocabulary, MAX_VOCABULARY_BYTES, inside=Path(folder))
        if saved.vocabulary == RANKS:
            ranks = {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, content.splitlines())}
            encoding = tiktoken.Encoding(
                saved.name,
                pat_str=saved.rules["pattern"],
                mergeable_ranks=ranks,
                special_tokens=dict(saved.control_tokens),
            )
            tokenizer = TiktokenTokenizer(saved.name, encoding, nfc=saved.rules["nfc"], vocab_size=size)
        else:
            tokenizer = HuggingFaceTokenizer(saved.name, orjson.loads(content), vocab_size=size)
        fingerprint = tokenizer.fingerprint
    if fingerprint != saved.fingerprint:
        raise TokenizerError(
            f"the tokenizer in {folder} differs from the one that was saved there: its fingerprint is {fingerprint}; "
            f"expected {saved.fingerprint}. One of its files was changed; save it again"
        )
    tokenizer.chat_template = saved.chat_template
    return tokenizer


def _load_by_name(name: str, vocab_size: int | None) -> Tokenizer:
    import tiktoken

    if name in tiktoken.list_encoding_names():
        try:
            encoding = tiktoken.get_encoding(name)
        except OSError:  # of the network; its text is about HTTP
            raise TokenizerError(
                f"the tiktoken encoding {name!r} is not on this machine, and its host cannot be reached. Load it once "
                "with a network and TIKTOKEN_CACHE_DIR=FOLDER, where tiktoken keeps it, or give a folder with a "
                "tokenizer.json"
            ) from None
        return TiktokenTokenizer(name, encoding, nfc=False, vocab_size=vocab_size)
    path = Path(name)
    if path.is_dir():
        found = ", ".join(sorted(file.name for file in path.iterdir())[:10]) or "nothing"
        raise TokenizerError(
            f"the folder {name!r} has no {VOCABULARY} (it has {found}). Write it there with "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained({name!r})"
        )
    if path.suffix == ".json" or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise TokenizerError(
            f"the tokenizer {name!r} is a path, and no file or folder is there, seen from {Path.cwd()}"
        )
    known = ["embedded", *tiktoken.list_encoding_names()]
    if difflib.get_close_matches(name, known, cutoff=0.8):
        # No model has such a name; a request to the hub would only take time.
        raise TokenizerError(str(UnknownName.of("tokenizer", name, known)))
    try:
        file = snapshot(name) / VOCABULARY
    except TokenizerError as error:
        raise TokenizerError(
            f"No tokenizer {name!r}: it is not 'embedded', not a folder or file with a tokenizer.json, not a tiktoken "
            f"encoding, and as a Hugging Face id it does not load: {error}"
        ) from error
    if not file.is_file():
        raise TokenizerError(
            f"The Hugging Face model {name!r} has no tokenizer.json. Load it with transformers, and give the object: "
            f"load_tokenizer(AutoTokenizer.from_pretrained({name!r}))"
        )
    return _load_file(file, name, vocab_size)


def local_tokenizer(origin: str) -> Tokenizer | None:
    """Load the tokenizer of a model that was loaded from a folder or a Hugging Face id, if this machine has it.

    Raises:
        TokenizerError: If its file cannot be read.
    """
    if not origin:
        return None
    folder = Path(origin) if Path(origin).is_dir() else cached_snapshot(origin)
    file = None if folder is None else folder / VOCABULARY
    return _load_file(file, origin, None) if file is not None and file.is_file() else None


def _load_object(source: Any, vocab_size: int | None) -> Tokenizer:
    import tiktoken
    import tokenizers

    if isinstance(source, tiktoken.Encoding):
        return TiktokenTokenizer(source.name, source, nfc=False, vocab_size=vocab_size)
    backend = getattr(source, "backend_tokenizer", source)
    if isinstance(backend, tokenizers.Tokenizer):
        origin = str(getattr(source, "name_or_path", "") or "")
        name = origin or type(source).__name__
        path = Path(origin)  # the files of the model are next to it, if they are on this machine
        folder = path if path.is_dir() else path.parent if path.is_file() else cached_snapshot(origin)
        files = ModelFiles.read(folder) if origin and folder is not None else None
        named = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        size = None if files is None else files.vocab_size
        if size is not None and size < named:  # more tokens were added to the object
            size = None
        tokenizer = _fastest(name, orjson.loads(backend.to_str()), vocab_size or size)
        names = ("chat_template", "response_template", "response_schema")
        options = {**getattr(source, "special_tokens_map", {}), **{name: getattr(source, name, None) for name in names}}
        tokenizer.chat_template = template_in_options(options, files, tokenizer.control_tokens)
        return tokenizer
    raise TokenizerError(
        f"Cannot make a tokenizer of {type_of(source)}: give a name, a folder, a tokenizer.json, or an object "
        "of tiktoken, tokenizers or transformers (a fast one)"
    )


def _fastest(name: str, specification: Mapping[str, Any], vocab_size: int | None) -> Tokenizer:
    """Return a tiktoken encoding if it gives the same ids for a corpus, else one of the `tokenizers` library."""
    if not isinstance(specification, Mapping) or not {"model", "added_tokens"} <= specification.keys():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TokenizerError(f"{name}: not the content of a tokenizer.json (no `model` or no `added_tokens` in it)")
    slow = HuggingFaceTokenizer(name, specification, vocab_size=vocab_size)
    try:
        encoding = as_encoding(name, specification)
        if encoding is None:
            return slow
        nfc, text = specification.get("normalizer") is not None, corpus()
        fast = TiktokenTokenizer(name, encoding, nfc=nfc, vocab_size=vocab_size)
        is_same = np.array_equal(fast.encode(text), slow.encode(text))
    except BaseException as error:
        if not is_failure(error):
            raise
        _log.info("%s stays with the `tokenizers` library: tiktoken fails with %s: %s", name, type(error), error)
        return slow
    return fast if is_same else slow
