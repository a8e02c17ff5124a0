"""The two main kinds of tokenizers: based on tiktoken, and on the `tokenizers` library."""

import base64
import hashlib
import logging
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ..._visible import brief, shorten
from ...errors import TokenizerError, UnknownName
from ._byte_level import BYTE_OF_CHAR
from ._chat_template import ChatTemplateSource
from ._protocol import UNNAMED
from ._saved import RANKS, SPECIFICATION, SavedTokenizer, VocabularyFile

if TYPE_CHECKING:
    import tiktoken
    import tokenizers
    from numpy.typing import NDArray
_log = logging.getLogger(__name__)


def is_failure(error: BaseException) -> bool:
    """Return whether an exception means that a library failed (a panic of Rust code included), not an interrupt."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def reading(what: str) -> Generator[None]:
    """Turn any failure of a library, or of our own code on a file's content, into a `TokenizerError`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, TokenizerError) or not is_failure(error):
            raise
        raise TokenizerError(f"{what}: {type(error).__name__}: {error}") from error


# Models pad their embedding to a round number of rows (Qwen3 names 151,669 ids and has 151,936 rows).
_PADDING = 1024
_BLANK = 2**16
"""Runs of at least twice this many blanks are not passed to tiktoken, whose regular expressions would overflow."""
_BLANKS = {r"\s": r"\p{White_Space}", r"\S": r"\P{White_Space}"}
_MAX_IDS = 2**24
"""The most ids of a tokenizer; the largest vocabularies have 2**18."""
_PLAIN_TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


class NamedTokenizer(ABC):
    """The base class of tokenizers: names, sizes and decoding. Copying a tokenizer returns the same object."""

    name: str
    chat_template: ChatTemplateSource | None = None
    is_default: bool = False
    """True if it is the default because no tokenizer was given; see `load_tokenizer`."""

    def __init__(self, name: str, control_tokens: Mapping[str, int], named: int, vocab_size: int | None) -> None:
        padded = -(-named // _PADDING) * _PADDING
        if vocab_size is not None and vocab_size < named:
            raise TokenizerError(f"{name}: vocab_size is {vocab_size}, but the tokenizer names ids up to {named - 1}")
        if max(padded, vocab_size or 0) > _MAX_IDS:
            raise TokenizerError(f"{name}: it has {max(named, vocab_size or 0):,} ids; at most {_MAX_IDS:,} are read")
        self.name = name
        self.control_tokens: Mapping[str, int] = dict(control_tokens)
        self.vocab_size = vocab_size or padded
        self._fingerprint: str | None = None  # computed when it is needed

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            names = orjson.dumps(self.control_tokens, option=orjson.OPT_SORT_KEYS)
            self._fingerprint = hashlib.sha256(b"\0".join([*self._rules_of_encoding(), names])).hexdigest()[:16]
        return self._fingerprint

    def save(self, folder: Path | str) -> None:
        """Write the tokenizer and its chat template to a folder, which `load_tokenizer` reads without a network.

        Args:
            folder: The folder, which is created if necessary. Other files in it are unchanged.

        Raises:
            OSError: If a file cannot be written.
        """
        vocabulary, content, rules = self._saved()
        SavedTokenizer(
            name=self.name,
            vocabulary=vocabulary,
            vocab_size=self.vocab_size,
            fingerprint=self.fingerprint,
            control_tokens=self.control_tokens,
            rules=rules,
            chat_template=self.chat_template,
        ).write(Path(folder), content)

    @abstractmethod
    def _saved(self) -> tuple[VocabularyFile, bytes, dict[str, Any]]:
        """Return the name and the content of the vocabulary file, and the rules of encoding that it lacks."""

    @abstractmethod
    def _rules_of_encoding(self) -> tuple[bytes, ...]:
        """Return everything that determines the ids of a string."""

    @abstractmethod
    def normalize(self, text: str) -> str: ...

    @abstractmethod
    def encode(self, text: str) -> "NDArray[np.int32]": ...

    @abstractmethod
    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]: ...

    def encode_with_ends(self, text: str) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        tokens = self.encode(text)
        return tokens, np.cumsum([len(piece) for piece in self.token_bytes(tokens)], dtype=np.int64)

    def decode(self, tokens: "Sequence[int] | NDArray[np.integer[Any]]") -> str:
        return b"".join(self.token_bytes(np.asarray(tokens, dtype=np.int32))).decode("utf-8", errors="replace")

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name!r}, {self.vocab_size:,} ids>"

    def __deepcopy__(self, memo: dict[int, Any]) -> "NamedTokenizer":
        return self

    def token_id(self, control_token: str) -> int:
        try:
            return self.control_tokens[control_token]
        except KeyError:
            raise TokenizerError(
                str(UnknownName.of(f"control token of the tokenizer {self.name!r}", control_token, self.control_tokens))
            ) from None


