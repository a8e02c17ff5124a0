"""Where each message begins in what a template renders, whatever it rewrites of its past, and what finding it costs."""

from itertools import pairwise

import pytest
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._templates._chat_template import ChatTemplate
from template_conversations import TOOLS, called, every_template, fixed_base, qwen3, result, said, user

from envsdk import Message
from envsdk.errors import RenderError

CALL = called("search").with_reasoning("I search.")
WITHOUT_CALLS = [user("Alpha?"), said("Beta.", "I think."), user("Gamma?")]
WITH_CALLS = [*WITHOUT_CALLS, CALL, result(CALL.tool_calls[0], "Delta."), said("Epsilon.", "Again."), user("Zeta?")]


def parts_of(renderer: FixedBase, messages: list[Message], tools: tuple) -> list[str]:
    rendered = renderer.render(messages, tools=tools)
    bounds = pairwise([*rendered.starts, len(rendered.tokens)])
    return [renderer.tokenizer.decode(rendered.tokens[start:stop]) for start, stop in bounds]


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", every_template())
def test_each_message_has_its_own_text_where_the_template_rewrites_its_past(name: str) -> None:
    renderer, checked = fixed_base(name), 0
    for messages, tools in ((WITHOUT_CALLS, ()), (WITH_CALLS, TOOLS)):
        try:
            parts = parts_of(renderer, messages, tools)
        except RenderError:
            continue  # the template has no calls
        texts = [message.content for message in messages if message.content]
        shown = [[text for text in texts if text in part] for part in parts]
        if "Delta." not in "".join(parts):
            continue  # it drops results
        assert shown == [[message.content] if message.content else [] for message in messages]
        checked += 1
    if not checked:
        assert parts_of(renderer, WITHOUT_CALLS, ())


def test_the_renderings_of_a_conversation_do_not_grow_with_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    render = ChatTemplate.render
    monkeypatch.setattr(ChatTemplate, "render", lambda *args, **kwargs: calls.append(1) or render(*args, **kwargs))
    counts = []
    for rounds in (2, 3, 40):  # what the first one measures is cached
        calls.clear()
        qwen3().render([*WITH_CALLS * rounds], tools=TOOLS)
        counts.append(len(calls))
    assert counts[1] == counts[2] <= 4
