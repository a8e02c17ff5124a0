"""`renderer="auto"`: chooses the renderer that fits the tokenizer's own chat template, or the given one.

The model's name plays no role; see `choose_renderer`.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envsdk._registry import get_renderer, list_renderers
from envsdk.errors import TemplateUnsupported, TokenizerError
from envsdk.rendering._vision import find_processor
from envsdk.rendering.renderer import Renderer
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer

from ._choosing import NO_FAMILIES, Choice, choose_renderer, made
from ._fixed_base import FixedBase

_LOG = logging.getLogger("envsdk.renderers")


def auto(
    tokenizer: Tokenizer,
    *,
    template: str | None = None,
    special_tokens: Mapping[str, str] | None = None,
    **options: Any,
) -> Renderer:
    """Make the renderer that fits a chat template.

    Args:
        tokenizer: A tokenizer.
        template: The chat template's text; by default, the one that came with the tokenizer.
        special_tokens: The template's `bos_token`, `eos_token` and so on, instead of the tokenizer's own.
        **options: Options of the chosen renderer.

    Returns:
        The renderer; its `chosen_because`, the log and each trajectory have the reason why it was chosen.

    Raises:
        TokenizerError: If the chat template is missing.
        TemplateUnsupported: If no family fits and `fixed_base` cannot use the template.
        ConfigError: If the chosen renderer does not take the options.
    """
    source = tokenizer.chat_template
    if source is None and template is None:
        raise TokenizerError(
            f"renderer='auto' compares chat templates, and the tokenizer {tokenizer.name!r} came without one: name a "
            f"renderer, one of {', '.join(list_renderers())}"
        )
    given: dict[str, Any] = {}
    if template is not None and (source is None or template != source.text):
        given["template"] = template
    if special_tokens is not None and (source is None or special_tokens != source.special_tokens):
        given["special_tokens"] = special_tokens
    source = source or ChatTemplateSource("")
    source = replace(
        source, text=template or source.text, special_tokens={**source.special_tokens, **(special_tokens or {})}
    )
    has_images = options.get("processor") is not None or find_processor(tokenizer) is not None
    choice = choose_renderer(tokenizer, source, has_images=has_images)
    own = given if choice.renders_templates else {}
    renderer = get_renderer(choice.name, tokenizer, **choice.options, **own, **options)
    reading = ""
    if isinstance(renderer, FixedBase):
        _refuse_unusable(renderer, choice)
        reading = f"; {renderer.reading_note}"
    images = f"; {renderer.images_note}" if has_images else ""
    renderer.chosen_because = choice.reason + reading + images
    _LOG.info("renderer %r for the tokenizer %r: %s", choice.name, tokenizer.name, renderer.chosen_because)
    return renderer


def _refuse_unusable(renderer: FixedBase, choice: Choice) -> None:
    """Refuse a template with which no environment can be made.

    Raises:
        TemplateUnsupported: It names the families whose control tokens the tokenizer has.
    """
    if not renderer.why_unusable:
        return
    found = {name: made(name, renderer.tokenizer, {}) for name in list_renderers() if name not in NO_FAMILIES}
    fitting = [name for name, one in found.items() if one is not None and not isinstance(one, FixedBase)]
    families = " or ".join(f"renderer={name!r}" for name in fitting) or "none"
    raise TemplateUnsupported(
        f"{choice.reason}; and with {choice.name!r} no environment can be made: {renderer.why_unusable}. The families "
        f"of this vocabulary, which do not read the template: {families}"
    )
