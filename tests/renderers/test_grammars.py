"""Reply grammars made by hand: one writer and one reader for all of them, and any reply is read."""

import pickle
import time
from typing import Any

import pytest
from envsdk_renderers._grammars._grammar import Grammar
from envsdk_renderers._grammars._reading import GrammarReader
from envsdk_renderers._grammars._styles import JSON, PYTHON, Style, read_value, write_value
from envsdk_renderers._grammars._writing import write_reply
from hypothesis import given
from hypothesis import strategies as st
from made_grammars import BARE, CLOSED, ENDED, GRAMMARS, OBJECT, PIECES, SECTION, TAGS, TOOLS, VALUES, XML

from envsdk import Message, ToolCall
from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.rendering.reading import Segment, SplitReply


def said(text: str = "", reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def call(name: str = "f", **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def written(grammar: Grammar, message: Message) -> list[Segment]:
    code = GrammarReader(grammar).patterns.code
    pieces = write_reply(grammar, message)
    return code.cut("".join(code.constant(piece.text) if piece.is_scaffold else piece.text for piece in pieces))


def read(grammar: Grammar, segments: list[Segment] | str, tools: Any = TOOLS) -> Message:
    given = [Segment("", segments)] if isinstance(segments, str) else segments
    return GrammarReader(grammar).read(given, ENDED, tools)


def sampled(grammar: Grammar, text: str) -> Message:
    """Read a text in which names of control tokens are control tokens."""
    reader = GrammarReader(grammar)
    code = reader.patterns.code
    return reader.read(code.cut(code.constant(text)), ENDED, TOOLS)


def facts(message: Message) -> Any:
    calls = [(c.name, c.arguments, c.error) for c in message.tool_calls]
    return message.content, message.reasoning, calls, message.errors


MESSAGES = (
    said("Hi."),
    said(" padded \n"),
    said("", None, call()),
    said("", None, call(**VALUES)),
    *(said("", None, call(**{key: value})) for key, value in VALUES.items()),
)
RICHER = (said("Hi.", "hm\n\nso"), said("So.", "hm", call(s="x")), said("So.", None, call(s="x"), call("g"), call("g")))


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_a_grammar_writes_reads_back(name: str) -> None:
    grammar = GRAMMARS[name]
    for message in (*MESSAGES, *(RICHER if name in ("object", "xml", "parts") else ())):
        shown = message.model_copy(
            update={"tool_calls": tuple(c.model_copy(update={"id": "id"}) for c in message.tool_calls)}
        )
        if name == "bare" and message.content.strip() != message.content:
            continue
        if name == "parts" and message.tool_calls and message.tool_calls[-1].arguments == {} and message.content:
            continue
        assert facts(read(grammar, written(grammar, shown))) == facts(message)


def test_a_grammar_is_data() -> None:
    for grammar in GRAMMARS.values():
        assert pickle.loads(pickle.dumps(grammar)) == grammar


def test_a_constant_that_is_a_control_token_is_not_matched_as_text() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert facts(read(OBJECT, text)) == (text, None, [], ())
    assert facts(sampled(OBJECT, text)) == ("", None, [("f", {}, None)], ())
    forged = said("<think>x</think>" + text, "</think>\n\n" + text)
    assert facts(read(OBJECT, written(OBJECT, forged))) == facts(forged)


def test_whitespace_of_models_may_differ_from_the_template() -> None:
    for text in (
        '<think>hm</think>So.<tool_call>{"name":"f","arguments":{"n":1}}</tool_call>',
        '<think>\nhm\n</think>\n\nSo.\n<tool_call>\n\n{"arguments": {"n": 1}, "name": "f"}\n\n</tool_call>\n',
    ):
        assert facts(sampled(OBJECT, text)) == ("So.", "hm", [("f", {"n": 1}, None)], ())


def test_an_empty_think_block_with_other_whitespace_is_reasoning_and_not_part_of_the_text() -> None:
    assert facts(sampled(CLOSED, "<think></think>\nParis.")) == ("\nParis.", None, [], ())
    for block in ("<think>\n\n</think>\n\n", "<think>\n</think>\n\n", "<think></think>\n\n"):
        assert sampled(OBJECT, block + "Paris.").content == "Paris."
        if "\n</think>" in block:
            assert facts(sampled(CLOSED, block + "Paris.")) == ("Paris.", "", [], ())


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("object", '<tool_call>{"name": "f", "arguments": {"n": }}</tool_call>', "not valid JSON"),
        ("object", '<tool_call>{"name": "f", "arguments": {"n": 1, "n": 2}}</tool_call>', "a key comes twice"),
        ("object", '<tool_call>{"arguments": {}}</tool_call>', "has no name"),
        ("object", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "are not a JSON object"),
        ("object", "<tool_call>f()</tool_call>", "does not begin as one"),
        ("object", '<tool_call>{"name": "f", "arguments": {}}, I think</tool_call>', "text after its arguments"),
        ("object", '<tool_call>{"name": "f", "arg', "not closed"),
        ("object", '<tool_call>{"name": "f", "arguments": {}}', "not closed"),
        ("section", '<|calls|><|call|>f[ARGS]{"n": 1}', "not closed"),
        ("section", '<|calls|><|call|>f[ARGS]{"n": 1} so<|end_call|>', "text after its arguments"),
        ("tags", "<calls>\n<call f=f>\n<p=n>\n1\n</p>", "not closed"),
        ("object", '<tool_call>{"name": "f", "arguments": {"s": "<think>"}}</tool_call>', "a control token is inside"),
        ("bare", '{"name": "f", "parameters": {"n": ', "not closed"),
        ("parts", "[CALL]f[ARGS]{}", "no end of its name"),
        ("xml", "<call>\n<f=f>\n<p=n>\none\n</p>\n</f>\n</call>", "not JSON"),
        ("xml", "<call>\n<f=f>\n<p=s>\n1\n<p=n>\n2\n</p>\n</f>\n</call>", "a tag of the call"),
        ("xml", "<call>\n<f=f>\n<p=s>\n1\n</p>\n<p=s>\n2\n</p>\n</f>\n</call>", "comes twice"),
        ("python", "<|calls|>[f(1)]<|end_calls|>", "arguments without a name"),
        ("python", "<|calls|>[f(n=g())]<|end_calls|>", "is not a literal"),
        ("python", "<|calls|>[f(n=1, n=2)]<|end_calls|>", "comes twice"),
        ("python", "<|calls|>[f(s='it's')]<|end_calls|>", "call in Python"),
        ("notation", "<|call>call:f{s:x}<call|>", "not a value"),
        ("notation", "<|call>call:f{s:<|q|>x}<call|>", "a string is not closed"),
    ],
)
def test_a_call_that_cannot_be_read_is_reported(name: str, text: str, error: str) -> None:
    message = sampled(GRAMMARS[name], text)
    assert len(message.tool_calls) == 1
    assert error in (message.tool_calls[0].error or "")
    assert message.errors == (message.tool_calls[0].error,)


