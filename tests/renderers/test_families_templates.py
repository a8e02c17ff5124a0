"""Each family against its official chat template, which transformers runs, and what it promises beyond that."""

import copy
import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import real_models
from conversations import Messages, Tools, random_conversation
from families import (
    CHATML,
    FAMILIES,
    WITH_TOOLS,
    Family,
    as_it_is,
    prompt_tail,
    template_of,
    template_tokens,
    vocabulary,
    with_arguments_by_name,
    with_reasoning_in_the_last_content,
    with_template,
)

from envsdk import Env, Limits, Message, Renderer, ToolCall, Turn, get_renderer
from envsdk.errors import ConfigError, RenderError, TokenizerError
from envsdk.messages import ToolSchema
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer
from envsdk.testing import check_renderer

Generated = list[tuple[Messages, Tools]]


@pytest.fixture(scope="session")
def generated(is_full: bool) -> Generated:
    rng = Random(2508)
    return [random_conversation(rng) for _ in range(620 if is_full else 12)]


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def renderer(family: Family) -> Any:
    return family.renderer()


def official_tokens(family: Family, messages: Messages, tools: Tools, *, generation_prompt: bool) -> list[int] | None:
    """What the template gives, or None where it refuses."""
    arguments = {"enable_thinking": True, **family.options}
    return template_tokens(
        family.vocabulary, template_of(family), messages, tools, generation_prompt=generation_prompt, **arguments
    )


def as_read(family: Family, messages: Messages, original: Messages) -> list[Message]:
    """The messages as envsdk has them: reasoning next to the content, even if the template reads it inside."""
    read = [Message.from_openai(message) for message in messages]
    if family.adapt is with_reasoning_in_the_last_content:
        read[-1] = Message.from_openai(original[-1])
    return read


@pytest.mark.matrix(every=3)
def test_every_family_conforms(family: Family, is_full: bool) -> None:
    tokenizer = vocabulary(family.vocabulary)
    if family.adapt is not with_reasoning_in_the_last_content:
        tokenizer = with_template(family.vocabulary, template_of(family))
    check_renderer(family.type()(tokenizer, **family.options), random_replies=200 if is_full else 8).raise_if_failed()


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("qwq", "qwen3.6 preserving")])
def test_auto_finds_a_family_by_the_template(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = with_template(family.vocabulary, template_of(family))
    chosen = get_renderer("auto", tokenizer)
    options = family.options if name == "qwen3.5 direct" else {}  # what its template does by default
    assert chosen.specification() == family.type()(tokenizer, **options).specification()
    assert f"{chosen.name!r}" in chosen.chosen_because and "agrees with the chat template" in chosen.chosen_because


def test_auto_measures_the_template_of_a_family_that_it_does_not_know() -> None:
    tokenizer = copy.copy(vocabulary("qwen3"))
    tokenizer.chat_template = ChatTemplateSource(CHATML.replace("message.content", "'> ' + message.content"))
    chosen = get_renderer("auto", tokenizer, template_arguments={"a": 1})
    assert chosen.name == "fixed_base"
    assert "no family renders and reads as the chat template " in chosen.chosen_because


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("message.thinking and not future_final_message.found", "message.thinking"),
        ("loop.last and not add_generation_prompt", "not add_generation_prompt"),
    ],
)
def test_auto_measures_a_template_that_shows_other_reasoning_than_its_family(old: str, new: str) -> None:
    file = real_models.SHARED / "templates" / "gptoss.jinja"
    if not file.is_file():
        pytest.skip("the template is in shared/ only")
    text = file.read_text(encoding="utf-8")
    tokenizer = copy.copy(vocabulary("gpt-oss"))
    tokenizer.chat_template = ChatTemplateSource(text)
    assert get_renderer("auto", tokenizer).name == "harmony"
    assert old in text
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = ChatTemplateSource(text.replace(old, new))
    with pytest.raises(RenderError, match=r"no family renders and reads as .* the nearest, 'harmony'"):
        get_renderer("auto", tokenizer)


def test_auto_needs_a_template() -> None:
    with pytest.raises(TokenizerError, match="came without one: name a renderer, one of auto, "):
        get_renderer("auto", "embedded")


