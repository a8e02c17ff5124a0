"""Vocabularies for chat templates without one: a small one, with the control tokens that templates name."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from envsdk_renderers._templates._chat_template import ChatTemplate, TemplateFailed

from envsdk import load_tokenizer
from envsdk.errors import ConfigError
from envsdk.rendering.tokenizers import Tokenizer
from envsdk.rendering.tokenizers._files import DATA

SHAPE = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]?>|<[a-z_]{1,30}\|>")
MORE_SHAPES = re.compile(
    r"""<[｜|][^<>\n'{}]{1,30}[｜|]>|\[[A-Z]+(?:_[A-Z]+)+\]|\[/?THINK\]|\[ARGS\]|\]~b\]"""
    r"""|\[e~\[|\]<\]minimax\[>\[|</?assistant>|</?user>|<SPECIAL_1[0-2]>|<sep>|<(?:end|beginning)_of_sentence>|<\|"\|>"""
    r"""|\[\|[a-z]{1,30}\|\]|</?[a-z_]{2,12}:[a-z_]{3,12}>"""
)
NAMES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>"),
    *("</arg_key>", "<arg_value>", "</arg_value>", "[INST]", "[/INST]", "<s>", "</s>", "<bos>", "<eos>", "<sop>"),
    *("<start_of_turn>", "<end_of_turn>", "<end_of_utterance>", "<image>", "<start_of_image>", "[gMASK]"),
)
# What ends a turn, as the model's tokenizer and generation configuration say; the first that the template has.
ENDS = (
    *("<|return|>", "<|im_end|>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<turn|>", "<|end|>"),
    *("<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|end_of_text|>", "<|eot|>", "</s>", "<seed:eos>", "[e~["),
    *("<SPECIAL_12>", "<end_of_sentence>", "<sep>", "</assistant>", "<|role_end|>", "<|message_sep|>"),
    *("<｜hy_eos:opensource｜>", "[|endofturn|]", "<|user|>"),
)


def end_of_turn(text: str) -> str:
    """The token that ends a turn in a template."""
    return next((end for end in ENDS if end in text.replace("hy_eos{}", "hy_eos:opensource")), "<eos>")


def tokenizer_with(names: Iterable[str]) -> Tokenizer:
    """The embedded vocabulary with more control tokens."""
    return load_tokenizer(raw_tokenizer_with(names))


def raw_tokenizer_with(names: Iterable[str]) -> tokenizers.Tokenizer:
    """The same as a tokenizer of the `tokenizers` library."""
    specification = json.loads(_embedded())
    known = {token["content"] for token in specification["added_tokens"]}
    first = max(token["id"] for token in specification["added_tokens"]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    specification["added_tokens"] += [
        {"id": token, "content": content, **flags, "special": True}
        for token, content in enumerate(sorted({*names} - known), first)
    ]
    return tokenizers.Tokenizer.from_str(json.dumps(specification))


@cache
def _embedded() -> str:
    return Path(DATA / "embedded.json").read_text(encoding="utf-8")


def _rendered(template: str) -> str:
    """Renderings of a template that may put the names of its control tokens together."""
    with suppress(ConfigError):  # a text that is not a template is refused later
        own = ChatTemplate(template, special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"})
        return "".join(_texts_of(own))
    return ""


def _texts_of(own: ChatTemplate) -> Iterator[str]:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {"a": "x", "b": 1}}}
    user = {"role": "user", "content": "u"}
    replies = ({"content": "a", "reasoning_content": "r"}, {"content": "", "tool_calls": [call]})
    for reply in replies:
        for messages in ([user, {"role": "assistant", **reply}], [user, {"role": "assistant", **reply}, user]):
            with suppress(TemplateFailed):
                yield own.render(messages, tools=[tool], generation_prompt=messages[-1] is user)


def options_of(template: str) -> dict[str, Any]:
    """The options of a template's renderer: a vocabulary that has its control tokens, and the end of a turn."""
    end, text = end_of_turn(template), template + _rendered(template)
    names = {*SHAPE.findall(text), *MORE_SHAPES.findall(text), *NAMES, "<eos>", "<|endoftext|>", end}
    special_tokens = {"bos_token": "<bos>", "eos_token": end}
    return {"tokenizer": tokenizer_with(names), "template": template, "stop": end, "special_tokens": special_tokens}
