"""The families that are aliases of `fixed_base`: their options, and what holds on each template at hand."""

import copy
import re
import tomllib
from functools import cache
from typing import Any

import pytest
import tokenizers
from documents import CHECKOUT
from envsdk_renderers import _choosing as choosing
from envsdk_renderers._aliases import Alias
from envsdk_renderers._deepseek_r1 import DeepSeekR1
from envsdk_renderers._families import ALIASES, DEEPSEEK_R1, GEMMA_3, GEMMA_4, LLAMA_3, NEMOTRON_3
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._llama3 import Llama3
from envsdk_renderers._qwen2_5 import Qwen25
from families import CHATML, vocabulary
from family_checks import KNOWN_DIFFERENCES, check, family_of, stand_in, with_template
from template_conversations import emitted, templates

import envsdk
from envsdk import Message, get_renderer, load_tokenizer
from envsdk import _registry as registry
from envsdk.errors import ConfigError, TokenizerError
from envsdk.testing import check_renderer

SHORT = "gemma3"
"""The template that a short run checks."""


def of_families() -> list[Any]:
    """The templates at hand that a family was checked on, of which a short run takes one."""
    known = [name for name, text in templates().items() if family_of(text) is not None]
    return [name if name == SHORT else pytest.param(name, marks=pytest.mark.full) for name in known]


@cache
def renderer_of(alias: Alias, name: str, **options: Any) -> Any:
    return alias(with_template(stand_in(alias.name), alias, templates()[name]), **options)


@pytest.mark.parametrize("name", of_families())
def test_a_family_renders_reads_and_strips_as_each_of_its_templates(name: str, is_full: bool) -> None:
    text = templates()[name]
    alias = family_of(text)
    assert alias is not None
    found = check(alias, stand_in(alias.name, text), text, conversations=600 if is_full else 4)
    assert found.conversations == (600 if is_full else 4)
    assert found.deltas > found.conversations
    assert found.reading not in ("refused", "partly")
    assert found.prompts > 0 or found.history.startswith("O(context): ")
    unknown = [wrong for wrong in found.wrong if wrong.split(":")[0] not in KNOWN_DIFFERENCES.get(alias.name, {})]
    assert not unknown


# Options.


@pytest.mark.full
def test_switches_are_arguments_of_the_template() -> None:
    plain = renderer_of(NEMOTRON_3, "nemotron_3_super")
    low = renderer_of(NEMOTRON_3, "nemotron_3_super", enable_thinking=False, low_effort=True)
    assert low.specification()["template_arguments"] == {"enable_thinking": False, "low_effort": True}
    prompts = [r.render([Message(role="user", content="u")], generation_prompt=True).tokens for r in (plain, low)]
    assert prompts[0].tolist() != prompts[1].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_thinkin": True}, "has no option 'enable_thinkin'; did you mean 'enable_thinking'?"),
        ({"thoughts": 1}, "has no option 'thoughts'; its options are enable_thinking, "),
        ({"enable_thinking": 1}, "enable_thinking is 1; expected True or False"),
        ({"medium_effort": True}, "this chat template of the family 'nemotron-3' has no such argument"),
        ({"enable_thinking": True, "template_arguments": {"enable_thinking": False}}, "give it once"),
        ({"validate": "never"}, "expected 'end', 'always' or 'off'"),
    ],
)
def test_an_option_that_the_family_or_its_template_does_not_have_is_refused(options: Any, message: str) -> None:
    tokenizer = with_template(stand_in("nemotron-3"), NEMOTRON_3, templates()["nemotron_3_super"])
    with pytest.raises(ConfigError, match=re.escape(message)):
        NEMOTRON_3(tokenizer, **options)


def test_another_familys_tokenizer_is_refused_with_the_tokens_that_it_lacks() -> None:
    with pytest.raises(TokenizerError, match=r"lacks .*'<\|turn>'.*is not a tokenizer of Gemma 4"):
        GEMMA_4(vocabulary("qwen3"))


