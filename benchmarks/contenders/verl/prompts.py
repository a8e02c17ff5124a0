"""verl's Continuous Token builder, which renders a made-up exchange with and without the new messages."""

from time import process_time
from typing import Any

import numpy as np
import real_models
import torchvision_operators  # noqa: F401  # the CPU build of torch has none, and transformers looks for them
from transformers import AutoTokenizer
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import answer, check_prompt, conversation, reply, tools

MERGES = 5
"""The steps that one repetition measures."""


@contender(
    "unknown-template",
    "verl",
    packages=("verl", "tokenizers", "transformers"),
    note="the builder that its agent loops use: `merge_assistant_tokens` and `merge_context_tokens`, each with "
    "`align_response_metadata`; without reading the reply",
)
def verl(size: int) -> Repetition:
    """Continue a prompt and a reply by a tool's answer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(real_models.qwen3_folder())
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3")
    offered, past = tools("tools"), conversation(size, "tools")
    prompt = builder.build_initial_tokens(past, tools=offered)
    replied = [*past, reply(size, "tools")]
    sampled = builder._render_tokens(replied, add_generation_prompt=False, tools=offered)[len(prompt) : -1]
    mask = [1] * len(prompt)
    logprobs = np.full(len(prompt), -0.5).tolist()
    answered = [[*replied, answer(step, "tools")] for step in range(size, size + MERGES)]
    sampled_logprobs = [-0.5] * len(sampled)
    merged = builder.merge_assistant_tokens(prompt, sampled)
    first = builder.merge_context_tokens(replied, answered[0], merged.token_ids, tools=offered)
    check_prompt(tokenizer.decode(first.token_ids), size, "tools")

    def merges() -> float:
        start = process_time()
        for messages in answered:
            merged = builder.merge_assistant_tokens(prompt, sampled)
            after = builder.align_response_metadata(merged, mask, logprobs, assistant_logprobs=sampled_logprobs)
            merged = builder.merge_context_tokens(replied, messages, merged.token_ids, tools=offered)
            builder.align_response_metadata(merged, *after)
        return (process_time() - start) / MERGES

    return merges
