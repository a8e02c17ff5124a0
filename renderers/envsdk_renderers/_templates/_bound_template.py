"""A chat template bound to everything that is the same in all conversations of a renderer, and how it is found."""

import hashlib
import json
import marshal
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, TextPart, ToolCall, ToolSchema

from .._replies._open_calls import OpenCalls
from ._chat_template import ChatTemplate, TemplateFailed
from ._forgery import ForgeryCheck
from ._mask import PROBE_NAME, STEM, TextMask
from ._sentinels import KEY, PROBE_TOOL, QUESTION, REASONING, REPLY, reply_of, results, user
from ._store import remember

_LETTERS = string.ascii_lowercase + string.digits
_LONGEST_KEPT = 2**16


@dataclass(frozen=True)
class Dialect:
    """The form in which a template reads a conversation, among the usual ones."""

    content: Literal["text", "parts"] = "text"
    """True if content is a string or a list of typed parts."""
    arguments: Literal["dict", "text"] = "dict"
    """True if a call's arguments are a dict or its JSON text."""
    takes_text: bool = True
    """True if arguments given as a string may stay a string; if not, they are parsed if they are JSON."""
    call_content: Literal["empty", "none", "absent"] = "empty"
    """The content of a message that only calls tools."""
    no_tools: Literal["none", "empty"] = "none"
    """The value that the template receives as tools in an episode without tools."""
    ids: Literal["word", "function"] = "word"
    """The id given to a call without one: nine letters and digits, or `functions.name:0` (Kimi K2 names the function
    nowhere else)."""

    reasoning: Literal["field", "part"] = "field"
    """True if reasoning is a separate field, or a part of the content (Ministral 3, Magistral)."""

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages as the template reads them."""
        return [self._message(message) for message in messages]

    def tools(self, tools: Sequence[ToolSchema]) -> list[Any] | None:
        """Return the tools as the template reads them."""
        return [dict(tool) for tool in tools] if tools or self.no_tools == "empty" else None

    def readable(self, message: Message) -> Message:
        """Return the message with JSON arguments, as in OpenAI's form, as the dict that the template reads."""
        calls = message.tool_calls
        if self.takes_text or not any(isinstance(call.arguments, str) for call in calls):
            return message
        read: list[ToolCall] = []
        for call in calls:
            value: Any = None
            if isinstance(call.arguments, str):
                with suppress(ValueError, RecursionError):
                    value = json.loads(call.arguments)
            read.append(call.model_copy(update={"arguments": value}) if isinstance(value, dict) else call)
        return message.model_copy(update={"tool_calls": tuple(read)})

    def addressed(self, messages: Sequence[Message], *, adds_ids: bool = True) -> list[Message]:
        """Return the messages with an id for each call, and for each tool's result the id and name of its call.

        A missing id is computed from the call alone, so it is the same wherever the call is written. `OpenCalls` finds
        the call that a result answers; if none is left, it is the last one. Without `adds_ids`, a call has only the id
        that it was given.

        Raises:
            RenderError: If no call has a result's id, or the call with that id is a call of another tool.
        """
        found: list[Message] = []
        calls: tuple[ToolCall, ...] = ()
        open_calls = OpenCalls()
        for message in messages:
            if message.role == "assistant":
                open_calls = OpenCalls(message.tool_calls)
                calls = message.tool_calls
                if adds_ids and not all(call.id for call in calls):
                    calls = tuple(
                        call if call.id else call.model_copy(update={"id": self._made_id(index, call)})
                        for index, call in enumerate(calls)
                    )
                    message = message.model_copy(update={"tool_calls": calls})
            elif message.role == "tool" and calls:
                answered = open_calls.answered_by(message)
                call = calls[-1 if answered is None else answered]
                given = {"tool_call_id": call.id, "name": message.name or call.name}
                if given != {"tool_call_id": message.tool_call_id, "name": message.name}:
                    message = message.model_copy(update=given)
            found.append(message)
        return found

    def _made_id(self, index: int, call: ToolCall) -> str:
        content = json.dumps([index, call.name, call.arguments], sort_keys=True).encode()
        number = int.from_bytes(hashlib.blake2b(content, digest_size=7).digest())
        is_probe = call.name == PROBE_NAME
        if self.ids == "function":
            return f"functions.{call.name}:{number % 1000 if is_probe else index}"
        letters = "".join(_LETTERS[number // 36**place % 36] for place in range(9))
        return STEM + letters[len(STEM) :] if is_probe else letters

    def _message(self, message: Message) -> dict[str, Any]:
        read: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if self.reasoning == "field" and message.reasoning is not None:  # under all names, as transformers does
            read |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
        if message.tool_calls:
            calls: list[dict[str, Any]] = []
            for call in message.tool_calls:
                arguments: Any = call.arguments
                if self.arguments == "text" and not isinstance(arguments, str):
                    arguments = json.dumps(arguments, ensure_ascii=False)
                function = {"name": call.name, "arguments": arguments}
                calls.append({"id": call.id, "type": "function", "function": function})
            read["tool_calls"] = [{k: v for k, v in call.items() if v is not None} for call in calls]
            if not (message.content or (self.reasoning == "part" and message.reasoning is not None)):
                if self.call_content == "none":
                    read["content"] = None
                elif self.call_content == "absent":
                    del read["content"]
        names = {"tool_call_id": message.tool_call_id, "name": message.name}
        return read | {name: value for name, value in names.items() if value is not None}

    def _content(self, message: Message) -> Any:
        """Return the content of a message as templates read it: a part for an image does not have its bytes."""
        if self.reasoning == "part" and message.reasoning is not None:
            parts = [{"type": "thinking", "thinking": message.reasoning}]
            return [*parts, {"type": "text", "text": message.content}] if message.content else parts
        if message.images:
            parts = message.parts or ()
            return [part.model_dump() if isinstance(part, TextPart) else {"type": "image"} for part in parts]
        return [{"type": "text", "text": message.content}] if self.content == "parts" else message.content

    def in_openai_form(self, message: Message) -> dict[str, Any]:
        """Return the message in OpenAI's form, with reasoning where the template reads it."""
        read = message.to_openai()
        is_part = self.reasoning == "part" and message.reasoning is not None
        if is_part:
            read.pop("reasoning_content", None)
        if is_part or message.images or self.content == "parts":
            read["content"] = self._content(message)
        return read


@dataclass(frozen=True)
class BoundTemplate:
    """A chat template with its dialect and its arguments, and the mask that hides strings from it."""

    chat_template: ChatTemplate
    mask: TextMask
    dialect: Dialect
    arguments: Mapping[str, Any]
    _texts: dict[bytes, str | TemplateFailed] = field(default_factory=dict[bytes, "str | TemplateFailed"], repr=False)
    """The renderings of short conversations, such as those of the probes, by the values that the template reads."""

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = False
    ) -> str:
        """Render a conversation that is only measured.

        Raises:
            TemplateFailed: If the template refuses it.
        """
        shown, schemas = self.dialect.messages(self.dialect.addressed(messages)), self.dialect.tools(tools)
        key = marshal.dumps((shown, schemas, generation_prompt), 2)  # this version does not depend on identities
        text = self._texts.get(key)
        if text is None:
            options: Any = {"generation_prompt": generation_prompt, "arguments": self.arguments}
            try:
                text = self.chat_template.render(shown, tools=schemas, **options)
            except TemplateFailed as error:
                text = error
            if len(key) <= _LONGEST_KEPT:
                remember(self._texts, key, text)
        if isinstance(text, TemplateFailed):
            raise text.with_traceback(None)
        return text

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
            texts = (text, self.text(*twin, generation_prompt=generation_prompt))
            found, expected = (Counter(name for name, _ in self.mask.controls(given)) for given in texts)
            if forged := found - expected:
                raise TemplateUnsupported(
                    "text of the conversation or of a tool's schema, together with the template's own text, makes the "
                    f"control token {next(iter(forged))!r}",
                    rendered=text,
                )
        return text

    @cached_property
    def _forgery_check(self) -> ForgeryCheck:
        return ForgeryCheck(self.mask, [self.mask.hide(text) for text in self.chat_template.literals])


def bind_template(template: ChatTemplate, mask: TextMask, arguments: Mapping[str, Any]) -> BoundTemplate:
    """Find the dialect that a template reads, and bind the template to it.

    Raises:
        TemplateUnsupported: If it reads none of the usual ones.
    """
    failure = ""
    for content, no_tools in product(("text", "parts"), ("none", "empty")):
        bound = BoundTemplate(template, mask, Dialect(content=content, no_tools=no_tools), arguments)
        try:
            text = bound.text([user()], generation_prompt=True)
        except TemplateFailed as error:
            failure = failure or f": {error}"
            continue
        if QUESTION in text and f"'{QUESTION}'" not in text:  # and it is not Python's `repr` of the parts
            break
    else:
        raise TemplateUnsupported(f"the chat template renders no user message, neither as text nor as parts{failure}")
    if "'thinking'" in template.text or '"thinking"' in template.text:  # reasoning may be a part of the content
        with_part = replace(bound, dialect=replace(bound.dialect, reasoning="part"))
        bound = next(filter(_shows_reasoning, (bound, with_part)), bound)
    chosen: BoundTemplate | None = None
    for ids, content, given in product(("word", "function"), ("empty", "none", "absent"), ("dict", "text")):
        dialect = replace(bound.dialect, arguments=given, call_content=content, ids=ids)
        form = replace(bound, dialect=dialect)
        if not _renders_calls(form):
            continue
        chosen = chosen or form
        shown = [form.text([user(), *replies], [PROBE_TOOL]) for replies in ([], [reply_of([PROBE_NAME])])]
        if shown[1].count(PROBE_NAME) > shown[0].count(PROBE_NAME):  # a call, too, shows the name of its tool
            chosen = form
            break
    if chosen is None:
        return bound
    given_text = replace(chosen, dialect=replace(chosen.dialect, arguments="text"))
    return replace(chosen, dialect=replace(chosen.dialect, takes_text=_renders_calls(given_text)))


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
