"""Reads replies of the Hermes kind: a think block, text, and tool calls between tags, mostly as JSON.

Knows nothing about tokens; it gets a reply as text cut at the control tokens.
"""

import json
from collections.abc import Callable, Collection
from typing import Any, cast

from pydantic import ValidationError

from envsdk.messages import Message, ToolCall, with_unique_keys
from envsdk.rendering.renderer import NOT_ENDED

from .spelled import hide


class HermesReply:
    """A reply that is being read: where in it we are, and what was read.

    Args:
        call_text: How the family writes what stands between the tags of a call. Where a model wrote it in another way,
            the call keeps its text in `ToolCall.raw`.
        read_call: Reads what stands between the tags.
        before_call: What the family writes between the text and the first call.
        call_tags: The control tokens that belong inside a call. With them, `read_call` gets the text that was not
            such a token as `spelled.hide` returns it.
    """

    def __init__(
        self,
        call_text: Callable[[ToolCall], str],
        read_call: Callable[[str], ToolCall],
        before_call: str,
        call_tags: Collection[str] = (),
    ) -> None:
        self._call_text = call_text
        self._read_call = read_call
        self._before_call = before_call
        self._call_tags = call_tags
        self._where = "text"
        # Lists of parts, since joining as we go would take quadratic time.
        self._reasoning: list[str] | None = None
        self._content: list[str] = []
        self._call: list[tuple[str, str]] = []
        """The tags of the open call, each with the text after it; none before the first text."""
        self._calls: list[ToolCall] = []
        self._errors: dict[str, None] = {}
        """Each error once, in the order in which they were found."""

    def read(self, control: str, text: str) -> None:
        """Read a control token (none at the start of the reply) and the text after it."""
        match control, self._where:
            case "", _:
                self._add(text)
            case "<think>", "text" if self._reasoning is None and not self._calls:
                self._where, self._reasoning = "reasoning", [text]
                if "".join(self._content).strip():
                    self._note("there is text before the think block")
                else:
                    self._content = []
            case "</think>", "reasoning":
                self._where = "text"
                self._add_apart(text.lstrip("\n"))
            case "</think>", "text" if self._reasoning is None and not self._calls:
                self._note("a think block was closed that was never opened: the text before it is reasoning")
                self._reasoning, self._content = self._content, []
                self._add(text)
            case "<tool_call>", "text":
                self._where, self._call = "call", [("", text)]
                if not self._calls:
                    self._content = [*filter(None, ["".join(self._content).removesuffix(self._before_call)])]
            case _, "call" if control in self._call_tags:
                self._call.append((control, text))
            case "</tool_call>", "call":
                self._end_call(None)
                if text.strip():
                    self._note("there is text after a tool call")
                    self._add_apart(text)
            case _:
                self._note(f"{control} is out of place")
                self._add(control + text)

    def message(self, *, is_ended: bool, overrun: str) -> Message:
        """The message, once all is read."""
        open_block: Any = {"reasoning": "reasoning", "call": "tool_call"}.get(self._where)
        if self._where == "reasoning":
            self._note("the think block was not closed")
        elif self._where == "call":
            self._end_call("the tool call was not closed")
        if overrun:
            self._note(f"there is text after the end of the turn: {overrun[:40]!r}")
        if not is_ended:
            self._note(NOT_ENDED)
        return Message(
            role="assistant",
            content="".join(self._content),
            reasoning=None if self._reasoning is None else "".join(self._reasoning).strip("\n"),
            tool_calls=tuple(self._calls),
            errors=tuple(self._errors),
            open_block=open_block,
        )

    def _note(self, error: str) -> None:
        self._errors[error] = None

    def _add(self, text: str) -> None:
        """Add text to where we are."""
        match self._where:
            case "reasoning" if self._reasoning is not None:
                self._reasoning.append(text)
            case "call":
                self._call.append(("", text))
            case _:
                text = text.lstrip("\n") if self._reasoning is not None and not self._content else text
                self._content += [text] if text else []

    def _add_apart(self, text: str) -> None:
        """Add text behind a block to the text before it, on a line of its own."""
        self._content += ["\n", text] if text and self._content else [text] if text else []

    def _end_call(self, error: str | None) -> None:
        text = "".join(tag + spelled for tag, spelled in self._call)
        marked = "".join(tag + hide(spelled) for tag, spelled in self._call) if self._call_tags else text
        call = self._read_call(marked)
        error = error or call.error
        raw = text if error or self._call_text(call) != text else None
        self._calls.append(call.model_copy(update={"error": error, "raw": raw}) if error or raw else call)
        if error:
            self._note(error)
        self._where, self._call = "text", []


def parse_call(text: str) -> ToolCall:
    """Read `{"name": ..., "arguments": ...}`. What cannot be read is a call with an error and the text as arguments."""
    try:
        value: Any = json.loads(text, object_pairs_hook=with_unique_keys)
    except (ValueError, RecursionError) as error:
        return ToolCall(name="", arguments=text, error=f"a tool call is not valid JSON: {error}")
    if not isinstance(value, dict):
        return ToolCall(name="", arguments=text, error="a tool call is no JSON object")
    fields = cast("dict[str, Any]", value)
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ToolCall(name="", arguments=text, error="a tool call has no name")
    if not isinstance(arguments, (dict, str)):
        return ToolCall(name="", arguments=text, error="a tool call's arguments are no JSON object")
    try:
        return ToolCall(name=name, arguments=cast("dict[str, Any] | str", arguments))
    except ValidationError as error:
        return ToolCall(
            name="",
            arguments=text,
            error=f"a tool call is not valid JSON: {error.errors()[0]['msg'].removeprefix('Value error, ')}",
        )
