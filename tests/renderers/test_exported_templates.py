"""Exported chat templates render as their renderers do, as transformers runs and encodes them, or are refused."""

from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import real_models
import template_conversations
from conversations import Messages, Tools, random_conversation
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._harmony import Harmony
from envsdk_renderers._qwen3 import Qwen3
from families import (
    FAMILIES,
    Family,
    as_it_is,
    template_of,
    template_tokens,
    vocabulary,
    with_reasoning_in_the_last_content,
    with_template,
)
from typer.testing import CliRunner

import envsdk
from envsdk import (
    Env,
    Message,
    Renderer,
    ToolCall,
    Turn,
    export_template,
    get_renderer,
    load_tokenizer,
)
from envsdk.cli import app
from envsdk.errors import ConfigError, ExportRefused, RenderError
from envsdk.rendering._parity import render_spans
from envsdk.rendering.emission import Emission
from envsdk.rendering.exporting import ExportedTemplate
from envsdk.rendering.exporting._proof import every_conversation

History = Literal["keep", "strip"]
QWEN3 = {
    "qwen3": Family("qwen3:Qwen3", "qwen3"),
    "qwen3 direct": Family("qwen3:Qwen3", "qwen3", {"enable_thinking": False}),
}
EVERY = {**QWEN3, **FAMILIES}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
HISTORIES: tuple[History, ...] = ("keep", "strip")


def renderer_of(family: Family) -> Renderer:
    return family.type()(with_template(family.vocabulary, template_of(family)), **family.options)


@pytest.fixture(scope="module")
def generated(is_full: bool) -> list[tuple[Messages, Tools]]:
    rng = Random(18)
    return [random_conversation(rng) for _ in range(400 if is_full else 12)]


def assert_same_prompts(
    renderer: Renderer, exported: ExportedTemplate, family: Family, generated: list[tuple[Messages, Tools]]
) -> None:
    """Compare the ids that transformers gives for random conversations with those of the renderer."""
    history: Any = "keep" if exported.history == "keep" else "template"
    adapt = as_it_is if family.adapt is with_reasoning_in_the_last_content else family.adapt
    compared = 0
    for original, given in generated:
        messages, tools = adapt(original, given)
        read = [Message.from_openai(message) for message in messages]
        prompt = messages[-1]["role"] != "assistant"
        if not (prompt or exported.same_at_end):
            continue
        try:
            expected = renderer.render(read, tools=tools or (), generation_prompt=prompt, history=history)
        except RenderError:
            continue
        ids = template_tokens(family.vocabulary, exported.text, messages, tools, generation_prompt=prompt)
        if ids is None:
            assert messages[0]["role"] != "user", "a conversation that begins like any other is refused"
            continue
        assert ids == expected.tokens.tolist()
        compared += 1
    assert compared >= 0.3 * len(generated)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", EVERY)
def test_every_familys_template_gives_the_ids_of_its_renderer(
    name: str, history: History, generated: list[tuple[Messages, Tools]]
) -> None:
    renderer = renderer_of(EVERY[name])
    exported = export_template(renderer, history)
    assert exported.same_at_end or name == "qwq"
    assert_same_prompts(renderer, exported, EVERY[name], generated)


@pytest.mark.parametrize("name", ["qwen3", *(pytest.param(n, marks=pytest.mark.full) for n in EVERY if n != "qwen3")])
def test_keep_needs_no_template_of_the_tokenizer(name: str) -> None:
    exported = export_template(EVERY[name].type()(vocabulary(EVERY[name].vocabulary), **EVERY[name].options))
    assert exported.source == "measured"
    assert len(exported.conversations) >= 45


def test_strip_is_the_models_own_template_with_the_options_fixed_in_it() -> None:
    official = real_models.template("qwen3")
    renderer = Qwen3(load_tokenizer(real_models.qwen3_folder()), enable_thinking=False)
    assert export_template(renderer, "strip").text == "{%- set enable_thinking = false %}\n" + official


