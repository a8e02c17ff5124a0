"""`renderer="auto"`: chooses the family that renders like the tokenizer's own chat template.

The model's name plays no role. Each family whose control tokens the tokenizer has renders the conversations of the
conformance kit, and so does the template. The first family that agrees on all of them is chosen; if none does,
`fixed_base` measures the template itself.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from envsdk.errors import EnvsdkError, RenderError, TokenizerError
from envsdk.messages import Message
from envsdk.registry import get_renderer, list_renderers
from envsdk.rendering.renderer import Renderer
from envsdk.rendering.tokenizers import Tokenizer
from envsdk.testing.parity import CONVERSATIONS, TOOL_NAME

from .templates.chat_template import FIXED_DATE, ChatTemplate, TemplateFailed
from .templates.dialect import Dialect

_NO_FAMILIES = frozenset({"auto", "fixed_base", "role_colon"})
_FALLBACK = "fixed_base"
_LOG = logging.getLogger("envsdk.renderers")


class Choice(NamedTuple):
    """A renderer's name and options, and why it was chosen."""

    name: str
    options: Mapping[str, Any]
    reason: str


_VARIANTS: tuple[Mapping[str, Any], ...] = ({}, {"enable_thinking": False})
"""The options of a family that are tried."""


def auto(tokenizer: Tokenizer, **options: Any) -> Renderer:
    """Make the renderer that fits the tokenizer's own chat template.

    Args:
        tokenizer: A tokenizer that came with a chat template.
        **options: Options of the chosen renderer.

    Returns:
        The renderer; its `chosen_because`, and the log, report why it was chosen.

    Raises:
        TokenizerError: If the tokenizer came without a chat template.
        TemplateUnsupported: If no family fits and `fixed_base` cannot use the template.
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
    most, nearest = 0, "none with its control tokens renders a single conversation as its template does"
    families = [(name, options) for options in _VARIANTS for name in list_renderers() if name not in _NO_FAMILIES]
    for name, options in families:
        try:
            renderer = get_renderer(name, tokenizer, **options)
        except EnvsdkError:  # the tokenizer lacks control tokens, or the family lacks the option
            continue
        template = ChatTemplate(
            source.text, date=getattr(renderer, "current_date", FIXED_DATE), special_tokens=source.special_tokens
        )
        same, different = _compare(renderer, template)
        if same and not different:
            given = "".join(f" with {option}={value}" for option, value in options.items())
            return Choice(name, options, f"{name!r}{given} renders {', '.join(same)} as the tokenizer's template does")
        if len(same) > most:
            most, nearest = len(same), f"the nearest, {name!r}, differs from it at {different[0]}"
    return Choice(_FALLBACK, {}, f"no family renders as the tokenizer's template does: {nearest}")


def _compare(renderer: Renderer, template: ChatTemplate) -> tuple[list[str], list[str]]:
    """Return the conversations on which a renderer and a template agree, and those on which they differ.

    Where a family's format is known to differ from its template's, they have to show at least the same reasoning.
    """
    same: list[str] = []
    different: list[str] = []
    for name, (messages, tools, generation_prompt) in CONVERSATIONS.items():
        try:
            expected = template.render(
                Dialect().messages(messages), tools=list(tools) or None, generation_prompt=generation_prompt
            )
        except TemplateFailed:
            continue  # the template cannot express it, so there is nothing to compare
        is_known = any(words in name for words in renderer.known_differences)
        try:
            tokens = renderer.render(messages, tools=tools, generation_prompt=generation_prompt).tokens
        except RenderError:
            if not is_known and (not tools or TOOL_NAME in expected):
                different.append(name)
            continue
        found = renderer.tokenizer.decode(tokens)
        if found == expected:
            same.append(name)
        elif not is_known or _reasoning_in(found, messages) != _reasoning_in(expected, messages):
            different.append(name)
    return same, different


def _reasoning_in(text: str, messages: Sequence[Message]) -> list[int]:
    """Count how often the reasoning of each message occurs in a rendered text."""
    return [text.count(message.reasoning) for message in messages if message.reasoning]
