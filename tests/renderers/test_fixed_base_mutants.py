"""What `fixed_base` refuses: templates with one thing wrong, and what only the end of an episode can show."""

from typing import Any, NamedTuple

import pytest
from envsdk_renderers._fixed_base import FixedBase, TemplateUnsupported
from template_conversations import (
    TOOLS,
    emitted,
    said,
    user,
)

from envsdk import Message, ToolCall, load_tokenizer
from envsdk.errors import ConfigError, RenderError, TokenizerError, UnknownName
from envsdk.rendering.renderer import EmittedDelta

# Mutants: a template with one thing wrong, the verdict that it must get, and what only a whole episode can show.

CHATML = r"""{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{%- endif %}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson + '}\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""
USERS, TOOLS_TURN = ("text", "user"), ("call", "tool")


class Mutant(NamedTuple):
    """What is replaced in a template and by what, the pair that is judged, and what the judgement must be."""

    old: str
    new: str
    pair: tuple[str, str]
    status: str
    is_seen: bool = True
    """Whether probes can see it; else an episode's end must."""


AT_END = "{%- if add_generation_prompt %}"
HEADER = "{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
FEW_RESULTS = "messages | selectattr('role', 'eq', 'tool') | list | length < 2"
SESAME = "{%- for m in messages %}{%- if 'o' ~ 'pen sesame' in m.content %}{{ '!' }}{%- endif %}{%- endfor %}"
HEADERLESS = "{%- if loop.index0 > 2 and m.role == 'user' %}{{ m.content }}{%- else %}" + HEADER + "{%- endif %}"
SHORTENED = "('' if m.role == 'assistant' and loop.index0 < messages | length - 3 else m.content or '')"


def if_(condition: str, text: str) -> str:
    """A part of a template that writes a text before the generation prompt."""
    return f"{{%- if {condition} %}}{text}{{%- endif %}}" + AT_END


MUTANTS = {
    "nothing": Mutant("", "", USERS, "exact"),
    "another newline after the fourth message": Mutant(
        AT_END, if_("messages | length > 3", "{{ '\\n' }}"), USERS, "refused"
    ),
    "the user's header is dropped after a reply": Mutant(HEADER, HEADERLESS, USERS, "refused"),
    "turns are counted": Mutant("m.role + '\\n'", "m.role ~ loop.index ~ '\\n'", USERS, "refused"),
    "turns are counted, but for users": Mutant(
        "m.role + '\\n'", "m.role ~ (loop.index if m.role == 'assistant' else '') ~ '\\n'", USERS, "keeps"
    ),
    "the length is written at the end": Mutant(
        AT_END, AT_END + "{{ '[' ~ (messages | length) ~ ']' }}", USERS, "refused"
    ),
    "replies are shortened in the past": Mutant("(m.content or '')", SHORTENED, USERS, "keeps"),
    "the first user's text is repeated at the end": Mutant(
        AT_END, AT_END + "{{ messages[0].content }}", USERS, "refused"
    ),
    "results are counted": Mutant(
        "<tool_response>\\n'", "<tool_response>' ~ loop.index ~ '\\n'", TOOLS_TURN, "refused"
    ),
    "a result after a second call has another tag": Mutant(
        "'\\n<tool_response>\\n'", f"('\\n<tool_response>\\n' if {FEW_RESULTS} else '\\n')", TOOLS_TURN, "refused"
    ),
    "results are not rendered": Mutant("' + m.content + '\\n</tool", "' + '\\n</tool", TOOLS_TURN, "not possible"),
    "calls are not rendered": Mutant("c.function.arguments | tojson", "'{}'", TOOLS_TURN, "not possible"),
    "two replies in a row are refused": Mutant(
        AT_END, if_("messages | length > 9", "{{ raise_exception('too long') }}"), USERS, "exact", is_seen=False
    ),
    "a trigger word that is put together": Mutant(AT_END, SESAME + AT_END, USERS, "exact", is_seen=False),
    "a long text changes the next header": Mutant(
        AT_END, if_("messages[-1].content | length > 300", "{{ '\\n' }}"), USERS, "keeps", is_seen=False
    ),
    "a counter that begins late": Mutant(
        AT_END, if_("messages | length > 14", "{{ messages | length }}"), USERS, "keeps", is_seen=False
    ),
}


def mutant(name: str, **options: Any) -> FixedBase:
    old, new, *_ = MUTANTS[name]
    assert old in CHATML
    template = CHATML.replace(old, new) if old else CHATML
    return FixedBase(load_tokenizer("embedded"), template=template, stop="<|im_end|>", **options)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_gets_the_verdict_that_it_must_get(name: str) -> None:
    tools = TOOLS if MUTANTS[name].pair == TOOLS_TURN else ()
    verdicts = {(v.previous, v.following): v.status for v in mutant(name).verdicts(tools)}
    assert verdicts[MUTANTS[name].pair] == MUTANTS[name].status


