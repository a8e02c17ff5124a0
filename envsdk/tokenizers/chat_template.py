"""What a tokenizer's own files say about conversations: its chat template, and what ends a turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson


@dataclass(frozen=True)
class ChatTemplateSource:
    """A chat template with what else a tokenizer's files say about it."""

    text: str
    """The Jinja text."""
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """What `bos_token`, `eos_token` and so on are."""
    end_tokens: tuple[str, ...] = ()
    """The tokens that end a turn, as the tokenizer's and the generation configuration say."""
    response_template: Mapping[str, Any] | None = None
    """How transformers reads a reply, where the tokenizer says so (`response_schema` before its version 5.13)."""


def template_in_folder(folder: Path, control_tokens: Mapping[str, int]) -> ChatTemplateSource | None:
    """The chat template of a folder with `chat_template.jinja` or `tokenizer_config.json`, if it has one."""
    config = _json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    text: Any = file.read_bytes().decode() if file.is_file() else _default(config.get("chat_template"))
    if not isinstance(text, str):
        return None
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if name.endswith("_token") and isinstance(value, (str, dict)):
            tokens[name] = cast("dict[str, str]", value)["content"] if isinstance(value, dict) else value
    given: Any = _json(folder / "generation_config.json").get("eos_token_id", [])
    ids = cast("list[int]", given if isinstance(given, list) else [given])
    names = {token: name for name, token in control_tokens.items()}
    ends = [tokens.get("eos_token"), *(names.get(token) for token in ids)]
    read = config.get("response_template") or config.get("response_schema")
    return ChatTemplateSource(text, tokens, tuple(dict.fromkeys(end for end in ends if end)), read)


def template_of_object(tokenizer: Any) -> ChatTemplateSource | None:
    """The chat template of a tokenizer of transformers, if it has one."""
    text = _default(getattr(tokenizer, "chat_template", None))
    if not isinstance(text, str):
        return None
    tokens = {name: str(value) for name, value in getattr(tokenizer, "special_tokens_map", {}).items()}
    read = getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None)
    return ChatTemplateSource(text, tokens, tuple(filter(None, [tokens.get("eos_token")])), read)


def _default(templates: Any) -> Any:
    """The template called `default`, of several by name."""
    if isinstance(templates, list):  # as tokenizer_config.json has them
        named = cast("list[dict[str, str]]", templates)
        templates = {item.get("name"): item.get("template") for item in named}
    return cast("dict[str, Any]", templates).get("default") if isinstance(templates, dict) else templates


def _json(file: Path) -> dict[str, Any]:
    return orjson.loads(file.read_bytes()) if file.is_file() else {}
