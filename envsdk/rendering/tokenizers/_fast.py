"""Encoding with fastokens, an optional library that gives the same ids several times faster.

The tokenizer that envsdk loads without it remains the reference: it normalizes, decodes, has the fingerprint, and
encodes text that fastokens cannot encode. fastokens gets the vocabulary without control tokens, so it never emits them.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ..._packages import load
from ..._visible import brief
from ...errors import TokenizerError
from ._byte_level import BYTE_OF_CHAR
from ._files import corpus
from ._kinds import NamedTokenizer, is_failure
from ._saved import RANKS, VocabularyFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNUSED: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": None,
    "post_processor": None,
    "truncation": None,
    "padding": None,
}


class FastokensTokenizer(NamedTokenizer):
    """A tokenizer that encodes with fastokens.

    Args:
        plain: The tokenizer that it replaces, with the same ids and the same fingerprint.

    Raises:
        MissingPackage: If fastokens is not installed.
        TokenizerError: If fastokens cannot read the vocabulary, or its ids for the corpus or one of its lines differ.
    """

    def __init__(self, plain: NamedTokenizer) -> None:
        super().__init__(plain.name, plain.control_tokens, plain.vocab_size, plain.vocab_size)
        self.chat_template, self.is_default = plain.chat_template, plain.is_default
        self._plain = plain
        self._fast = _read(plain.name, *plain._saved())
        # Control tokens that are also pieces of the vocabulary, so that text might be encoded to them.
        pieces = {token: self._fast.id_to_token(token) for token in self.control_tokens.values()}
        reachable = [token for token, piece in pieces.items() if piece and set(piece) <= BYTE_OF_CHAR.keys()]
        self._reachable = np.array(reachable, dtype=np.int32)
        whole = corpus()
        for text in (whole, *whole.splitlines(keepends=True)):  # fastokens encodes long strings in a different way
            if not np.array_equal(self.encode(text), plain.encode(text)):
                raise TokenizerError(
                    f"{plain.name}: fastokens gives ids for {brief(text, 40)} that differ from those of "
                    f"{type(plain).__name__}, on which the model was trained. Load the tokenizer without "
                    "backend='fastokens'"
                )

    def normalize(self, text: str) -> str:
        return self._plain.normalize(text)

    def encode(self, text: str) -> "NDArray[np.int32]":
        try:
            ids, _ = self._fast.encode_batch_flat([self._plain.normalize(text)])
        except BaseException as error:  # such as a lone surrogate
            if not is_failure(error):
                raise
            return self._plain.encode(text)
        tokens = np.frombuffer(ids, dtype=np.uint32).astype(np.int32)
        if self._reachable.size and np.isin(tokens, self._reachable).any():
            return self._plain.encode(text)
        return tokens

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        return self._plain.token_bytes(tokens)

    def _rules_of_encoding(self) -> tuple[bytes, ...]:
        return self._plain._rules_of_encoding()

    def _saved(self) -> tuple[VocabularyFile, bytes, dict[str, Any]]:
        return self._plain._saved()

    def __reduce__(self) -> tuple[Any, ...]:  # the library's object cannot be pickled
        return type(self), (self._plain,)


def _read(name: str, vocabulary: str, content: bytes, rules: Mapping[str, Any]) -> Any:
    """Return the tokenizer of fastokens for the files that `NamedTokenizer.save` writes."""
    fastokens = load("fastokens", "backend='fastokens' needs", "pip install 'envsdk[fast]'")
    try:
        if vocabulary == RANKS:
            with tempfile.TemporaryDirectory() as folder:  # it reads ranks only from a file
                file = Path(folder) / RANKS
                file.write_bytes(content)
                return fastokens.Tokenizer.from_tiktoken(str(file), pattern=rules["pattern"], special_tokens={})
        specification = orjson.loads(content)
        if "ByteLevel" not in orjson.dumps(specification.get("decoder")).decode():
            raise TokenizerError(
                f"{name}: its vocabulary is not one of bytes, and backend='fastokens' is for such vocabularies only. "
                "Load it without"
            )
        return fastokens.Tokenizer.from_json_str(orjson.dumps({**specification, **_UNUSED}).decode())
    except BaseException as error:
        if isinstance(error, TokenizerError) or not is_failure(error):
            raise
        raise TokenizerError(
            f"{name}: fastokens cannot read it: {error}. Load it without backend='fastokens'"
        ) from error
