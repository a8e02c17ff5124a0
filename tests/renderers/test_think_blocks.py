"""Where a think block is in a reply, and which part of the reply is then content."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase
from families import FAMILIES, vocabulary
from template_conversations import fixed_base, templates

from envsdk import Env, Message, Renderer, Turn, get_renderer
from envsdk.errors import PlainTagsWarning
from envsdk.history import History, HistoryPolicy, Rewrite
from envsdk.rendering.renderer import NOT_ENDED, as_given

PLAIN = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


THINKING = [name for name, family in FAMILIES.items() if "<think>" in family.type().blocks] + ["plain"]
BEFORE = "there is text before the think block"


@cache
def renderer_of(name: str) -> Renderer:
    """The renderer of a family, or of a template whose replies have a format."""
    if name in FAMILIES:
        return FAMILIES[name].renderer()
    if name in ("qwen3", "harmony"):
        return get_renderer(name, real_models.gpt_oss_tokenizer() if name == "harmony" else vocabulary("qwen3"))
    return FixedBase(vocabulary("qwen3"), template=PLAIN, stop="<|im_end|>", reply_format=name)


def read(renderer: Any, pieces: Sequence[str]) -> Message:
    out = renderer._emission()
    for piece in pieces:
        out.scaffold(piece) if piece in ("<think>", "</think>") else out.content(piece)
    return renderer.parse(out.tokens()[0])


@pytest.mark.matrix
@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize(
    ("pieces", "content", "reasoning", "errors"),
    [
        (["Before", "<think>", "x", "</think>", "After"], "Before\nAfter", "x", [BEFORE]),
        (["Before", "<think>", "\nx\n", "</think>", "\n\nAfter"], "Before\nAfter", "x", [BEFORE]),
        (["Before", "<think>", "", "</think>"], "Before", "", [BEFORE]),
        (["Before", "<think>", "x"], "Before", "x", [BEFORE, "the think block was not closed"]),
        (["\n \n", "<think>", "x", "</think>", "After"], "After", "x", []),
        (
            ["Before", "<think>", "x", "</think>", "After", "<think>", "y"],
            "Before\nAfter<think>y",
            "x",
            [BEFORE, "<think> is out of place"],
        ),
    ],
)
def test_text_before_a_think_block_is_content(
    name: str, pieces: Sequence[str], content: str, reasoning: str, errors: Sequence[str]
) -> None:
    reply = read(renderer_of(name), pieces)
    assert (reply.content, reply.reasoning, list(reply.errors)) == (content, reasoning, [*errors, NOT_ENDED])


@pytest.mark.parametrize("name", THINKING)
def test_an_error_that_comes_up_often_is_reported_once(name: str) -> None:
    reply = read(renderer_of(name), ["<think>", "x", "</think>", *["<think>", "y", "</think>"] * 3])
    assert reply.content == "<think>y</think>" * 3
    assert reply.errors == ("<think> is out of place", "</think> is out of place", NOT_ENDED)


# Reasoning between tags in the content of a message that no model sampled, as data sets and clients write it.

READS = [name for name in THINKING if name != "plain" and not name.startswith("qwen3.8")]
TAGGED = ("<think>R1</think>A1", "<think>\nR1\n</think>\n\nA1", " <think>\nR1</think>\nA1")


def given(content: str, role: Any = "assistant", reasoning: str | None = None) -> Message:
    return Message(role=role, content=content, reasoning=reasoning)


@pytest.mark.parametrize("content", TAGGED)
@pytest.mark.parametrize("name", [*READS, "fixed_base"])
def test_reasoning_at_the_start_of_a_given_content_is_reasoning(name: str, content: str) -> None:
    renderer, question = fixed_base("qwen3") if name == "fixed_base" else renderer_of(name), given("q", "user")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainTagsWarning)
        assert as_given(renderer, given(content)) == given("A1", reasoning="R1")
        for talk in ([question, given(content)], [question, given(content), question]):
            expected = [given("A1", reasoning="R1") if m.role == "assistant" else m for m in talk]
            assert renderer.render(talk).tokens.tolist() == renderer.render(expected).tokens.tolist()


@pytest.mark.parametrize("content", [*TAGGED, "R1</think>A1", "<think>x"])
@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_tags_in_a_content_that_is_not_the_assistants_stay_text(role: str, content: str) -> None:
    message = given(content, role)
    assert as_given(renderer_of("thinking-2507"), message) is message


@pytest.mark.parametrize("name", ["thinking-2507", "qwen3.5"])
def test_the_opening_tag_may_be_in_the_generation_prompt(name: str) -> None:
    assert as_given(renderer_of(name), given("R1\n</think>\n\nA1")) == given("A1", reasoning="R1")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("thinking-2507", c) for c in ("A <think>R</think>B", "<think>R", "<think>a</think>b</think>c")),
        *(("qwen3", c) for c in ("R</think>A", "<think>a<think>b</think>c")),
        *((name, TAGGED[0]) for name in ("qwen3.8", "instruct-2507", "harmony")),
        *(("qwen3", c) for c in ("<seed:think>R</seed:think>A", "<|channel|>final<|message|>A", "[TOOL_CALLS][]")),
        ("llama-3", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ("thinking-2507", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ("harmony", "<|channel|>analysis<|message|>R<|end|>"),
    ],
)
def test_other_tags_in_a_given_content_are_text_with_a_warning_that_names_what_to_pass(name: str, content: str) -> None:
    renderer = renderer_of(name)
    message = given(content)
    with pytest.warns(PlainTagsWarning, match="plain text.*reasoning_content=.*tool_calls="):
        assert as_given(renderer, message) is message


def test_what_a_model_sampled_is_not_read_again() -> None:
    class Echo(Env):
        def start(self) -> Turn:
            return Turn("q")

        def respond(self, reply: Message) -> Turn:
            return Turn("and?")

    for name in ("qwen3", "fixed_base"):
        renderer = fixed_base("qwen3") if name == "fixed_base" else renderer_of(name)
        env = Echo(renderer=renderer, history="strip")
        env.reset(seed=0)
        spelled = [*renderer.tokenizer.encode("<think>R</think>A"), renderer.stop_token_ids[0]]
        with warnings.catch_warnings():
            warnings.simplefilter("error", PlainTagsWarning)
            env.step(spelled)
            env.step(spelled)
        assert env.messages()[1].content == "<think>R</think>A"
        assert renderer.tokenizer.decode(env.prompt()).count("<think>R</think>A") == 2


def test_a_reply_that_is_written_from_a_given_message_has_its_reasoning() -> None:
    renderer = renderer_of("qwen3")
    assert renderer.reply(given(TAGGED[0])).tolist() == renderer.reply(given("A1", reasoning="R1")).tolist()


@pytest.mark.parametrize("name", ["qwen3", "fixed_base"])
def test_a_reply_that_a_history_policy_inserts_is_read_like_one_of_the_first_turn(name: str) -> None:
    class Insert(HistoryPolicy):
        def view(self, history: History) -> Rewrite | None:
            inserted = given("<think>S</think>SUM")
            return Rewrite(1, [inserted, history.messages[-1]], "edit") if history.steps == 1 else None

    class Echo(Env):
        def start(self) -> Turn:
            return Turn("q")

        def respond(self, reply: Message) -> Turn:
            return Turn("and?")

    renderer = fixed_base("qwen3") if name == "fixed_base" else renderer_of(name)
    env = Echo(renderer=renderer, history=Insert())
    env.reset(seed=0)
    env.step(renderer.reply(given("A1")))
    think = renderer.tokenizer.token_id("<think>")
    assert think in env.prompt().tolist()
    assert env._envsdk.episode.contexts["main"].view[1] == given("SUM", reasoning="S")


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        *((name, True) for name in ("qwen3_0_6b_2025_04", "qwq_32b", "glm4moe", "nemotron_3_nano", "deepseek_v3_1")),
        *((name, False) for name in ("qwen3_8", "qwen2_5", "phi3", "gptoss", "deepseek_r1_distill_training")),
    ],
)
def test_whether_a_template_reads_reasoning_in_the_content_is_measured(name: str, reads: bool) -> None:
    if name not in templates():
        pytest.skip("this template is not here")
    assert fixed_base(name).reasoning_in_content == (("<think>", "</think>") if reads else None)