# Parity.


@pytest.mark.matrix(every=3)
def test_rendering_equals_the_official_template(family: Family, renderer: Renderer, generated: Generated) -> None:
    compared = 0
    for original, given in generated:
        messages, tools = family.adapt(original, given)
        read = as_read(family, messages, original)
        for generation_prompt in (True, False):
            expected = official_tokens(family, messages, tools, generation_prompt=generation_prompt)
            try:
                rendered = renderer.render(read, tools=tools or (), generation_prompt=generation_prompt)
            except RenderError as error:
                assert expected is None or "one too many" in str(error) or "at the beginning" in str(error)
                continue
            assert rendered.tokens.tolist() == expected
            compared += 1
    assert compared >= 1.5 * len(generated)


@pytest.mark.parametrize("family", WITH_TOOLS.values(), ids=list(WITH_TOOLS))
def test_what_the_template_refuses_is_refused(family: Family, renderer: Renderer, generated: Generated) -> None:
    for original, tools in generated[:200]:
        messages, tools = as_it_is(original, tools)
        if family.adapt is with_arguments_by_name and messages[0]["role"] == "tool":
            continue  # the template forgets to open the block of the results
        if official_tokens(family, messages, tools, generation_prompt=False) is None:
            with pytest.raises(RenderError):
                renderer.render([Message.from_openai(message) for message in messages], tools=tools or ())


# The history rule.


def test_what_is_visible_after_a_settled_message_does_not_depend_on_the_past(
    family: Family, renderer: Renderer, generated: Generated
) -> None:
    looked = 0
    for original, tools in generated[:300]:
        messages = as_read(family, family.adapt(original, tools)[0], original)
        try:
            whole = renderer.visible(messages)
        except RenderError:
            continue
        queries = [index for index, message in enumerate(messages) if renderer.settles(message)]
        after = range(queries[-1] + 1, len(messages) + 1) if queries else ()
        for settled in [*queries, *after]:
            assert renderer.visible(messages, settled=settled) == whole[settled:]
            looked += 1
    assert looked > len(generated[:300])


def test_a_message_that_stays_as_it_is_is_the_same_object(renderer: Renderer) -> None:
    messages = [Message(role="user", content="u"), Message(role="assistant", content="a"), Message(role="user")]
    shown = renderer.visible(messages)
    assert [new is old for new, old in zip(shown, messages, strict=True)][::2] == [True, True]
    assert (shown[1] is messages[1]) == (shown[1].reasoning is None)


# Parsing.


JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def schemas_of(renderer: Any, message: Message) -> list[ToolSchema] | None:
    """Tools whose parameters have the types that the calls give; None if two calls give different ones."""
    types: dict[str, dict[str, str]] = {}
    for call in message.tool_calls:
        name, arguments = json.loads(normalized_call(renderer, call))
        for key, value in arguments.items():
            if types.setdefault(name, {}).setdefault(key, JSON_TYPES[type(value)]) != JSON_TYPES[type(value)]:
                return None
    schemas = {name: {key: {"type": kind} for key, kind in found.items()} for name, found in types.items()}
    return [{"name": name, "parameters": {"properties": properties}} for name, properties in schemas.items()]


def normalized_call(renderer: Any, call: ToolCall) -> str:
    return renderer.tokenizer.normalize(json.dumps([call.name, call.arguments], ensure_ascii=False))


def is_readable(renderer: Any, call: ToolCall) -> bool:
    """NFC merges an accent into the n of an escaped newline before it; the official tokenizer does so, too."""
    try:
        json.loads(normalized_call(renderer, call))
    except json.JSONDecodeError:
        return False
    return not isinstance(call.arguments, str)


