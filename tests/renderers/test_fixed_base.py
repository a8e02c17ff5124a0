"""The renderer of any chat template: against Qwen3's own, and against every available template."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import real_models
from conversations import random_conversation as random_qwen3_conversation
from envsdk_renderers._fixed_base import FixedBase, TemplateUnsupported, Verdict
from envsdk_renderers._templates._chat_template import ChatTemplate, TemplateFailed
from template_conversations import (
    TOOLS,
    emitted,
    every_template,
    fixed_base,
    qwen3,
    random_conversation,
    said,
    templates,
    turns_of,
    user,
)
from transformers.utils.chat_template_utils import render_jinja_template

from envsdk import Message, ToolCall, get_renderer
from envsdk.errors import ConfigError, RenderError
from envsdk.rendering.renderer import EmittedDelta
from envsdk.testing import check_renderer

MARK = "Qzmarkzq"


# The sandbox.


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", every_template())
def test_the_sandbox_renders_as_transformers_does(name: str) -> None:
    if "strftime_now" in templates()[name]:
        pytest.skip("transformers gives this template the time")
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    own = ChatTemplate(templates()[name], special_tokens=tokens)
    dialect = fixed_base(name)._template.dialect
    rng = Random(3)
    for index in range(8):
        messages = random_conversation(rng, calls=index % 2 == 1, reasoning=True, system=True)
        shown, tools = dialect.messages(messages), list(TOOLS) if index % 2 else None
        options: Any = {"tools": tools, "add_generation_prompt": index % 3 == 0, **tokens}
        try:
            expected = render_jinja_template([shown], chat_template=templates()[name], **options)[0][0]
        except Exception:  # the template's refusal; ours is then one, too
            with pytest.raises(TemplateFailed):
                own.render(shown, tools=tools, generation_prompt=index % 3 == 0)
        else:
            assert own.render(shown, tools=tools, generation_prompt=index % 3 == 0) == expected


def test_a_template_that_asks_for_the_date_gets_the_one_it_was_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", date="2024-07-26")
    assert template.render([]) == "26 Jul 2024"
    with pytest.raises(ConfigError, match="date is 'today'"):
        ChatTemplate("", date="today")


# Qwen3's own renderer as the oracle.


def qwen3_episodes(seed: int, count: int) -> Iterator[tuple[list[Message], list[Any]]]:
    """Random conversations in which something follows a reply; system texts and tools are of a few, as in tasks."""
    rng = Random(seed)
    drawn = [random_qwen3_conversation(rng) for _ in range(8)]
    while count:
        conversation, _ = random_qwen3_conversation(rng)
        like, tools = rng.choice(drawn)
        if conversation[0]["role"] == "system":
            conversation[0] = like[0] if like[0]["role"] == "system" else {"role": "system", "content": "Be brief."}
        messages = [Message.from_openai(message) for message in conversation]
        if turns_of(messages):
            count -= 1
            yield messages, tools or []


@pytest.mark.full
def test_on_qwen3_the_deltas_are_those_of_qwen3s_own_renderer(is_full: bool) -> None:
    measured, family = qwen3(), get_renderer("qwen3", real_models.qwen3_folder())
    rng, compared = Random(5), Counter[str]()
    count = 500 if is_full else 50
    for messages, tools in qwen3_episodes(5, count):
        for at, end in turns_of(messages):
            reply = family.reply(messages[at])
            cut = reply[: rng.randint(0, len(reply))]
            for tokens in (reply, cut):
                given: Any = {"history": messages[: at + 1], "generation_prompt": rng.random() < 0.8}
                expected = family.extension(tokens, messages[at + 1 : end], **given)
                delta = measured.extension(tokens, messages[at + 1 : end], tools=tools, **given)
                assert delta.tokens.tolist() == expected.tokens.tolist()
            compared[messages[at + 1].role] += 1
    assert compared["user"] >= count / 10 <= compared["tool"]


@pytest.mark.full
def test_on_qwen3_a_whole_conversation_is_rendered_as_by_qwen3s_own_renderer(is_full: bool) -> None:
    family = get_renderer("qwen3", real_models.qwen3_folder())
    rng = Random(6)
    for _ in range(150 if is_full else 25):
        conversation, tools = random_qwen3_conversation(rng)
        messages = [Message.from_openai(message) for message in conversation]
        options: Any = {"tools": tools or (), "generation_prompt": rng.random() < 0.5}
        rendered, expected = qwen3().render(messages, **options), family.render(messages, **options)
        assert rendered.tokens.tolist() == expected.tokens.tolist()
        assert len(rendered.starts) == len(messages) + options["generation_prompt"]
        assert rendered.starts[0] == 0
        assert [shown.reasoning or None for shown in qwen3().visible(messages)] == [
            shown.reasoning or None for shown in family.visible(messages)
        ]


@pytest.mark.matrix(every=7)
@pytest.mark.parametrize(
    "name",
    ["qwen3", "glm4moe", "llama3_1", "qwen2_5", "qwen3_8", "phi3", "qwen3_thinking_2507"],
)
def test_it_conforms(name: str) -> None:
    if name not in templates():
        pytest.skip("the template is in shared/ only")
    report = check_renderer(qwen3() if name == "qwen3" else fixed_base(name), random_replies=20)
    # The tokenizer's own template is another one, but for qwen3.
    assert [f for f in report.failed if name == "qwen3" or not f.name.startswith("matches the template")] == []


# Every template.


def kinds(messages: list[Message], at: int, answers: list[Message]) -> tuple[set[Any], Any]:
    """What the verdicts call this reply and what follows it; a reply may be several things at once."""
    reply = messages[at]
    is_after_tool = at > 0 and messages[at - 1].role == "tool"
    calls = ("text", "call", "two calls")[len(reply.tool_calls)]
    previous = {calls, *(["reasoned"] if reply.reasoning else []), *(["tool"] if is_after_tool else [])}
    tools = sum(message.role == "tool" for message in answers)
    is_mixed = 0 < tools < len(answers)
    return previous, "tool then user" if is_mixed else ("user", "tool", "tools")[tools]


def delta_text(renderer: FixedBase, messages: list[Message], at: int, answers: list[Message], tools: Any) -> str:
    stop = renderer._probe.stop_of(messages[at])
    ended = [renderer.tokenizer.token_id(stop.sampled[0])]
    context: Any = {"history": messages[: at + 1], "tools": tools}
    return renderer.tokenizer.decode(renderer.extension(ended, answers, **context).tokens)


def marked(message: Message) -> Message:
    if not message.tool_calls:
        return message.model_copy(update={"content": message.content + MARK})
    *calls, last = message.tool_calls
    assert isinstance(last.arguments, dict)
    last = last.model_copy(update={"arguments": {**last.arguments, "zz": MARK}})
    return message.model_copy(update={"tool_calls": (*calls, last)})


@pytest.mark.matrix(every=8)
@pytest.mark.filterwarnings("ignore::envsdk.errors.RewriteWarning")
@pytest.mark.parametrize("name", every_template())
def test_no_delta_differs_from_what_its_verdict_promises(name: str, is_full: bool) -> None:
    renderer, checked = fixed_base(name), Counter[str]()
    rng = Random(name)
    count = 48 if is_full else 8
    for index in range(count):
        tools = TOOLS if index % 2 else ()
        status = {(v.previous, v.following): v.status for v in verdicts_of(name, bool(tools))}
        messages = random_conversation(rng, calls=bool(tools), reasoning=index % 3 == 0, system=index % 4 < 2)
        for at, end in turns_of(messages):
            answers = messages[at + 1 : end]
            try:
                prompt = renderer._template.text(messages[:at], tools, generation_prompt=True)
                reply = marked(messages[at])
                if reply.tool_calls and renderer._turns.base((), tools).moves_text:
                    reply = reply.model_copy(update={"content": ""})  # what is moved is not what follows
                shown = [*messages[:at], reply, *answers]
                whole = renderer._template.text(shown, tools, generation_prompt=True)
            except TemplateFailed:
                break
            previous, following = kinds(messages, at, answers)
            judged = {status[kind, following] for kind in previous}
            try:
                delta = delta_text(renderer, messages, at, answers, tools)
            except TemplateUnsupported:
                is_both = bool(messages[at].tool_calls and messages[at].content)
                assert is_both or judged & {"refused", "not possible"}
                checked["refused"] += 1
                continue
            after = whole[whole.rindex(MARK) + len(MARK) :]
            assert after.endswith(delta)
            closing = after.removesuffix(delta)
            assert any(closing.endswith(stop) for stop in (*renderer.stop_tokens, "<|end|>"))
            if judged == {"exact"} and not (messages[at].tool_calls and messages[at].content):
                assert whole.startswith(prompt)
            checked["right"] += 1
    assert checked["right"] >= count / 3


@cache
def verdicts_of(name: str, has_tools: bool) -> list[Verdict]:
    return fixed_base(name).verdicts(TOOLS if has_tools else ())


# The end of an episode.


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", every_template())
def test_correct_deltas_are_accepted(name: str, is_full: bool) -> None:
    renderer, rng, checked = fixed_base(name), Random(name), 0
    for index in range(16 if is_full else 6):
        tools = TOOLS if index % 2 else ()
        messages = random_conversation(rng, calls=bool(tools), reasoning=index % 3 == 0, system=index % 4 < 2)
        messages = [sampled_oddly(message, rng) for message in messages]
        try:
            renderer._template.text(messages, tools)
            turns = emitted(renderer, messages, tools, rng)
        except RenderError:
            continue  # refused, or the template cannot say it
        renderer.check_episode(messages, turns, tools)
        checked += len(turns)
        if turns and renderer._facts.text_stop.written:
            wrong = [*turns[:-1], turns[-1]._replace(tokens=turns[-1].tokens[1:])]
            with pytest.raises(TemplateUnsupported):
                renderer.check_episode(messages, wrong, tools)
    assert checked >= (8 if is_full else 3)


def sampled_oddly(message: Message, rng: Random) -> Message:
    """As models say it: with an id that is missing, an empty block of reasoning, an argument that is another."""
    if message.role == "tool" and rng.random() < 0.5:
        return message.model_copy(update={"tool_call_id": None, "name": None})
    if message.role != "assistant" or rng.random() < 0.5:
        return message
    calls = [call.model_copy(update={"id": None}) for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": tuple(calls), "reasoning": message.reasoning and ""})


def test_arguments_that_are_not_json_are_accepted() -> None:
    broken = ToolCall(name="get_weather", arguments='{"city": ', error="no JSON")
    renderers = [fixed_base(name) for name in ("qwen3", "qwen3_coder", "llama3_1", "glm4moe") if name in templates()]
    for renderer in renderers:
        reply = Message(role="assistant", tool_calls=(broken,))
        messages = [user(), reply, Message(role="tool", content="It is not JSON."), said(), user()]
        tokens, ended = np.empty(0, dtype=np.int32), renderer.reply(said())
        turns: list[EmittedDelta] = []
        for at, end, sampled in ((1, 3, tokens), (3, 5, ended)):
            rendered = renderer.extension(sampled, messages[at + 1 : end], history=messages[: at + 1], tools=TOOLS)
            turns.append(EmittedDelta(at, rendered.tokens[rendered.starts[0] :], True))
        renderer.check_episode(messages, turns, TOOLS)
