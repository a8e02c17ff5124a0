"""The seam around a tool's result: text that is encoded in pieces has other ids than the same text encoded at once.

Qwen2.5's template writes a newline between `<tool_response>` and the result. Where the result begins with a newline,
both are one token. `<tool_response>` is not a control token of Qwen2.5's vocabulary, so nothing separates them either.
"""

import json
from typing import Any

import pytest
import real_models
import tiktoken
import tokenizers
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._qwen2_5 import Qwen25
from transformers import PreTrainedTokenizerFast

from envsdk import Message, Renderer, ToolCall, load_tokenizer
from envsdk.rendering.tokenizers import TiktokenTokenizer, Tokenizer

RESULT = "\n1 + 1 = 2\n"
PIECES = ("<tool_response>\n", RESULT, "\n</tool_response>")
APART = [27, 14172, 9655, 397, 198, 16, 488, 220, 16, 284, 220, 17, 198, 198, 522, 14172, 9655, 29]
TOGETHER = [27, 14172, 9655, 1339, 16, 488, 220, 16, 284, 220, 17, 271, 522, 14172, 9655, 29]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CONVERSATION = [
    Message(role="user", content="What is 1 + 1?"),
    Message(role="assistant", tool_calls=(ToolCall(name="add", arguments={}, id="call-1"),)),
    Message(role="tool", content=RESULT, tool_call_id="call-1", name="add"),
]


@pytest.fixture(scope="module")
def qwen2_5() -> tokenizers.Tokenizer:
    """Qwen2.5's vocabulary: Qwen3's without the control tokens that came later."""
    specification = json.loads((real_models.qwen3_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    later = ("<tool_response>", "</tool_response>", "<think>", "</think>")
    specification["added_tokens"] = [t for t in specification["added_tokens"] if t["content"] not in later]
    return tokenizers.Tokenizer.from_str(json.dumps(specification))


@pytest.fixture(scope="module")
def tokenizer(qwen2_5: tokenizers.Tokenizer) -> Tokenizer:
    """The same vocabulary for us, of the ranks that are loaded already."""
    qwen3 = load_tokenizer(real_models.qwen3_folder())
    assert isinstance(qwen3, TiktokenTokenizer)
    controls = {token.content: id_ for id_, token in qwen2_5.get_added_tokens_decoder().items()}
    return load_tokenizer(
        tiktoken.Encoding(
            "qwen2.5", pat_str=real_models.QWEN3_SPLIT, mergeable_ranks=dict(qwen3.ranks), special_tokens=controls
        )
    )


@pytest.fixture(params=["qwen2.5", pytest.param("fixed_base", marks=pytest.mark.full)])
def renderer(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Renderer:
    if request.param == "qwen2.5":
        return Qwen25(tokenizer)
    return FixedBase(tokenizer, template=real_models.template("qwen2_5"), stop="<|im_end|>")


def official(qwen2_5: tokenizers.Tokenizer) -> list[int]:
    """The ids of the template's rendering of the whole conversation."""
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=qwen2_5)
    return tokenizer.apply_chat_template(
        [message.to_openai() for message in CONVERSATION],
        tools=[TOOL],
        chat_template=real_models.template("qwen2_5"),
        add_generation_prompt=True,
        return_dict=False,
    )


@pytest.mark.full
def test_two_newlines_around_a_tool_response_are_one_token_only_if_encoded_together(renderer: Renderer):
    encode, control_tokens = renderer.tokenizer.encode, renderer.tokenizer.control_tokens
    assert "<tool_response>" not in control_tokens and "<tool_call>" in control_tokens
    assert [token for piece in PIECES for token in encode(piece).tolist()] == APART
    assert encode("".join(PIECES)).tolist() == TOGETHER
    assert (renderer.tokenizer.decode([1339]), renderer.tokenizer.decode([271])) == (">\n\n", "\n\n")


def test_the_delta_with_a_tool_response_has_the_ids_of_the_templates_whole_rendering(
    renderer: Renderer, qwen2_5: tokenizers.Tokenizer
):
    prompt = renderer.render(CONVERSATION[:1], tools=[TOOL], generation_prompt=True).tokens.tolist()
    reply = renderer.reply(CONVERSATION[1]).tolist()
    delta = renderer.extension(reply, CONVERSATION[2:], history=CONVERSATION[:2], tools=[TOOL]).tokens.tolist()
    assert [*prompt, *reply, *delta] == official(qwen2_5)
    assert contains(delta, TOGETHER) and not contains(delta, APART)


def contains(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[start : start + len(part)] == part for start in range(len(tokens)))
