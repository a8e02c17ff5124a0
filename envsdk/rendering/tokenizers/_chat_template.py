"""Read the chat template, and the tokens that end a turn, from a tokenizer's files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from pydantic import ConfigDict

from ._files import ModelFiles


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
    config = files.tokenizer_config
    text: Any = files.chat_template_file or _default(config.get("chat_template"))
    if not isinstance(text, str):
        return None
    tokens = {name: content for name, value in config.items() if (content := _special_token(name, value))}
    read = config.get("response_template") or config.get("response_schema")
    return ChatTemplateSource(text, tokens, _ends(tokens, files, control_tokens), read)


def template_of_object(
    tokenizer: Any, files: ModelFiles | None, control_tokens: Mapping[str, int]
) -> ChatTemplateSource | None:
    """Return the chat template of a transformers tokenizer, if it has one; `files` add the tokens that end a turn."""
    text = _default(getattr(tokenizer, "chat_template", None))
    if not isinstance(text, str):
        return None
    given: Mapping[str, Any] = getattr(tokenizer, "special_tokens_map", {})
    tokens = {name: content for name, value in given.items() if (content := _special_token(name, value))}
    read = getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None)
    return ChatTemplateSource(text, tokens, _ends(tokens, files, control_tokens), read)


def _special_token(name: str, value: Any) -> str | None:
    """Return the text of an option such as `eos_token`, which may be an object; None for any other option."""
    content: Any = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
    return content if name.endswith("_token") and isinstance(content, str) else None


def _ends(
    special_tokens: Mapping[str, str], files: ModelFiles | None, control_tokens: Mapping[str, int]
) -> tuple[str, ...]:
    names = {token: name for name, token in control_tokens.items()}
    ids = () if files is None else files.end_token_ids
    ends = [special_tokens.get("eos_token"), *(names.get(token) for token in ids)]
    return tuple(dict.fromkeys(end for end in ends if end))


def _default(templates: Any) -> Any:
    """Return the template named `default` if there are several."""
    if isinstance(templates, list):  # as tokenizer_config.json has them
        named = [cast("dict[str, Any]", item) for item in cast("list[Any]", templates) if isinstance(item, dict)]
        templates = {item.get("name"): item.get("template") for item in named}
    return cast("dict[str, Any]", templates).get("default") if isinstance(templates, dict) else templates
