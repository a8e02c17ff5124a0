"""Read the chat template, and the tokens that end a turn, from a tokenizer's files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from pydantic import ConfigDict

from ...errors import TokenizerError
from ._files import GENERATION, TEMPLATES, TOKENIZER, ModelFiles


@dataclass(frozen=True)
class ChatTemplateSource:
    """A chat template, and the other facts about conversations in a tokenizer's files."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    text: str
    """The Jinja text."""
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """The tokens called `bos_token`, `eos_token` and so on."""
    end_tokens: tuple[str, ...] = ()
    """The tokens that end a turn, according to the tokenizer's configuration and the generation configuration."""
    response_template: Mapping[str, Any] | None = None
    """The rules by which transformers parses a reply, or None (`response_schema` before version 5.13)."""


def template_in_files(files: ModelFiles, control_tokens: Mapping[str, int]) -> ChatTemplateSource | None:
    """Return the chat template of a model's folder, if any: from its own file, else from the tokenizer's options."""
    config, legacy = (files.json(name) for name in TOKENIZER)
    options = {**legacy, **{name: value for name, value in config.items() if value is not None}}
    texts = dict(files.texts)
    if name := next((name for name in TEMPLATES if texts.get(name)), None):
        try:
            options["chat_template"] = texts[name].decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{name} in {files.folder} is not UTF-8: {error}") from error
    return template_in_options(options, files, control_tokens)


def template_in_options(
    options: Mapping[str, Any], files: ModelFiles | None, control_tokens: Mapping[str, int]
) -> ChatTemplateSource | None:
    """Return the chat template among a tokenizer's options, if any; `files` add the tokens that end a turn.

    The options are those of a `tokenizer_config.json`, or those of a tokenizer of transformers.
    """
    text: Any = options.get("chat_template")
    if isinstance(text, list):  # several, each with its name
        named = [cast("dict[str, Any]", item) for item in cast("list[Any]", text) if isinstance(item, dict)]
        text = {item.get("name"): item.get("template") for item in named}
    if isinstance(text, dict):
        text = cast("dict[str, Any]", text).get("default")
    if not isinstance(text, str):
        return None
    special_tokens: dict[str, str] = {}
    for name, value in options.items():
        content: Any = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            special_tokens[name] = content
    end: Any = None if files is None else files.json(GENERATION).get("eos_token_id")  # one id, or several
    ids = cast("list[Any]", end) if isinstance(end, list) else [end]
    names = {token: name for name, token in control_tokens.items()}
    ends = [special_tokens.get("eos_token"), *(names.get(token) for token in ids if isinstance(token, int))]
    end_tokens = tuple(dict.fromkeys(end for end in ends if end))
    read = options.get("response_template") or options.get("response_schema")
    return ChatTemplateSource(text, special_tokens, end_tokens, read)
