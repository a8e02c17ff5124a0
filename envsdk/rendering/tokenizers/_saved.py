"""The files of a saved tokenizer: everything on which its ids and its chat template depend.

A `tokenizer.json` alone is not enough: a tiktoken encoding is not a file of the `tokenizers` library, a model may have
more ids than the tokenizer names, and the tokens that end a turn are in other files of a model's folder.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..._describing import what_is_invalid
from ..._untrusted import MAX_DESCRIPTION_BYTES, parse_json, read_file
from ...errors import TokenizerError
from ._chat_template import ChatTemplateSource
from ._files import state_of

VocabularyFile: TypeAlias = Literal["vocabulary.tiktoken", "tokenizer.json"]
RANKS: VocabularyFile = "vocabulary.tiktoken"
"""The byte-pair ranks of a tiktoken encoding, as tiktoken writes them."""
SPECIFICATION: VocabularyFile = "tokenizer.json"
"""The vocabulary and rules of the `tokenizers` library."""
_DESCRIPTION = "envsdk_tokenizer.json"
_TEMPLATE = "chat_template.jinja"
_SCHEMA = 1


@dataclass(frozen=True)
class SavedTokenizer:
    """A saved tokenizer, apart from its vocabulary.

    Attributes:
        name: The tokenizer's name.
        vocabulary: The name of the file with the vocabulary, `RANKS` or `SPECIFICATION`.
        vocab_size: The number of ids of the model.
        fingerprint: The tokenizer's fingerprint.
        control_tokens: The names and ids of all control tokens.
        rules: Rules of encoding that are not in the vocabulary.
        chat_template: The chat template that came with the tokenizer, if any.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    vocabulary: VocabularyFile
    vocab_size: int
    fingerprint: str
    control_tokens: Mapping[str, int]
    rules: Mapping[str, Any]
    chat_template: ChatTemplateSource | None

    def write(self, folder: Path, vocabulary: bytes) -> None:
        """Write the files. The description is written last, so a folder without it is not a saved tokenizer.

        Raises:
            OSError: If a file cannot be written.
        """
        description = {name: value for name, value in vars(self).items() if name != "chat_template"}
        description["control_tokens"], description["rules"] = dict(self.control_tokens), dict(self.rules)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.vocabulary).write_bytes(vocabulary)
        if self.chat_template is not None:
            template = asdict(self.chat_template)
            (folder / _TEMPLATE).write_bytes(template.pop("text").encode())
            description["chat_template"] = template
        content = orjson.dumps({"schema": _SCHEMA, **description}, option=orjson.OPT_INDENT_2)
        (folder / _DESCRIPTION).write_bytes(content)

    @classmethod
    def read(cls, folder: Path) -> "SavedTokenizer":
        """Read the files, except for the vocabulary.

        Raises:
            TokenizerError: If they cannot be read, or another version of envsdk wrote them.
        """
        try:
            description = parse_json(read_file(folder / _DESCRIPTION, MAX_DESCRIPTION_BYTES, inside=folder))
            schema = description.pop("schema", None)
            if schema != _SCHEMA:
                raise TokenizerError(
                    f"the tokenizer in {folder} has the schema {schema!r}; this version of envsdk reads {_SCHEMA}"
                )
            template = description.pop("chat_template", None)
            if template is not None:
                template["end_tokens"] = tuple(template["end_tokens"])
                text = read_file(folder / _TEMPLATE, MAX_DESCRIPTION_BYTES, inside=folder).decode()
                template = {**template, "text": text}
            # As JSON, in which lists are tuples, although no other value is converted.
            return _ADAPTER.validate_json(orjson.dumps({**description, "chat_template": template}), strict=True)
        except ValidationError as error:
            raise TokenizerError(f"the saved tokenizer in {folder} cannot be read: {what_is_invalid(error)}") from error
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise TokenizerError(f"the saved tokenizer in {folder} cannot be read: {error}") from error


_ADAPTER = TypeAdapter(SavedTokenizer)


def is_saved(folder: Path) -> bool:
    """Return whether a folder contains a saved tokenizer."""
    return (folder / _DESCRIPTION).is_file()


def state_of_saved(folder: Path) -> tuple[tuple[int, ...], ...]:
    """Return a value that changes with each change of the files of a saved tokenizer."""
    files = (folder / name for name in (_DESCRIPTION, RANKS, SPECIFICATION, _TEMPLATE))
    return tuple(state_of(file) for file in files if file.is_file())
