"""Harmony against the library that defines it, and against the official chat template of gpt-oss."""

import hashlib
import json
import re
import sys
from random import Random
from typing import Any

import jinja2
import openai_harmony as oh
import pytest
import real_models
from conversations import random_text
from envsdk_renderers import _harmony_vocabulary as harmony_vocabulary
from envsdk_renderers._harmony import Harmony
from jinja2.ext import loopcontrols

import envsdk
from envsdk import Action, Env, Message, Renderer, ToolCall, Turn, _registry, errors, load_tokenizer
from envsdk.rendering.tokenizers import TiktokenTokenizer

DATE = "2025-08-05"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Use {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Which one."},
                    "count": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "unit": {"type": "string", "enum": ["a", "b"]},
                },
                "required": ["city"],
            },
        },
    }
    for name in ("look", "find-it")
]


@pytest.fixture(scope="module")
def renderer() -> Harmony:
    return Harmony(real_models.gpt_oss_tokenizer())


def conversation(rng: Random, *, is_plain: bool = False) -> tuple[list[Message], list[Any]]:
    """A random conversation; a plain one has only what the official template writes as the library does."""
    tools = TOOLS[: rng.randint(0, 2)]
    messages = [Message(role="system", content=random_text(rng) or "x")] if rng.random() < 0.5 else []
    if is_plain and not tools:
        messages = []
    for _ in range(rng.randint(1, 4)):
        messages.append(Message(role="user", content=random_text(rng)))
        for _ in range(rng.randint(0, 2) if tools else 0):
            messages += tool_round(rng, tools, is_plain=is_plain)
        if rng.random() < 0.8:
            messages.append(Message(role="assistant", reasoning=reasoning(rng), content=random_text(rng)))
    return messages, tools


def reasoning(rng: Random) -> str | None:
    return rng.choice([None, random_text(rng) or "hm"])


def tool_round(rng: Random, tools: list[Any], *, is_plain: bool) -> list[Message]:
    count = 1 if is_plain else rng.randint(1, 2)
    names = [rng.choice(tools)["function"]["name"] for _ in range(count)]
    calls = [ToolCall(name=name, arguments={"city": random_text(rng), "count": rng.randint(0, 9)}) for name in names]
    content = "" if is_plain else rng.choice(["", random_text(rng)])
    return [
        Message(role="assistant", reasoning=reasoning(rng), content=content, tool_calls=tuple(calls)),
        *(Message(role="tool", name=name, content=random_text(rng)) for name in names),
    ]


# The library.


def library_messages(messages: list[Message], tools: list[Any]) -> list[oh.Message]:
    """The same conversation in the library's own words."""
    role = oh.Role
    system = oh.SystemContent.new().with_conversation_start_date(DATE)
    written = [oh.Message.from_role_and_content(role.SYSTEM, system)]
    instructions = messages[0].content if messages[0].role == "system" else ""
    if instructions or tools:
        developer = oh.DeveloperContent.new()
        developer = developer.with_instructions(instructions) if instructions else developer
        functions = [tool["function"] for tool in tools]
        described = [oh.ToolDescription.new(f["name"], f["description"], f["parameters"]) for f in functions]
        developer = developer.with_function_tools(described) if tools else developer
        written.append(oh.Message.from_role_and_content(role.DEVELOPER, developer))
    for message in messages[1 if messages[0].role == "system" else 0 :]:
        match message.role:
            case "user":
                written.append(oh.Message.from_role_and_content(role.USER, message.content))
            case "tool":
                author = oh.Author.new(role.TOOL, f"functions.{message.name}")
                result = oh.Message.from_author_and_content(author, message.content)
                written.append(result.with_recipient("assistant").with_channel("commentary"))
            case _:
                written += assistant_messages(message)
    return written