def test_a_family_without_a_template_asks_for_one() -> None:
    with pytest.raises(TokenizerError, match="has no chat template"):
        GEMMA_3(stand_in("gemma-3"))
    renderer = GEMMA_3(stand_in("gemma-3"), template=templates()["gemma3"])
    assert renderer.render([Message(role="user", content="u")]).tokens[0] == renderer.tokenizer.token_id("<bos>")


def test_the_reason_reports_the_options_and_whether_the_template_was_checked() -> None:
    known = renderer_of(NEMOTRON_3, "nemotron_3_super", enable_thinking=False).chosen_because
    assert known.startswith("'nemotron-3' is 'fixed_base' with template_arguments={'enable_thinking': False}")
    assert known.endswith("is one of the templates that 'nemotron-3' was checked on")
    other = templates()["nemotron_3_super"].replace("You have access", "You now have access")
    tokenizer = with_template(stand_in("nemotron-3"), NEMOTRON_3, other)
    assert "not one of the templates" in NEMOTRON_3(tokenizer).chosen_because


def test_what_is_stored_is_fixed_base_with_the_resolved_options() -> None:
    renderer = renderer_of(NEMOTRON_3, "nemotron_3_super", low_effort=True)
    stored = renderer.specification()
    assert stored["name"] == "fixed_base"
    tokenizer = copy.copy(renderer.tokenizer)
    again = get_renderer(**stored, tokenizer=tokenizer)
    messages = [Message(role="user", content="u")]
    rendered = [r.render(messages, generation_prompt=True).tokens.tolist() for r in (again, renderer)]
    assert rendered[0] == rendered[1]


def test_the_registry_makes_a_family_by_its_name_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_renderers", {})
    envsdk.register_renderer("my-nemotron", NEMOTRON_3)
    tokenizer = with_template(stand_in("nemotron-3"), NEMOTRON_3, templates()["nemotron_3_super"])
    renderer = get_renderer("my-nemotron:enable_thinking=false", tokenizer)
    assert renderer.specification()["template_arguments"] == {"enable_thinking": False}
    with pytest.raises(ConfigError, match="did you mean 'low_effort'"):
        get_renderer("my-nemotron:low_efort=true", tokenizer)


# Names that are a class, too.


@pytest.mark.parametrize(
    ("alias", "family", "template", "with_tools"),
    [(LLAMA_3, Llama3, "llama3", "llama3_1"), (DEEPSEEK_R1, DeepSeekR1, "deepseek_r1_distill", "")],
)
def test_a_name_stays_a_class_for_a_template_without_tools(
    alias: Alias, family: type, template: str, with_tools: str
) -> None:
    bare = stand_in(alias.name)
    assert type(alias(bare)) is family
    assert type(renderer_of(alias, template)) is family
    with pytest.raises(ConfigError, match="no chat template that takes tools"):
        alias(bare, validate="always")
    if with_tools:
        assert type(renderer_of(alias, with_tools)) is FixedBase


def test_auto_chooses_the_family_that_was_checked_on_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "renderer_factories", lambda: {"qwen2.5": Qwen25, **ALIASES})
    monkeypatch.setattr(registry, "_renderers", {**ALIASES, "qwen2.5": Qwen25})
    tokenizer = with_template(stand_in("nemotron-3"), NEMOTRON_3, templates()["nemotron_3_super"])
    chosen = get_renderer("auto", tokenizer)
    assert chosen.name == "fixed_base"
    assert chosen.chosen_because.startswith("'nemotron-3' was checked on this template; no family renders")


# The table.


def test_each_template_belongs_to_one_family() -> None:
    known = [digest for alias in ALIASES.values() for digest in alias.templates]
    assert len(known) == len(set(known))
    assert all(alias.templates for alias in ALIASES.values())
    assert not any(alias.knows(CHATML) for alias in ALIASES.values())