@pytest.mark.full
def test_keep_sets_the_switch_of_a_template_that_has_one() -> None:
    renderer = template_conversations.fixed_base("lfm2_2_5")
    exported = export_template(renderer)
    assert (exported.source, exported.same_at_end) == ("tokenizer", False)
    assert exported.text.startswith('{%- set preserve_thinking = true %}\n{%- set bos_token = "<bos>" %}\n')


def test_the_date_of_the_renderer_is_fixed_in_the_template() -> None:
    text = "{{ strftime_now('%Y') }}" + FAMILIES["chatml"].template
    renderer = FixedBase(vocabulary("qwen3"), template=text, stop="<|im_end|>", date="2024-03-01")
    exported = export_template(renderer, "strip")
    assert exported.text.startswith("{{ '2024' }}")


def test_arguments_of_the_template_are_fixed_in_it() -> None:
    text = "{{ persona.name }}{{ count + 1 }}{{ on is false }}" + FAMILIES["chatml"].template
    arguments = {"persona": {"name": 'a "b"\n'}, "count": 2, "on": False}
    renderer = FixedBase(vocabulary("qwen3"), template=text, stop="<|im_end|>", template_arguments=arguments)
    exported = export_template(renderer, "strip")
    messages = [Message(role="user", content="u")]
    rendered, _ = render_spans(exported.text, messages, (), generation_prompt=True, arguments={})
    assert rendered.startswith('a "b"\n3True<|im_start|>user')


# Refusals.