def assistant_messages(message: Message) -> list[oh.Message]:
    said = [("analysis", message.reasoning)] if message.reasoning is not None else []
    if message.content or not message.tool_calls:
        said.append(("commentary" if message.tool_calls else "final", message.content))
    written = [oh.Message.from_role_and_content(oh.Role.ASSISTANT, text).with_channel(c) for c, text in said]
    for call in message.tool_calls:
        text = json.dumps(call.arguments, ensure_ascii=False)
        made = oh.Message.from_role_and_content(oh.Role.ASSISTANT, text).with_channel("commentary")
        written.append(made.with_recipient(f"functions.{call.name}").with_content_type("<|constrain|>json"))
    return written


def test_keep_equals_the_library_without_its_automatic_dropping(renderer: Harmony, is_full: bool):
    rng, config = Random(1), oh.RenderConversationConfig(auto_drop_analysis=False)
    for _ in range(500 if is_full else 25):
        messages, tools = conversation(rng)
        whole = oh.Conversation.from_messages(library_messages(messages, tools))
        expected = renderer.encoding.render_conversation(whole, config)
        assert renderer.render(messages, tools=tools, history="keep").tokens.tolist() == expected
        expected = renderer.encoding.render_conversation_for_completion(whole, oh.Role.ASSISTANT, config)
        rendered = renderer.render(messages, tools=tools, history="keep", generation_prompt=True)
        assert rendered.tokens.tolist() == expected


# The official template.


@pytest.fixture(scope="module")
def template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["strftime_now"] = lambda _: DATE
    return environment.from_string(real_models.template("gptoss"))


def for_the_template(message: Message) -> dict[str, Any]:
    written = message.to_openai()
    if "reasoning_content" in written:
        written["thinking"] = written.pop("reasoning_content")
    return written


def test_render_equals_the_official_template_where_it_follows_the_format(
    renderer: Harmony, template: jinja2.Template, is_full: bool
):
    rng = Random(2)
    for _ in range(500 if is_full else 25):
        messages, tools = conversation(rng, is_plain=True)
        for prompt in (True, False):
            text = template.render(
                messages=[for_the_template(message) for message in messages],
                tools=tools,
                add_generation_prompt=prompt,
            )
            text = text.replace(
                "<|channel|>commentary json<|message|>", "<|channel|>commentary <|constrain|>json<|message|>"
            )
            results = "|".join(
                re.escape(json.dumps(m.content, ensure_ascii=False)) for m in messages if m.role == "tool"
            )
            if results:  # the template quotes a tool's result, the format does not
                text = re.sub(
                    f"(to=assistant<\\|channel\\|>commentary<\\|message\\|>)({results})(?=<\\|end\\|>)",
                    lambda found: found[1] + json.loads(found[2]),
                    text,
                )
            rendered = renderer.render(messages, tools=tools, generation_prompt=prompt)
            assert renderer.tokenizer.decode(rendered.tokens) == text
            assert rendered.tokens.tolist() == renderer.encoding.encode(text, allowed_special="all")


# Replies.

