"""Compare a renderer with its tokenizer's chat template, which transformers renders."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from ..errors import RenderError
from ..messages import Message, ToolCall, ToolSchema
from .renderer import Renderer

_DATE = "2025-01-01"
_CLOCK = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_NO_ARGUMENTS = frozenset({"name", "template", "template_arguments", "special_tokens", "processor"})


class Conversation(NamedTuple):
    """A conversation to render with both the renderer and the template."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    generation_prompt: bool = True


class KnownDifference(RenderError):
    """The renderer and the template differ in a way that the renderer declares."""


def assistant(content: str = "", reasoning: str | None = None, calls: Sequence[ToolCall] = ()) -> Message:
    """Return a message of the assistant."""
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
_REASONED = assistant("Paris.", "Which?")
CONVERSATIONS: dict[str, Conversation] = {
    "a question": Conversation([_QUERY]),
    "system": Conversation([_SYSTEM, _QUERY]),
    "system with tools": Conversation([_SYSTEM, _QUERY], [_TOOL]),
    "tools": Conversation([_QUERY], [_TOOL]),
    "an answer": Conversation([_QUERY, assistant("Paris.")], generation_prompt=False),
    "a reasoned answer": Conversation([_QUERY, _REASONED], generation_prompt=False),
    "an answer after a reasoned one": Conversation(
        [_QUERY, _REASONED, _NEXT, assistant("Rome."), _NEXT, _REASONED], generation_prompt=False
    ),
    "user after text": Conversation([_QUERY, assistant("Paris."), _NEXT]),
    "user after reasoning": Conversation([_QUERY, _REASONED, _NEXT]),
    "tool after call": Conversation([_QUERY, assistant(calls=_CALLS[:1]), _RESULTS[0]], [_TOOL]),
    "tool after a reasoned call": Conversation([_QUERY, assistant("", "Hm.", _CALLS[:1]), _RESULTS[0]], [_TOOL]),
    "tool after text and a call": Conversation([_QUERY, assistant("So:", None, _CALLS[:1]), _RESULTS[0]], [_TOOL]),
    "tools after calls": Conversation([_QUERY, assistant(calls=_CALLS), *_RESULTS], [_TOOL]),
    "user after tool": Conversation(
        [_QUERY, assistant(calls=_CALLS[:1]), _RESULTS[0], assistant("Rome."), _NEXT], [_TOOL]
    ),
    "spaces": Conversation([Message(role="user", content=" Why? \n"), assistant(" Paris.\n"), _NEXT]),
    "user after reasoning twice": Conversation([_QUERY, _REASONED, _NEXT, _REASONED, _NEXT]),
    "user after a reasoned call": Conversation(
        [
            _QUERY,
            assistant("", "Hm.", [_MIXED]),
            _RESULTS[0].model_copy(update={"tool_call_id": _MIXED.id}),
            _REASONED,
            _NEXT,
        ],
        [_TOOL],
    ),
    "system after text": Conversation([_QUERY, assistant("Paris."), _SYSTEM, _NEXT]),
}


def rewritten_past(renderer: Renderer, conversation: Conversation) -> str:
    """Describe the first part of the context up to the last reply that the template rewrites later; empty if none.

    Raises:
        RenderError: If the template cannot express the conversation.
    """
    messages, tools, _ = conversation
    reply = max(index for index, message in enumerate(messages) if message.role == "assistant")
    before = render_template(renderer, messages[: reply + 1], tools, generation_prompt=False)
    after = render_template(renderer, messages, tools, generation_prompt=True)
    same = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    around = slice(max(0, same - 12), same + 24)
    return "" if same >= len(before.rstrip()) else f"{before[around]!r} becomes {after[around]!r}"


def render_template(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generation_prompt: bool
) -> str:
    """Render with the tokenizer's chat template, which gets the renderer's options as arguments.

    Raises:
        RenderError: If the tokenizer has no chat template, or the template rejects the conversation.
    """
    text, arguments = own_template(renderer)
    read = [*map(renderer.template_form, messages)]
    return render_spans(text, read, tools, generation_prompt=generation_prompt, arguments=arguments)[0]


def own_template(renderer: Renderer) -> tuple[str, dict[str, Any]]:
    """Return the tokenizer's chat template and its arguments, which are the renderer's options.

    Raises:
        RenderError: If the tokenizer has no chat template.
    """
    source = renderer.chat_template
    if source is None:
        raise RenderError("the tokenizer has no chat template")
    options = renderer.specification()
    arguments: dict[str, Any] = {**source.special_tokens, **options, **options.get("template_arguments", {})}
    shown = {name: value for name, value in arguments.items() if name not in _NO_ARGUMENTS}
    return with_fixed_date(source.text, renderer), shown


def with_fixed_date(text: str, renderer: Renderer) -> str:
    """Return a template that uses the renderer's date instead of the clock."""
    date = getattr(renderer, "current_date", renderer.specification().get("date", _DATE))
    now = datetime.fromisoformat(date)
    return _CLOCK.sub(lambda match: repr(now.strftime(match[2])), text)


def render_spans(
    template: str,
    messages: Sequence[Message | Mapping[str, Any]],
    tools: Sequence[ToolSchema],
    *,
    generation_prompt: bool,
    arguments: Mapping[str, Any],
) -> tuple[str, list[tuple[int, int]]]:
    """Render with a chat template given as text, as transformers does.

    Returns:
        The text, and the start and the end of the text of each `generation` block.

    Raises:
        RenderError: If the template rejects the conversation.
    """
    from transformers.utils import chat_template_utils

    try:
        rendered: Any = cast("Any", chat_template_utils).render_jinja_template(
            [[message.to_openai() if isinstance(message, Message) else dict(message) for message in messages]],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=template,
            add_generation_prompt=generation_prompt,
            return_assistant_tokens_mask=has_generation_blocks(template),
            **arguments,
        )
    except Exception as error:  # a template may raise anything
        raise RenderError(f"the template rejects the conversation: {type(error).__name__}: {error}") from error
    texts, spans = rendered
    return texts[0], spans[0] if spans else []


def has_generation_blocks(template: str) -> bool:
    """Return whether a chat template marks the model's text with `generation` blocks."""
    return _GENERATION.search(template) is not None
