"""The mask of a template's `generation` blocks: as transformers makes it, and compared with what a model samples."""

import copy

import pytest
import real_models
import template_conversations
from envsdk_renderers._qwen3 import Qwen3Instruct2507
from families import official_tokenizer

from envsdk import Renderer, load_tokenizer
from envsdk.errors import RenderError
from envsdk.rendering._parity import CONVERSATIONS, render_spans
from envsdk.rendering.tokenizers import ChatTemplateSource
from envsdk.testing import check_renderer
from envsdk.testing.masks import compare_masks, marked_tokens

CHATML = r"""{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- OPENING }}{%- generation %}{{- REPLY }}{%- endgeneration %}{{- REST }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}"""
OPENING, CONTENT, END, NEWLINE = r"'<|im_start|>assistant\n'", "message.content", "'<|im_end|>'", r"'\n'"


def marking(opening: str, reply: str, rest: str) -> str:
    """ChatML that marks `reply` of what it writes for the assistant; the arguments are expressions of Jinja."""
    return CHATML.replace("OPENING", opening).replace("REPLY", reply).replace("REST", rest)


EXACT = marking(OPENING, f"{CONTENT} + {END}", NEWLINE)
WITHOUT_THE_STOP = marking(OPENING, CONTENT, f"{END} + {NEWLINE}")
DIFFERENCES = {
    "none": (EXACT, "the masks are equal"),
    "no stop token": (WITHOUT_THE_STOP, "leaves out '<|im_end|>', the stop token, so a model does not learn to end"),
    "the newline after it": (
        marking(OPENING, f"{CONTENT} + {END} + {NEWLINE}", "''"),
        r"also marks '\n', which follows the end of a turn and is never sampled",
    ),
    "the newline before it": (
        marking("'<|im_start|>assistant'", f"{NEWLINE} + {CONTENT} + {END}", NEWLINE),
        r"also marks '\n', which the generation prompt contains, so it is never sampled",
    ),
    "only the last reply": (
        marking(
            OPENING,
            f"{CONTENT} + {END} if loop.last else ''",
            f"{NEWLINE} if loop.last else {CONTENT} + {END} + {NEWLINE}",
        ),
        "leaves out 'Paris.<|im_end|>', which a model samples (as in 'an answer after a reasoned one')",
    ),
    "the user's text": (
        EXACT.replace(
            "{{- '<|im_start|>' + message.role", "{%- generation %}{{- '<|im_start|>' + message.role"
        ).replace(r"'<|im_end|>\n' }}", r"'<|im_end|>\n' }}{%- endgeneration %}"),
        "which is in no reply",
    ),
}


def with_template(text: str) -> Renderer:
    tokenizer = copy.copy(load_tokenizer(real_models.qwen3_folder()))
    tokenizer.chat_template = ChatTemplateSource(text)
    return Qwen3Instruct2507(tokenizer)


@pytest.mark.parametrize("name", ["qwen3_training", "qwen2_5_training", "qwen3_6_training", "llama3_training"])
def test_the_mask_is_that_of_transformers(name: str):
    text = template_conversations.templates()[name]
    renderer, compared = with_template(text), 0
    for messages, tools, _ in CONVERSATIONS.values():
        try:
            rendered, blocks = render_spans(text, messages, tools, generation_prompt=False, arguments={"bos_token": ""})
        except RenderError:
            continue
        expected = official_tokenizer("qwen3").apply_chat_template(
            [message.to_openai() for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=text,
            return_assistant_tokens_mask=True,
            return_dict=True,
            bos_token="",
        )
        out = renderer._emission()
        out.scaffold(rendered)
        tokens = out.tokens()[0]
        assert tokens.tolist() == expected["input_ids"]
        assert marked_tokens(renderer, tokens, rendered, blocks).tolist() == [*map(bool, expected["assistant_masks"])]
        compared += any(expected["assistant_masks"])
    assert compared >= 8


@pytest.mark.parametrize(("text", "difference"), DIFFERENCES.values(), ids=list(DIFFERENCES))
def test_a_difference_is_explained(text: str, difference: str):
    assert difference in compare_masks(with_template(text))


def test_the_doctor_reports_the_mask_of_a_template_that_has_one():
    report = check_renderer(with_template(WITHOUT_THE_STOP), random_replies=0)
    check = next(check for check in report.checks if check.name == "mask of the template's generation blocks")
    assert check.verdict == "PASS"
    assert "the stop token" in check.detail
    official = check_renderer(with_template(real_models.template("qwen3_instruct_2507")), random_replies=0)
    assert not [check for check in official.checks if "generation blocks" in check.name]


def test_replies_that_the_template_rewrites_are_not_compared():
    renderer = template_conversations.fixed_base("deepseek_r1_distill_training")
    with pytest.raises(RenderError, match="no conversation can be compared: a reply is not in the text"):
        compare_masks(renderer)