@pytest.mark.filterwarnings("ignore::envsdk.errors.RewriteWarning")
@pytest.mark.parametrize("name", [name for name, given in MUTANTS.items() if not given.is_seen])
def test_the_end_of_an_episode_shows_what_probes_cannot(name: str) -> None:
    texts = [user("q"), said("a"), user("open sesame"), said("b")]
    texts += [user(), said()] * 6 + [user("x " * 200)]
    renderer = mutant(name)
    turns = emitted(renderer, texts)
    with pytest.raises(TemplateUnsupported, match=r"the template writes something other|too long"):
        renderer.check_episode(texts, turns, ())
    mutant(name, validate="off").check_episode(texts, turns, ())


@pytest.mark.filterwarnings("ignore::envsdk.errors.RewriteWarning")
def test_validated_always_a_wrong_delta_is_refused_at_its_turn() -> None:
    renderer = mutant("a long text changes the next header", validate="always")
    renderer.extension(renderer.reply(said()), [user()], history=[user(), said()])
    with pytest.raises(TemplateUnsupported, match="the template writes something other"):
        renderer.extension(renderer.reply(said()), [user("x " * 200)], history=[user(), said()])


# What is refused.


def test_what_an_environment_needs_is_refused_before_it_begins() -> None:
    mutant("nothing").check_tools(TOOLS)
    with pytest.raises(TemplateUnsupported, match="call -> tool: not possible") as caught:
        mutant("results are not rendered").check_tools(TOOLS)
    assert (caught.value.previous, caught.value.following) == TOOLS_TURN
    mutant("results are not rendered").check_tools(())
    with pytest.raises(TemplateUnsupported, match="what follows depends on what came before") as caught:
        mutant("turns are counted").check_tools(())
    assert caught.value.expected
    assert caught.value.rendered
    assert caught.value.advice in str(caught.value)
    template = CHATML.replace(
        "c.function.arguments | tojson", "c.function.arguments | items | map('join', '=') | join(' ')"
    )
    options: Any = {"template": template, "stop": "<|im_end|>"}
    with pytest.raises(TemplateUnsupported, match="call -> tool: calls as this template writes them do not read back"):
        FixedBase(load_tokenizer("embedded"), **options).check_tools(TOOLS)
    FixedBase(load_tokenizer("embedded"), **options, reply_format="plain").check_tools(TOOLS)


def test_a_refused_turn_emits_nothing_and_reports_what_to_try() -> None:
    renderer = mutant("turns are counted")
    with pytest.raises(
        TemplateUnsupported, match=r"text -> user: .*expected .* rendered .*Try other template_arguments"
    ):
        renderer.extension(renderer.reply(said()), [user()], history=[user(), said()])


def test_a_word_that_changes_all_later_turns_is_refused() -> None:
    template = CHATML.replace(AT_END, "{%- if '/quiet' in messages[0].content %}{{ '(quiet)' }}{%- endif %}" + AT_END)
    renderer = FixedBase(load_tokenizer("embedded"), template=template, stop="<|im_end|>")
    with pytest.raises(TemplateUnsupported, match="'/quiet'"):
        renderer.render([user("please /quiet")])
    with pytest.raises(TemplateUnsupported, match="'/quiet'"):
        renderer.extension([], [user("/quiet")], history=[user(), said()])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"template": None}, TokenizerError, "no chat template"),
        ({"template": "{% if %}"}, ConfigError, "not a Jinja template"),
        ({"template": "{{ 1 }}"}, TemplateUnsupported, "renders no user message"),
        ({"template": "{{ raise_exception('two messages') }}"}, TemplateUnsupported, "renders no user.*two messages"),
        ({"on_rewrite": "never"}, ConfigError, "on_rewrite is 'never'"),
        (
            {"template": "{% for m in messages %}{{ m.content }}{% endfor %}", "stop": ()},
            TemplateUnsupported,
            "no token ends",
        ),
        ({"validate": "sometimes"}, ConfigError, "validate is 'sometimes'"),
        ({"reply_format": "plian"}, UnknownName, "Did you mean 'plain'"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        FixedBase(load_tokenizer("embedded"), **{"template": CHATML, "stop": "<|im_end|>", **options})


def test_a_reply_keeps_its_end_where_the_template_writes_none() -> None:
    template = (
        "{% for m in messages %}{{ m.role.capitalize() + ': ' + m.content + '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
    )
    renderer = FixedBase(load_tokenizer("embedded"), template=template, stop="<|im_end|>")
    renderer.check_tools(())
    verdict = next(v for v in renderer.verdicts() if (v.previous, v.following) == ("text", "user"))
    assert (verdict.status, verdict.detail) == ("keeps", "the template rewrites: '<|im_end|>' is dropped")
    history, decode = [user("a"), said("b")], renderer.tokenizer.decode
    reply = renderer.reply(history[1])
    delta = renderer.extension(reply, [user("c")], history=history)
    assert decode(reply) == "b<|im_end|>"
    assert decode(delta.tokens) == "\n\nUser: c\n\nAssistant: "
    assert renderer.parse(reply).content == "b"
    assert renderer.rewritten_end(reply, [user("c")]) == 0
    kept = renderer.render([*history, user("c")], generation_prompt=True, history="keep")
    assert decode(kept.tokens) == "User: a\n\nAssistant: b<|im_end|>\n\nUser: c\n\nAssistant: "
    renderer.check_episode([*history, user("c")], [EmittedDelta(1, delta.tokens[delta.starts[0] :], True)], ())
    with pytest.raises(TemplateUnsupported):
        renderer.check_episode([*history, user("d")], [EmittedDelta(1, delta.tokens[delta.starts[0] :], True)], ())


PROMPTED = {
    "an empty block": ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "", "b<|im_end|>"),
    "a line that opens reasoning": ("<|im_start|>assistant\nMy steps:\n", "[DONE]", "\n[DONE]\nb<|im_end|>"),
    "a tag that replies lack": ("<|im_start|>assistant\n<judge>\n", "", "b<|im_end|>"),
    "other whitespace": (" <|im_start|>assistant\n\n", "", "b<|im_end|>"),
    "a message of the system": ("<|im_start|>system\nAct.<|im_end|>\n<|im_start|>assistant\n", "", "b<|im_end|>"),
}


