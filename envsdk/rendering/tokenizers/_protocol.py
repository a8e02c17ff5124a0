"""The protocol of tokenizers that renderers require."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._chat_template import ChatTemplateSource

UNNAMED = "�"
"""The text of an id without a name, such as the padding of a model's vocabulary."""


@runtime_checkable
class Tokenizer(Protocol):
    """Converts between text and token ids: the methods that renderers require."""

    name: str
    """The name in error messages."""
    chat_template: "ChatTemplateSource | None"
    """The chat template that came with the tokenizer, if any."""

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The names and ids of all control tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of ids of the model, including ids without a name. Every id of an action is below it."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash; tokenizers with the same fingerprint give the same ids."""
        ...

    def encode(self, text: str) -> "NDArray[np.int32]":
        """Encode plain text: int32, shape (n,), never a control token."""
        ...

    def encode_with_ends(self, text: str) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Encode plain text, and return where each token ends: int64, shape (n,), in bytes of the normalized text."""
        ...

    def normalize(self, text: str) -> str:
        """Return the text that `encode` actually encodes (Qwen3: NFC)."""
        ...

    def decode(self, tokens: "Sequence[int] | NDArray[np.integer[Any]]") -> str:
        """Decode ids; control tokens become their names, invalid UTF-8 and ids without a name become U+FFFD."""
        ...

    def token_bytes(self, tokens: "NDArray[np.int32]") -> list[bytes]:
        """Return the bytes of each token."""
        ...

    def token_id(self, control_token: str) -> int:
        """Return the id of a control token by its name.

        Raises:
            TokenizerError: If no control token has that name.
        """
        ...