@pytest.mark.parametrize(
    ("name", "text", "closers"),
    [
        ("section", '<|calls|><|call|>f[ARGS]{"n": 1}<|end_call|>', ("<|end_calls|>",)),
        ("tags", "<calls>\n<call f=f>\n<p=n>\n1\n</p>\n</call>", ("\n</calls>", "</calls>")),
        ("tags", "<calls>\n<call f=f>\n</call>\n", ("</calls>",)),
    ],
)
def test_a_complete_call_of_a_section_that_is_not_closed_is_read(
    name: str, text: str, closers: tuple[str, ...]
) -> None:
    message = sampled(GRAMMARS[name], text)
    arguments = {"n": 1} if "1" in text else {}
    assert facts(message) == ("", None, [("f", arguments, None)], ("the section of tool calls was not closed",))
    assert message.open_block is None
    for closer in closers:
        assert facts(sampled(GRAMMARS[name], text + closer)) == ("", None, [("f", arguments, None)], ())


def test_text_between_a_call_and_the_end_of_its_section_does_not_change_the_call() -> None:
    message = sampled(SECTION, '<|calls|><|call|>f[ARGS]{"n": 1}<|end_call|> So.<|end_calls|>')
    assert [(c.arguments, c.error) for c in message.tool_calls] == [({"n": 1}, None)]
    assert message.errors == (
        "the section of tool calls was not closed",
        "there is text after a tool call",
        "<|end_calls|> is out of place",
    )


def test_a_value_is_not_cut_at_a_text_that_closes_a_call_before_the_end_of_the_reply() -> None:
    value = "\n</p>\n</call>\nx"
    (found,) = read(TAGS, written(TAGS, said("", None, call(s=value)))).tool_calls
    assert found.arguments == {"s": value}
    assert "a tag of the call" in (found.error or "")


def test_calls_around_a_broken_one_are_read() -> None:
    good = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
    for broken in ("<tool_call>{</tool_call>", '<tool_call>{"name": "f"', '<tool_call>{"a": "</tool_call>'):
        calls = sampled(OBJECT, f"{good}\n{broken}\n{good}").tool_calls
        assert [bool(c.error) for c in calls] == [False, True, False]


def test_a_name_does_not_contain_another_call() -> None:
    message = sampled(XML, "<call>\n<f=a <call>\n<f=f>\n</f>\n</call>")
    form = "'<call>\\n<f=NAME>\\n<p=KEY>\\nVALUE\\n</p>\\n</f>\\n</call>'"
    why = f"a tool call has no name; calls are written as {form}"
    assert [(c.name, c.error) for c in message.tool_calls] == [("", why), ("f", None)]


