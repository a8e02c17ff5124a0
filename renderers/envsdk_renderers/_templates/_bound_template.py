"""A chat template bound to everything that is the same in all conversations of a renderer, and how it is found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolSchema

from ._chat_template import ChatTemplate, TemplateFailed
from ._dialect import Dialect
from ._forgery import ForgeryCheck
from ._mask import PROBE_NAME, Mask
from ._sentinels import KEY, PROBE_TOOL, QUESTION, REASONING, REPLY, reply_of, results, user


@dataclass(frozen=True)
class BoundTemplate:
    """A chat template with its dialect and its arguments, and the mask that hides texts from it."""

    chat_template: ChatTemplate
    mask: Mask
    dialect: Dialect
    arguments: Mapping[str, Any]

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = False
    ) -> str:
        """Render a conversation that is only measured.

        Raises:
            TemplateFailed: If the template refuses it.
        """
        return self.chat_template.render(
            self.dialect.messages(self.dialect.addressed(messages)),
            tools=self.dialect.tools(tools),
            generation_prompt=generation_prompt,
            arguments=self.arguments,
        )

    def safe_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = False
    ) -> str:
        """Render a conversation of which a part will be emitted.

        Raises:
            TemplateUnsupported: If content and the template's own text together make a control token.
            TemplateFailed: If the template refuses it.
        """
        text = self.text(messages, tools, generation_prompt=generation_prompt)
        twin = self._forgery_check.twin(messages, tools) if self.mask.hides_names else None
        if twin is not None:
            self._forgery_check.refuse_forged(text, self.text(*twin, generation_prompt=generation_prompt))
        return text

    @cached_property
    def _forgery_check(self) -> ForgeryCheck:
        return ForgeryCheck(self.mask, [self.mask.hide(text) for text in self.chat_template.literals])


def bind_template(template: ChatTemplate, mask: Mask, arguments: Mapping[str, Any]) -> BoundTemplate:
    """Find the dialect that a template reads, and bind the template to it.

    Raises:
        TemplateUnsupported: If it reads none of the usual ones.
    """
    bound = _with_readable_reasoning(_with_readable_text(template, mask, arguments))
    dialects = [
        replace(bound.dialect, arguments=given, call_content=content, ids=ids)
        for ids, content, given in product(("word", "function"), ("empty", "none", "absent"), ("dict", "text"))
    ]
    readable = [form for dialect in dialects if _renders_calls(form := replace(bound, dialect=dialect))]
    chosen = next(filter(_names_calls, readable), next(iter(readable), None))
    if chosen is None:
        return bound
    given_text = replace(chosen, dialect=replace(chosen.dialect, arguments="text"))
    return replace(chosen, dialect=replace(chosen.dialect, takes_text=_renders_calls(given_text)))


def _with_readable_text(template: ChatTemplate, mask: Mask, arguments: Mapping[str, Any]) -> BoundTemplate:
    """Find the form of content that a template reads."""
    failure = ""
    for content, no_tools in product(("text", "parts"), ("none", "empty")):
        bound = BoundTemplate(template, mask, Dialect(content=content, no_tools=no_tools), arguments)
        try:
            text = bound.text([user()], generation_prompt=True)
        except TemplateFailed as error:
            failure = failure or f": {error}"
            continue
        if QUESTION in text and f"'{QUESTION}'" not in text:  # and it is not Python's `repr` of the parts
            return bound
    raise TemplateUnsupported(f"the chat template renders no user message, neither as text nor as parts{failure}")


def _with_readable_reasoning(bound: BoundTemplate) -> BoundTemplate:
    """Give reasoning as a part of the content if that is how the template, whose text names such parts, shows it."""
    if "'thinking'" not in bound.chat_template.text and '"thinking"' not in bound.chat_template.text:
        return bound
    with_part = replace(bound, dialect=replace(bound.dialect, reasoning="part"))
    return with_part if not _shows_reasoning(bound) and _shows_reasoning(with_part) else bound


def _shows_reasoning(bound: BoundTemplate) -> bool:
    try:
        text = bound.text([user(), reply_of(reasoning=REASONING)])
    except TemplateFailed:
        return False
    return REASONING in text and f"'{REASONING}'" not in text


def _renders_calls(bound: BoundTemplate) -> bool:
    """Return whether calls are rendered, and not as Python values or as JSON inside JSON."""
    reply = reply_of([PROBE_NAME])
    for after in ([], results(reply, 1)):
        try:
            text = bound.text([user(), reply, *after], [PROBE_TOOL])
        except TemplateFailed:
            return False
        if REPLY not in text or f"'{KEY}':" in text or f'\\"{KEY}\\"' in text or "None" in text:
            return False
    return True


def _names_calls(bound: BoundTemplate) -> bool:
    """Return whether a call shows the name of its tool, which the tool's schema shows as well."""
    shown = [bound.text([user(), *replies], [PROBE_TOOL]) for replies in ([], [reply_of([PROBE_NAME])])]
    return shown[1].count(PROBE_NAME) > shown[0].count(PROBE_NAME)
