"""Harmony, the format of gpt-oss. The package openai-harmony renders it and parses it; this says what goes where.

Source of the rules: the package (https://github.com/openai/harmony) for the format, and the official chat template of
openai/gpt-oss-20b for what of the past is shown, since that is what inference servers use.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyError,  # pyright: ignore[reportUnknownVariableType]
    ReasoningEffort,
    Role,
    SystemContent,
    ToolDescription,
)
from openai_harmony import Message as HarmonyMessage

from envsdk.errors import ConfigError, RenderError
from envsdk.messages import Message, ToolCall, ToolSchema, with_unique_keys
from envsdk.rendering.emission import Emission
from envsdk.rendering.renderer import NOT_ENDED, Renderer, TokenIds
from envsdk.rendering.tokenizers import Tokenizer

from .harmony_vocabulary import load_encoding
from .open_calls import OpenCalls

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FUNCTIONS = "functions."
_MAX_HEADER_TOKENS = 128  # of a header: the library's time is not linear in its length
_MAX_HEADERS = 32  # of one reply: the library takes milliseconds to read one
_TO_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


class Chunk(NamedTuple):
    """One of the messages that a reply consists of, as tokens."""

    header: list[int]
    """From behind `<|start|>assistant`, which the first one has in the prompt, to before `<|message|>`."""
    body: list[int] | None
    """What stands behind `<|message|>`; None if there is none."""
    end: int | None
    """The token that ends it, if there is one: `<|start|>` where the next message begins before this one was ended."""
    outside: list[int]
    """What stands before its `<|start|>`, outside of any message."""


class Header(NamedTuple):
    """What the header of a message says."""

    channel: str | None
    recipient: str | None
    """Whom it is addressed to: the tool that is called."""
    error: str | None


class Harmony(Renderer):
    """Harmony: channels for reasoning (`analysis`), calls (`commentary`) and answers (`final`).

    A first system message, or a developer's, becomes the developer message, as in the official template; Harmony's own
    system message holds the date, the effort and the channels.

    Args:
        tokenizer: A gpt-oss tokenizer.
        reasoning_effort: `low`, `medium` or `high`.
        current_date: The date in the system message, `YYYY-MM-DD`. It is never the clock's.
        official_history: Write `<|end|>` where the model sampled `<|return|>`, as the official history does: a
            `template` break behind each answer. By default the past stays as it was sampled.
        unsafe_content: Not possible here: the library never reads control tokens in content.

    Raises:
        TokenizerError: If the tokenizer is no gpt-oss tokenizer, or the library's vocabulary does not load.
    """

    name: ClassVar[str] = "harmony"
    known_differences: ClassVar[Mapping[str, str]] = {
        "system": "the template writes an empty line behind instructions without tools, the library none",
        "call": "the template writes `commentary json` in the header of a call, the library "
        "`commentary <|constrain|>json`; it drops all calls of a message but the first, and encodes arguments that are "
        "a string twice",
        "tool": "the template writes a text from a tool as a string of JSON, the library as it is; they differ in "
        "schemas with defaults, nested objects, oneOf, no parameters, or descriptions of several lines",
        "system after": "the template drops a later system message",
    }
    roles: ClassVar[frozenset[str]] = frozenset({"system", "developer", "user", "assistant", "tool"})
    stop_tokens: ClassVar[tuple[str, ...]] = ("<|return|>", "<|call|>")
    after_turn: ClassVar[str] = ""
    opening: ClassVar[str] = "<|start|>assistant"
    blocks: ClassVar[Mapping[str, str]] = {}
    structure: ClassVar[tuple[str, ...]] = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reasoning_effort: Literal["low", "medium", "high"] = "medium",
        current_date: str = "2025-08-05",
        official_history: bool = False,
        unsafe_content: bool = False,
    ) -> None:
        super().__init__(tokenizer)
        if unsafe_content:
            raise ConfigError("harmony has no unsafe_content: openai-harmony never reads control tokens in content")
        if reasoning_effort not in ("low", "medium", "high"):
            raise ConfigError(f"reasoning_effort is {reasoning_effort!r}; expected 'low', 'medium' or 'high'")
        try:
            date.fromisoformat(current_date)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"current_date is {current_date!r}; expected YYYY-MM-DD") from error
        self.reasoning_effort = reasoning_effort
        self.current_date = current_date
        self.official_history = bool(official_history)
        self.encoding = load_encoding(tokenizer)
        self._start, self._end, self._message, self._channel = map(
            tokenizer.token_id, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>")
        )
        self._return, self._call = self.stop_token_ids
        self._check_vocabulary()

    def _check_vocabulary(self) -> None:
        text = "Héllo <|end|> wörld 12345\n"
        ours = [*self.opening_tokens.tolist(), *self.tokenizer.encode(text).tolist()]
        theirs = self._render_one(HarmonyMessage.from_role_and_content(Role.ASSISTANT, text)).tolist()
        if theirs != [*ours[:2], self._message, *ours[2:], self._end]:
            raise ConfigError(f"the tokenizer {self.tokenizer.name!r} gives other ids than openai-harmony's vocabulary")

    def specification(self) -> dict[str, Any]:
        """See `Renderer.specification`."""
        given = {
            "reasoning_effort": (self.reasoning_effort, "medium"),
            "current_date": (self.current_date, "2025-08-05"),
            "official_history": (self.official_history, False),
        }
        return {
            **super().specification(),
            **{name: value for name, (value, default) in given.items() if value != default},
        }

    # Writing.

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """The system message that every conversation has, and a developer's for instructions and tools."""
        effort = ReasoningEffort(self.reasoning_effort.title())
        content = SystemContent.new().with_conversation_start_date(self.current_date).with_reasoning_effort(effort)
        messages = [HarmonyMessage.from_role_and_content(Role.SYSTEM, content)]
        if tools or (system is not None and system.content):
            messages.append(self._developer("" if system is None else system.content, tools))
        # Rendered together, since the system message says where the developer's tools are called.
        tokens = np.array(self.encoding.render_conversation(Conversation.from_messages(messages)), dtype=np.int32)
        starts = np.flatnonzero(tokens == self._start).tolist()
        head = starts[1] if len(starts) > 1 else len(tokens)
        out.encoded(tokens[:head], content_after=None)  # Harmony's own system message is nobody's text
        out.encoded(tokens[head:], content_after=self._message)

    def _developer(self, instructions: str, tools: Sequence[ToolSchema]) -> HarmonyMessage:
        content = DeveloperContent.new()
        if instructions:
            content = content.with_instructions(instructions)
        if tools:
            content = content.with_function_tools([_description(tool) for tool in tools])
        return HarmonyMessage.from_role_and_content(Role.DEVELOPER, content)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """A user's message, a later developer's, or the result of a tool, which the tool's name opens."""
        match message.role:
            case "user":
                written = HarmonyMessage.from_role_and_content(Role.USER, message.content)
            case "tool":
                author = Author.new(Role.TOOL, _FUNCTIONS + (message.name or ""))
                written = HarmonyMessage.from_author_and_content(author, message.content)
                written = written.with_channel("commentary").with_recipient("assistant")
            case _:
                written = self._developer(message.content, ())
        out.encoded(self._render_one(written), content_after=self._message)

    def emit_conversation(
        self,
        out: Emission,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        first: int = 0,
        stop: int | None = None,
    ) -> None:
        """See `Renderer.emit_conversation`; a tool's result is opened by the name of the tool whose call it answers."""
        named = list(messages)
        named[first:stop] = with_tool_names(messages, first, stop)
        super().emit_conversation(out, named, tools=tools, first=first, stop=stop)

    def seam(self, message: Message, neighbor: Message | None) -> object:
        """A tool's result depends on the calls that it may answer."""
        if message.role != "tool" or neighbor is None or (message.name and message.tool_call_id is None):
            return None
        return neighbor.role, tuple((call.name, call.id) for call in neighbor.tool_calls)

    def emit_reply(self, out: Emission, message: Message) -> None:
        """The reasoning, then a call or an answer; the last message ends with the token at which sampling stops."""
        if len(message.tool_calls) > 1:
            raise RenderError("a reply in harmony ends with its first call; it cannot have two")
        self._emit_assistant(out, message, self._return)

    def emit_past_reply(self, out: Emission, message: Message) -> None:
        """In the past, an answer ends like any other message."""
        self._emit_assistant(out, message, self._end)

    def _emit_assistant(self, out: Emission, message: Message, end: int) -> None:
        written = [self._render_one(part) for part in _parts(message)]
        if not message.tool_calls:
            written[-1][-1] = end
        written[0] = written[0][len(self.opening_tokens) :]
        for tokens in written:
            out.encoded(tokens, content_after=self._message)

    def _render_one(self, message: HarmonyMessage) -> "NDArray[np.int32]":
        try:
            return np.array(self.encoding.render(message), dtype=np.int32)
        except (HarmonyError, ValueError, TypeError) as error:  # pyright: ignore[reportUnknownVariableType]
            raise RenderError(f"openai-harmony does not render a message: {error}") from error

    def emit_history(
        self,
        out: Emission,
        messages: Sequence[Message],
        history: Literal["template", "keep"],
        *,
        tools: Sequence[ToolSchema],
        generation_prompt: bool,
    ) -> None:
        """See `Renderer.emit_history`; an answer at the end of a conversation ends with `<|return|>`."""
        if history != "template" or messages[-1].role != "assistant":
            super().emit_history(out, messages, history, tools=tools, generation_prompt=generation_prompt)
            return
        *past, last = self.visible(messages)
        if generation_prompt:
            last = last if last.tool_calls else last.with_reasoning(None)
            self.emit_conversation(out, [*past, last], tools=tools)
            return
        self.emit_conversation(out, [*past, last], tools=tools, stop=len(past))
        out.begin(len(past), "assistant")
        out.scaffold(self.opening)
        out.attribute(len(past), "assistant", is_sampled=True)
        self.emit_reply(out, last)

    # What of the past is shown.

    def settles(self, message: Message) -> bool:
        """An answer does: once it is given, no earlier reasoning is shown."""
        return message.role == "assistant" and not message.tool_calls

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Reasoning is shown from the last answer on: that of calls behind it, and its own while nothing follows."""
        tail = list(messages[settled:])
        answers = [index for index, message in enumerate(tail) if self.settles(message)]
        last = answers[-1] if answers else -1
        is_last = last == len(tail) - 1
        return [
            message.with_reasoning(None) if index < last or (index == last and not is_last) else message
            for index, message in enumerate(tail)
        ]

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """With `official_history`, the `<|return|>` at the end."""
        return int(self.official_history and len(reply) > 0 and int(reply[-1]) == self._return)

    # What follows a reply, and what goes on inside it.

    def closing(self, reply: TokenIds, following: Message | None = None) -> str:
        """The end of the message that is open, if one is."""
        if len(reply) and int(reply[-1]) in self.stop_token_ids:
            return ""
        last = self._chunks(reply)[-1]
        if last.end is not None:
            return ""
        return "<|message|><|end|>" if last.body is None else "<|end|>"

    def prefill(self, start: str | Message) -> "NDArray[np.int32]":
        """See `Renderer.prefill`; a text begins the answer, since the generation prompt ends inside a header."""
        return super().prefill(Message(role="assistant", content=start) if isinstance(start, str) else start)

    def continuation(self, reply: TokenIds, addition: str | Message) -> "tuple[int, NDArray[np.int32]]":
        """See `Renderer.continuation`; reasoning goes on in a message of the channel `analysis`."""
        kept, tokens = super().continuation(reply, addition if isinstance(addition, str) else "")
        if isinstance(addition, str):
            return kept, tokens
        last = self._chunks(np.asarray(reply, dtype=np.int32)[:kept])[-1]
        is_thinking = last.body is not None and last.end is None and "analysis" in self._decode(last.header)
        if addition.reasoning and not is_thinking:
            raise RenderError("the reply cannot go on with reasoning: it has no open message in the channel analysis")
        out = self.emission()
        out.content(addition.reasoning or "")
        if addition.reasoning is None or "content" in addition.model_fields_set:
            out.scaffold(_TO_FINAL if is_thinking else "")
            out.content(addition.content)
        return kept, out.tokens()[0]

    # Reading.

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """See `Renderer.parse`: the messages of a reply become one."""
        started = self.after_opening(prompt_tail)
        ids = np.concatenate([np.asarray(started, dtype=np.int32), np.asarray(tokens, dtype=np.int32)])
        stops = np.isin(ids, self.stop_token_ids).nonzero()[0]
        end = int(stops[0]) + 1 if len(stops) else len(ids)
        reading = _Reading()
        for chunk in self._chunks(ids[:end]):
            self._read(chunk, reading)
        if len(stops):
            reading.open_block = None
        overrun = self._decode(ids[end:].tolist())
        if overrun:
            reading.note(f"there is text after the end of the turn: {overrun[:40]!r}")
        if not len(stops):
            reading.note(NOT_ENDED)
        return reading.message()

    def _chunks(self, reply: TokenIds) -> list[Chunk]:
        """The messages of a reply; the last one may be cut anywhere."""
        ends = {self._end, self._return, self._call, self._start}  # where a message begins, the last one is over
        chunks: list[Chunk] = []
        header: list[int] = []
        outside: list[int] = []
        body: list[int] | None = None
        is_inside = True  # the prompt has opened the first message
        for token in np.asarray(reply, dtype=np.int32).tolist():
            if not is_inside:
                is_inside = token == self._start
                if not is_inside:
                    outside.append(token)
            elif token in ends:
                chunks.append(Chunk(header, body, token, outside))
                header, outside, body, is_inside = [], [], None, token == self._start
            elif body is not None:
                body.append(token)
            elif token == self._message:
                body = []
            else:
                header.append(token)
        if is_inside or outside or not chunks:
            chunks.append(Chunk(header, body, None if is_inside else self._end, outside))
        return chunks

    def _read(self, chunk: Chunk, reading: "_Reading") -> None:
        if chunk.outside:
            reading.note(f"there is text outside of any message: {self._decode(chunk.outside[:40])[:40]!r}")
        if chunk.body is None:
            if chunk.header:
                reading.note(f"a message has a header and no content: {self._decode(chunk.header[:40])[:40]!r}")
            return
        header, role = chunk.header, self.opening_tokens[1:2].tolist()
        if reading.has_first:
            if header[:1] != role:
                said = self._decode([*header[:40], *chunk.body[:40]])
                reading.note(f"a message is not the assistant's: {said[:40]!r}")
                return
            header = header[1:]
        reading.has_first = True
        channel, recipient, error = self._read_header(header, reading.headers)
        if error is not None:
            reading.note(error)
        inside = self._marks_in(np.asarray(chunk.body, dtype=np.int32))
        for mark in np.unique(inside[inside > 0]).tolist():
            reading.note(f"{self._marks[mark - 1]} is out of place: it is inside a message")
        reading.add(channel, recipient, self._decode(chunk.body), is_open=chunk.end is None)
        error = self._wrong_end(chunk.end, channel, recipient)
        if error is not None:
            reading.note(error)

    def _read_header(self, header: list[int], known: dict[tuple[int, ...], Header]) -> Header:
        """Read a header, each only once, and so few and short ones that no reply can hold up the process."""
        if len(header) > _MAX_HEADER_TOKENS:
            return self._unreadable(header, f"it has more than {_MAX_HEADER_TOKENS} tokens")
        key = tuple(header)
        if key not in known:
            if len(known) >= _MAX_HEADERS:
                return Header(
                    "final", None, f"the reply has more than {_MAX_HEADERS} different headers: they are not read"
                )
            known[key] = self._parse_header(header)
        return known[key]

    def _unreadable(self, header: list[int], why: str) -> Header:
        return Header("final", None, f"a header cannot be read: {self._decode(header[:40])[:40]!r}: {why}")

    def _parse_header(self, header: list[int]) -> Header:
        try:
            (parsed,) = self.encoding.parse_messages_from_completion_tokens(
                [*header, self._message, self._end], Role.ASSISTANT, strict=False
            )
        except (HarmonyError, ValueError) as error:  # pyright: ignore[reportUnknownVariableType]
            return self._unreadable(header, str(cast("object", error))[:200])
        if parsed.recipient and f"to={parsed.recipient}" not in self._decode(header):
            return Header(parsed.channel, None, f"a header has a word too many: {self._decode(header[:40])[:40]!r}")
        return Header(parsed.channel, parsed.recipient, None)

    def _wrong_end(self, end: int | None, channel: str | None, recipient: str | None) -> str | None:
        """What is wrong with the token that ends a message, if anything is."""
        is_call = _is_a_tool(recipient)
        if end == self._start:
            return "a message was not ended: the next one begins inside it"
        if end in self.stop_token_ids and channel == "analysis" and not is_call:
            return "the turn was ended in the reasoning: there is neither an answer nor a call"
        if end == self._call and not is_call:
            return "the turn was ended with <|call|>, but no tool is called"
        if is_call and end not in (self._call, None):
            return "a call was not ended with <|call|>"
        return None

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(np.asarray(tokens, dtype=np.int32))


class _Reading:
    """What was read of a reply."""

    def __init__(self) -> None:
        self.errors: dict[str, None] = {}
        """Each error once, in the order in which they were found."""
        self.has_first = False
        self.open_block: Any = None
        self.headers: dict[tuple[int, ...], Header] = {}
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []

    def note(self, error: str) -> None:
        """Take an error."""
        self.errors[error] = None

    def add(self, channel: str | None, recipient: str | None, text: str, *, is_open: bool) -> None:
        """Take a message."""
        self.open_block = None
        if recipient is not None and _is_a_tool(recipient):
            if channel != "commentary":
                self.note(f"a call is in the channel {channel}, not in commentary")
            call = _read_call(recipient, text, is_open=is_open)
            self._calls.append(call)
            if call.error:
                self.note(call.error)
            self.open_block = "tool_call" if is_open else None
        elif channel == "analysis":
            self._reasoning.append(text)
            self.open_block = "reasoning" if is_open else None
            if is_open:
                self.note("the reasoning was not ended")
        else:
            if channel not in ("final", "commentary"):
                self.note("a message has no channel" if channel is None else f"there is no channel {channel!r:.80}")
            self._content.append(text)

    def message(self) -> Message:
        """All of it as one message."""
        return Message(
            role="assistant",
            content="\n".join(self._content),
            reasoning="\n".join(self._reasoning) if self._reasoning else None,
            tool_calls=tuple(self._calls),
            errors=tuple(self.errors),
            open_block=self.open_block,
        )


def _is_a_tool(recipient: str | None) -> bool:
    return recipient is not None and recipient != "assistant"


def _parts(message: Message) -> list[HarmonyMessage]:
    """The messages of the format that an assistant's message becomes: reasoning, a preamble, calls; or the answer."""
    written: list[HarmonyMessage] = []

    def add(text: str, channel: str) -> HarmonyMessage:
        written.append(HarmonyMessage.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))
        return written[-1]

    if message.reasoning is not None:
        add(message.reasoning, "analysis")
    if message.tool_calls and message.content:
        add(message.content, "commentary")
    for call in message.tool_calls:
        add(_call_text(call), "commentary").with_recipient(_FUNCTIONS + call.name).with_content_type(
            "<|constrain|>json"
        )
    if not message.tool_calls:
        add(message.content, "final")
    return written


