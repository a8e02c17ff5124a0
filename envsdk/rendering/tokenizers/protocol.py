"""What renderers need of a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from .chat_template import ChatTemplateSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNNAMED = "�"
"""What an id without a name, such as the padding of a model's vocabulary, decodes to."""


@runtime_checkable
class Tokenizer(Protocol):
    """What renderers need of a tokenizer."""

    name: str
    chat_template: ChatTemplateSource | None
    """The chat template that came with it, if one did."""

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