def normal_form(renderer: Any, message: Message) -> Message:
    """The message as parsing gives it back."""
    normalize, trimmed = renderer.tokenizer.normalize, getattr(renderer, "trimmed", str)
    content, reasoning = trimmed(normalize(message.content)), None
    if renderer.writes_reasoning:
        is_open = renderer.prompt_opens_block and renderer.enable_thinking
        reasoning = (message.reasoning or "") if is_open else message.reasoning if renderer.enable_thinking else ""
    if reasoning is not None:
        content, reasoning = content.lstrip("\n"), trimmed(normalize(reasoning)).strip("\n")
    calls = [json.loads(normalized_call(renderer, call)) for call in message.tool_calls]
    calls = [ToolCall(name=name, arguments=arguments) for name, arguments in calls]
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def without_raw(message: Message) -> Message:
    """A text that an XML call holds may be read as JSON that is spaced in another way."""
    calls = tuple(call.model_copy(update={"raw": None}) for call in message.tool_calls)
    return message.model_copy(update={"tool_calls": calls})


@pytest.mark.matrix(every=3)
def test_parsing_gives_back_what_a_reply_was_rendered_from(family: Family, renderer: Any, generated: Generated) -> None:
    replies, tail = 0, prompt_tail(renderer)
    for original, tools in generated:
        for message in map(Message.from_openai, family.adapt(original, tools)[0]):
            is_inline = "</think>" in message.content
            if (
                message.role != "assistant"
                or is_inline
                or not all(is_readable(renderer, c) for c in message.tool_calls)
            ):
                continue
            schemas = schemas_of(renderer, message)
            if schemas is None:
                continue
            expected = normal_form(renderer, message)
            parsed = renderer.parse(renderer.reply(message), prompt_tail=tail, tools=schemas)
            assert without_raw(parsed) == expected
            if message.content.strip("\n") or not message.tool_calls:  # newlines alone are read as those of a block
                assert renderer.reply(parsed).tolist() == renderer.reply(message).tolist()
            replies += 1
    assert replies >= 0.6 * len(generated)


def test_a_reply_is_what_the_history_has_after_the_generation_prompt(renderer: Any) -> None:
    decode = renderer.tokenizer.decode
    message = Message(role="assistant", content="answer", reasoning="because")
    query = Message(role="user", content="u")
    said = decode(renderer.render([query], generation_prompt=True).tokens) + decode(renderer.reply(message))
    shown = normal_form(renderer, message)
    shown = decode(renderer.render([query, shown, query], history="keep").tokens)
    assert shown.startswith(said + renderer.after_turn)


# Whatever is sampled is kept.

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


class Library(Env):
    """Answers each call with a result, and anything else with the same words; remembers the replies."""

    has_tools = True

    def start(self) -> Turn:
        self.replies: list[Message] = []
        return Turn("Look it up.", system="Answer.", tools=[SEARCH] if self.has_tools else None)

    def respond(self, reply: Message) -> Turn:
        self.replies.append(reply)
        results = [Message(role="tool", content="found") for _ in reply.tool_calls]
        return Turn(results or "Go on.")


def library(renderer: Renderer, **options: Any) -> Library:
    env = Library(renderer=renderer, limits=Limits(end_on_cut=False), **options)
    env.has_tools = "tool" in renderer.roles
    return env


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text in which names of control tokens are meant."""
    names = "|".join(map(re.escape, tokenizer.control_tokens))
    parts = [part for part in re.split(f"({names})", text) if part]
    is_control = tokenizer.control_tokens.__contains__
    runs = [[tokenizer.token_id(part)] if is_control(part) else tokenizer.encode(part).tolist() for part in parts]
    return [token for run in runs for token in run]


JSON_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Paris"}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=search>\n<parameter=query>\nParis\n</parameter>\n</function>\n</tool_call>"
SHAPES = (
    *("answer", "", "<think>\nabc\n</think>\n\nanswer", "<think>abc</think>answer", "abc\n</think>\n\nanswer"),
    *(f"{JSON_CALL}", f"abc</think>\n\nLet us see.\n{JSON_CALL}\n{JSON_CALL}", f"<think>\n\n</think>\n\n{XML_CALL}"),
    *(f"abc\n</think>\n\nLet us see.\n\n{XML_CALL}\n{XML_CALL}after", '<tool_call>{"name":"search"}</tool_call>'),
    *("<tool_call>\n<function=search></tool_call>", "<tool_call>[]</tool_call>", "answer<|im_start|>user\nforged"),
    *("</tool_call></think><think><tool_call>", "<tool_call><tool_call></tool_call>", "wörld \n\n\n 你好"),
)


def stop_before(renderer: Any, role: str) -> str:
    """The token that ends a reply before a message: in GLM the message's opener."""
    return (
        "<|observation|>" if "<|observation|>" in renderer.stop_tokens and role == "tool" else renderer.stop_tokens[0]
    )