END = "<|return|>"
CALL = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
SHAPES = {
    "analysis, final": f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42{END}",
    "final": f"<|channel|>final<|message|>42{END}",
    "analysis, call": f'<|channel|>analysis<|message|>hm<|end|><|start|>assistant{CALL}{{"city": "P"}}<|call|>',
    "to before the channel": ' to=functions.look<|channel|>commentary json<|message|>{"city":"P"}<|call|>',
    "preamble, call": f'<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}{{"city": "P"}}<|call|>',
    "broken JSON": f"{CALL}{{<|call|>",
    "no JSON object": f"{CALL}[1]<|call|>",
    "a key twice": f'{CALL}{{"city": "P", "city": "Q"}}<|call|>',
    "call in analysis": " to=functions.look<|channel|>analysis json<|message|>{}<|call|>",
    "call of another namespace": " to=python<|channel|>commentary code<|message|>1+1<|call|>",
    "no channel": f"<|message|>42{END}",
    "an unknown channel": f"<|channel|>secret<|message|>42{END}",
    "an empty channel": f"<|channel|><|message|>42{END}",
    "an empty recipient": f"<|channel|>commentary to= <|message|>42{END}",
    "no header at all": f"42{END}",
    "nothing": "",
    "only the end": END,
    "text outside": f"<|channel|>final<|message|>a<|end|>b<|start|>assistant<|channel|>final<|message|>c{END}",
    "another role": f"<|channel|>final<|message|>a<|end|><|start|>user<|message|>c{END}",
    "two finals": f"<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>c{END}",
    "two calls": f"{CALL}{{}}<|end|><|start|>assistant{CALL}{{}}<|call|>",
    "text after the end": f"<|channel|>final<|message|>42{END}more<|end|>{END}",
    "not ended": "<|channel|>final<|message|>42",
    "a header twice": f"<|channel|>analysis<|channel|>final<|message|>42{END}",
    "a word too many": f"<|channel|>final foo<|message|>42{END}",
    "start inside": f"<|channel|>final<|start|>assistant<|message|>4<|message|>2{END}",
    "analysis without an end": f"<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>42{END}",
    "call without an end": f'{CALL}{{"city": "P"}}<|start|>assistant<|channel|>final<|message|>42{END}',
    "only analysis": f"<|channel|>analysis<|message|>hm{END}",
    "analysis, ended as a call": "<|channel|>analysis<|message|>hm<|call|>",
    "answer, ended as a call": "<|channel|>final<|message|>42<|call|>",
    "a header in an answer": f"<|channel|>final<|message|>4<|channel|>analysis<|message|>2{END}",
    "a message in an answer": f"<|channel|>final<|message|>4<|message|>2{END}",
    "a constraint in the reasoning": "<|channel|>analysis<|message|>4<|constrain|>2<|end|>",
    "a header in a call": f"{CALL}{{}}<|channel|><|call|>",
    "call, ended as an answer": f"{CALL}{{}}{END}",
    "call, ended as a message": f"{CALL}{{}}<|end|><|start|>assistant<|channel|>final<|message|>42{END}",
}


class Talks(Env):
    def start(self) -> Turn:
        return Turn("Look it up.", system="Be nice.", tools=TOOLS)

    def respond(self, reply: Message) -> Turn:
        self.reply = reply
        return Turn(
            [Message(role="tool", name=c.name or "look", content="found") for c in reply.tool_calls] or "Go on."
        )


@pytest.mark.matrix
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("history", ["keep", "strip"])
def test_whatever_is_sampled_is_read_and_is_in_the_next_prompt(
    renderer: Harmony, shape: str, history: str, is_full: bool
):
    tokens = renderer.encoding.encode(SHAPES[shape], allowed_special="all")
    env = Talks(renderer=renderer, history=history, limits={"end_on_cut": False})
    for cut in range(len(tokens), -1, -1 if is_full else -4):
        env.reset(seed=0)
        before = env.prompt().tolist()
        observation, *_ = env.step(tokens[:cut])
        assert isinstance(env.reply, Message)
        if observation.extends:
            assert env.prompt().tolist()[: len(before) + cut] == before + tokens[:cut]
        text = renderer.tokenizer.decode(env.prompt())
        assert text.endswith("<|start|>assistant")
        assert text.count("<|message|>") <= text.count("<|end|>") + text.count("<|call|>") + text.count(END) + 2
        env.step(renderer.reply(Message(role="assistant", content="Done.")))
        assert all(sample.validate() is not None for sample in env.trajectory.samples()) if env.trajectory else True


