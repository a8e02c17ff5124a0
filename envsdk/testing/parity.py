"""A renderer against the chat template that came with its tokenizer, as transformers runs it."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from ..errors import RenderError
from ..messages import Message, ToolCall, ToolSchema
from ..rendering.renderer import Renderer

_DATE = "2025-01-01"
_CLOCK = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_NO_ARGUMENTS = frozenset({"name", "template", "template_arguments", "special_tokens"})


class Conversation(NamedTuple):
    """A conversation to render in both ways."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    generation_prompt: bool = True


class KnownDifference(RenderError):
    """A renderer and the template differ where the renderer says that they do."""


def _said(content: str = "", reasoning: str | None = None, calls: Sequence[ToolCall] = ()) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


TOOL_NAME = "look_up"
_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_MIXED = ToolCall(name=TOOL_NAME, arguments={"what": "it", "count": 3, "all": True}, id="call0mixd")
_SYSTEM = Message(role="system", content="Be brief.")
_QUERY, _NEXT = Message(role="user", content="Which is it?"), Message(role="user", content="And of Italy?")
_CALLS = [ToolCall(name=TOOL_NAME, arguments={"what": what}, id=f"call{what[:5]:0>5}") for what in ("Italy", "Paris")]
_RESULTS = [Message(role="tool", content="Rome", tool_call_id=call.id, name=TOOL_NAME) for call in _CALLS]
_REASONED = _said("Paris.", "Which?")
CONVERSATIONS: dict[str, Conversation] = {
    "a question": Conversation([_QUERY]),
    "system": Conversation([_SYSTEM, _QUERY]),
    "system with tools": Conversation([_SYSTEM, _QUERY], [_TOOL]),
    "tools": Conversation([_QUERY], [_TOOL]),
    "an answer": Conversation([_QUERY, _said("Paris.")], generation_prompt=False),
    "a reasoned answer": Conversation([_QUERY, _REASONED], generation_prompt=False),
    "an answer after a reasoned one": Conversation(
        [_QUERY, _REASONED, _NEXT, _said("Rome."), _NEXT, _REASONED], generation_prompt=False
    ),
    "user after text": Conversation([_QUERY, _said("Paris."), _NEXT]),
    "user after reasoning": Conversation([_QUERY, _REASONED, _NEXT]),
    "tool after call": Conversation([_QUERY, _said(calls=_CALLS[:1]), _RESULTS[0]], [_TOOL]),
    "tool after a reasoned call": Conversation([_QUERY, _said("", "Hm.", _CALLS[:1]), _RESULTS[0]], [_TOOL]),
    "tool after text and a call": Conversation([_QUERY, _said("So:", None, _CALLS[:1]), _RESULTS[0]], [_TOOL]),
    "tools after calls": Conversation([_QUERY, _said(calls=_CALLS), *_RESULTS], [_TOOL]),
    "user after tool": Conversation([_QUERY, _said(calls=_CALLS[:1]), _RESULTS[0], _said("Rome."), _NEXT], [_TOOL]),
    "spaces": Conversation([Message(role="user", content=" Why? \n"), _said(" Paris.\n"), _NEXT]),
    "user after reasoning twice": Conversation([_QUERY, _REASONED, _NEXT, _REASONED, _NEXT]),
    "user after a reasoned call": Conversation(
        [
            _QUERY,
            _said("", "Hm.", [_MIXED]),
            _RESULTS[0].model_copy(update={"tool_call_id": _MIXED.id}),
            _REASONED,
            _NEXT,
        ],
        [_TOOL],
    ),
    "system after text": Conversation([_QUERY, _said("Paris."), _SYSTEM, _NEXT]),
}


def expected_text(renderer: Renderer, name: str, conversation: Conversation) -> str:
    """What the template renders.

    Raises:
        KnownDifference: If the renderer gives another text, and says that it does.
        RenderError: If one of both cannot express the conversation.
    """
    messages, tools, generation_prompt = conversation
    expected = render_template(renderer, messages, tools, generation_prompt=generation_prompt)
    rendered = renderer.render(messages, tools=tools, generation_prompt=generation_prompt)
    found = renderer.tokenizer.decode(rendered.tokens)
    known = [why for words, why in renderer.known_differences.items() if words in name]
    if found != expected and known:
        raise KnownDifference(f"a known difference: {'; '.join(known)}")
    return expected


def rewritten_past(renderer: Renderer, conversation: Conversation) -> str:
    """What of the prompt before the last reply the template writes in another way afterwards; empty if nothing.

    Raises:
        RenderError: If the template cannot express the conversation.
    """
    messages, tools, _ = conversation
    reply = max(index for index, message in enumerate(messages) if message.role == "assistant")
    said = render_template(renderer, messages[: reply + 1], tools, generation_prompt=False)
    after = render_template(renderer, messages, tools, generation_prompt=True)
    same = next((i for i, (a, b) in enumerate(zip(said, after, strict=False)) if a != b), min(len(said), len(after)))
    around = slice(max(0, same - 12), same + 24)
    return "" if same >= len(said.rstrip()) else f"{said[around]!r} becomes {after[around]!r}"


def render_template(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generation_prompt: bool
) -> str:
    """Render by the tokenizer's own chat template, with the renderer's options as its arguments.

    Raises:
        RenderError: If the tokenizer has none, or it refuses the conversation.
    """
    from transformers.utils import chat_template_utils

    source = renderer.chat_template
    if source is None:
        raise RenderError("the tokenizer came without a chat template")
    options = renderer.specification()
    arguments: dict[str, Any] = {**source.special_tokens, **options, **options.get("template_arguments", {})}
    shown = {name: value for name, value in arguments.items() if name not in _NO_ARGUMENTS}
    now = datetime.fromisoformat(getattr(renderer, "current_date", _DATE))
    text = _CLOCK.sub(lambda match: repr(now.strftime(match[2])), source.text)
    try:
        rendered: Any = cast("Any", chat_template_utils).render_jinja_template(
            [[message.to_openai() for message in messages]],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=text,
            add_generation_prompt=generation_prompt,
            **shown,
        )
    except Exception as error:  # a template is somebody else's code: whatever it raises is its refusal
        raise RenderError(f"the template refuses: {type(error).__name__}: {error}") from error
    return rendered[0][0]
