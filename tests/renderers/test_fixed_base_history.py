"""What `strip` shows with a measured template, and what a step of it costs."""

import copy
from collections.abc import Iterator
from itertools import pairwise, product
from random import Random
from typing import Any

import numpy as np
import pytest
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._templates._chat_template import ChatTemplate
from envsdk_renderers._templates._history import HistoryRule
from numpy.typing import NDArray
from template_conversations import TOOLS, called, every_template, fixed_base, qwen3, result, said, user

from envsdk import Env, Message, ToolCall, Turn, load_tokenizer
from envsdk.contexts._context import Context
from envsdk.errors import TemplateUnsupported
from envsdk.history import Strip
from envsdk.testing import check_renderer

CALL = called("search").with_reasoning("I search.")
RESULT = result(CALL.tool_calls[0], "Sunny.")
WITHOUT_CALLS = [
    user("One?"),
    said("1.", "I think."),
    user("Two?"),
    said("2."),
    user("Three?"),
    said("3.", "Again."),
    user(),
]
ROUND = [user("Which?"), CALL, RESULT, CALL.with_reasoning(None), RESULT, said("That one.", "I see."), user("Sure?")]
WITH_CALLS = [*ROUND, said("Yes.", "Hm."), *ROUND[:-1], user("And?")]


def prompts(renderer: FixedBase, messages: list[Message], tools: Any) -> list[tuple[Context, list[int]]]:
    """The context, and its prompt after each turn."""
    context = Context("main", "", renderer, Strip())
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    context.open(messages[: replies[0]], tools)
    found = [(context, context.prompt().tolist())]
    for reply, following in pairwise([*replies, len(messages)]):
        context.act(renderer.reply(messages[reply]), None)
        context.take_reply()
        context.observe(messages[reply + 1 : following])
        found.append((context, context.prompt().tolist()))
    return found


def without_rule(renderer: FixedBase) -> FixedBase:
    """The same renderer, which renders whole conversations for `strip`."""
    other = copy.copy(renderer)
    vars(other)["history_rule"] = None
    return other


def whole_text(renderer: FixedBase, messages: Any, tools: Any) -> str:
    return renderer.tokenizer.decode(renderer.render(messages, tools=tools, generation_prompt=True).tokens)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", every_template())
def test_each_prompt_under_strip_is_what_the_template_shows_of_the_whole_conversation(name: str) -> None:
    renderer = fixed_base(name)
    if renderer.history_rule is None:
        assert renderer.history_problem
        return
    episodes: list[tuple[list[Message], Any]] = [(WITHOUT_CALLS, ())]
    episodes += [(WITH_CALLS, TOOLS)] if renderer.history_rule.has_calls else []
    for messages, tools in episodes:
        (context, last) = prompts(renderer, messages, tools)[-1]
        assert renderer.tokenizer.decode(last) == whole_text(renderer, context.messages, tools)


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("thinks", [True, False])
def test_on_qwen3_a_measured_rule_gives_the_tokens_of_whole_renderings(thinks: bool) -> None:
    renderer = qwen3(thinks=thinks)
    measured, whole = (prompts(r, WITH_CALLS, TOOLS) for r in (renderer, without_rule(renderer)))
    assert [tokens for _, tokens in measured] == [tokens for _, tokens in whole]
    assert renderer.history_rule == HistoryRule("before the last user messages", shows_empty=False)


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["user turns", "tool steps"])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_step_under_strip_renders_no_more_in_a_long_episode(
    tools: Any, thinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    render = ChatTemplate.render

    def counted(*args: Any, **kwargs: Any) -> str:
        text = render(*args, **kwargs)
        rendered.append(len(text))
        return text

    monkeypatch.setattr(ChatTemplate, "render", counted)
    renderer, sizes = qwen3(thinks=thinks), list[tuple[int, int]]()
    context = Context("main", "", renderer, Strip())
    context.open([user()], tools)
    for _ in range(40):
        context.act(renderer.reply(CALL if tools else said("Yes.", "I think.")), None)
        context.take_reply()
        rendered.clear()
        context.observe([RESULT if tools else user()])
        sizes.append((len(rendered), sum(rendered)))
    assert sizes[9] == sizes[39]
    assert sizes[39][0] <= 6


# Rules that few templates have, each in a template of its own.

BLOCK = "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' if m.reasoning_content and (SHOWN) }}"
TEMPLATE = (
    "{%- set users = messages | selectattr('role', 'eq', 'user') | list %}"
    "{%- set answers = messages | selectattr('role', 'eq', 'assistant') | rejectattr('tool_calls', 'defined') | list %}"
    "{%- set ns = namespace(users=0, answers=0) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.users = ns.users + 1 %}{%- endif %}"
    "{%- if m.role == 'assistant' and not m.tool_calls %}{%- set ns.answers = ns.answers + 1 %}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}" + BLOCK + "{{- m.content or '' }}"
    """{%- for c in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
    {{- c.function.arguments | tojson + '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"""
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
SHOWN = {
    "true": HistoryRule("nothing"),
    "loop.last": HistoryRule("everything"),
    "ns.users > users | length - 1": HistoryRule("before the last user messages"),
    "ns.users > users | length - 2": HistoryRule("before the last user messages", users=2),
    "ns.users > users | length - 3": HistoryRule("before the last user messages", users=3),
    "m.tool_calls and ns.answers == answers | length": HistoryRule("up to the last answer"),
    "ns.users % 2 == 1": None,
}


def renderer_of(shown: str) -> FixedBase:
    return FixedBase(load_tokenizer("embedded"), template=TEMPLATE.replace("SHOWN", shown), stop="<|im_end|>")


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("shown", SHOWN)
def test_the_rule_of_a_template_is_measured(shown: str) -> None:
    renderer, expected = renderer_of(shown), SHOWN[shown]
    rule = renderer.history_rule
    assert (rule and (rule.hides, rule.users)) == (expected and (expected.hides, expected.users))
    assert bool(renderer.history_problem) == (expected is None)
    context, last = prompts(renderer, [*WITH_CALLS, said("4.", "Last."), user("Four?")], TOOLS)[-1]
    if expected is not None:
        assert renderer.tokenizer.decode(last) == whole_text(renderer, context.messages, TOOLS)


def test_a_text_that_changes_the_rule_is_rendered_with_the_whole_conversation() -> None:
    renderer = renderer_of("ns.users == users | length or '/keep' in messages[0].content")
    assert renderer.history_rule is not None
    assert ("/keep",) in renderer.history_rule.triggers
    assert renderer.settles(user("Keep it.")) is not None
    assert renderer.settles(user("Please /keep it.")) is None
    for first in ("Keep it.", "Please /keep it."):
        messages = [Message(role="system", content=first), *WITHOUT_CALLS]
        context, last = prompts(renderer, messages, ())[-1]
        assert renderer.tokenizer.decode(last) == whole_text(renderer, context.messages, ())
        assert ("I think." in renderer.tokenizer.decode(last)) == ("/keep" in first)


@pytest.mark.full
def test_the_doctor_and_the_report_have_what_strip_costs_and_why() -> None:
    for shown, expected in (("true", "O(new)"), ("ns.users % 2 == 1", "O(context)")):
        renderer = renderer_of(shown)
        checks = {check.name: check.detail for check in check_renderer(renderer, random_replies=1).checks}
        assert expected in checks["cost of a step under `strip`"]
    report = renderer.report()
    assert f"past reasoning: not known: {report.history_problem}" in str(report)


# Reports.


@pytest.mark.full
def test_a_report_has_the_turns_the_reading_and_the_rule_for_past_reasoning() -> None:
    renderer = fixed_base("qwen3")
    report = renderer.report(TOOLS)
    assert report.turns == tuple(renderer.verdicts(TOOLS))
    assert (report.reading, report.history_rule) == (renderer.reading, renderer.history_rule)
    lines = str(report).splitlines()
    assert "text -> user: exact" in lines
    assert any(line.startswith("reading: reads") for line in lines)
    assert "past reasoning: the template hides reasoning before the last 1 user messages" in str(report)
    assert (report.history_problem, report.unconfirmed_stops) == ("", ())


# Whatever was sampled, the next prompt exists: a template may refuse to write a call that could not be read.

PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}, "count": {"type": "integer"}}},
    },
}
HISTORIES: tuple[Any, ...] = ("keep", "strip", {"name": "compact", "every": 1})


