"""The named families with substitutes for vocabularies that are not available, and what their templates can express."""

import copy
import importlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import real_models
from conversations import Messages, Tools, as_servers_read
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from envsdk import Message, Renderer, load_tokenizer
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer
from envsdk.rendering.tokenizers._files import DATA

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Adapt = Callable[[Messages, Tools], tuple[Messages, Tools]]


# What of a random conversation a template can express at all.


def as_it_is(messages: Messages, tools: Tools) -> tuple[Messages, Tools]:
    return [{**message, "content": message["content"] or ""} for message in messages], tools


def without_tools(messages: Messages, tools: Tools) -> tuple[Messages, Tools]:
    kept = [{key: message[key] for key in message if key != "tool_calls"} for message in messages]
    kept = [message for message in kept if message["role"] != "tool"] or [{"role": "user", "content": "u"}]
    return as_it_is(kept, None)


def with_reasoning_in_the_last_content(messages: Messages, tools: Tools) -> tuple[Messages, Tools]:
    """QwQ's template reads reasoning in the content; earlier reasoning it would drop there, too."""
    messages, tools = as_it_is(messages, tools)
    reasoning = messages[-1].get("reasoning_content")
    if reasoning is not None:
        content = messages[-1]["content"].lstrip("\n")
        between = "" if messages[-1]["content"] == "" and messages[-1].get("tool_calls") else "\n"
        inline = "<think>\n" + reasoning.strip("\n") + "\n</think>\n" + between + content
        messages[-1] = {**messages[-1], "content": inline, "reasoning_content": reasoning}
    return messages, tools


