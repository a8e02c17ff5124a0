"""Tokenizers: text to token ids that can never be control tokens, and back.

A *control token* is any id that a tokenizer names outside its ordinary vocabulary: `special` ones such as
`<|im_start|>` and merely *added* ones such as `<think>`. `encode` treats their names as the plain text that they are;
only `token_id` yields a control token. So nothing that a user, a tool or a model writes can forge one.

Hugging Face tokenizers match added tokens inside text, whatever their options say, hence a tokenizer here is a second
one without them. A byte-level BPE becomes a tiktoken encoding, several times faster, once a corpus has shown that
both give the same ids; what cannot be shown stays with the `tokenizers` library.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

import numpy as np
import orjson

from .errors import TokenizerError, unknown_name

if TYPE_CHECKING:
    import tiktoken
    from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
UNNAMED = "�"
"""What an id without a name, such as the padding of a model's vocabulary, decodes to."""

# Models pad their embedding to a round number of rows (Qwen3 names 151,669 ids and has 151,936 rows).
_PADDING = 1024
_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@runtime_checkable
class Tokenizer(Protocol):
    """What renderers need of a tokenizer."""

    name: str

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The names and ids of all control tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many ids the model has: every id of an action is below it. Ids without a name are counted."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash; tokenizers with the same fingerprint give the same ids."""
        ...

    def encode(self, text: str) -> "NDArray[np.int32]":
        """Encode plain text: int32, shape (n,), never a control token."""
        ...

    def encode_with_ends(self, text: str) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Encode plain text; also give where each token ends, in bytes of the normalised text."""
        ...

    def normalize(self, text: str) -> str:
        """The text that `encode` really encodes (Qwen3: NFC)."""
        ...

    def decode(self, tokens: "Sequence[int] | NDArray[np.integer[Any]]") -> str:
        """Decode ids; control tokens become their names, broken UTF-8 and ids without a name U+FFFD."""
        ...

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        """The bytes that each token stands for."""
        ...

    def token_id(self, control_token: str) -> int:
        """The id of a control token by its name.

        Raises:
            TokenizerError: If there is none of that name.
        """
        ...


class _Named:
    """What both kinds of tokenizer share: names, sizes, and being shared instead of copied."""

    name: str

    def __init__(self, name: str, control_tokens: Mapping[str, int], named: int, vocab_size: int | None) -> None:
        padded = -(-named // _PADDING) * _PADDING
        if vocab_size is not None and vocab_size < named:
            raise TokenizerError(f"{name}: vocab_size is {vocab_size}, but the tokenizer names ids up to {named - 1}")
        self.name = name
        self._control_tokens = dict(control_tokens)
        self._vocab_size = vocab_size or padded

    @property
    def control_tokens(self) -> Mapping[str, int]:
        return self._control_tokens

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, vocab_size={self.vocab_size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Named":
        return self

    def token_id(self, control_token: str) -> int:
        try:
            return self.control_tokens[control_token]
        except KeyError:
            raise TokenizerError(
                str(unknown_name(f"control token of the tokenizer {self.name!r}", control_token, self.control_tokens))
            ) from None


class TiktokenTokenizer(_Named):
    """A tokenizer on a tiktoken encoding.

    Args:
        name: What to call it in messages.
        encoding: The encoding; its special tokens are the control tokens.
        nfc: Whether text is normalised to NFC first.
        vocab_size: How many ids the model has; by default the named ones, rounded up to a multiple of 1,024.
    """

    def __init__(self, name: str, encoding: "tiktoken.Encoding", *, nfc: bool, vocab_size: int | None = None) -> None:
        control_tokens = {n: encoding.encode_single_token(n) for n in encoding.special_tokens_set}
        super().__init__(name, control_tokens, encoding.max_token_value + 1, vocab_size)
        self._encoding = encoding
        self._nfc = nfc

    def normalize(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self._nfc and not text.isascii() else text

    def encode(self, text: str) -> "NDArray[np.int32]":
        try:
            return np.array(self._encoding.encode_ordinary(self.normalize(text)), dtype=np.int32)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # tiktoken's, which is no Exception
                raise
            raise TokenizerError(
                f"{self.name}: a text of {len(text):,} characters cannot be encoded: {error}. A run of a million "
                "spaces is too much for its regular expression; cut such texts"
            ) from None

    def encode_with_ends(self, text: str) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        return _with_ends(self, self.encode(text))

    def decode(self, tokens: "Sequence[int] | NDArray[np.integer[Any]]") -> str:
        return b"".join(self.token_bytes(np.asarray(tokens, dtype=np.int32))).decode("utf-8", errors="replace")

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        # Read as unsigned, ids that are negative are too large, too.
        unsigned = np.asarray(tokens, dtype=np.int32).view(np.uint32)
        pieces: Any = self._pieces.take(unsigned, mode="clip").tolist()
        return pieces

    @cached_property
    def _pieces(self) -> "NDArray[np.object_]":
        """The bytes of each id, and behind them what stands for ids that are too large."""
        pieces = np.full(self.vocab_size + 1, UNNAMED.encode(), dtype=object)
        ranks: dict[bytes, int] = self._encoding._mergeable_ranks  # pyright: ignore[reportPrivateUsage]
        for piece, token in ranks.items():
            pieces[token] = piece
        for name, token in self.control_tokens.items():
            pieces[token] = name.encode()
        return pieces

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        ranks: dict[bytes, int] = self._encoding._mergeable_ranks  # pyright: ignore[reportPrivateUsage]
        pattern: str = self._encoding._pat_str  # pyright: ignore[reportPrivateUsage]
        items = sorted(ranks.items(), key=lambda item: item[1])
        vocabulary = b"".join(b"%d %s\n" % (rank, piece.hex().encode()) for piece, rank in items)
        return _hash(vocabulary, pattern.encode(), b"NFC" if self._nfc else b"", _sorted_json(self.control_tokens))


class HuggingFaceTokenizer(_Named):
    """A tokenizer on the `tokenizers` library, for what tiktoken cannot express.

    Args:
        name: What to call it in messages.
        specification: The content of a `tokenizer.json`.
        vocab_size: How many ids the model has; by default the named ones, rounded up to a multiple of 1,024.
    """

    _byte_of_char: ClassVar[dict[str, int]]

    def __init__(self, name: str, specification: Mapping[str, Any], *, vocab_size: int | None = None) -> None:
        import tokenizers

        control_tokens = {token["content"]: int(token["id"]) for token in specification["added_tokens"]}
        plain: dict[str, Any] = {
            **specification,
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
        try:
            self._plain = tokenizers.Tokenizer.from_str(orjson.dumps(plain).decode())
        except Exception as error:  # the library raises no other type
            raise TokenizerError(f"{name}: the `tokenizers` library cannot read it: {error}") from error
        self._names = {token: text for text, token in self._plain.get_vocab(with_added_tokens=False).items()}
        self._names.update({token: text for text, token in control_tokens.items()})
        super().__init__(name, control_tokens, max(self._names) + 1, vocab_size)
        self._control_ids = np.array(sorted(control_tokens.values()), dtype=np.int32)
        self._byte_level = "ByteLevel" in orjson.dumps(specification.get("decoder")).decode()
        self._rules = [specification.get(key) for key in ("model", "normalizer", "pre_tokenizer")]

    def normalize(self, text: str) -> str:
        normalizer = self._plain.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def encode(self, text: str) -> "NDArray[np.int32]":
        tokens = np.array(self._plain.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        if len(tokens) and np.isin(tokens, self._control_ids).any():
            return self._encode_apart(text)
        return tokens

    def _encode_apart(self, text: str) -> "NDArray[np.int32]":
        """Encode a text whose model has control tokens as pieces, each name cut after its first character."""
        names = "|".join(re.escape(name) for name in self.control_tokens if len(name) > 1)
        cuts = [match.start() + 1 for match in re.finditer(f"(?=(?:{names}))", text)]
        parts = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        encoded = [self._plain.encode(part, add_special_tokens=False).ids for part in parts]
        tokens = np.array([token for ids in encoded for token in ids], dtype=np.int32)
        if np.isin(tokens, self._control_ids).any():
            raise TokenizerError(f"{self.name}: plain text gives a control token, however it is cut: {text[:80]!r}")
        return tokens

    def encode_with_ends(self, text: str) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        if self._byte_level:
            return _with_ends(self, self.encode(text))
        normal = self.normalize(text)
        ends = [end for _, end in self._plain.encode(normal, add_special_tokens=False).offsets]
        bytes_before = np.concatenate([[0], np.cumsum([len(char.encode()) for char in normal])])
        return self.encode(normal), bytes_before[ends].astype(np.int64)

    def decode(self, tokens: "Sequence[int] | NDArray[np.integer[Any]]") -> str:
        return b"".join(self.token_bytes(np.asarray(tokens, dtype=np.int32))).decode("utf-8", errors="replace")

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        return [self._single(token) for token in tokens.tolist()]

    def _single(self, token: int) -> bytes:
        text = self._names.get(token, UNNAMED)
        if text in self.control_tokens or text is UNNAMED:
            return text.encode()
        if self._byte_level:
            return bytes(_BYTE_OF_CHAR[char] for char in text)
        if len(text) == 6 and text.startswith("<0x"):  # a byte of a SentencePiece vocabulary with byte fallback
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return _hash(orjson.dumps(self._rules, option=orjson.OPT_SORT_KEYS), _sorted_json(self.control_tokens))


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
    return _fastest(name, specification, vocab_size)


def _load_by_name(name: str, vocab_size: int | None) -> Tokenizer:
    import tiktoken

    if name in tiktoken.list_encoding_names():
        return TiktokenTokenizer(name, tiktoken.get_encoding(name), nfc=False, vocab_size=vocab_size)
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
        return _fastest(name, orjson.loads(backend.to_str()), vocab_size)
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
    encoding = _as_encoding(name, specification)
    if encoding is None:
        return slow
    nfc = specification.get("normalizer") is not None
    fast = TiktokenTokenizer(name, encoding, nfc=nfc, vocab_size=vocab_size)
    corpus = (DATA / "corpus.txt").read_bytes().decode()
    return fast if np.array_equal(fast.encode(corpus), slow.encode(corpus)) else slow


def _as_encoding(name: str, specification: Mapping[str, Any]) -> "tiktoken.Encoding | None":
    """Convert a byte-level BPE to a tiktoken encoding, or None where its rules are not those of tiktoken."""
    import tiktoken

    model = specification["model"]
    pattern = _split_pattern(specification.get("pre_tokenizer"))
    plain_bpe = model.get("type") == "BPE" and not any(
        model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    )
    if not plain_bpe or pattern is None or specification.get("normalizer") not in (None, {"type": "NFC"}):
        return None
    control_tokens = {token["content"]: int(token["id"]) for token in specification["added_tokens"]}
    try:
        ranks = {
            bytes(_BYTE_OF_CHAR[char] for char in text): rank
            for text, rank in model["vocab"].items()
            if text not in control_tokens
        }
        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=control_tokens)
    except (KeyError, ValueError):  # a vocabulary that is not one of bytes, or a pattern of another dialect
        return None


def _split_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """The regular expression that cuts text into words, if the pre-tokenizer is no more than that and bytes."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2_PATTERN
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
        case _:
            return None


def _bytes_of_chars() -> dict[str, int]:
    """The printable characters that byte-level vocabularies write for bytes (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _bytes_of_chars()


def _with_ends(tokenizer: Tokenizer, tokens: "NDArray[np.int32]") -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
    return tokens, np.cumsum([len(piece) for piece in tokenizer.token_bytes(tokens)], dtype=np.int64)


def _sorted_json(value: Mapping[str, int]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
