"""Reads replies in Harmony, the format of gpt-oss: a reply is several messages in channels, which become one message.

The package openai-harmony reads the headers. Everything else is read here, since a reply may be cut or broken anywhere.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from openai_harmony import (
    HarmonyError,  # pyright: ignore[reportUnknownVariableType]
    Role,
)
from pydantic import ValidationError

from envsdk._visible import brief
from envsdk.messages import Message, ToolCall, with_unique_keys
from envsdk.rendering.renderer import TokenIds, errors_at_end
from envsdk.rendering.tokenizers import Tokenizer

from .._grammars._styles import json_text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from openai_harmony import HarmonyEncoding

FUNCTIONS = "functions."
"""The prefix of the names of tools in headers."""
_MAX_HEADER_TOKENS = 128  # of a header: the library's time is not linear in its length
_MAX_HEADERS = 32  # of one reply: the library takes milliseconds to read one
_KEPT_HEADERS = 256  # of all replies: models write the same few again and again


class Chunk(NamedTuple):
    """One of the messages of a reply, as tokens."""

    header: "NDArray[np.int32]"
    """The tokens from `<|start|>assistant`, in the prompt for the first one, to `<|message|>`: shape (n,)."""
    body: "NDArray[np.int32] | None"
    """The tokens after `<|message|>`, shape (n,); None if there is no `<|message|>`."""
    end: int | None
    """The token that ends it, if any; `<|start|>` if the next message begins before this one was ended."""
    outside: "NDArray[np.int32]"
    """The tokens before its `<|start|>`, outside of any message: shape (n,)."""


class Header(NamedTuple):
    """The content of a message's header."""

    channel: str | None
    recipient: str | None
    """The tool that is called."""
    error: str | None


class HarmonyReader:
    """Reads the tokens of replies.

    Args:
        tokenizer: A gpt-oss tokenizer.
        encoding: The encoding of openai-harmony, which reads headers.
        stop_tokens: The tokens that end a reply.
        controls: The names of all control tokens of the format.
    """

    def __init__(
        self, tokenizer: Tokenizer, encoding: "HarmonyEncoding", stop_tokens: Sequence[str], controls: Sequence[str]
    ) -> None:
        self.decode = tokenizer.decode
        self._encoding = encoding
        self._stops = [tokenizer.token_id(name) for name in stop_tokens]
        self._controls = {name: tokenizer.token_id(name) for name in controls}
        self._start, self._end, self._message, self._call = map(
            tokenizer.token_id, ("<|start|>", "<|end|>", "<|message|>", "<|call|>")
        )
        self._ends = {self._end, self._start, *self._stops}  # where a message begins, the last one is over
        self._role = tuple(tokenizer.encode("assistant").tolist())
        self._is_control = np.zeros(tokenizer.vocab_size + 1, dtype=bool)
        self._is_control[[*self._controls.values()]] = True
        self._parsed = lru_cache(_KEPT_HEADERS)(self._parse_header)

    def read(self, tokens: TokenIds) -> Message:
        """Read a reply from the opening of an assistant's message on; any tokens are accepted."""
        ids = np.asarray(tokens, dtype=np.int32)
        stop = next((at for at in self._controls_in(ids) if int(ids[at]) in self._stops), None)
        end = len(ids) if stop is None else stop + 1
        reply = _HarmonyReply()
        for chunk in self.chunks(ids[:end]):
            self._read_chunk(chunk, reply)
        if stop is not None:
            reply.open_block = None
        overrun = self.decode(ids[end:])
        errors = [*reply.errors, *errors_at_end(is_ended=stop is not None, overrun=overrun)]
        return Message(
            role="assistant",
            content="\n".join(reply.content),
            reasoning="\n".join(reply.reasoning) if reply.reasoning else None,
            tool_calls=tuple(reply.calls),
            errors=tuple(dict.fromkeys(errors)),
            open_block=reply.open_block,
        )

    def chunks(self, reply: TokenIds) -> list[Chunk]:
        """Cut a reply into its messages; the last one may be cut anywhere."""
        ids = np.asarray(reply, dtype=np.int32)
        chunks: list[Chunk] = []
        outside, start = ids[:0], 0  # where the header begins
        message: int | None = None
        is_inside = True  # the prompt has opened the first message
        for at in [*self._controls_in(ids), len(ids)]:
            token = int(ids[at]) if at < len(ids) else None
            if is_inside and (token is None or token in self._ends):
                header, body = ids[start:at], None
                if message is not None:
                    header, body = ids[start:message], ids[message + 1 : at]
                chunks.append(Chunk(header, body, token, outside))
                outside, start, message, is_inside = ids[:0], at + 1, None, token == self._start
            elif is_inside and message is None and token == self._message:
                message = at
            elif not is_inside and token == self._start:
                outside, start, is_inside = ids[start:at], at + 1, True
            elif not is_inside and token is None and start < at:
                chunks.append(Chunk(ids[:0], None, self._end, ids[start:]))
        return chunks

    def _controls_in(self, ids: "NDArray[np.int32]") -> list[int]:
        """Return the positions of the format's control tokens."""
        return self._is_control.take(ids, mode="clip").nonzero()[0].tolist()

    def _read_chunk(self, chunk: Chunk, reply: "_HarmonyReply") -> None:
        if len(chunk.outside):
            reply.errors.append(f"there is text outside of any message: {self._start_of(chunk.outside)!r}")
        if chunk.body is None:
            if len(chunk.header):
                reply.errors.append(f"a message has a header and no content: {self._start_of(chunk.header)!r}")
            return
        header = tuple(chunk.header.tolist())
        if reply.has_first:  # only the first header lacks the role
            if header[: len(self._role)] != self._role:
                start = np.concatenate([chunk.header[:40], chunk.body[:40]])
                reply.errors.append(f"a message is not the assistant's: {brief(self.decode(start), 40)}")
                return
            header = header[len(self._role) :]
        reply.has_first = True
        channel, recipient, error = self._read_header(header, reply.headers)
        reply.errors += [error] if error else []
        present = {int(chunk.body[at]) for at in self._controls_in(chunk.body)}
        for name, token in self._controls.items():
            if token in present:
                reply.errors.append(f"{name} is out of place: it is inside a message")
        is_call = reply.add(channel, recipient, self.decode(chunk.body), is_open=chunk.end is None)
        if chunk.end == self._start:
            reply.errors.append("a message was not ended: the next one begins inside it")
        elif chunk.end in self._stops and channel == "analysis" and not is_call:
            reply.errors.append("the turn was ended in the reasoning: there is neither an answer nor a call")
        elif chunk.end == self._call and not is_call:
            reply.errors.append("the turn was ended with <|call|>, but no tool is called")
        elif is_call and chunk.end not in (self._call, None):
            reply.errors.append("a call was not ended with <|call|>")

    def _read_header(self, header: tuple[int, ...], known: set[tuple[int, ...]]) -> Header:
        """Read a header; the number and length of a reply's different headers are bounded, to bound the time."""
        if len(header) > _MAX_HEADER_TOKENS:
            return self._unreadable(header, f"it has more than {_MAX_HEADER_TOKENS} tokens")
        if header not in known and len(known) >= _MAX_HEADERS:
            error = f"the reply has more than {_MAX_HEADERS} different headers: they are not read"
            return Header("final", None, error)
        known.add(header)
        return self._parsed(header)

    def _parse_header(self, header: tuple[int, ...]) -> Header:
        try:
            (parsed,) = self._encoding.parse_messages_from_completion_tokens(
                [*header, self._message, self._end], Role.ASSISTANT, strict=False
            )
        except (HarmonyError, ValueError) as error:  # pyright: ignore[reportUnknownVariableType]
            return self._unreadable(header, str(cast("object", error))[:200])
        if parsed.recipient and f"to={parsed.recipient}" not in self.decode(header):
            return Header(parsed.channel, None, f"a header has a word too many: {self._start_of(header)!r}")
        return Header(parsed.channel, parsed.recipient, None)

    def _unreadable(self, header: tuple[int, ...], why: str) -> Header:
        return Header("final", None, f"a header cannot be read: {self._start_of(header)!r}: {why}")

    def _start_of(self, tokens: "Sequence[int] | NDArray[np.int32]") -> str:
        """Return the first 40 characters of a text."""
        return self.decode(tokens[:40])[:40]