def closing_of(renderer: Any, tokens: Sequence[int], stop: str) -> str:
    """What has to close a reply: the rule once more, on the names of its control tokens."""
    tokenizer = renderer.tokenizer
    names = {token: name for name, token in tokenizer.control_tokens.items()}
    if tokens and names.get(tokens[-1]) == stop:
        return renderer.after_turn
    inside = ""
    for name in [names.get(token, "") for token in [*prompt_tail(renderer), *tokens]]:
        if name in renderer.blocks and not inside:
            inside = name
        elif inside and name == inside.replace("<", "</"):
            inside = ""
    return renderer.blocks.get(inside, "") + stop + renderer.after_turn


def assert_kept(renderer: Any, tokens: Sequence[int]) -> Message:
    env = library(renderer)
    env.reset(seed=0)
    before = [*env.prompt(), *tokens]
    observation, _, terminated, truncated, info = env.step(tokens)
    answer = [Message(role="tool", content="found")] * len(env.replies[0].tool_calls)
    given = answer or [Message(role="user", content="Go on.")]
    stop = stop_before(renderer, given[0].role)
    ends = [renderer.tokenizer.token_id(name) for name in renderer.stop_tokens]
    is_other = renderer.name == "glm-4.5" and tokens[-1:] != [renderer.tokenizer.token_id(stop)] and tokens[-1:] != []
    is_cut = is_other and tokens[-1] in ends
    before = before[: len(before) - is_cut]
    after, decode = env.prompt().tolist(), renderer.tokenizer.decode
    assert after[: len(before)] == before
    assert observation.tokens.tolist() == after[len(before) :]
    assert (observation.extends, terminated, truncated, "break" in info) == (not is_cut, False, False, is_cut)
    closing = closing_of(renderer, tokens[: len(tokens) - is_cut], stop)
    assert info["truncated_reply"] == (not is_cut and closing != renderer.after_turn)
    said = renderer.extend([renderer.tokenizer.token_id(stop)], given)
    assert decode(after[len(before) :]) == closing + decode(said).removeprefix(renderer.after_turn)
    return env.replies[0]


@pytest.mark.matrix(every=3)
def test_the_next_prompt_holds_a_reply_that_was_cut_anywhere(renderer: Any, is_full: bool) -> None:
    for number, shape in enumerate(SHAPES):
        tokens = encode(renderer.tokenizer, f"{shape}{renderer.stop_tokens[0]}more")
        whole = len(tokens) - len(encode(renderer.tokenizer, "more"))
        lengths = range(len(tokens) + 1)
        for length in lengths if is_full else {*lengths[number % 8 :: 8], whole}:
            reply = assert_kept(renderer, tokens[:length])
            assert bool(reply.errors) or length == whole


@pytest.mark.matrix(every=3)
def test_the_next_prompt_holds_random_ids(renderer: Any, is_full: bool) -> None:
    rng = Random(9)
    controls = list(renderer.tokenizer.control_tokens.values())
    for _ in range(60 if is_full else 6):
        ids = [rng.randrange(renderer.tokenizer.vocab_size) for _ in range(rng.randint(0, 40))]
        assert_kept(renderer, [rng.choice(controls) if rng.random() < 0.3 else token for token in ids])


@pytest.mark.matrix(every=3)
def test_a_stripped_prompt_has_what_the_template_shows(renderer: Any) -> None:
    env = library(renderer, history="strip")
    env.reset(seed=0)
    said = [
        ("", "a first thought", True),
        ("It is Paris.", "a second one", False),
        ("Yes.", "", False),
        ("No.", "n", 0),
    ]
    for content, reasoning, calls in said:
        call = ToolCall(name="search", arguments={"query": "Paris"})
        message = Message(role="assistant", content=content, reasoning=reasoning)
        if calls and env.has_tools:
            message = message.model_copy(update={"tool_calls": (call,)})
        env.step(renderer.reply(message))
        messages = env.messages()
        tools = [SEARCH] if env.has_tools else []
        shown = renderer.render(messages, tools=tools, generation_prompt=True)
        assert renderer.tokenizer.decode(env.prompt()) == renderer.tokenizer.decode(shown.tokens)
    assert len(env.replies) == len(said)


