"""Harmony, the format of gpt-oss. The package openai-harmony writes most messages; this module specifies which.

Source of the rules: the package (https://github.com/openai/harmony) for the format, and the official chat template of
openai/gpt-oss-20b for what the past shows, since inference servers use that template.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from envsdk._visible import brief
from envsdk.errors import ConfigError, MissingPackage, RenderError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.family import FamilyRenderer
from envsdk.rendering.renderer import TokenIds, sets_content, warn_of_tags
from envsdk.rendering.tokenizers import Tokenizer

from ._harmony_vocabulary import load_encoding
from ._replies._open_calls import OpenCalls

try:
    from openai_harmony import (
        Conversation,
        DeveloperContent,
        HarmonyError,  # pyright: ignore[reportUnknownVariableType]
        ReasoningEffort,
        Role,
        SystemContent,
        ToolDescription,
    )
    from openai_harmony import Message as HarmonyMessage

    from ._replies._harmony import FUNCTIONS, HarmonyReader, write_arguments
except ImportError as error:
    raise MissingPackage(
        f"harmony needs openai-harmony, whose module cannot be imported ({error}). vLLM's oss-harmony has the same "
        "module, which is gone if either of the two is uninstalled: pip install --force-reinstall --no-deps "
        "openai-harmony"
    ) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TO_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


class Harmony(FamilyRenderer):
    """Harmony: channels for reasoning (`analysis`), calls (`commentary`) and answers (`final`).

    A system or developer message at the beginning becomes the developer message, as in the official template; Harmony's
    own system message contains the date, the effort and the channels.

    Args:
        tokenizer: A gpt-oss tokenizer.
        reasoning_effort: `low`, `medium` or `high`.
        current_date: The date in the system message, `YYYY-MM-DD`. The clock is never read.
        official_history: Write `<|end|>` where the model sampled `<|return|>`, as the official history does: a
            `template` break after each answer. By default, the past stays as it was sampled.
        unsafe_content: Not supported: the library never matches control tokens in content.

    Raises:
        TokenizerError: If the tokenizer is not a gpt-oss tokenizer, or the library's vocabulary does not load.
    """

    name: ClassVar[str] = "harmony"
    known_differences: ClassVar[Mapping[str, str]] = {
        "system": "the template writes an empty line after instructions without tools, the library none",
        "call": "the template writes `commentary json` in the header of a call, the library "
        "`commentary <|constrain|>json`; it drops all calls of a message but the first, and encodes arguments that are "
        "a string twice",
        "tool": "the template writes a tool's text as a JSON string, the library writes it verbatim; they differ in "
        "schemas with defaults, nested objects, oneOf, no parameters, or descriptions of several lines",
        "system after": "the template drops a later system message",
    }
    roles: ClassVar[frozenset[str]] = frozenset({"system", "developer", "user", "assistant", "tool"})
    stop_tokens: tuple[str, ...] = ("<|return|>", "<|call|>")
    after_turn: ClassVar[str] = ""
    opening: str = "<|start|>assistant"
    blocks: Mapping[str, str] = {}
    structure: tuple[str, ...] = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>")

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
            raise ConfigError("harmony has no unsafe_content: openai-harmony never matches control tokens in content")
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
        self._start, self._end, self._message = map(tokenizer.token_id, ("<|start|>", "<|end|>", "<|message|>"))
        self._return, self._call = self.stop_token_ids
        commentary, json_type = tokenizer.encode("commentary").tolist(), tokenizer.encode("json").tolist()
        self._of_result = [tokenizer.token_id("<|channel|>"), *commentary]
        constrained = [*tokenizer.encode(" ").tolist(), tokenizer.token_id("<|constrain|>"), *json_type]
        self._of_call = [*self._of_result, *constrained]
        controls = [*self.stop_tokens, *self.structure]
        self._reader = HarmonyReader(tokenizer, self.encoding, self.stop_tokens, controls)
        text = "Héllo <|end|> wörld 12345\n"
        ours = [*self.opening_tokens.tolist(), *self.tokenizer.encode(text).tolist()]
        theirs = self._render_one(HarmonyMessage.from_role_and_content(Role.ASSISTANT, text)).tolist()
        if theirs != [*ours[:2], self._message, *ours[2:], self._end]:
            raise ConfigError(
                f"the ids of the tokenizer {self.tokenizer.name!r} differ from openai-harmony's vocabulary"
            )

    # Writing.

    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write the system message of every conversation, and the developer message with instructions and tools."""
        effort = ReasoningEffort(self.reasoning_effort.title())
        content = SystemContent.new().with_conversation_start_date(self.current_date).with_reasoning_effort(effort)
        messages = [HarmonyMessage.from_role_and_content(Role.SYSTEM, content)]
        if tools or (system is not None and system.content):
            messages.append(self._developer("" if system is None else system.content, tools))
        # Rendered together, since the system message specifies the channel for calls of the developer's tools.
        tokens = np.array(self.encoding.render_conversation(Conversation.from_messages(messages)), dtype=np.int32)
        starts = np.flatnonzero(tokens == self._start).tolist()
        head = starts[1] if len(starts) > 1 else len(tokens)
        out.encoded(tokens[:head], content_after=None)  # Harmony's own system message is scaffold
        out.encoded(tokens[head:], content_after=self._message)

    def _developer(self, instructions: str, tools: Sequence[ToolSchema]) -> HarmonyMessage:
        content = DeveloperContent.new()
        if instructions:
            content = content.with_instructions(instructions)
        if tools:
            try:
                schemas: list[dict[str, Any]] = [json.loads(json.dumps(tool.get("function", tool))) for tool in tools]
                described = [
                    ToolDescription(
                        name=schema["name"],
                        description=schema.get("description") or "",
                        parameters=schema.get("parameters"),
                    )
                    for schema in schemas
                ]
            except (TypeError, ValueError) as error:
                raise RenderError(f"openai-harmony does not accept the tools {brief(tools)}: {error}") from error
            content = content.with_function_tools(described)
        return HarmonyMessage.from_role_and_content(Role.DEVELOPER, content)

    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a user's message, a later developer's, or a tool's result, which begins with the tool's name."""
        match message.role:
            case "user":
                written = HarmonyMessage.from_role_and_content(Role.USER, message.content)
            case "tool":
                header = [FUNCTIONS + (message.name or ""), " to=assistant"], self._of_result
                out.encoded(self._render_addressed(*header, message.content, self._end), content_after=self._message)
                return
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
        """See `Renderer.emit_conversation`; a tool's result begins with the name of the tool whose call it answers.

        Raises:
            RenderError: If no call is left that a result answers, or the result has the name of another tool.
        """
        named, start = list(messages), first
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
                        "harmony writes the tool's name before its result, and no call is left that this result "
                        "answers: give the tool message a `name`, or the `tool_call_id` of its call"
                    )
                named[index] = message if message.name == name else message.model_copy(update={"name": name})
        super().emit_conversation(out, named, tools=tools, first=first, stop=stop)

    def seam(self, message: Message, neighbor: Message | None) -> object:
        """Return the calls that a tool's result may answer."""
        if message.role != "tool" or neighbor is None or (message.name and message.tool_call_id is None):
            return None
        return neighbor.role, tuple((call.name, call.id) for call in neighbor.tool_calls)

    def emit_reply(self, out: Emission, message: Message) -> None:
        """Write the reasoning, then a call or an answer; the last message ends with a stop token."""
        if len(message.tool_calls) > 1:
            raise RenderError("a reply in harmony ends with its first call; it cannot have two")
        self._emit_assistant(out, message, self._return)

    def emit_past_reply(self, out: Emission, message: Message) -> None:
        """Write a reply whose answer ends like any other message."""
        self._emit_assistant(out, message, self._end)

    def _emit_assistant(self, out: Emission, message: Message, end: int) -> None:
        parts: list[HarmonyMessage] = []
        texts = [(message.reasoning, "analysis"), (message.content if message.tool_calls else None, "commentary")]
        if not message.tool_calls:
            texts.append((message.content, "final"))
        for text, channel in texts:
            if text or (text is not None and channel != "commentary"):
                parts.append(HarmonyMessage.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))
        written = [self._render_one(part) for part in parts]
        for call in message.tool_calls:
            header = ["assistant", f" to={FUNCTIONS}{call.name}"], self._of_call
            written.append(self._render_addressed(*header, write_arguments(call), self._call))
        if not message.tool_calls:
            written[-1][-1] = end
        written[0] = written[0][len(self.opening_tokens) :]
        for tokens in written:
            out.encoded(tokens, content_after=self._message)

    def _render_addressed(
        self, author: Sequence[str], channel: Sequence[int], content: str, end: int
    ) -> "NDArray[np.int32]":
        """Return a call or its result. The recipient is before the channel, where openai-harmony writes it.

        So does the official template; oss-harmony 0.0.11, which has the same module, writes it after the channel.
        """
        header = [token for part in author for token in self.tokenizer.encode(part).tolist()]
        body = self.tokenizer.encode(content)
        return np.concatenate([[self._start, *header, *channel, self._message], body, [end]]).astype(np.int32)

    def _render_one(self, message: HarmonyMessage) -> "NDArray[np.int32]":
        try:
            return np.array(self.encoding.render(message), dtype=np.int32)
        except (HarmonyError, ValueError, TypeError) as error:  # pyright: ignore[reportUnknownVariableType]
            raise RenderError(f"openai-harmony does not render a message: {error}") from error

    def _emit_whole(
        self,
        out: Emission,
        messages: Sequence[Message],
        history: Literal["template", "keep"],
        *,
        tools: Sequence[ToolSchema],
        generation_prompt: bool,
    ) -> None:
        if history != "template" or messages[-1].role != "assistant":
            super()._emit_whole(out, messages, history, tools=tools, generation_prompt=generation_prompt)
            return
        *past, last = self.visible(messages)  # an answer at the end of a conversation ends with `<|return|>`
        if generation_prompt:
            last = last if last.tool_calls else last.with_reasoning(None)
            self.emit_conversation(out, [*past, last], tools=tools)
            return
        self.emit_conversation(out, [*past, last], tools=tools, stop=len(past))
        out.begin(len(past), "assistant")
        out.scaffold(self.opening)
        out.attribute(len(past), "assistant", is_sampled=True)
        self.emit_reply(out, last)

    # What the past shows.

    def settles(self, message: Message) -> bool:
        """Return whether the message is an answer: after it, no earlier reasoning is shown."""
        return message.role == "assistant" and not message.tool_calls

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Show reasoning from the last answer on: that of calls after it, and its own while nothing follows."""
        tail = list(messages[settled:])
        answers = [index for index, message in enumerate(tail) if self.settles(message)]
        last = answers[-1] if answers else -1
        is_last = last == len(tail) - 1
        return [
            message.with_reasoning(None) if index < last or (index == last and not is_last) else message
            for index, message in enumerate(tail)
        ]

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """Return 1 for a `<|return|>` at the end with `official_history`, else 0."""
        return int(self.official_history and len(reply) > 0 and int(reply[-1]) == self._return)

    # What follows a reply, and what continues it.

    def closing(self, reply: TokenIds, following: Message | None = None) -> str:
        """Return the end of the open message, if one is open."""
        if len(reply) and int(reply[-1]) in self.stop_token_ids:
            return ""
        last = self._reader.chunks(reply)[-1]
        if last.end is not None:
            return ""
        return "<|message|><|end|>" if last.body is None else "<|end|>"

    def _prefill(self, start: str | Message) -> "NDArray[np.int32]":
        # A string begins the answer, since the generation prompt ends inside a header.
        return super()._prefill(Message(role="assistant", content=start) if isinstance(start, str) else start)

    def continuation(self, reply: TokenIds, addition: str | Message) -> "tuple[int, NDArray[np.int32]]":
        """See `Renderer.continuation`; reasoning is continued in a message of the channel `analysis`."""
        kept, tokens = super().continuation(reply, addition if isinstance(addition, str) else "")
        if isinstance(addition, str):
            return kept, tokens
        warn_of_tags(self, addition.content)
        last = self._reader.chunks(np.asarray(reply, dtype=np.int32)[:kept])[-1]
        is_thinking = last.body is not None and last.end is None and "analysis" in self._reader.decode(last.header)
        if addition.reasoning and not is_thinking:
            why = "it has no open message in the channel analysis"
            raise RenderError(f"the reply cannot be continued with reasoning: {why}")
        out = self._emission()
        out.content(addition.reasoning or "")
        if sets_content(addition):
            out.scaffold(_TO_FINAL if is_thinking else "")
            out.content(addition.content)
        return kept, out.tokens()[0]

    # Reading.

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """See `Renderer.parse`; the messages of a reply become one message."""
        begun = np.asarray(self.after_opening(prompt_tail), dtype=np.int32)
        return self._reader.read(np.concatenate([begun, np.asarray(tokens, dtype=np.int32)]))