@dataclass
class _HarmonyReply:
    """The parts of a reply that were read so far."""

    errors: list[str] = field(default_factory=list[str])
    has_first: bool = False
    open_block: Literal["reasoning", "tool_call"] | None = None
    headers: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    reasoning: list[str] = field(default_factory=list[str])
    content: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def add(self, channel: str | None, recipient: str | None, text: str, *, is_open: bool) -> bool:
        """Add a message; return whether it is a call."""
        self.open_block = None
        if recipient is not None and recipient != "assistant":
            if channel != "commentary":
                self.errors.append(f"a call is in the channel {channel}, not in commentary")
            call = _read_call(recipient.removeprefix(FUNCTIONS), text, is_open=is_open)
            self.calls.append(call)
            self.errors += [call.error] if call.error else []
            self.open_block = "tool_call" if is_open else None
            return True
        if channel == "analysis":
            self.reasoning.append(text)
            self.open_block = "reasoning" if is_open else None
            self.errors += ["the reasoning was not ended"] if is_open else []
            return False
        if channel not in ("final", "commentary"):
            self.errors.append(
                "a message has no channel" if channel is None else f"there is no channel {brief(channel)}"
            )
        self.content.append(text)
        return False


def write_arguments(call: ToolCall) -> str:
    """Return the text of a call: as it was sampled, or its arguments.

    Raises:
        RenderError: If the arguments are not JSON.
    """
    if call.raw is not None:
        return call.raw
    return call.arguments if isinstance(call.arguments, str) else json_text(call.arguments, f"call of {call.name!r}")


def _read_call(name: str, text: str, *, is_open: bool) -> ToolCall:
    error = None
    try:
        value: Any = json.loads(text, object_pairs_hook=with_unique_keys)
        call = ToolCall.model_validate({"name": name, "arguments": value if isinstance(value, dict) else text})
        if not isinstance(value, dict):
            error = "a tool call's arguments are not a JSON object"
    except ValidationError as why:
        call = ToolCall(name=name, arguments=text)
        error = f"a tool call is not valid JSON: {why.errors()[0]['msg'].removeprefix('Value error, ')}"
    except (ValueError, RecursionError) as why:
        call = ToolCall(name=name, arguments=text)
        error = f"a tool call is not valid JSON: {why}"
    error = "the tool call was not closed" if is_open else error
    return (
        call if not error and write_arguments(call) == text else call.model_copy(update={"error": error, "raw": text})
    )