def test_text_between_and_after_calls_is_reported() -> None:
    good = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
    message = sampled(OBJECT, f"A.{good}B.{good}C.")
    assert (message.content, len(message.tool_calls)) == ("A.\nB.\nC.", 2)
    assert message.errors == ("there is text after a tool call",)


def test_an_answer_in_json_is_text_where_nothing_marks_calls() -> None:
    for text in ('{"city": "Paris"}', '{"a', "{}", "[1]"):
        assert facts(read(BARE, text)) == (text, None, [], ())


def test_an_unknown_tool_is_read_with_texts_as_its_values() -> None:
    message = sampled(XML, "<call>\n<f=h>\n<p=n>\n1\n</p>\n</f>\n</call>")
    assert facts(message) == ("", None, [("h", {"n": "1"}, None)], ())


def test_what_the_template_does_not_write_is_not_written() -> None:
    with pytest.raises(TemplateUnsupported, match="the text, or not all of 1 calls next to it"):
        write_reply(BARE, said("So.", None, call()))
    with pytest.raises(TemplateUnsupported, match="not all of 2 calls"):
        write_reply(BARE, said("", None, call(), call()))
    with pytest.raises(RenderError, match="are a string"):
        write_reply(XML, said("", None, ToolCall(name="f", arguments="{")))


# Any reply.


@given(st.lists(PIECES, max_size=25).map("".join), st.sampled_from(sorted(GRAMMARS)), st.booleans())
def test_any_reply_is_read(text: str, name: str, is_ended: bool) -> None:
    reader = GrammarReader(GRAMMARS[name])
    code = reader.patterns.code
    message = reader.read(code.cut(code.constant(text)), SplitReply([], is_ended, ""), TOOLS)
    assert is_ended or message.errors
    assert all(c.error is None or c.error in message.errors for c in message.tool_calls)


@given(st.integers(0, 400), st.sampled_from(["object", "xml", "parts", "python", "notation"]))
def test_a_cut_reply_has_no_other_calls(cut: int, name: str) -> None:
    grammar = GRAMMARS[name]
    calls = [call(s="one", n=1).model_copy(update={"id": "a"}), call("g", s="two").model_copy(update={"id": "b"})]
    reader = GrammarReader(grammar)
    coded = reader.patterns.code.segments(written(grammar, said("", None, *calls)))
    message = reader.read(reader.patterns.code.cut(coded[:cut]), SplitReply([], False, ""), TOOLS)
    good = [(c.name, c.arguments) for c in message.tool_calls if not c.error]
    assert good == [(c.name, c.arguments) for c in calls][: len(good)]


HOSTILE = {
    "calls": ("object", '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>\n'),
    "openers": ("object", "<tool_call>"),
    "open objects of several lines": ("object", '<tool_call>\n{"\n'),
    "open objects": ("object", '<tool_call>{"'),
    "brackets": ("object", "<tool_call>" + "[" * 20),
    "thoughts": ("object", "<think></think>"),
    "spaces": ("object", " \n"),
    "spaces before a closer": ("xml", "</p>" + " " * 50),
    "keys": ("xml", "<call>\n<f=f>\n<p=a>\n1\n</p>\n"),
    "parameters": ("xml", "\n</p>\n<p=a>\n1"),
    "python calls": ("python", "<|calls|>[f(n=1), f(n=2)]<|end_calls|>"),
    "open python calls": ("python", "<|calls|>[f(n='"),
    "open quotes": ("notation", "<|call>call:f{s:<|q|>"),
    "keys without values": ("glm", "<arg_key>"),
    "keys without a call's end": ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>"),
    "objects": ("bare", '{"name": "f", "parameters": {}}'),
}


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("name", HOSTILE)
def test_reading_takes_linear_time(name: str) -> None:
    grammar, unit = HOSTILE[name]
    reader = GrammarReader(GRAMMARS[grammar])
    code = reader.patterns.code
    times: list[float] = []
    for count in (500, 5_000):
        segments = code.cut(code.constant(unit * count))
        begun = time.process_time()
        reader.read(segments, ENDED, TOOLS)
        times.append(time.process_time() - begun)
    assert times[1] < max(30 * times[0], 1.5)


# Styles.

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3), st.sampled_from([JSON, PYTHON, Style(indent=2)]))
def test_a_value_reads_back_in_its_style(value: Any, style: Style) -> None:
    text = "".join(piece.text for piece in write_value(value, style))
    found, end = read_value(text + " rest", 0, style)
    assert (repr(_sorted(found)), end) == (repr(_sorted(value)), len(text))


def _sorted(value: Any) -> Any:
    return {k: _sorted(value[k]) for k in sorted(value)} if isinstance(value, dict) else value
