"""Choose the renderer that fits a chat template.

Each family whose control tokens the tokenizer has is compared with the template. The first one is chosen that renders
the same prompts, writes the same replies, and reads the template's. If none does, an alias of `fixed_base` is chosen
that was checked on this very template, and else `fixed_base` itself.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from envsdk._registry import get_renderer, list_renderers, renderer_factories
from envsdk.errors import EnvsdkError
from envsdk.rendering.renderer import Renderer
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer

from ._agreement import Agreement, compare
from ._templates._chat_template import is_one_of, template_hash
from ._templates._store import Store, remember

_FALLBACK = "fixed_base"
NO_FAMILIES = frozenset({"auto", _FALLBACK, "role_colon"})
"""The renderers that are not families."""
_AGREEMENT = TypeAdapter(Agreement)
_MANY = 32
_VARIANTS: tuple[Mapping[str, Any], ...] = ({}, {"enable_thinking": False})
"""The options of a family that are tried."""


class Choice(NamedTuple):
    """A renderer's name and options, and why it was chosen."""

    name: str
    options: Mapping[str, Any]
    reason: str
    renders_templates: bool = False
    """True if it renders any template, which it takes as an option."""


_CHOICES: dict[tuple[object, ...], Choice] = {}


def choose_renderer(tokenizer: Tokenizer, source: ChatTemplateSource, *, has_images: bool = False) -> Choice:
    """Choose the renderer for a template, once in a process for each template and vocabulary; see `auto`.

    Args:
        tokenizer: The tokenizer.
        source: The chat template.
        has_images: Whether there is a processor of images; only families that write them are chosen then.
    """
    names = list_renderers()
    key = (has_images, source.text, *sorted(source.special_tokens.items()), tokenizer.fingerprint, *names)
    choice = _CHOICES.get(key)
    if choice is None:
        choice = _choose(tokenizer, source, renderer_factories(), has_images=has_images)
        remember(_CHOICES, key, choice, at_most=_MANY)
    return choice


def _choose(
    tokenizer: Tokenizer,
    source: ChatTemplateSource,
    factories: Mapping[str, Callable[..., Renderer]],
    *,
    has_images: bool,
) -> Choice:
    digest = template_hash(source.text)
    aliases = {name: known for name, factory in factories.items() if (known := getattr(factory, "templates", None))}
    classes = {name for name in factories if name not in aliases or getattr(factories[name], "without_tools", None)}
    families = {
        name: factory
        for name, factory in factories.items()
        if name in classes - NO_FAMILIES and (not has_images or getattr(factory, "writes_images", False))
    }
    nearest, most = "none with its control tokens renders a single conversation as it does", (0, 0)
    for options, (name, factory) in product(_VARIANTS, families.items()):
        renderer = made(name, tokenizer, options)
        if renderer is None or renderer.name == _FALLBACK:  # which renders any template
            continue
        found = _agreement(renderer, source, factory, options)
        if found.is_complete:
            given = "".join(f" with {option}={value}" for option, value in options.items())
            return Choice(name, options, f"{name!r}{given} agrees with the chat template {digest} on {found}")
        if (found.prompts, found.replies) > most:
            most = found.prompts, found.replies
            nearest = f"the nearest, {name!r}, agrees on {found}, and differs at {found.difference}"
    reason = f"no family renders and reads as the chat template {digest} does: {nearest}"
    for name, known in aliases.items():
        if is_one_of(source.text, known) and made(name, tokenizer, {}) is not None:
            return Choice(name, {}, f"{name!r} was checked on this template; {reason}", True)
    return Choice(_FALLBACK, {}, reason, True)


def made(name: str, tokenizer: Tokenizer, options: Mapping[str, Any]) -> Renderer | None:
    """Return a renderer; None if the tokenizer lacks its control tokens, or it lacks an option."""
    try:
        return get_renderer(name, tokenizer, **options)
    except EnvsdkError:
        return None


def _agreement(
    renderer: Renderer, source: ChatTemplateSource, factory: Callable[..., Renderer], options: Mapping[str, Any]
) -> Agreement:
    """Return on what a renderer and a template agree; for this package's own families, it is kept on disk."""
    measure = partial(compare, renderer, source.text, source.special_tokens)
    if not (isinstance(factory, type) and factory.__module__.startswith(f"{__package__}.")):
        return measure()  # the version of its code is not known, so what is on disk may be of another one
    key = json.dumps([source.text, source.special_tokens, renderer.tokenizer.fingerprint])
    name = json.dumps(["agreement", factory.__module__, factory.__qualname__, options])
    return Store(key).measured(name, _AGREEMENT, measure)
