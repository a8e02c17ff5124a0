"""Requests of programs and replies of the model, independent of the protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..messages import Message, ToolSchema
from ..rendering.reading import CallEnded, ContentText, ReasoningText

INVALID_JSON = "INVALID_JSON"
"""The only argument of a call whose arguments the model did not sample as an object; it has what was sampled."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as a program sent it.

    Attributes:
        message: The message. In an assistant message, `ToolCall.id` is the id that the program sent; in a tool message,
            `tool_call_id` is. Arguments are read as everywhere (`ToolCall.from_openai`).
        raw: The JSON value that it was read from. If a value holds several messages (the tool results of an
            Anthropic message), each of them has it. If a message was read from several values (the items of a
            reply in Responses), `raw` is their list.
        link: The reply's id, where the protocol carries the id that the gateway issued (an item of
            Responses, the signature of a thinking block); else None. It may also be an id that the gateway did not
            issue, or has forgotten.
    """

    message: Message
    raw: Any = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class GivenTool:
    """A tool of a request.

    Attributes:
        schema: The function that the model calls, in the OpenAI form; None for a tool that only the server of its
            vendor can run.
        type: Its type in the protocol, such as `function` or `custom`.
        name: The name by which the program knows it; empty for a tool that is left out.
        namespace: The namespace in which the program knows it, or None.
    """

    schema: ToolSchema | None
    type: str = "function"
    name: str = ""
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for a reply.

    Attributes:
        messages: The whole conversation, in order. System messages at the start are in `system`; the list is empty
            without other messages.
        system: The text of the system (or developer) messages that open the conversation, joined by a blank line; None
            without any.
        tools: The tools, in the OpenAI form.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of the tool that has to be called, as
            `{"name": ...}`, or the names of those that may be called: `{"mode": "auto" or "required", "names": [...]}`.
        is_parallel: Whether a reply may have several calls.
        schema: The JSON schema of the content; None for any text.
        given_tools: Tools that the program did not give as functions with this name, by the name of the function.
        left_out: The types of tools and items that were left out, because only a vendor's server can run or read them.
        max_tokens: The maximum number of tokens in the reply; None if the program does not limit it.
        stop: Strings at which sampling stops.
        sampling: Parameters of sampling that the program named (`temperature`, `top_p`, `seed`, ...).
        n: The number of replies.
        logprobs: Whether the program asked for the log-probabilities of the sampled tokens.
        prefill: The beginning of the reply, which the program wrote; the answer is what follows it. None without one.
        previous: The id of the reply that this request continues (`previous_response_id`); None if it names none.
            `messages` are the whole conversation in this case, too.
        context: The context that the program names (`x-envsdk-context`), or None.
        role: The role that the program names (`x-envsdk-role`), or None.
        body: The request as it was parsed, without `stream` and `stream_options`: two requests with equal bodies ask
            for the same.
        headers: Its headers by their names in lower case, without credentials.
        is_streamed: Whether the program asked for a stream, of which it may read a part.
        on_piece: Called in any thread with each piece of the reply while it is sampled, if the program wants to have it
            then and the policy streams; None if only the whole reply is wanted.
    """

    messages: Sequence[ReceivedMessage]
    system: str | None = None
    tools: Sequence[ToolSchema] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    is_parallel: bool = True
    schema: Mapping[str, Any] | None = None
    given_tools: Mapping[str, GivenTool] = field(default_factory=dict[str, GivenTool])
    left_out: Sequence[str] = ()
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    n: int = 1
    logprobs: bool = False
    prefill: str | None = None
    previous: str | None = None
    context: str | None = None
    role: str | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    is_streamed: bool = False
    on_piece: "Callable[[ReplyPiece], None] | None" = field(default=None, compare=False, repr=False)

    @property
    def takes_calls(self) -> bool:
        """Whether its reply may have calls; if not, calls that the model writes nevertheless are text."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def all_messages(self) -> list[Message]:
        """Its messages, the system message first."""
        system = [] if self.system is None else [Message(role="system", content=self.system)]
        return [*system, *(received.message for received in self.messages)]

    def repeats(self, other: "ModelRequest") -> bool:
        """Return whether both ask for the same reply."""
        return self.body is not None and (self.context, self.role, self.body) == (other.context, other.role, other.body)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A reply of the model.

    Attributes:
        id: The id that the gateway issued for it: unique, letters, digits and `_` only.
        message: The reply. Each call has the id that the gateway issued for it: unique, in `[A-Za-z0-9_-]`, at most 40
            characters. A call that could not be read is not among the calls: its text is in the content.
        finish_reason: `"stop"`, `"tool_calls"` or `"length"`.
        prompt_tokens: How many tokens the prompt had.
        cached_tokens: How many of them the model server read from its cache; 0 if it does not report it.
        tokens: The sampled tokens.
        reasoning_tokens: How many of them are reasoning, without its tags.
        logprobs: Their log-probabilities; None if they are not known.
        texts: The text of each sampled token; empty unless the request asked for log-probabilities.
        stop_sequence: The string of `ModelRequest.stop` that ended the reply, or None.
    """

    id: str
    message: Message
    finish_reason: str
    prompt_tokens: int
    tokens: Sequence[int]
    logprobs: Sequence[float] | None = None
    texts: Sequence[str] = ()
    stop_sequence: str | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0


ReplyPiece: TypeAlias = ModelReply | ReasoningText | ContentText | CallEnded
"""A piece of a reply that is sampled, as it was read. The first piece is a reply without a message and tokens; a call
has the id that the gateway issued for it."""