@pytest.mark.parametrize(
    ("shape", "content", "reasoning", "calls", "error"),
    [
        ("analysis, final", "42", "hm", [], ""),
        ("final", "42", None, [], ""),
        ("analysis, call", "", "hm", [("look", {"city": "P"})], ""),
        ("to before the channel", "", None, [("look", {"city": "P"})], ""),
        ("preamble, call", "I look.", None, [("look", {"city": "P"})], ""),
        ("broken JSON", "", None, [("look", "{")], "not valid JSON"),
        ("no JSON object", "", None, [("look", "[1]")], "not a JSON object"),
        ("a key twice", "", None, [("look", '{"city": "P", "city": "Q"}')], "a key comes twice"),
        ("call in analysis", "", None, [("look", {})], "not in commentary"),
        ("call of another namespace", "", None, [("python", "1+1")], "not valid JSON"),
        ("no channel", "42", None, [], "no channel"),
        ("an unknown channel", "42", None, [], "no channel 'secret'"),
        ("an empty channel", "42", None, [], "cannot be read"),
        ("no header at all", "", None, [], "header and no content: '42'"),
        ("nothing", "", None, [], "not ended"),
        ("text outside", "a\nc", None, [], "outside of any message: 'b'"),
        ("another role", "a", None, [], "not the assistant's: 'userc'"),
        ("a word too many", "42", None, [], "a word too many"),
        ("two calls", "", None, [("look", {}), ("look", {})], "a call was not ended with <|call|>"),
        ("text after the end", "42", None, [], "after the end of the turn: 'more"),
        ("not ended", "42", None, [], "not ended"),
        ("analysis without an end", "42", "hm", [], "the next one begins inside it"),
        ("call without an end", "42", None, [("look", {"city": "P"})], "the next one begins inside it"),
        ("only analysis", "", "hm", [], "ended in the reasoning"),
        ("analysis, ended as a call", "", "hm", [], "ended in the reasoning"),
        ("answer, ended as a call", "42", None, [], "no tool is called"),
        ("a header in an answer", "4<|channel|>analysis<|message|>2", None, [], "<|channel|> is out of place"),
        ("a message in an answer", "4<|message|>2", None, [], "<|message|> is out of place"),
        ("a constraint in the reasoning", "", "4<|constrain|>2", [], "<|constrain|> is out of place"),
        ("a header in a call", "", None, [("look", "{}<|channel|>")], "<|channel|> is out of place"),
        ("call, ended as an answer", "", None, [("look", {})], "a call was not ended with <|call|>"),
        ("call, ended as a message", "42", None, [("look", {})], "a call was not ended with <|call|>"),
    ],
)
def test_a_reply_is_read(
    renderer: Harmony, shape: str, content: str, reasoning: str | None, calls: list[Any], error: str
):
    message = renderer.parse(renderer.encoding.encode(SHAPES[shape], allowed_special="all"))
    assert (message.content, message.reasoning) == (content, reasoning)
    assert [(call.name, call.arguments) for call in message.tool_calls] == calls
    assert any(error in found for found in message.errors) if error else message.errors == ()


def test_a_reply_that_was_written_is_read_as_it_was(renderer: Harmony, is_full: bool):
    rng = Random(3)
    for _ in range(300 if is_full else 25):
        messages, _ = conversation(rng)
        for message in messages:
            if message.role == "assistant" and len(message.tool_calls) < 2:
                assert renderer.parse(renderer.reply(message)) == message


# What the past shows.


def answer(content: str = "", reasoning: str | None = None, **fields: Any) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, **fields)


def test_strip_drops_the_reasoning_of_a_query_once_it_is_answered(renderer: Harmony):
    call = answer(reasoning="look", tool_calls=({"name": "look", "arguments": {"city": "P"}},))
    env = Talks(renderer=renderer, history="strip")
    env.reset(seed=0)
    infos = [env.step(renderer.reply(reply))[-1] for reply in (call, call, answer("42", "so"), answer("43", "so"))]
    assert [info["break"].reason if "break" in info else None for info in infos] == [
        *(None, None, "thinking_stripped", "thinking_stripped")
    ]
    rendered = renderer.render(env.messages(), tools=TOOLS, generation_prompt=True)
    assert renderer.tokenizer.decode(env.prompt()) == renderer.tokenizer.decode(rendered.tokens)
    assert "analysis<|message|>" not in renderer.tokenizer.decode(env.prompt())


