"""Reply grammars measured from real templates: what is written with real tokens reads back, or with an error."""

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from envsdk_environments._calculator import Calculator
from envsdk_environments._corpus_search import CorpusSearch
from envsdk_environments._retail_desk import RetailDesk
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._probes import KEYS, TOOLS, call_of, reply
from families import FAMILIES, template_of
from template_conversations import every_template, fixed_base, random_reply, templates, user, written_by_template

import envsdk
from envsdk import Message, load_tokenizer
from envsdk.errors import RenderError, TemplateUnsupported


def facts(message: Message) -> list[tuple[str, str]]:
    return [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.tool_calls]


def prompt_tail(renderer: FixedBase) -> Any:
    prompt = renderer.render([user()], generation_prompt=True)
    return prompt.tokens[prompt.starts[-1] :]


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", every_template())
def test_a_reply_reads_back_or_has_an_error(name: str, is_full: bool) -> None:
    renderer, rng, right = fixed_base(name), Random(name), 0
    tail = prompt_tail(renderer)
    for _ in range(60 if is_full else 15):
        message = random_reply(rng)
        try:
            tokens = renderer.reply(message)
        except RenderError:
            continue  # the template does not write it
        read = renderer.parse(tokens, prompt_tail=tail, tools=TOOLS)
        assert read.errors or facts(read) == facts(message)
        assert read.errors or message.tool_calls or read.content == message.content
        right += not read.errors
        cut = tokens[: rng.randint(0, len(tokens))]
        good = [call for call in renderer.parse(cut, prompt_tail=tail, tools=TOOLS).tool_calls if not call.error]
        assert read.errors or facts(message)[: len(good)] == facts(read.model_copy(update={"tool_calls": tuple(good)}))
    assert right >= 2


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", every_template())
def test_the_reference_policy_earns_all_on_every_template_with_tools(name: str, is_full: bool) -> None:
    renderer = fixed_base(name)
    try:
        renderer.check_tools(TOOLS)
    except TemplateUnsupported:
        pytest.skip("it refuses tools")
    for make in (Calculator, RetailDesk, CorpusSearch) if is_full else (Calculator,):
        for history in ("keep", "strip") if is_full else ("strip",):
            trajectory = envsdk.rollout(make(renderer=renderer, history=history), "reference", seed=0)
            assert trajectory.reward == 1.0
            assert not any(step.metrics["tool_errors"] for step in trajectory.steps)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["fixed_base", "qwen3.5", "qwen3.5 direct"])
@pytest.mark.parametrize("key", ["a>", ">", "a>b"])
def test_a_reply_whose_name_of_an_argument_spells_what_ends_it_is_refused(name: str, key: str) -> None:
    renderer = fixed_base("qwen3_5_think") if name == "fixed_base" else FAMILIES[name].renderer()
    renderer.reply(reply(calls=[call_of(0, {"a": "b > c"})]))
    with pytest.raises(RenderError, match="would be read as another one: its name spells"):
        renderer.reply(reply(calls=[call_of(0, {key: "x"})]))


@pytest.mark.parametrize("name", ["fixed_base", "qwen3.5"])
@pytest.mark.parametrize("begun", ["a>", ">", "a>>"])
def test_a_sampled_argument_whose_name_may_spell_what_ends_it_is_an_error_of_the_call(name: str, begun: str) -> None:
    renderer = fixed_base("qwen3_5_think") if name == "fixed_base" else FAMILIES[name].renderer()
    out = renderer._emission()
    out.scaffold(
        f"<tool_call>\n<function=f>\n<parameter={begun}>\nv\n</parameter>\n</function>\n</tool_call><|im_end|>"
    )
    (call,) = renderer.parse(out.tokens()[0]).tool_calls
    assert call.error and f"'>>' follows the key {begun.partition('>')[0]!r}" in call.error


