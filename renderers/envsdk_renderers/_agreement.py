"""Compare a renderer with a chat template: the prompts that it renders, the replies that it writes and reads.

The prompts are the conversations of the conformance kit, and the replies are those that prove measured grammars. A
family may differ from its template where it declares so (`known_differences`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from envsdk._visible import brief
from envsdk.errors import RenderError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering._parity import CONVERSATIONS, TOOL_NAME
from envsdk.rendering.emission import Emission
from envsdk.rendering.renderer import Renderer, TokenIds

from ._grammars._measuring import words_of
from ._grammars._probes import TOOLS
from ._grammars._proof import other_replies, usual_replies
from ._templates._bound_template import Dialect
from ._templates._chat_template import FIXED_DATE, ChatTemplate, TemplateFailed
from ._templates._sentinels import user

_DIALECT = Dialect()


@dataclass(frozen=True)
class Agreement:
    """The extent to which a renderer and a template agree.

    Attributes:
        prompts: The number of conversations that both render as the same text.
        replies: The number of the template's replies that are read as the same message and written as the same text.
        difference: The first difference; empty if there is none.
    """

    prompts: int
    replies: int
    difference: str = ""

    @property
    def is_complete(self) -> bool:
        """True if prompts and replies were compared, and all of them are the same."""
        return self.prompts > 0 and self.replies > 0 and not self.difference

    def __str__(self) -> str:
        return f"{self.prompts} conversations and {self.replies} replies"


def compare(renderer: Renderer, text: str, special_tokens: Mapping[str, str]) -> Agreement:
    """Compare a renderer with a chat template; replies are compared only if all prompts are the same.

    Args:
        renderer: The renderer.
        text: The template.
        special_tokens: The values of `bos_token`, `eos_token` and so on.

    Raises:
        ConfigError: If the text is not a Jinja template.
    """
    template = _compiled(text, getattr(renderer, "current_date", FIXED_DATE), tuple(special_tokens.items()))
    same, different = 0, ""
    for name, (messages, tools, generation_prompt) in CONVERSATIONS.items():
        try:
            expected = _render(template, messages, tools, generation_prompt=generation_prompt)
        except TemplateFailed:
            continue  # the template cannot express it, so there is nothing to compare
        is_known = any(words in name for words in renderer.known_differences)
        try:
            tokens = renderer.render(messages, tools=tools, generation_prompt=generation_prompt).tokens
        except RenderError:
            is_needed = not tools or TOOL_NAME in expected
            different = different or (name if is_needed and not is_known else "")
            continue
        found = renderer.tokenizer.decode(tokens)
        thoughts = [message.reasoning for message in messages if message.reasoning]
        shows_same = all(found.count(thought) == expected.count(thought) for thought in thoughts)
        if found == expected:
            same += 1
        elif not (is_known and shows_same):  # what is known to differ has to show at least the same reasoning
            different = different or name
    if different or not same:
        return Agreement(same, 0, different or "all conversations")
    replies, template_replies = 0, _TemplateReplies(renderer, template)
    has_calls = "tool" in renderer.roles
    for reply in (*usual_replies(has_calls=has_calls), *other_replies(has_calls=has_calls)):
        (message,) = _DIALECT.addressed([reply])  # no call has the id of a call in another reply
        written = template_replies.written(message)
        difference = None if written is None else _difference(renderer, written, _shape(message))
        if difference:
            return Agreement(same, replies, f"{_shape(message)}, {difference}")
        replies += difference == ""
    return Agreement(same, replies)


@lru_cache(maxsize=4)
def _compiled(text: str, date: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(text, date=date, special_tokens=dict(special_tokens))


def _render(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generation_prompt: bool
) -> str:
    shown = _DIALECT.messages(messages)
    return template.render(shown, tools=list(tools) or None, generation_prompt=generation_prompt)


# Replies.


class _TemplateReply(NamedTuple):
    """A reply as a template writes it."""

    message: Message
    """The message as the text shows it: without reasoning that the template drops."""
    begun: str
    """The part of the generation prompt that belongs to the reply."""
    text: str
    """The text after that, up to the end of the reply."""
    stop: str
    follows_prompt: bool
    """True if the reply follows the generation prompt; if not, the template opens it differently."""


def _difference(renderer: Renderer, written: _TemplateReply, shape: str) -> str:
    """Return how a reply is read as another message, or is written as another text; empty if it is not.

    Where a family's format is known to differ from its template's, it has to read at least the same calls.
    """
    sampled, begun = _tokens(renderer, written.text + written.stop), _tokens(renderer, written.begun)
    read = renderer.parse(sampled, prompt_tail=begun, tools=TOOLS)  # as if a model had sampled it
    is_known, found, expected = (
        any(words in shape for words in renderer.known_differences),
        _facts(read),
        _facts(written.message),
    )
    if found[-1] != expected[-1] or ((found != expected or read.errors) and not is_known):
        errors = f" with the errors {read.errors}" * bool(read.errors)
        return f"{written.text!r}, is read as {brief(found, 200)}{errors}"
    if is_known or not written.follows_prompt:  # else the template opens it differently
        return ""
    # Where a message has no reasoning, the template may write an empty block, with which the reply was read.
    message = written.message.with_reasoning(written.message.reasoning or read.reasoning)
    try:
        own = renderer.tokenizer.decode(renderer.reply(message))
    except RenderError as error:
        own = str(error)
    own = next((own.removesuffix(stop) for stop in renderer.stop_tokens if own.endswith(stop)), own)
    return "" if own == written.text else f"{written.text!r}, is written as {own!r}"


def _shape(message: Message) -> str:
    """Return the shape of a reply, in words in which differences are declared."""
    parts = ["reasoning"] * (message.reasoning is not None) + ["text"] * bool(message.content)
    calls = ["a call"] if len(message.tool_calls) == 1 else ["calls"] * bool(message.tool_calls)
    return f"a reply with {' and '.join([*parts, *calls])}"


@dataclass(eq=False, repr=False)
class _TemplateReplies:
    """Finds replies in renderings of a template that renders prompts as the renderer does."""

    _renderer: Renderer
    _template: ChatTemplate

    def written(self, message: Message) -> _TemplateReply | None:
        """Return a reply as the template writes it; None if it does not write all of it, or opens it in its own way."""
        tools = TOOLS if message.tool_calls else ()
        try:
            past, prompt = (
                _render(self._template, [user()], tools, generation_prompt=is_prompt) for is_prompt in (False, True)
            )
            text = _render(self._template, [user(), message], tools, generation_prompt=False)
        except TemplateFailed:
            return None
        opening = past + self._renderer.opening
        follows_prompt = text.startswith(prompt)
        if not (follows_prompt or text.startswith(opening)):
            return None
        body = text[len(prompt if follows_prompt else opening) :]
        if any(call.name not in body for call in message.tool_calls):
            return None
        shown = message if (message.reasoning or "") in body else message.with_reasoning(None)
        begun = prompt[len(past) :].removeprefix(self._renderer.opening) if follows_prompt else ""
        words = [*words_of(shown), *(call.name for call in shown.tool_calls)]
        last = max((body.rfind(word) for word in words if word), default=0)
        ends = [(at, stop) for stop in self._renderer.stop_tokens if (at := body.find(stop, max(last, 0))) >= 0]
        at, stop = min(ends, default=(len(body), self._renderer.stop_tokens[0]))
        return _TemplateReply(shown, begun, body[:at], stop, follows_prompt)


def _tokens(renderer: Renderer, text: str) -> TokenIds:
    out = Emission(renderer.encoder)
    out.scaffold(text)
    return out.tokens()[0]


def _facts(message: Message) -> tuple[object, ...]:
    """Return what has to be the same; templates may trim text, and JSON distinguishes True from 1."""
    calls: list[Any] = [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.tool_calls]
    return message.content.strip(), (message.reasoning or "").strip(), calls