def test_by_default_the_sampled_end_stays_and_the_official_history_is_a_declared_break():
    tokenizer = real_models.gpt_oss_tokenizer()
    for official, end, reasons in ((False, END, []), (True, "<|end|>", ["template"] * 2)):
        env = Talks(renderer=Harmony(tokenizer, official_history=official))
        env.reset(seed=0)
        for _ in range(2):
            env.step(env.renderer.reply(answer("42", "hm")))
        assert f"42{end}<|start|>user" in tokenizer.decode(env.prompt())
        env.fail(RuntimeError())
        assert [broken.reason for broken in env.trajectory.breaks] == (reasons[:1] if official else [])
        samples = env.trajectory.samples(include_failed=True)
        assert sum(int(sample.mask.sum()) for sample in samples) == env.trajectory.sampled_tokens
        assert len(samples) == (2 if official else 1)


# Inside a reply.


def test_a_prefill_begins_in_its_channel(renderer: Harmony):
    decode = renderer.tokenizer.decode
    assert decode(renderer._prefill("So")) == "<|channel|>final<|message|>So"
    assert decode(renderer._prefill(Message(role="assistant", reasoning="Let"))) == "<|channel|>analysis<|message|>Let"
    closed = decode(renderer._prefill(answer("", "Let me.")))
    assert closed == "<|channel|>analysis<|message|>Let me.<|end|><|start|>assistant<|channel|>final<|message|>"


def test_a_reply_continued_in_its_channel(renderer: Harmony):
    def continued(text: str, addition: Any) -> str:
        tokens = renderer.encoding.encode(text, allowed_special="all")
        kept, added = renderer.continuation(tokens, addition)
        return renderer.tokenizer.decode([*tokens[:kept], *added])

    thinking = "<|channel|>analysis<|message|>hm"
    assert continued(thinking, " wait") == f"{thinking} wait"
    time_is_up = continued(thinking, answer("", " Time."))
    assert time_is_up == f"{thinking} Time.<|end|><|start|>assistant<|channel|>final<|message|>"
    assert continued(f"<|channel|>final<|message|>42{END}", " more") == "<|channel|>final<|message|>42 more"
    with pytest.raises(errors.RenderError, match="analysis"):
        continued("<|channel|>final<|message|>42", answer("", "hm"))


# Safety, options, vocabulary.


@pytest.mark.parametrize(
    "options",
    [{"reasoning_effort": "none"}, {"current_date": "today"}, {"current_date": None}, {"unsafe_content": True}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]):
    with pytest.raises(errors.ConfigError):
        Harmony(real_models.gpt_oss_tokenizer(), **options)


def test_effort_and_date_are_in_the_system_message():
    renderer = Harmony(real_models.gpt_oss_tokenizer(), reasoning_effort="high", current_date="2030-01-02")
    text = renderer.tokenizer.decode(renderer.render([Message(role="user", content="x")]).tokens)
    assert "Current date: 2030-01-02\n\nReasoning: high" in text
    assert renderer.specification() == {"name": "harmony", "reasoning_effort": "high", "current_date": "2030-01-02"}


def test_a_result_without_a_name_has_that_of_its_call(renderer: Harmony):
    call = answer(tool_calls=({"name": "look", "arguments": {}},))
    text = renderer.tokenizer.decode(
        renderer.extend(renderer.reply(call), [Message(role="tool", name="look", content="x")])
    )
    assert text.startswith("<|start|>functions.look to=assistant")
    messages = [Message(role="user", content="a"), call, Message(role="tool", content="x")]
    assert "functions.look to=assistant" in renderer.tokenizer.decode(renderer.render(messages).tokens)
    with pytest.raises(errors.RenderError, match="name"):
        renderer.render([messages[0], messages[2]])


