"""`renderer="auto"`: the family whose renderings are those of the tokenizer's own chat template.

Never by the model's name. Each family whose control tokens the tokenizer has renders some conversations; so does the
template. Where all agree, the family is chosen; where none does, the template itself is measured by `fixed_base`.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from envsdk.errors import EnvsdkError, RenderError, TokenizerError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.registry import get_renderer, list_renderers
from envsdk.renderer import Renderer
from envsdk.tokenizers import Tokenizer

from .templates import FIXED_DATE, ChatTemplate, Dialect, TemplateFailed

_NO_FAMILIES = frozenset({"auto", "fixed_base", "role_colon"})
_FALLBACK = "fixed_base"
_LOG = logging.getLogger("envsdk.renderers")


class Choice(NamedTuple):
    """A renderer's name and options, and why it was chosen."""

    name: str
    options: Mapping[str, Any]
    reason: str


class Probe(NamedTuple):
    """A conversation that families render in different ways."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    generation_prompt: bool = True


def _said(content: str = "", reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_SYSTEM = Message(role="system", content="Be brief.")
_QUERY, _NEXT = Message(role="user", content="Why?"), Message(role="user", content="And then?")
_CALL = ToolCall(name="look_up", arguments={"what": "it", "count": 3, "all": True}, id="call00001")
_RESULT = Message(role="tool", content="found", tool_call_id="call00001", name="look_up")
_REASONED = _said("So.", "because")
PROBES: dict[str, Probe] = {
    "a question": Probe([_QUERY]),
    "a system message": Probe([_SYSTEM, _QUERY]),
    "a second question": Probe([_QUERY, _said("So."), _NEXT]),
    "spaces": Probe([Message(role="user", content=" Why? \n"), _said(" So.\n"), _NEXT]),
    "an answer": Probe([_QUERY, _said("So.")], generation_prompt=False),
    "a reasoned answer": Probe([_QUERY, _REASONED], generation_prompt=False),
    "reasoning in the past": Probe([_QUERY, _REASONED, _NEXT, _REASONED, _NEXT]),
    "tools": Probe([_QUERY], [_TOOL]),
    "a system message and tools": Probe([_SYSTEM, _QUERY], [_TOOL]),
    "a call": Probe([_QUERY, _said("Let us see.", None, _CALL), _RESULT], [_TOOL]),
    "a reasoned call": Probe([_QUERY, _said("", "hm", _CALL), _RESULT, _REASONED, _NEXT], [_TOOL]),
    "two calls": Probe([_QUERY, _said("", None, _CALL, _CALL), _RESULT, _RESULT], [_TOOL]),
}
_VARIANTS: tuple[Mapping[str, Any], ...] = ({}, {"enable_thinking": False})
"""A family's options of which one may be what the template does by default."""
_ENOUGH = {"harmony": ("a question", "a second question")}
"""For a family whose template is known to differ from it elsewhere, the probes that decide."""


def auto(tokenizer: Tokenizer, **options: Any) -> Renderer:
    """Make the renderer that fits the tokenizer's own chat template.

    Args:
        tokenizer: A tokenizer that came with a chat template.
        **options: Options of the renderer that is chosen.

    Returns:
        The renderer; its `chosen_because` says why it was taken, and so does the log.

    Raises:
        TokenizerError: If the tokenizer came without a chat template.
        TemplateUnsupported: If no family fits, and the template cannot be measured.
        ConfigError: If the chosen renderer does not take the options.
    """
    choice = choose_renderer(tokenizer)
    renderer = get_renderer(choice.name, tokenizer, **{**choice.options, **options})
    renderer.chosen_because = choice.reason
    _LOG.info("renderer %r for the tokenizer %r: %s", choice.name, tokenizer.name, choice.reason)
    return renderer


@lru_cache(maxsize=32)
def choose_renderer(tokenizer: Tokenizer) -> Choice:
    """Choose the renderer for a tokenizer; see `auto`."""
    source = tokenizer.chat_template
    if source is None:
        raise TokenizerError(
            f"renderer='auto' compares chat templates, and the tokenizer {tokenizer.name!r} came without one: name a "
            f"renderer, one of {', '.join(list_renderers())}"
        )
    most, nearest = 0, "none with its control tokens renders a single probe as its template does"
    families = [(name, options) for options in _VARIANTS for name in list_renderers() if name not in _NO_FAMILIES]
    for name, options in families:
        try:
            renderer = get_renderer(name, tokenizer, **options)
        except EnvsdkError:  # it lacks control tokens of that family, or the family the option
            continue
        template = ChatTemplate(
            source.text, date=getattr(renderer, "current_date", FIXED_DATE), special_tokens=source.special_tokens
        )
        same, different = _compare(renderer, template, _ENOUGH.get(name, tuple(PROBES)))
        if same and not different:
            told = "".join(f" with {option}={value}" for option, value in options.items())
            return Choice(name, options, f"{name!r}{told} renders {', '.join(same)} as the tokenizer's template does")
        if len(same) > most:
            most, nearest = len(same), f"the nearest, {name!r}, differs from it at {different[0]}"
    return Choice(_FALLBACK, {}, f"no family renders as the tokenizer's template does: {nearest}")


def _compare(renderer: Renderer, template: ChatTemplate, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The probes at which a renderer and a template agree, and those at which they differ."""
    same: list[str] = []
    different: list[str] = []
    for name in names:
        messages, tools, generation_prompt = PROBES[name]
        try:
            expected = template.render(
                Dialect().messages(messages), tools=list(tools) or None, generation_prompt=generation_prompt
            )
        except TemplateFailed:
            continue  # the template cannot say it, whatever the family does
        try:
            tokens = renderer.render(messages, tools=tools, generation_prompt=generation_prompt).tokens
        except RenderError:
            if not tools or _TOOL["function"]["name"] in expected:
                different.append(name)
            continue
        (same if renderer.tokenizer.decode(tokens) == expected else different).append(name)
    return same, different
