"""Chat templates as Hugging Face models ship them: where they are found, and how they are run.

A template is somebody else's code. It runs in a sandbox of our own that renders as `transformers.apply_chat_template`
does, but reads no clock: `strftime_now` tells a fixed date. Knows nothing about tokens.
"""

import datetime
import hashlib
import json
import re
import string
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import jinja2.nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from envsdk.errors import ConfigError, RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolCall, ToolSchema

from .open_calls import OpenCalls

FIXED_DATE = "2025-01-01"
"""The date that `strftime_now` tells if no other is given."""
STEM = "Qzxj"
"""How every word begins that a probe says, or that hides something. It is nobody else's, in any case of letters."""
PROBE_NAME = f"{STEM.lower()}function"
"""The function that probes call. No other has this name, for the stem is hidden in content."""
_LETTERS = string.ascii_lowercase + string.digits
_WORD = re.compile(f"(?i:{STEM})(?:([0-9]{{1,6}})([a-z]))?")


class TemplateFailed(RenderError):
    """A chat template raised an error: it refuses the conversation, or cannot read its form."""


@dataclass(frozen=True)
class Dialect:
    """In which of the usual forms a template reads a conversation."""

    content: Literal["text", "parts"] = "text"
    """Whether content is a string or a list of typed parts."""
    arguments: Literal["dict", "text"] = "dict"
    """Whether a call's arguments are a dict or its JSON."""
    takes_text: bool = True
    """Whether arguments that are a text may stay one; else they are read, as far as they are JSON."""
    call_content: Literal["empty", "none", "absent"] = "empty"
    """What the content of a message is that only calls tools."""
    no_tools: Literal["none", "empty"] = "none"
    """What an episode without tools passes as its tools."""
    ids: Literal["word", "function"] = "word"
    """What the id of a call looks like that has none: nine letters and digits, or `functions.name:0` (Kimi K2 names the
    function nowhere else)."""

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as the template reads them."""
        return [self._message(message) for message in messages]

    def tools(self, tools: Sequence[ToolSchema]) -> list[Any] | None:
        """The tools as the template reads them."""
        return [dict(tool) for tool in tools] if tools or self.no_tools == "empty" else None

    def readable(self, message: Message) -> Message:
        """The message with arguments that are JSON, which is OpenAI's form, as the dict that the template reads."""
        calls = message.tool_calls
        if self.takes_text or not any(isinstance(call.arguments, str) for call in calls):
            return message
        read = [
            call.model_copy(update={"arguments": _object_of(call.arguments)})
            if isinstance(call.arguments, str)
            else call
            for call in calls
        ]
        return message.model_copy(update={"tool_calls": tuple(read)})

    def addressed(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with an id for each call, and for each tool's result the id and the name of the call it answers.

        An id that is missing follows from the call alone, so it is the same wherever the call is written. Which call a
        result answers is what `OpenCalls` says; where none is left, it is the last one.

        Raises:
            RenderError: If no call has a result's id, or it is one of another tool than the result names.
        """
        found: list[Message] = []
        calls: tuple[ToolCall, ...] = ()
        open_calls = OpenCalls()
        for message in messages:
            if message.role == "assistant":
                open_calls = OpenCalls(message.tool_calls)
                calls = tuple(self._with_id(index, call) for index, call in enumerate(message.tool_calls))
                message = message if calls == message.tool_calls else message.model_copy(update={"tool_calls": calls})
            elif message.role == "tool" and calls:
                answered = open_calls.answered_by(message)
                call = calls[-1 if answered is None else answered]
                given = {"tool_call_id": call.id, "name": message.name or call.name}
                if given != {"tool_call_id": message.tool_call_id, "name": message.name}:
                    message = message.model_copy(update=given)
            found.append(message)
        return found

    def _with_id(self, index: int, call: ToolCall) -> ToolCall:
        if call.id:
            return call
        said = json.dumps([index, call.name, call.arguments], sort_keys=True).encode()
        number = int.from_bytes(hashlib.blake2b(said, digest_size=7).digest())
        is_probe = call.name == PROBE_NAME
        if self.ids == "function":
            given = f"functions.{call.name}:{number % 1000 if is_probe else index}"
        else:
            letters = "".join(_LETTERS[number // 36**place % 36] for place in range(9))
            given = STEM + letters[len(STEM) :] if is_probe else letters
        return call.model_copy(update={"id": given})

    def _message(self, message: Message) -> dict[str, Any]:
        content: Any = message.content
        is_dropped = bool(message.tool_calls) and not content
        if is_dropped and self.call_content == "none":
            content = None
        elif self.content == "parts":
            content = [{"type": "text", "text": content}]
        read: dict[str, Any] = {"role": message.role, "content": content}
        if is_dropped and self.call_content == "absent":
            del read["content"]
        if message.reasoning is not None:  # under all names, as transformers does
            read |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
        if message.tool_calls:
            read["tool_calls"] = [self._call(call) for call in message.tool_calls]
        names = {"tool_call_id": message.tool_call_id, "name": message.name}
        return read | {name: value for name, value in names.items() if value is not None}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = call.arguments
        if self.arguments == "text" and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        read: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
        return read if call.id is None else {"id": call.id, **read}


def _object_of(text: str) -> dict[str, Any] | str:
    """The arguments that are given as JSON, which is OpenAI's form; the text itself if it is no object."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else text


class ChatTemplate:
    """A chat template, compiled.

    Args:
        text: The Jinja text.
        date: The date that `strftime_now` tells, as `YYYY-MM-DD`.
        special_tokens: What `bos_token`, `eos_token` and so on stand for in it.

    Raises:
        ConfigError: If the text is no Jinja template, or the date no date.
    """

    def __init__(self, text: str, *, date: str = FIXED_DATE, special_tokens: Mapping[str, str] | None = None) -> None:
        try:
            self._now = datetime.datetime.fromisoformat(date)
        except (TypeError, ValueError):
            raise ConfigError(f"date is {date!r}; expected a date such as {FIXED_DATE!r}") from None
        self.text = text
        self.date = date
        self._special_tokens = dict(special_tokens or {})
        self._environment = _environment()
        self._environment.globals["strftime_now"] = self._now.strftime  # pyright: ignore[reportArgumentType]
        try:
            self._compiled = self._environment.from_string(text)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is no Jinja template: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        generation_prompt: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation as `apply_chat_template(tokenize=False)` does, but for the clock.

        Raises:
            TemplateFailed: With what the template says.
        """
        values: dict[str, Any] = {"messages": messages, "tools": tools, "documents": None}
        values |= {"add_generation_prompt": generation_prompt, **self._special_tokens, **(arguments or {})}
        try:
            return self._compiled.render(**values)
        except Exception as error:  # somebody else's code: whatever it raises is its refusal
            raise TemplateFailed(f"the chat template refuses: {type(error).__name__}: {error}") from error

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The strings that the template holds in its code, and might compare content with."""
        tree = self._environment.parse(self.text)
        found = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
        return tuple(sorted(text for text in found if text.strip()))


class Mask:
    """Hides what a conversation must not say to a template: names of control tokens, and the words of the probes.

    Each hidden character becomes a word of ASCII letters and digits, which comes through whatever a template does with
    content (JSON, `repr`, a filter); `restore` puts the character back. All these words, and all sentinels, begin with
    `STEM`, and where content has that itself, it is hidden like a control token. So what begins with it in a rendering
    was written by a probe or by a mask, and by nobody else.

    Args:
        names: The names of the control tokens.
        hides_names: Whether they are hidden; else only the stem is.
    """

    def __init__(self, names: Sequence[str], *, hides_names: bool = True) -> None:
        self.hides_names = hides_names
        self.names = sorted(filter(None, names), key=len, reverse=True)
        pattern = "|".join(map(re.escape, self.names)) or "(?!)"
        self._longest = len(self.names[0]) if self.names else 0
        hidden = f"{pattern}|(?i:{STEM})" if hides_names else f"(?i:{STEM})"
        self._hidden = re.compile(f"(?=(?:{hidden}))(.)", re.DOTALL)
        self._cut = re.compile(f"({pattern})")
        firsts = {name[0] for name in self.names} if hides_names else set[str]()
        self._firsts = sorted(firsts)
        self._chars = sorted({*firsts, STEM[0].upper(), STEM[0].lower()})
        self._end = next((letter for letter in reversed(_LETTERS[:26]) if letter not in firsts), "q")
        self._words = {char: f"{STEM}{index}{self._end}" for index, char in enumerate(self._chars)}

    def hide(self, text: str) -> str:
        """The text without names of control tokens and without the stem."""
        if not any(first in text for first in self._firsts) and not has_stem(text):
            return text
        return self._hidden.sub(lambda match: self._words[match[1]], text)

    def restore(self, text: str) -> str:
        """What was hidden is there again.

        Raises:
            TemplateUnsupported: If there is a word of the probes in it, or one that hid something and was changed.
        """
        return _WORD.sub(self._char, text) if has_stem(text) else text

    def restore_compared(self, text: str) -> str:
        """As `restore`, for a text that is compared with what was emitted: the words of probes stay in it."""
        return _WORD.sub(lambda word: self._hidden_by(word) or word[0], text) if has_stem(text) else text

    def _hidden_by(self, word: re.Match[str]) -> str | None:
        char = self._chars[int(word[1])] if word[1] and int(word[1]) < len(self._chars) else None
        return char if char is not None and word[0] == self._words[char] else None

    def _char(self, word: re.Match[str]) -> str:
        char = self._hidden_by(word)
        if char is None:
            text = word.string[max(word.start() - 40, 0) : word.end() + 40]
            raise TemplateUnsupported(
                "the template writes a word of the probe, or changes what was hidden from it", rendered=text
            )
        return char

    def hide_message(self, message: Message) -> Message:
        """The message with all its texts hidden; itself if there is nothing to hide."""
        calls = tuple(map(self._hide_call, message.tool_calls))
        texts = {name: getattr(message, name) for name in ("content", "reasoning", "name", "tool_call_id")}
        changed: dict[str, Any] = {k: self.hide(v) for k, v in texts.items() if v and self.hide(v) != v}
        if calls != message.tool_calls:
            changed["tool_calls"] = calls
        return message.model_copy(update=changed) if changed else message

    def _hide_call(self, call: ToolCall) -> ToolCall:
        texts = {"name": self.hide(call.name), "id": call.id and self.hide(call.id)}
        return call.model_copy(update={**texts, "arguments": self.hide_all(call.arguments)})

    def hide_all(self, value: Any) -> Any:
        """A value of JSON with all its strings hidden."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.hide(key): self.hide_all(item) for key, item in items}
        return [self.hide_all(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """A rendered text cut at its control tokens: each part, and whether it is one."""
        for index, part in enumerate(self._cut.split(text)):
            if part:
                yield part, index % 2 == 1

    def shared(self, first: str, second: str) -> int:
        """How many characters two texts have in common at their start, with no control token cut."""
        length = shared_start([first, second])
        for text in (first, second):
            near = max(0, length - self._longest)
            for match in self._cut.finditer(text, near, length + self._longest):
                if match.start() < length < match.end():
                    length = match.start()
        return length

    def controls(self, text: str) -> list[tuple[str, int]]:
        """The control tokens of a rendered text and where they begin."""
        return [(match[1], match.start()) for match in self._cut.finditer(text)]


def has_stem(text: str) -> bool:
    """Whether a text has what only probes and masks say."""
    return STEM.lower() in text.lower()


def shared_start(texts: Sequence[str]) -> int:
    """How many characters all texts have in common at their start."""
    first, *others = texts
    length = min(map(len, texts))
    for other in others:
        if not other.startswith(first[:length]):
            length = bisect_left(range(length), True, key=lambda end: not other.startswith(first[: end + 1]))
    return length


class _Generation(Extension):
    """The `generation` tag, which marks what a model said; it renders as what it holds."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body)]


class _Sandbox(ImmutableSandboxedEnvironment):
    """Remembers which attributes are safe, which depends on the object's type and takes half the time to find out."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._safe: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = (cast("type[Any]", type(obj)), attr)
        is_safe = self._safe.get(key)
        if is_safe is None:
            is_safe = self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return is_safe


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox()
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception  # pyright: ignore[reportArgumentType]
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter escapes HTML; templates want plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