class Market(Env):
    """Answers each call, or else asks for more."""

    def start(self) -> Turn:
        self.replies = 0
        return Turn("What does it cost?", tools=[PRICE])

    def respond(self, reply: Message) -> Turn:
        self.replies += 1
        answers = [Message(role="tool", content="7", tool_call_id=call.id) for call in reply.tool_calls]
        return Turn(answers or "Go on.", terminated=self.replies == 4)


def spoiled(renderer: FixedBase, positions: int) -> Iterator[NDArray[np.int32]]:
    """Yield replies with a call, each with one token left out, sampled twice, or with the end after it."""
    call = ToolCall(name="price", arguments={"item": "pear", "count": 2})
    whole = renderer.reply(Message(role="assistant", tool_calls=(call,)))
    for at in Random(0).sample(range(len(whole) - 1), positions):
        yield np.delete(whole, at)
        yield np.insert(whole, at, whole[at])
        yield np.concatenate([whole[: at + 1], whole[-1:]])


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", every_template())
def test_a_spoiled_call_ends_no_episode(name: str, is_full: bool) -> None:
    renderer = fixed_base(name)
    try:
        renderer.check_tools([PRICE])
        replies = list(spoiled(renderer, 3 if is_full else 1))
    except TemplateUnsupported as refused:
        pytest.skip(f"no tools: {refused}")
    text = renderer.reply(Message(role="assistant", content="x"))
    for reply, history in product(replies, HISTORIES):
        env = Market(renderer=renderer, history=history)
        env.reset(seed=0)
        for sampled in (reply, text, reply, text):
            if env.trajectory is None:
                env.step(sampled)
        assert env.trajectory is not None and env.trajectory.status != "error"


@pytest.mark.parametrize(
    "name", ["diffusion_gemma", *(pytest.param(n, marks=pytest.mark.full) for n in ("qwen3_5_think", "qwen3_6"))]
)
def test_a_reply_that_the_template_refuses_to_write_keeps_its_own_tokens(name: str) -> None:
    renderer = fixed_base(name)
    for reply in spoiled(renderer, 3):
        env = Market(renderer=renderer, history="strip")
        env.reset(seed=0)
        env.step(reply)
        read = env.messages()[1]
        env.step(renderer.reply(Message(role="assistant", content="x")))
        if any(isinstance(call.arguments, str) for call in read.tool_calls):
            prompt, own = env.prompt().tolist(), reply[:-1].tolist()
            assert any(prompt[at : at + len(own)] == own for at in range(len(prompt)))