def _call_text(call: ToolCall) -> str:
    if call.raw is not None:
        return call.raw
    if isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.dumps(call.arguments, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise RenderError(f"the arguments of {call.name!r} are no JSON: {error}") from error


def _read_call(recipient: str, text: str, *, is_open: bool) -> ToolCall:
    name = recipient.removeprefix(_FUNCTIONS)
    call = ToolCall(name=name, arguments=text)
    try:
        arguments: Any = json.loads(text, object_pairs_hook=with_unique_keys)
        if not isinstance(arguments, dict):
            raise ValueError("it is no JSON object")
        call = ToolCall(name=name, arguments=cast("dict[str, Any]", arguments))
        error = None
    except (ValueError, RecursionError) as problem:
        reason = problem.errors()[0]["msg"] if hasattr(problem, "errors") else str(problem)  # pyright: ignore
        error = f"a tool call is not valid JSON: {reason}"
    if is_open:
        error = "the tool call was not closed"
    raw = text if error or _call_text(call) != text else None
    return call.model_copy(update={"error": error, "raw": raw}) if error or raw is not None else call


@lru_cache(maxsize=256)
def _cached_description(schema: str) -> ToolDescription:
    tool: dict[str, Any] = json.loads(schema)
    return ToolDescription(
        name=tool["name"], description=tool.get("description") or "", parameters=tool.get("parameters")
    )


def _description(tool: ToolSchema) -> ToolDescription:
    try:
        return _cached_description(json.dumps(tool.get("function", tool)))
    except (TypeError, ValueError) as error:
        raise RenderError(f"openai-harmony does not take the tool {tool!r:.80}: {error}") from error


def with_tool_names(messages: Sequence[Message], first: int = 0, stop: int | None = None) -> list[Message]:
    """Return `messages[first:stop]`, with the name of its tool on each tool's result; see `OpenCalls`.

    Raises:
        RenderError: If there is no such call, or the result has the name of another tool.
    """
    named: list[Message] = []
    start = first
    while start > 0 and messages[start - 1].role != "assistant":
        start -= 1
    calls: tuple[ToolCall, ...] = messages[start - 1].tool_calls if start else ()
    open_calls = OpenCalls(calls)
    for index, message in enumerate(messages[start:stop], start=start):
        if message.role == "assistant":
            calls, open_calls = message.tool_calls, OpenCalls(message.tool_calls)
        elif message.role == "tool":
            answered = open_calls.answered_by(message)
            name = message.name or (None if answered is None else calls[answered].name)
            if not name:
                raise RenderError(
                    "harmony writes the tool's name before its result, and no call is left that this one answers: give "
                    "the tool message a `name`, or the `tool_call_id` of its call"
                )
            message = message if message.name == name else message.model_copy(update={"name": name})
        if index >= first:
            named.append(message)
    return named