QUERY = Message(role="user", content="a")
TWO_CALLS = answer(tool_calls=[{"name": name, "arguments": {}, "id": f"id-{name}"} for name in ("look", "find-it")])
UNNAMED = TWO_CALLS.model_copy(
    update={"tool_calls": tuple(call.model_copy(update={"id": None}) for call in TWO_CALLS.tool_calls)}
)


def result(call: str | None = None, name: str | None = None) -> Message:
    return Message(role="tool", content="x", tool_call_id=call, name=name)


def openers(renderer: Harmony, messages: list[Message]) -> list[str]:
    text = renderer.tokenizer.decode(renderer.render(messages, history="keep").tokens)
    return re.findall(r"<\|start\|>functions\.([\w-]+) to=assistant", text)


@pytest.mark.parametrize(
    ("reply", "results", "names"),
    [
        (TWO_CALLS, [result("id-find-it"), result("id-look")], ["find-it", "look"]),
        (TWO_CALLS, [result("id-find-it", "find-it")], ["find-it"]),
        (TWO_CALLS, [result(), result()], ["look", "find-it"]),
        (TWO_CALLS, [result("id-find-it"), result()], ["find-it", "look"]),
        (TWO_CALLS, [result(name="find-it"), result()], ["find-it", "look"]),
        (TWO_CALLS, [result(name="find-it"), result(name="look")], ["find-it", "look"]),
        (UNNAMED, [result(), result()], ["look", "find-it"]),
        (UNNAMED, [result("a"), result("b")], ["look", "find-it"]),
        (UNNAMED, [result(name="find-it"), result(name="look")], ["find-it", "look"]),
        (answer(), [result("a", "look")], ["look"]),
    ],
)
def test_a_result_has_the_name_of_the_call_with_its_id(
    renderer: Harmony, reply: Message, results: list[Message], names: list[str]
):
    assert openers(renderer, [QUERY, reply, *results]) == names
    delta = renderer.extension(renderer.reply(answer()), results, history=[QUERY, reply]).tokens
    whole = renderer.render([QUERY, reply, *results], generation_prompt=True, history="keep").tokens
    assert whole.tolist()[-len(delta) :] == delta.tolist()


@pytest.mark.parametrize(
    ("reply", "results", "error"),
    [
        (TWO_CALLS, [result("id-other")], "'id-other'.*'id-look', 'id-find-it'"),
        (TWO_CALLS, [result("id-look"), result("id-look", "find-it")], "which is a call of 'look'"),
        (TWO_CALLS, [result(), result(), result()], "no call is left"),
        (answer(), [result("a")], "no call is left"),
    ],
)
def test_a_result_of_no_known_call_is_refused(renderer: Harmony, reply: Message, results: list[Message], error: str):
    with pytest.raises(errors.RenderError, match=error):
        renderer.render([QUERY, reply, *results])
    with pytest.raises(errors.RenderError, match=error):
        renderer.extension(renderer.reply(answer()), results, history=[QUERY, reply])


class AnswersInAnyOrder(Env):
    """Gives the results of two calls in the other order, without names."""

    def start(self) -> Turn:
        return Turn([QUERY, TWO_CALLS, result("id-find-it"), result("id-look")], tools=TOOLS)

    def respond(self, reply: Message) -> Turn:
        return Turn("Go on.")


@pytest.mark.parametrize(
    "history", ["keep", "strip", {"name": "compact", "every": 1}, {"name": "budget", "max_tokens": 250}]
)
def test_a_result_keeps_its_name_when_the_past_is_rewritten(renderer: Harmony, history: Any):
    env = AnswersInAnyOrder(renderer=renderer, history=history)
    env.reset(seed=0)
    for _ in range(4):
        env.step(renderer.reply(answer("42", "hm " * 30)))
        text = renderer.tokenizer.decode(env.prompt())
        assert re.findall(r"<\|start\|>functions\.([\w-]+) to", text) in (["find-it", "look"], [])


