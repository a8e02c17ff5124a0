"""The families that the peer and we both support: templates, vocabularies, and what makes each side's renderer.

A family is one row. `ours` is the name of a registered renderer; `fixed_base` measures the template.
"""

import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import real_models
import tokenizers
from renderers.base import Renderer as PeerRenderer
from renderers.base import create_renderer
from renderers.configs import config_from_name
from stand_in_tokenizers import NAMES, SHAPE
from transformers import PreTrainedTokenizerFast

from envsdk import Renderer, get_renderer, load_tokenizer
from envsdk.rendering.tokenizers._files import DATA

DATE = date(2025, 1, 1)


@dataclass(frozen=True)
class PeerFamily:
    """A family of both projects."""

    peer: str
    """The name of the peer's configuration."""
    template: str
    """The package that has the official template, and its name there."""
    ours: str = "fixed_base"
    bos: str = "<bos>"
    end: str = "<|im_end|>"
    """What ends a turn."""
    controls: tuple[str, ...] = ()
    """The control tokens that the peer requires, besides those that the template has."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The peer's options."""
    calls: int = 2
    """The most calls of one reply."""
    has_text_arguments: bool = False
    """Whether the template takes arguments as JSON text, not as objects."""

    @property
    def special_tokens(self) -> dict[str, str]:
        return {"bos_token": self.bos, "eos_token": self.end}


def named(form: str, names: str) -> tuple[str, ...]:
    return tuple(form.format(name) for name in names.split())


DEEPSEEK = (
    *named(
        "<｜{}｜>", "begin▁of▁sentence end▁of▁sentence User Assistant latest_reminder action query authority domain"
    ),
    *named("<｜{}｜>", "title read_url tool▁calls▁begin tool▁calls▁end tool▁call▁begin tool▁call▁end tool▁sep"),
    *named("<｜{}｜>", "tool▁outputs▁begin tool▁outputs▁end tool▁output▁begin tool▁output▁end"),
    "｜DSML｜",
)
GLM = (
    *named("<|{}|>", "endoftext system user assistant observation"),
    *("[gMASK]", "<sop>", "/nothink", "<tool_response>", "</tool_response>"),
)
HY = (
    *named("<｜{}:opensource｜>", "hy_begin_of_sentence hy_eos hy_User hy_Assistant reasoning_mode"),
    *named("<{}:opensource>", "think tool_calls tool_call arg_key arg_value tool_responses tool_response tool_sep"),
    *named("</{}:opensource>", "think tool_calls tool_call arg_key arg_value tool_responses tool_response"),
)
KIMI = (
    *named("<|im_{}|>", "user assistant system middle end"),
    *named("<|tool_call{}|>", "s_section_begin s_section_end _begin _argument_begin _end"),
    *named("<|media_{}|>", "begin content pad end"),
)
LAGUNA = ("〈|EOS|〉", "<assistant>", "</assistant>")
LLAMA = named("<|{}|>", "begin_of_text end_of_text start_header_id end_header_id eot_id eom_id python_tag")
MINIMAX = ("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>")

_DEEPSEEK: dict[str, Any] = {"bos": DEEPSEEK[0], "end": DEEPSEEK[1], "controls": DEEPSEEK}
_GLM: dict[str, Any] = {"end": "<|endoftext|>", "controls": GLM}
_LAGUNA: dict[str, Any] = {"bos": LAGUNA[0], "end": LAGUNA[2], "controls": LAGUNA}
FAMILIES: Mapping[str, PeerFamily] = {
    "qwen3": PeerFamily("qwen3", "trl:qwen3", "qwen3"),
    "qwen3, measured": PeerFamily("qwen3", "trl:qwen3"),
    "qwen3-vl": PeerFamily("qwen3-vl", "trl:qwen3_vl"),
    "qwen3.5": PeerFamily("qwen3.5", "trl:qwen3_5_think", "qwen3.5"),
    "qwen3.6": PeerFamily("qwen3.6", "trl:qwen3_6", "qwen3.6"),
    "qwen3.8": PeerFamily("qwen3.8", "trl:qwen3_8", "qwen3.8"),
    "gemma-4": PeerFamily(
        "gemma4", "trl:gemma4_v5", end="<turn|>", controls=("<|image>", "<|image|>", "<image|>", "<|think|>")
    ),
    "glm-4.5": PeerFamily("glm-4.5", "trl:glm4moe", "glm-4.5", **_GLM),
    "glm-5": PeerFamily("glm-5", "xinference:glm-5", **_GLM),
    "glm-5.1": PeerFamily("glm-5.1", "xinference:glm-5.1", **_GLM),
    "glm-5.3": PeerFamily("glm-5.3", "xinference:glm-5.3", **_GLM),
    "gpt-oss": PeerFamily(
        "gpt-oss", "trl:gptoss", "harmony", end="<|return|>", options={"conversation_start_date": str(DATE)}, calls=1
    ),
    "hy3": PeerFamily("hy3", "llama.cpp:tencent-Hy3", bos=HY[0], end=HY[1], controls=HY),
    "kimi-k2": PeerFamily("kimi-k2", "llama.cpp:moonshotai-Kimi-K2", controls=KIMI),
    "kimi-k2.5": PeerFamily("kimi-k2.5", "xinference:Kimi-K2.5", controls=KIMI),
    "laguna-xs.2": PeerFamily("laguna-xs.2", "llama.cpp:poolside-Laguna-XS.2", **_LAGUNA),
    "laguna-s-2.1": PeerFamily("laguna-s-2.1", "llama.cpp:poolside-Laguna-S-2.1", **_LAGUNA),
    "llama-3": PeerFamily(
        "llama-3",
        "trl:llama3_2",
        bos=LLAMA[0],
        end="<|eot_id|>",
        controls=LLAMA,
        options={"date_string": f"{DATE:%d %b %Y}"},
        calls=1,
    ),
    "minimax-m2.5": PeerFamily("minimax-m2", "xinference:MiniMax-M2.5", bos=MINIMAX[0], end="[e~[", controls=MINIMAX),
    "nemotron-3-nano": PeerFamily("nemotron-3", "trl:nemotron_3_nano"),
    "nemotron-3-super": PeerFamily("nemotron-3", "trl:nemotron_3_super"),
    "nemotron-3-ultra": PeerFamily("nemotron-3-ultra", "trl:nemotron_3_ultra"),
    "nemotron-3.5": PeerFamily("nemotron-3.5", "trl:nemotron_3_5_lightning"),
    "deepseek-v3": PeerFamily("deepseek-v3", "xinference:deepseek-v3-0324", has_text_arguments=True, **_DEEPSEEK),
    "deepseek-r1": PeerFamily("deepseek-r1", "xinference:deepseek-r1", calls=0, **_DEEPSEEK),
    "deepseek-v4": PeerFamily("deepseek-v4", "llama.cpp:deepseek-ai-DeepSeek-V4-Flash-0731", **_DEEPSEEK),
}