def test_each_family_has_an_entry_point_and_a_row_in_the_documentation() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    points = project["project"]["entry-points"]["envsdk.renderers"]
    page = (CHECKOUT / "docs" / "families.md").read_text(encoding="utf-8")
    rows = {row.split("|")[1].strip(): row for row in page.splitlines() if row.startswith("| `")}
    for name, alias in ALIASES.items():
        module, _, variable = points[name].partition(":")
        assert module == "envsdk_renderers._families" and variable.isupper()
        row = rows[f"`{name}`"]
        assert alias.models in row
        assert [switch for switch in alias.switches if f"`{switch}`" not in row] == []


# What `fixed_base` measures for these families, each in a template of its own.

CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\n' }}{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\nPROMPT' }}{% endif %}"
)
ID = "{{ '<tool_call>' + c.id + '<think>' + (c.function.arguments | tojson) + '</tool_call>' }}"
ONE_TOKEN = (
    "{{ '<<tool_call>call name=\"' + c.function.name + '\">' }}{% for key, value in c.function.arguments.items() %}"
    "{{ '<<tool_call>arg name=\"' + key + '\">' + (value if value is string else value | tojson) }}"
    "{{ '</<tool_call>arg>' }}{% endfor %}{{ '</<tool_call>call>' }}"
)
CLOSED_BY_A_TEXT = CALLS.replace("{{ m.content", "{{ '<think></think>' if m.role == 'assistant' }}{{ m.content")


def measured(template: str) -> FixedBase:
    return FixedBase(vocabulary("qwen3"), template=template, stop="<|im_end|>")


def test_a_call_whose_name_is_only_in_its_id_is_read_although_the_schema_names_the_tool() -> None:
    renderer = measured(
        "{% if tools %}{{ tools | tojson }}{% endif %}" + CALLS.replace("CALL", ID).replace("PROMPT", "")
    )
    assert renderer.reading.status == "reads"
    call = envsdk.ToolCall(name="look_up", arguments={"a": 1})
    assert "functions.look_up:0" in renderer.tokenizer.decode(
        renderer.reply(Message(role="assistant", tool_calls=(call,)))
    )


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize(
    "template",
    [
        CALLS.replace("CALL", ONE_TOKEN).replace("PROMPT", ""),
        CLOSED_BY_A_TEXT.replace("CALL", ID.replace("<think>", "<tool_response>")).replace("PROMPT", "<think>"),
    ],
    ids=["all tags of a call have one control token", "a reply without reasoning closes the block of the prompt"],
)
def test_a_reply_that_is_cut_anywhere_is_closed(template: str) -> None:
    renderer = measured(template)
    assert renderer.reading.status in ("reads", "reads without types")
    check_renderer(renderer, random_replies=20).raise_if_failed()


PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ '<think>' + part.thinking + '</think>' if part.type == 'thinking' else part.text }}"
    "{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
).replace("CALL", "{{ '<tool_call>' + c.function.name + (c.function.arguments | tojson) + '</tool_call>' }}")


@pytest.mark.full
def test_reasoning_that_a_template_reads_as_a_part_of_the_content_is_shown_and_read() -> None:
    renderer = measured(PARTS)
    reply = Message(role="assistant", content="a", reasoning="r")
    tokens = renderer.reply(reply)
    assert renderer.tokenizer.decode(tokens) == "<think>r</think>a<|im_end|>"
    assert renderer.parse(tokens) == reply
    assert "r</think>a" in renderer.tokenizer.decode(renderer.render([Message(role="user", content="u"), reply]).tokens)
    check_renderer(renderer, random_replies=20).raise_if_failed()


def sentencepiece() -> tokenizers.Tokenizer:
    """A vocabulary of bytes and letters that encodes a space as U+2581, as Gemma's does."""
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(33, 127)), "\u2581"]
    model = tokenizers.models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    decoders = tokenizers.decoders
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return made


def test_deltas_are_validated_on_a_vocabulary_that_encodes_a_space_as_another_character() -> None:
    tokenizer = load_tokenizer(sentencepiece())
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    renderer = FixedBase(tokenizer, template=CHATML, stop="<|im_end|>")
    messages = [Message(role=role, content="a b") for role in ("user", "assistant", "user")]
    renderer.check_episode(messages, emitted(renderer, messages), ())