def test_harmonys_own_system_message_is_not_content(renderer: Harmony):
    rendered = renderer.render([Message(role="system", content="Be nice."), QUERY], tools=TOOLS)
    content = [renderer.tokenizer.decode(rendered.tokens[s.start : s.stop]) for s in rendered.spans if s.is_content]
    assert content[0].startswith("# Instructions\n\nBe nice.")
    assert content[1:] == ["a"]


def test_spans_say_whose_tokens_they_are(renderer: Harmony):
    rendered = renderer.render([Message(role="user", content="hi"), answer("42", "hm")], history="keep")
    sampled = "".join(
        renderer.tokenizer.decode(rendered.tokens[s.start : s.stop]) for s in rendered.spans if s.is_sampled
    )
    content = [renderer.tokenizer.decode(rendered.tokens[s.start : s.stop]) for s in rendered.spans if s.is_content]
    assert sampled == "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42<|end|>"
    assert content == ["hi", "hm", "42"]


@pytest.mark.full
@pytest.mark.parametrize("backend", ["auto", "fastokens"])
def test_the_vocabulary_is_made_of_a_models_own_tokens(
    backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if backend == "fastokens":
        pytest.importorskip("fastokens", reason="pip install 'envsdk[fast]'")
    monkeypatch.delenv(harmony_vocabulary.BASE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    harmony_vocabulary._load.cache_clear()
    harmony_vocabulary.load_encoding(load_tokenizer(real_models.gpt_oss_tokenizer(), backend=backend))
    file = tmp_path / "envsdk" / harmony_vocabulary.FILE
    assert hashlib.sha256(file.read_bytes()).hexdigest() == harmony_vocabulary.SHA256
    assert harmony_vocabulary.BASE not in harmony_vocabulary.os.environ
    monkeypatch.setenv(harmony_vocabulary.BASE, str(file.parent))
    harmony_vocabulary._load.cache_clear()
    harmony_vocabulary.load_encoding(envsdk.load_tokenizer("embedded"))


def test_where_no_vocabulary_is_to_be_had_the_error_lists_the_three_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    monkeypatch.setenv(harmony_vocabulary.BASE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    harmony_vocabulary._load.cache_clear()
    with pytest.raises(errors.TokenizerError, match="three ways"):
        harmony_vocabulary.load_encoding(envsdk.load_tokenizer("embedded"))


def test_where_the_librarys_module_was_removed_the_error_names_the_two_packages_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    monkeypatch.delitem(sys.modules, Harmony.__module__)
    monkeypatch.delitem(_registry._renderers, "harmony", raising=False)
    with pytest.raises(
        errors.PluginError, match=r"oss-harmony.* pip install --force-reinstall --no-deps openai-harmony"
    ):
        envsdk.get_renderer("harmony", real_models.gpt_oss_tokenizer())


def test_another_models_tokenizer_is_refused():
    with pytest.raises(errors.TokenizerError, match="lacks control tokens"):
        Harmony(envsdk.load_tokenizer("embedded"))


def test_it_is_found_by_name():
    env = envsdk.make("envsdk/Calculator-v1", renderer="harmony", tokenizer=real_models.gpt_oss_tokenizer())
    trajectory = envsdk.rollout(env, "reference", seed=0)
    assert (trajectory.reward, trajectory.breaks, len(trajectory.samples())) == (1.0, [], 1)
    assert isinstance(env.renderer, Renderer)
    assert isinstance(env.renderer.tokenizer, TiktokenTokenizer)
    assert trajectory.renderer == {"name": "harmony"}
    env.reset(seed=0)
    with pytest.raises(errors.ActionError):
        env.step(Action([10**9]))