@cache
def template_of(source: str) -> str:
    """The official template, or a skip where it is not available."""
    package, _, name = source.partition(":")
    if package == "trl":
        return real_models.template(name)
    if package == "xinference":
        return _of_xinference(name)
    folders = [Path(folder) for folder in filter(None, os.environ.get("ENVSDK_TEST_TEMPLATES", "").split(os.pathsep))]
    found = next((path for folder in folders for path in folder.glob(f"*{name}.jinja")), None)
    if found is None:
        pytest.skip(f"the template {name} of llama.cpp is in no folder that ENVSDK_TEST_TEMPLATES lists")
    return found.read_bytes().decode()


def _of_xinference(name: str) -> str:
    path = f"xinference/model/llm/models/{name}.json"
    file = next(file for file in importlib.metadata.files("xinference") or () if file.as_posix() == path)
    found = json.loads(file.read_text(encoding="utf-8"))
    return (found[0] if isinstance(found, list) else found)["chat_template"]


@cache
def vocabulary_of(name: str) -> tokenizers.Tokenizer:
    """The real vocabulary of Qwen and of gpt-oss; else the embedded one with the control tokens of the family."""
    family = FAMILIES[name]
    if name == "gpt-oss":
        file = real_models.SHARED / "tokenizers" / "gpt-oss" / "tokenizer.json"
        if not file.is_file():
            pytest.skip("gpt-oss's tokenizer.json is only in shared/, which is missing: no wheel has it")
        return tokenizers.Tokenizer.from_file(str(file))
    if name.startswith("qwen"):
        return _of_qwen3()
    shaped = SHAPE.findall(template_of(family.template))
    return stand_in({*shaped, *NAMES, *family.controls, family.bos, family.end, "<|endoftext|>"})


@cache
def _of_qwen3() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(real_models.qwen3_folder() / "tokenizer.json"))


def stand_in(names: set[str]) -> tokenizers.Tokenizer:
    """The embedded vocabulary with more control tokens."""
    specification = json.loads(Path(DATA / "embedded.json").read_bytes())
    known = {token["content"]: token["id"] for token in specification["added_tokens"]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    specification["added_tokens"] += [
        {"id": token, "content": content, **flags, "special": True}
        for token, content in enumerate(sorted(names - known.keys()), max(known.values()) + 1)
    ]
    return tokenizers.Tokenizer.from_str(json.dumps(specification))


@cache
def official(name: str) -> Any:
    """The vocabulary with the official template, as transformers loads them."""
    family = FAMILIES[name]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary_of(name),
        bos_token=family.bos,
        eos_token=family.end,
        pad_token="<|endoftext|>",
    )
    template = template_of(family.template)
    tokenizer.chat_template = re.sub(
        r"""strftime_now\((["'])(.*?)\1\)""", lambda found: repr(DATE.strftime(found[2])), template
    )
    return tokenizer


@cache
def ours(name: str) -> Renderer:
    """Our renderer of a family."""
    family, tokenizer = FAMILIES[name], load_tokenizer(vocabulary_of(name))
    if family.ours != "fixed_base":
        return get_renderer(family.ours, tokenizer, **({"current_date": str(DATE)} if family.ours == "harmony" else {}))
    options = {"template": template_of(family.template), "stop": family.end, "special_tokens": family.special_tokens}
    return get_renderer("fixed_base", tokenizer, **options)


@cache
def theirs(name: str, **options: Any) -> PeerRenderer:
    """The peer's renderer of a family."""
    family = FAMILIES[name]
    config = config_from_name(family.peer)
    assert config is not None
    if name == "gpt-oss":
        os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(real_models.o200k_folder()))
    return create_renderer(official(name), type(config)(**family.options, **options))