class TiktokenTokenizer(NamedTokenizer):
    """A tokenizer based on a tiktoken encoding.

    Args:
        name: Its name in error messages.
        encoding: The encoding; its special tokens are the control tokens.
        nfc: Whether text is normalized to NFC first.
        vocab_size: The number of ids of the model; by default the number of named ids, rounded up to a multiple of
            1,024.
    """

    def __init__(self, name: str, encoding: "tiktoken.Encoding", *, nfc: bool, vocab_size: int | None = None) -> None:
        ids = {name: encoding.encode_single_token(name) for name in encoding.special_tokens_set}
        control_tokens = dict(sorted(ids.items(), key=lambda item: item[1]))
        super().__init__(name, control_tokens, encoding.max_token_value + 1, vocab_size)
        self._encoding = encoding
        self._nfc = nfc

    @property
    def ranks(self) -> Mapping[bytes, int]:
        """The byte-pair ranks: the bytes of each token with its id, without control tokens."""
        return self._encoding._mergeable_ranks  # pyright: ignore[reportPrivateUsage]

    def normalize(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self._nfc and not text.isascii() else text

    def encode(self, text: str) -> "NDArray[np.int32]":
        normal = self.normalize(text)
        blocks = range(0, len(normal) - _BLANK + 1, _BLANK)
        if blocks and any(normal[i : i + _BLANK].isspace() for i in blocks):
            return self._encode_blanks(normal)
        try:
            return np.array(self._encoding.encode_ordinary(normal), dtype=np.int32)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise TokenizerError(
                f"{self.name}: a string of {len(normal):,} characters cannot be encoded: {error}. The encoding may "
                "lack a byte"
            ) from None

    def _encode_blanks(self, normal: str) -> "NDArray[np.int32]":
        """Encode a string with a run of white space that is too long for tiktoken's regular expressions.

        The package `regex`, which tiktoken itself requires, splits it into the same words, if it gets Rust's definition
        of white space. This is checked on the same string with shorter runs.
        """
        import regex

        encoding: Any = self._encoding
        pattern = re.sub(r"\\.", lambda escape: _BLANKS.get(escape[0], escape[0]), encoding._pat_str)

        def by_words(string: str) -> "NDArray[np.int32]":
            words = (found[0] for found in regex.finditer(pattern, string))
            return np.array([token for word in words for token in encoding._encode_single_piece(word)], dtype=np.int32)

        shortened = re.sub(
            r"\s{2,}", lambda run: run[0] if len(run[0]) < 1000 else run[0][:500] + run[0][-500:], normal
        )
        if not np.array_equal(by_words(shortened), self.encode(shortened)):
            raise TokenizerError(
                f"{self.name}: a string with a run of more than {_BLANK:,} blanks cannot be encoded, because its other "
                "words are split differently without tiktoken. Shorten the run"
            )
        return by_words(normal)

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        # Read as unsigned integers, negative ids are too large as well.
        unsigned = np.asarray(tokens, dtype=np.int32).view(np.uint32)
        pieces: Any = self._pieces.take(unsigned, mode="clip").tolist()
        return pieces

    @cached_property
    def _pieces(self) -> "NDArray[np.object_]":
        """The bytes of each id, followed by the bytes for ids that are out of range."""
        pieces = np.full(self.vocab_size + 1, UNNAMED.encode(), dtype=object)
        for piece, token in self.ranks.items():
            pieces[token] = piece
        for name, token in self.control_tokens.items():
            pieces[token] = name.encode()
        return pieces

    def _rules_of_encoding(self) -> tuple[bytes, ...]:
        pattern: str = self._encoding._pat_str  # pyright: ignore[reportPrivateUsage]
        items = sorted(self.ranks.items(), key=lambda item: item[1])
        vocabulary = b"".join(b"%d %s\n" % (rank, piece.hex().encode()) for piece, rank in items)
        return vocabulary, pattern.encode(), b"NFC" if self._nfc else b""

    def _saved(self) -> tuple[VocabularyFile, bytes, dict[str, Any]]:
        items = sorted(self.ranks.items(), key=lambda item: item[1])
        lines = b"".join(b"%s %d\n" % (base64.b64encode(piece), rank) for piece, rank in items)
        pattern: str = self._encoding._pat_str  # pyright: ignore[reportPrivateUsage]
        return RANKS, lines, {"pattern": pattern, "nfc": self._nfc}


class HuggingFaceTokenizer(NamedTokenizer):
    """A tokenizer based on the `tokenizers` library, for vocabularies that tiktoken cannot express.

    Args:
        name: Its name in error messages.
        specification: The content of a `tokenizer.json`.
        vocab_size: The number of ids of the model; by default the number of named ids, rounded up to a multiple of
            1,024.
    """

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
        with reading(f"{name}: the `tokenizers` library cannot read it"):
            self._plain = tokenizers.Tokenizer.from_str(orjson.dumps(plain).decode())
        self._normalizer, self._plain.normalizer = self._plain.normalizer, None  # applied once, by `normalize`
        self._names = {token: text for text, token in self._plain.get_vocab(with_added_tokens=False).items()}
        self._names.update({token: text for text, token in control_tokens.items()})
        self._pieces: dict[int, bytes] = {}
        super().__init__(name, control_tokens, max(self._names) + 1, vocab_size)
        self._control_ids = frozenset(control_tokens.values())
        self._byte_level = "ByteLevel" in orjson.dumps(specification.get("decoder")).decode()
        named = set(self._plain.get_vocab(with_added_tokens=False))
        missing = (byte for char, byte in BYTE_OF_CHAR.items() if char not in named)
        self._missing_bytes = bytes(missing) if self._byte_level else b""
        self._has_warned = False

    def normalize(self, text: str) -> str:
        text = text if self._normalizer is None else self._normalizer.normalize_str(text)
        data = text.encode()  # characters with a byte that the vocabulary lacks are dropped, not only the byte
        if len(data.translate(None, self._missing_bytes)) == len(data):
            return text
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s has no token for %d of 256 bytes: characters with such a byte are left out of a text, here of %r",
                self.name,
                len(self._missing_bytes),
                shorten(text, 80),
            )
        return "".join([char for char in text if not set(char.encode()) & set(self._missing_bytes)])

    def encode(self, text: str) -> "NDArray[np.int32]":
        ids = [part.ids for _, part in self._encoded(self.normalize(text))]
        return np.array([token for part in ids for token in part], dtype=np.int32)

    def _encoded(self, normal: str) -> list[tuple[int, "tokenizers.Encoding"]]:
        """Encode normalized text, in parts if it would give a control token as a whole; return each with its start."""
        whole = self._plain.encode(normal, add_special_tokens=False)
        if self._control_ids.isdisjoint(whole.ids):
            return [(0, whole)]
        # The vocabulary has control tokens as pieces, so each of their names is cut after its first character.
        names = "|".join(re.escape(name) for name in self.control_tokens if len(name) > 1)
        cuts = [0, *(match.start() + 1 for match in re.finditer(f"(?=(?:{names}))", normal)), len(normal)]
        parts = [(i, self._plain.encode(normal[i:k], add_special_tokens=False)) for i, k in pairwise(cuts)]
        if not all(self._control_ids.isdisjoint(part.ids) for _, part in parts):
            raise TokenizerError(f"{self.name}: plain text is always encoded to a control token: {brief(normal)}")
        return parts

    def encode_with_ends(self, text: str) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        if self._byte_level:
            return super().encode_with_ends(text)
        normal = self.normalize(text)
        parts = self._encoded(normal)
        ends = [start + end for start, part in parts for _, end in part.offsets]
        bytes_before = np.concatenate([[0], np.cumsum([len(char.encode()) for char in normal])])
        tokens = np.array([token for _, part in parts for token in part.ids], dtype=np.int32)
        return tokens, bytes_before[ends].astype(np.int64)

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        pieces, ids = self._pieces, tokens.tolist()
        for token in {*ids} - pieces.keys():
            text = self._names.get(token, UNNAMED)
            if text in self.control_tokens or text is UNNAMED:
                pieces[token] = text.encode()
            elif self._byte_level and all(char in BYTE_OF_CHAR for char in text):
                pieces[token] = bytes(BYTE_OF_CHAR[char] for char in text)
            elif len(text) == 6 and text.startswith("<0x"):  # a byte of a SentencePiece vocabulary with byte fallback
                pieces[token] = bytes([int(text[3:5], 16)])
            else:
                pieces[token] = text.replace("▁", " ").encode()
        return [pieces[token] for token in ids]

    def _rules_of_encoding(self) -> tuple[bytes, ...]:
        # As the library writes it: files of different versions spell the same rules differently.
        written = orjson.loads(self._plain.to_str())
        rules = [written.get("model"), written.get("pre_tokenizer")]
        normalizer = b"" if self._normalizer is None else self._normalizer.__getstate__()  # as JSON
        return orjson.dumps(rules, option=orjson.OPT_SORT_KEYS), normalizer

    def _saved(self) -> tuple[VocabularyFile, bytes, dict[str, Any]]:
        normalizer = None if self._normalizer is None else orjson.loads(self._normalizer.__getstate__())
        added = [{**_PLAIN_TOKEN, "id": token, "content": name} for name, token in self.control_tokens.items()]
        written = {**orjson.loads(self._plain.to_str()), "normalizer": normalizer, "added_tokens": added}
        return SPECIFICATION, orjson.dumps(written), {}