def with_arguments_by_name(messages: Messages, tools: Tools) -> tuple[Messages, Tools]:
    """A conversation that begins with a query, with a system message only before it."""
    messages, tools = as_it_is(messages, tools)
    system = [message for message in messages[:1] if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    query = [] if len(rest) % 3 == 0 and rest else [{"role": "user", "content": " query\n"}]
    rest = json.loads(json.dumps(rest))
    for call in (call for message in rest for call in message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        call["function"]["arguments"] = {"a b": arguments} if isinstance(arguments, str) else arguments
    return [*system, *query, *rest], tools


@dataclass(frozen=True)
class Family:
    source: str
    template: str
    options: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: str = "qwen3"
    adapt: Adapt = as_it_is

    def type(self) -> Any:
        module, name = self.source.split(":")
        return getattr(importlib.import_module(f"envsdk_renderers._{module}"), name)

    def renderer(self, **options: Any) -> Any:
        return self.type()(vocabulary(self.vocabulary), **self.options, **options)


def with_a_system_message_only_at_the_beginning(messages: Messages, tools: Tools) -> tuple[Messages, Tools]:
    messages, tools = without_tools(messages, tools)
    rest = [message for message in messages[1:] if message["role"] != "system"]
    return [messages[0], *rest], tools


LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
GLM = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "/nothink"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
STAND_INS = {"glm": GLM, "llama-3": LLAMA, "deepseek-r1": DEEPSEEK}
XML = {"adapt": with_arguments_by_name}
DIRECT = {"enable_thinking": False}
FAMILIES = {
    "chatml": Family("chatml:ChatML", CHATML, adapt=without_tools),
    "qwen2.5": Family("qwen2_5:Qwen25", "qwen2_5", vocabulary="qwen2.5"),
    "instruct-2507": Family("qwen3:Qwen3Instruct2507", "qwen3_instruct_2507"),
    "thinking-2507": Family("qwen3:Qwen3Thinking2507", "qwen3_thinking_2507"),
    "qwq": Family("qwq:QwQ", "qwq_32b", adapt=with_reasoning_in_the_last_content),
    "qwen3.5": Family("qwen3_5:Qwen35", "qwen3_5_think", **XML),
    "qwen3.5 direct": Family("qwen3_5:Qwen35", "qwen3_5_nothink", DIRECT, **XML),
    "qwen3.6": Family("qwen3_5:Qwen36", "qwen3_6", **XML),
    "qwen3.6 preserving": Family("qwen3_5:Qwen36", "qwen3_6", {"preserve_thinking": True}, **XML),
    "qwen3.8": Family("qwen3_5:Qwen38", "qwen3_8", **XML),
    "qwen3.8 low": Family("qwen3_5:Qwen38", "qwen3_8", {"reasoning_effort": "low", "preserve_thinking": False}, **XML),
    "llama-3": Family("llama3:Llama3", "llama3", vocabulary="llama-3", adapt=without_tools),
    "deepseek-r1": Family(
        "deepseek_r1:DeepSeekR1",
        "deepseek_r1_distill",
        vocabulary="deepseek-r1",
        adapt=with_a_system_message_only_at_the_beginning,
    ),
    "glm-4.5": Family("glm4_5:GLM45", "glm4moe", vocabulary="glm", **XML),
    "glm-4.5 direct": Family("glm4_5:GLM45", "glm4moe", DIRECT, vocabulary="glm", **XML),
    "qwen3.8 direct": Family("qwen3_5:Qwen38", "qwen3_8", {"reasoning_effort": "medium", **DIRECT}, **XML),
}


WITH_TOOLS = {name: family for name, family in FAMILIES.items() if "tool" in family.type().roles}


@cache
def vocabulary_folder(name: str) -> Path:
    """The real vocabulary; else the embedded one, with the control tokens that it lacks."""
    shared = real_models.SHARED / "tokenizers" / name
    if name == "qwen3":
        return real_models.qwen3_folder()
    if shared.is_dir():
        return shared
    specification = json.loads((DATA / "embedded.json").read_text(encoding="utf-8"))
    added = specification["added_tokens"]
    known = {token["content"] for token in added}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    missing = [content for content in STAND_INS.get(name, ()) if content not in known]
    added += [
        {"id": token, "content": content, **flags, "special": True} for token, content in enumerate(missing, 4096)
    ]
    folder = Path(tempfile.mkdtemp(prefix="envsdk-stand-in-"))
    (folder / "tokenizer.json").write_text(json.dumps(specification), encoding="utf-8")
    return folder


@cache
def vocabulary(name: str) -> Tokenizer:
    tokenizer = copy.copy(load_tokenizer(vocabulary_folder(name)))
    tokenizer.chat_template = None  # that of another family, where there is one
    return tokenizer


@cache
def official_tokenizer(name: str) -> Any:
    """The vocabulary as transformers loads it."""
    bos = {"bos_token": STAND_INS[name][0]} if name in STAND_INS else {}
    return PreTrainedTokenizerFast(tokenizer_file=str(vocabulary_folder(name) / "tokenizer.json"), **bos)


def template_tokens(
    name: str, template: str, messages: Messages, tools: Tools, *, generation_prompt: bool, **arguments: Any
) -> list[int] | None:
    """What a template gives on a vocabulary, as transformers encodes it, or None where it refuses."""
    try:
        return official_tokenizer(name).apply_chat_template(
            as_servers_read(messages),
            tools=tools,
            chat_template=template,
            add_generation_prompt=generation_prompt,
            tokenize=True,
            return_dict=False,
            **arguments,
        )
    except (TemplateError, TypeError):
        return None


def with_template(name: str, text: str) -> Tokenizer:
    """The vocabulary, as if it had come with a template."""
    tokenizer = copy.copy(vocabulary(name))
    bos = {"bos_token": STAND_INS[name][0]} if name in STAND_INS else {}
    tokenizer.chat_template = ChatTemplateSource(text, bos)
    return tokenizer


def template_of(family: Family) -> str:
    """The text of the official template."""
    try:
        return family.template if "{" in family.template else real_models.template(family.template)
    except real_models.MissingTestDataError:
        pytest.skip(f"the template {family.template} is only in shared/, which is missing: no wheel has it")


def prompt_tail(renderer: Renderer) -> list[int]:
    prompt = renderer.render([Message(role="user", content="u")], generation_prompt=True)
    return prompt.tokens[prompt.starts[-1] :].tolist()