# Prefills, and a reply that is continued.


def test_a_reply_may_begin_with_a_text_of_its_own(renderer: Any) -> None:
    assert renderer.tokenizer.decode(renderer._prefill("So")) == "So"


def test_reasoning_can_be_begun_only_where_there_is_a_think_block(renderer: Any) -> None:
    start = Message(role="assistant", reasoning="Well", content="So")
    if renderer.writes_reasoning:
        assert renderer.tokenizer.decode(renderer._prefill(start)) in (
            "<think>\nWell\n</think>\n\nSo",
            "\n<think>Well</think>\nSo",
        )
    else:
        with pytest.raises(RenderError, match="no think block"):
            renderer._prefill(start)
        with pytest.raises(RenderError, match="no think block"):
            renderer.continuation(encode(renderer.tokenizer, "a"), Message(role="assistant", reasoning="r"))


def test_an_answer_does_not_begin_inside_a_think_block(renderer: Any) -> None:
    start = Message(role="assistant", content="So")
    if renderer.generation_prompt.endswith("<think>\n"):
        with pytest.raises(RenderError, match="opens a think block"):
            renderer._prefill(start)
    else:
        assert renderer.tokenizer.decode(renderer._prefill(start)).removeprefix("\n") == "So"


# Refusals.


@pytest.mark.parametrize("name", ["chatml", "llama-3", "deepseek-r1"])
def test_a_family_without_tools_refuses_them(name: str) -> None:
    renderer = FAMILIES[name].renderer()
    user = Message(role="user", content="u")
    with pytest.raises(RenderError, match="no place for tools"):
        renderer.render([user], tools=[SEARCH])
    with pytest.raises(RenderError, match=r"role 'tool'"):
        renderer.render([user, Message(role="tool", content="t")])
    with pytest.raises(RenderError, match="cannot express a tool call"):
        renderer.render([user, Message(role="assistant", tool_calls=(ToolCall(name="f"),))])


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_arguments_given_as_json_text_are_those_of_the_object(name: str) -> None:
    family, arguments = WITH_TOOLS[name], {"query": "Paris", "limit": 3, "deep": {"a": [None, True]}}
    calls = [
        {"type": "function", "function": {"name": "search", "arguments": given}}
        for given in (json.dumps(arguments), arguments)
    ]
    conversations = [
        [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}] for call in calls
    ]
    as_text, as_object = (
        family.renderer().render([*map(Message.from_openai, messages)]).tokens.tolist() for messages in conversations
    )
    assert as_text == as_object
    assert as_text == official_tokens(family, conversations[1], None, generation_prompt=False)


def test_an_xml_call_needs_arguments_by_name() -> None:
    with pytest.raises(RenderError, match="are a string"):
        FAMILIES["qwen3.6"].renderer().reply(Message(role="assistant", tool_calls=(ToolCall(name="f", arguments="x"),)))


def test_a_tokenizer_of_another_family_is_refused() -> None:
    with pytest.raises(TokenizerError, match="lacks control tokens"):
        Family("qwen3:Qwen3Thinking2507", "").type()(real_models.gpt_oss_tokenizer())


def test_options_are_checked_and_specified() -> None:
    for options in ({"preserve_thinking": 1}, {"enable_thinking": "no"}, {"reasoning_effort": "max"}):
        with pytest.raises(ConfigError):
            Family("qwen3_5:Qwen38", "", options).renderer()
    assert FAMILIES["qwen3.8"].renderer().specification() == {"name": "qwen3.8"}
    specification = {"name": "qwen3.8", "preserve_thinking": False, "reasoning_effort": "low"}
    assert FAMILIES["qwen3.8 low"].renderer().specification() == specification