FORMS = {
    "qwen3": ("object",),
    "deepseekv3": ("name", "arguments"),
    "gemma4_v5": ("name", "arguments"),
    "glm4moe": ("name", "key", "value"),
    "qwen3_6": ("name", "key", "value"),
    "lfm2_v2": ("python",),
    "muse_glimmer": ("name", "echo", "key", "value"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_calls_is_measured(name: str) -> None:
    grammar = fixed_base(name)._facts.grammar
    assert grammar.call == FORMS[name]


CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}{{- '<call>' + c.function.name + '{' }}"
    "{%- for k, v in c.function.arguments.items() %}{{- CALL }}{%- endfor %}{{- '}</call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
COMMA = "(',' if not loop.first else '')"
WRITTEN = {  # how a template writes an argument
    "all values in quotes": f"{COMMA} + k + ':<q>' ~ v ~ '<q>'",
    "all values as JSON in quotes": f"{COMMA} + k + ':<q>' ~ (v if v is string else v | tojson) ~ '<q>'",
    "some strings in CDATA": "'<p n=' + k + '>' ~ ('<![CDATA[' ~ v ~ ']]>' if v is string and '<' in v else "
    "v if v is string else v | tojson) ~ '</p>'",
}


def prompt_and(renderer: FixedBase, message: Message) -> Any:
    return np.concatenate([prompt_tail(renderer), renderer.reply(message)])


def renderer_of(call: str) -> FixedBase:
    return FixedBase(load_tokenizer("embedded"), template=CHATML.replace("CALL", call), stop="<|im_end|>")


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_template_itself_writes_is_read_with_the_types_of_schemas(name: str) -> None:
    renderer = renderer_of(WRITTEN[name])
    assert renderer.reading.status == "reads without types"
    values = {
        "string": "2.5",
        "second": "a<b",
        "number": 2.5,
        "boolean": True,
        "array": [1, [2]],
        "object": {"a": {"b": 1}},
    }
    for arguments in (*({key: value} for key, value in values.items()), values, {}):
        message = reply(calls=[call_of(0, {KEYS[key]: value for key, value in arguments.items()}), call_of(1, {})])
        rendered = renderer.render([user(), message], tools=TOOLS)
        for tokens in (rendered.tokens[rendered.starts[1] :][:-1], prompt_and(renderer, message)):
            read = renderer.parse(renderer.after_opening(tokens), tools=TOOLS)
            assert (facts(read), read.errors) == (facts(message), ())


@pytest.mark.parametrize("text", ["\\n", "C:\\new", "a\\'b", "it's", "\\", "x\ny"])
def test_a_string_that_the_template_does_not_escape_is_read_as_it_is(text: str) -> None:
    renderer = fixed_base("lfm2_2_5_v2")
    message = reply(calls=[call_of(0, {KEYS["string"]: text, KEYS["number"]: 2}), call_of(1, {})])
    for tokens in (renderer.reply(message), written_by_template(renderer, [user()], message, TOOLS)):
        read = renderer.parse(tokens, tools=TOOLS)
        assert (facts(read), read.errors) == (facts(message), ())


def test_a_string_in_the_other_quotes_is_python() -> None:
    renderer = fixed_base("lfm2_2_5_v2")
    read = renderer.parse(_encoded(renderer, "<|tool_call_start|>[f(a=\"x\\n\", b='y')]<|tool_call_end|><|im_end|>"))
    assert [call.arguments for call in read.tool_calls] == [{"a": "x\n", "b": "y"}]


def test_a_string_that_neither_way_of_writing_reads_back_is_refused() -> None:
    with pytest.raises(RenderError, match="would be read as another one"):
        fixed_base("lfm2_2_5_v2").reply(reply(calls=[call_of(0, {KEYS["string"]: """a', b=1)"  """})]))


NESTED = (
    "{%- macro pairs(items) %}{%- for k, v in items.items() %}{{- '<p n=' + k + '>' }}{%- if v is mapping %}"
    "{{- pairs(v) }}{%- else %}{{- v if v is string else v | tojson }}{%- endif %}"
    "{{- '</p>' }}{%- endfor %}{%- endmacro %}"
)


def test_a_template_that_nests_objects_as_its_own_tags_reads_partly() -> None:
    call = "{%- for k, v in c.function.arguments.items() %}{{- CALL }}{%- endfor %}"
    template = NESTED + CHATML.replace(call, "{{- pairs(c.function.arguments) }}")
    renderer = FixedBase(load_tokenizer("embedded"), template=template, stop="<|im_end|>")
    assert renderer.reading.status == "partly"
    assert "which reads back with an error" in renderer.reading.detail


def test_a_template_whose_own_calls_would_be_read_as_others_is_refused() -> None:
    lost = f"{COMMA} + k + ':<q>' ~ (v if v is string else '*') ~ '<q>'"
    renderer = renderer_of(lost)
    assert renderer.reading.status == "refused"
    assert "the template writes" in renderer.reading.detail
    with pytest.raises(TemplateUnsupported, match="do not read back"):
        renderer.check_tools(TOOLS)


def test_calls_read_back_with_types_or_with_the_types_of_schemas() -> None:
    assert {name: fixed_base(name).reading.status for name in ("qwen3", "gemma4_v5", "glm4moe", "phi3")} == {
        "qwen3": "reads",
        "gemma4_v5": "reads",
        "glm4moe": "reads without types",
        "phi3": "no calls",
    }


def test_renderers_of_one_template_share_their_measurements() -> None:
    fixed_base.cache_clear()
    assert fixed_base("qwen3")._facts.grammar is not fixed_base("qwen2_5")._facts.grammar
    first = fixed_base("qwen3")
    fixed_base.cache_clear()
    assert fixed_base("qwen3")._facts.grammar is first._facts.grammar
    assert fixed_base("qwen3", template_arguments=None).reading is first.reading


def test_reasoning_in_any_tags_is_no_content() -> None:
    for name in [name for name in ("gemma4_v5", "muse_glimmer", "gptoss", "glm4moe") if name in templates()]:
        renderer = fixed_base(name)
        read = renderer.parse(renderer.reply(reply("So.", "hm")), prompt_tail=prompt_tail(renderer))
        assert (read.content, read.reasoning, read.errors) == ("So.", "hm", ())


def test_a_template_without_calls_refuses_tools_with_the_reason() -> None:
    with pytest.raises(TemplateUnsupported):
        fixed_base("phi3").check_tools(TOOLS)


@pytest.mark.parametrize("name", ["qwen3", "gemma4_v5", "glm4moe", "lfm2_v2", "deepseekv3"])
def test_any_tokens_are_read(name: str, is_full: bool) -> None:
    renderer, rng = fixed_base(name), np.random.default_rng(0)
    grammar = renderer._facts.grammar
    pieces = [renderer.reply(random_reply(Random(7))), *(_encoded(renderer, edge.constant) for edge in grammar.edges)]
    for _ in range(2000 if is_full else 40):
        parts = [pieces[index] for index in rng.integers(0, len(pieces), rng.integers(0, 12))]
        tokens = np.concatenate([*parts, rng.integers(0, renderer.tokenizer.vocab_size, 3)]).astype(np.int32)
        read = renderer.parse(rng.permutation(tokens) if rng.random() < 0.3 else tokens, tools=TOOLS)
        assert read.errors or not read.tool_calls or all(call.error is None for call in read.tool_calls)


def _encoded(renderer: FixedBase, text: str) -> Any:
    out = renderer._emission()
    out.scaffold(text)
    return out.tokens()[0]


@pytest.mark.parametrize("name", ["thinking-2507", "qwen3.5", "qwen3.6", "glm-4.5"])
def test_a_familys_own_grammar_is_what_is_measured_of_its_template(name: str) -> None:
    family = FAMILIES[name]
    renderer: Any = family.renderer()
    template: Any = FixedBase(renderer.tokenizer, template=template_of(family), stop=renderer.stop_tokens[0])
    own, measured = renderer.grammar, template._facts.grammar
    assert (own.call, own.layout) == (measured.call, measured.layout)
    for (source, target), constant in own.written.items():
        if (source, target) == ("start", "end"):  # no template writes an empty reply
            continue
        found = measured.written[source, target]
        is_same = found.endswith(constant) if source == "start" else found == constant  # after an empty think block
        assert is_same, (source, target, constant, found)
    for values in own.values:
        written = [item for item in measured.values if {*item.types} & {*values.types}]
        assert {item.before for item in written} == {values.before}
        assert all("boolean" not in item.types or item.style.words == values.style.words for item in written)