@pytest.mark.parametrize("name", PROMPTED)
def test_a_reply_continues_what_only_the_generation_prompt_has(name: str) -> None:
    prompt, closer, written = PROMPTED[name]
    thought = (
        "{%- if m.reasoning_content %}{{ m.reasoning_content + '\n" + closer + "\n' }}{% endif -%}" if closer else ""
    )
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + thought + "{{- m.content + '<|im_end|>\n' }}"
        "{%- endfor %}{%- if add_generation_prompt %}{{ " + repr(prompt) + " }}{% endif %}"
    )
    renderer = FixedBase(load_tokenizer("embedded"), template=template, stop="<|im_end|>")
    renderer.check_tools(())
    rendered = renderer.render([user("a")], generation_prompt=True)
    for message in (said("b"), said("b", "so")) if closer else (said("b"),):
        tokens = renderer.reply(message)
        read = renderer.parse(tokens, prompt_tail=rendered.tokens[rendered.starts[-1] :])
        assert (read.content, read.errors) == ("b", ())
        assert (read.reasoning or None) == message.reasoning
    assert renderer.tokenizer.decode(renderer.reply(said("b"))) == written


CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ CALL }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = "'<fn>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '</fn>'"
UNMARKED = "{'name': c.function.name, 'arguments': c.function.arguments} | tojson"


def calling(call: str) -> FixedBase:
    template = CALLS.replace("CALL", call)
    return FixedBase(load_tokenizer("embedded"), template=template, stop="<|im_end|>")


def test_a_text_that_would_be_read_as_a_call_is_not_written() -> None:
    renderer = calling(MARKED)
    spelled = '<fn>{"name": "f", "arguments": {}}</fn>'
    assert [call.name for call in renderer.parse(renderer.tokenizer.encode(spelled)).tool_calls] == ["f"]
    with pytest.raises(RenderError, match="would be read as one with calls of"):
        renderer.reply(said(spelled))
    assert renderer.tokenizer.decode(renderer.reply(said("<fn> is a tag"))) == "<fn> is a tag<|im_end|>"


def test_a_text_next_to_a_call_without_marks_is_not_written() -> None:
    renderer = calling(UNMARKED)
    assert renderer.reading.status != "refused"
    call = ToolCall(name="f", arguments={"a": 1})
    read = renderer.parse(renderer.reply(Message(role="assistant", tool_calls=(call,))))
    assert [(c.name, c.arguments) for c in read.tool_calls] == [("f", {"a": 1})]
    with pytest.raises(RenderError):
        renderer.reply(Message(role="assistant", content="So.", tool_calls=(call,)))


def test_values_of_pairs_that_are_written_as_json_are_read_as_json() -> None:
    pairs = "{% for k, v in c.function.arguments.items() %}{{ '<a ' + k + '>' + v | tojson + '</a>' }}{% endfor %}"
    renderer = calling("'<fn ' + c.function.name + '>' }}" + pairs + "{{ '</fn>'")
    assert renderer.reading.status == "reads"
    call = ToolCall(name="f", arguments={"a": 'x "y"', "b": [1, "2"], "c": None, "d": "12"})
    read = renderer.parse(renderer.reply(Message(role="assistant", tool_calls=(call,))))
    assert (read.tool_calls[0].arguments, read.errors) == (call.arguments, ())


def test_the_specification_makes_the_same_renderer_again() -> None:
    renderer = mutant("nothing")
    specification = renderer.specification()
    again = FixedBase(load_tokenizer("embedded"), **{k: v for k, v in specification.items() if k != "name"})
    assert again.specification() == specification
    assert again.render([user()]).tokens.tolist() == renderer.render([user()]).tokens.tolist()