@pytest.mark.parametrize("history", ["compact", {"name": "keep"}, None])
def test_a_policy_that_no_template_can_express_is_refused_with_the_gateway_as_the_way_out(history: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected 'keep' or 'strip'.*through the gateway"):
        export_template(Qwen3(load_tokenizer("embedded")), history)


def test_strip_without_the_tokenizers_template_is_refused() -> None:
    with pytest.raises(ExportRefused, match="load the model's own tokenizer") as raised:
        export_template(Qwen3(load_tokenizer("embedded")), "strip")
    assert raised.value.conversation == "an empty block and no text in the past"
    assert "<think>" in raised.value.rendered and "<think>" not in raised.value.expected


def test_a_format_that_no_template_writes_is_refused_at_the_smallest_prompt_that_differs() -> None:
    harmony = Harmony(real_models.gpt_oss_tokenizer())
    with pytest.raises(ExportRefused, match="tools are not written as JSON"):
        export_template(harmony)
    with pytest.raises(ExportRefused, match="differs at 'a question'"):
        export_template(get_renderer("role_colon", load_tokenizer(real_models.qwen3_folder())))


class MarksAQuestion(Qwen3):
    """A family that writes one text differently from all others."""

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        super().emit_message(out, message, previous, following)
        out.scaffold("!" * (message.content == "And of Italy?"))


class DropsAResult(Qwen3):
    """A family that drops one text."""

    def trimmed(self, text: str) -> str:
        return "" if text == "Rome" else text


@pytest.mark.parametrize(
    ("mutant", "conversation", "difference"),
    [
        (MarksAQuestion, "spaces", r"And of Italy\?<\|im_end\|>\\n!<\|im_start"),
        (DropsAResult, "tool after call", r"<tool_response>\\n\\n</tool_response>"),
    ],
)
def test_a_renderer_that_is_not_what_was_measured_is_refused_with_the_smallest_prompt(
    mutant: type[Renderer], conversation: str, difference: str
) -> None:
    with pytest.raises(ExportRefused, match=f"differs at {conversation!r}: the texts differ.*{difference}") as raised:
        export_template(mutant(load_tokenizer("embedded")))
    assert raised.value.conversation == conversation
    assert raised.value.expected != raised.value.rendered


def test_conversations_are_compared_from_the_smallest_on() -> None:
    sizes = [len(conversation.messages) + len(conversation.tools) for _, conversation in every_conversation()]
    assert sizes == sorted(sizes)


@pytest.mark.full
@pytest.mark.parametrize("name", template_conversations.every_template())
def test_any_template_is_exported_or_refused_with_a_prompt(name: str) -> None:
    renderer = template_conversations.fixed_base(name)
    for history in HISTORIES:
        try:
            assert export_template(renderer, history).conversations
        except ExportRefused as refused:
            assert refused.conversation and refused.expected


# What a server is given.


class Library(Env):
    """Answers each call with a result, and anything else with a question."""

    def start(self) -> Turn:
        return Turn("Look it up.", system="Answer.", tools=[TOOL])

    def respond(self, reply: Message) -> Turn:
        results = [Message(role="tool", content="found", tool_call_id=call.id) for call in reply.tool_calls]
        return Turn(results or "Go on.")


@pytest.mark.parametrize("history", HISTORIES)
def test_a_server_renders_the_prompts_of_an_episode(history: History) -> None:
    env = Library(renderer="qwen3", tokenizer=real_models.qwen3_folder(), history=history)
    exported = export_template(env.renderer, history)
    env.reset(seed=0)
    call = ToolCall(name="search", arguments={"query": "Paris", "limit": 3})
    for reply in [
        Message(role="assistant", reasoning="I search.", tool_calls=(call,)),
        Message(role="assistant", reasoning="I search again.", content="Then:", tool_calls=(call, call)),
        Message(role="assistant", reasoning="It is there.", content="It is Paris."),
        Message(role="assistant", content="Yes."),
        Message(role="assistant", reasoning="No idea.", content="No."),
    ]:
        prompt = env.renderer.tokenizer.decode(env.prompt())
        rendered, _ = render_spans(exported.text, env.messages(), [TOOL], generation_prompt=True, arguments={})
        assert rendered == prompt
        env.step(env.renderer.reply(reply))
    assert ("I search." in env.renderer.tokenizer.decode(env.prompt())) == (history == "keep")


def test_servers_may_pass_reasoning_under_any_of_its_names() -> None:
    exported = export_template(Qwen3(load_tokenizer("embedded")))
    texts = set[str]()
    for name in ("reasoning_content", "reasoning", "thinking"):
        said = {"role": "assistant", "content": "a", name: "why"}
        messages = [{"role": "user", "content": "u"}, said, {"role": "user", "content": "v"}]
        ids = template_tokens("qwen3", exported.text, messages, None, generation_prompt=True)
        texts.add(vocabulary("qwen3").decode(ids or []))
    assert len(texts) == 1 and "<think>\nwhy\n</think>\n\na<|im_end|>" in texts.pop()


@pytest.mark.parametrize("role", ["system", "user"])
def test_content_that_is_not_a_text_is_refused(role: str) -> None:
    exported = export_template(Qwen3(load_tokenizer("embedded")))
    parts = [{"role": role, "content": [{"type": "text", "text": "u"}]}]
    assert template_tokens("qwen3", exported.text, parts, None, generation_prompt=True) is None


def test_the_command_writes_the_template_and_prints_the_flags_of_the_servers(tmp_path: Path) -> None:
    file = tmp_path / "keep.jinja"
    result = CliRunner().invoke(
        app, ["export-template", "--renderer", "qwen3", "--history", "keep", "--out", str(file)]
    )
    assert result.exit_code == 0, result.output
    expected = envsdk.export_template(get_renderer("qwen3", "embedded"))
    assert file.read_text(encoding="utf-8") == expected.text
    assert f"vllm serve MODEL --chat-template {file} --chat-template-content-format string" in result.output
    assert f"sglang.launch_server --model-path MODEL --chat-template {file}" in result.output


def test_the_command_refuses_a_policy_that_no_template_can_express(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export-template", "--history", "compact", "--out", str(tmp_path / "x.jinja")])
    assert isinstance(result.exception, ConfigError)
    assert not (tmp_path / "x.jinja").exists()
