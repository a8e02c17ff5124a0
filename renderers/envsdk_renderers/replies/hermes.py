"""Reads replies in the form of Hermes: a think block, text, and tool calls between tags, mostly as JSON.

Knows nothing about tokens: a reply is text cut at its control tokens.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from envsdk.messages import Message, ToolCall
from envsdk.rendering.renderer import Segment, SplitReply, errors_at_end

from .spelled import hide


class HermesReply:
    """A reply that is being read: the position in it, and what was read so far.

    Args:
        write_call: Writes the text between the tags of a call as the family does. If a model wrote another text, the
            call keeps it in `ToolCall.raw`.
        read_call: Reads the text between the tags.
        before_call: What the family writes between the text and the first call.
        call_tags: The control tokens that belong inside a call. If there are any, `read_call` receives all other text
            as `spelled.hide` returns it.
    """

    def __init__(
        self,
        write_call: Callable[[ToolCall], str],
        read_call: Callable[[str], ToolCall],
        before_call: str,
        call_tags: Collection[str] = (),
    ) -> None:
        self._write_call = write_call
        self._read_call = read_call
        self._before_call = before_call
        self._call_tags = call_tags
        self._block = "text"
        # Lists of parts, since joining at each step would take quadratic time.
        self._reasoning: list[str] | None = None
        self._content: list[str] = []
        self._call: list[tuple[str, str]] = []
        """The tags of the open call, each with the text after it; the first text has no tag."""
        self._calls: list[ToolCall] = []
        self._errors: dict[str, None] = {}
        """Each error once, in the order in which they were found."""

    def read(self, segments: Iterable[Segment]) -> None:
        """Read a part of the reply, cut at its control tokens."""
        for segment in segments:
            self._read(segment.control, segment.text)

    def _read(self, control: str, text: str) -> None:
        match control, self._block:
            case "", _:
                self._add(text)
            case "<think>", "text" if self._reasoning is None and not self._calls:
                self._block, self._reasoning = "reasoning", [text]
                if "".join(self._content).strip():
                    self._note("there is text before the think block")
                else:
                    self._content = []
            case "</think>", "reasoning":
                self._block = "text"
                self._add_apart(text.lstrip("\n"))
            case "</think>", "text" if self._reasoning is None and not self._calls:
                self._note("a think block was closed that was never opened: the text before it is reasoning")
                self._reasoning, self._content = self._content, []
                self._add(text)
            case "<tool_call>", "text":
                self._block, self._call = "call", [("", text)]
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

    def message(self, sampled: SplitReply) -> Message:
        """Return the message after everything was read; `sampled` specifies how the reply ended."""
        open_block: Any = {"reasoning": "reasoning", "call": "tool_call"}.get(self._block)
        if self._block == "reasoning":
            self._note("the think block was not closed")
        elif self._block == "call":
            self._end_call("the tool call was not closed")
        for error in errors_at_end(is_ended=sampled.is_ended, overrun=sampled.overrun):
            self._note(error)
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
        """Add text at the current position."""
        match self._block:
            case "reasoning" if self._reasoning is not None:
                self._reasoning.append(text)
            case "call":
                self._call.append(("", text))
            case _:
                text = text.lstrip("\n") if self._reasoning is not None and not self._content else text
                self._content += [text] if text else []

    def _add_apart(self, text: str) -> None:
        """Add text after a block to the text before the block, on a line of its own."""
        self._content += ["\n", text] if text and self._content else [text] if text else []

    def _end_call(self, error: str | None) -> None:
        text = "".join(tag + spelled for tag, spelled in self._call)
        marked = "".join(tag + hide(spelled) for tag, spelled in self._call) if self._call_tags else text
        call = self._read_call(marked)
        error = error or call.error
        raw = text if error or self._write_call(call) != text else None
        self._calls.append(call.model_copy(update={"error": error, "raw": raw}) if error or raw else call)
        if error:
            self._note(error)
        self._block, self._call = "text", []
