"""The base class of renderers: messages to tokens, and sampled tokens back to a message, for one model family.

A family says once how a message is written; the full rendering, the delta after a reply, the generation prompt, the
masks and the attribution all come from that one path. Knows nothing about environments and history policies.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from ..errors import ConfigError, RenderError, TokenizerError
from ..messages import Message, ToolSchema
from .emission import Emission, Encoder, Span
from .tokenizers import ChatTemplateSource, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

TokenIds: TypeAlias = "Sequence[int] | NDArray[np.int32]"
"""Token ids, shape (n,)."""

NOT_ENDED = "the turn was not ended: there is no stop token"
"""The error of a reply without a stop token."""
_HERE = "\ue000"  # a private-use character: it marks where in a reply a prefill ends


class Rendered:
    """A rendered conversation."""

    __slots__ = ("_emission", "starts", "tokens")

    def __init__(self, emission: Emission) -> None:
        self._emission = emission
        self.tokens: NDArray[np.int32]
        """The token ids, shape (n,)."""
        self.starts: list[int]
        """The index of each message's first token; with a generation prompt, also where that begins."""
        self.tokens, self.starts = emission.tokens()

    @property
    def spans(self) -> list[Span]:
        """Runs of tokens with their message, role, and whether they are sampled and content (computed when asked)."""
        return self._emission.spans()


class Segment(NamedTuple):
    """A part of a reply: a control token (empty at the start of the reply) and the text after it."""

    control: str
    text: str


class SplitReply(NamedTuple):
    """A reply cut at the control tokens of its family."""

    segments: list[Segment]
    is_ended: bool
    """Whether there is a stop token."""
    overrun: str
    """What stands after the first stop token."""


class HandedOut(NamedTuple):
    """What was handed out behind a reply."""

    reply: int
    """The index of the reply among the messages; what follows it up to the next reply was said."""
    tokens: "NDArray[np.int32]"
    """From behind the end of the reply to the end of the generation prompt, shape (n,)."""
    generation_prompt: bool
    """Whether it ends with one."""


class Renderer(ABC):
    """Converts messages to tokens and sampled tokens back to a message, for one model family.

    A family sets the class attributes and writes `emit_start`, `emit_message`, `emit_reply`, `visible`, `settles` and
    `parse`. Messages begin and end at control tokens, so that the tokens of a message depend on nothing but itself, and
    on what `seam` says of its neighbours.

    Args:
        tokenizer: The model's tokenizer.
        unsafe_content: Match control tokens inside content, as chat templates do. For parity tests: with it, a user or
            a tool can forge a turn.

    Raises:
        TokenizerError: If the tokenizer lacks a control token of the family.
    """

    name: ClassVar[str]
    """The name in the registry."""
    roles: ClassVar[frozenset[str]]
    """The roles that the family can express."""
    stop_tokens: ClassVar[tuple[str, ...]]
    """The tokens that end a reply; the first is the one that the family's history has."""
    after_turn: ClassVar[str]
    """What stands between the end of an assistant's turn and the next message; never sampled."""
    opening: ClassVar[str]
    """How an assistant's message begins; never sampled."""
    blocks: ClassVar[Mapping[str, str]]
    """For each control token that opens a block inside a reply, the scaffold that closes it; reasoning comes first."""
    structure: ClassVar[tuple[str, ...]]
    """The other control tokens that `parse` tells apart from text."""
    chosen_because: str = ""
    """Why `renderer="auto"` took it, if it did."""
    known_differences: ClassVar[Mapping[str, str]] = {}
    """Where the family's format is another than its chat template's, and how: words in the name of a check of the
    conformance kit, with what differs."""
    stop_strings: ClassVar[tuple[str, ...]] = ()
    """Texts that end a reply, too, for models without a token that does; the policy is told of them."""
    knows_history: ClassVar[bool] = True
    """Whether `visible` tells what the template shows of the past; else that is what rendering all of it shows."""
    renders_whole: ClassVar[bool] = False
    """Whether only whole conversations can be rendered: a rewrite of the past then costs O(context)."""

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False) -> None:
        if not isinstance(unsafe_content, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"unsafe_content is {unsafe_content!r}; expected True or False")
        names = [*self.stop_tokens, *self.blocks, *self.structure]
        missing = [name for name in names if name not in tokenizer.control_tokens]
        if missing:
            raise TokenizerError(
                f"the tokenizer {tokenizer.name!r} lacks control tokens that the renderer {self.name!r} needs: "
                f"{', '.join(missing)}. Take a tokenizer of that model family, or another renderer"
            )
        self.tokenizer = tokenizer
        self.unsafe_content = unsafe_content
        self._encoder = Encoder(tokenizer, unsafe_content=unsafe_content)
        self._marks = names
        self._mark_of_token = np.zeros(max(tokenizer.vocab_size, 1), dtype=np.uint8)
        for mark, name in enumerate(names, start=1):
            self._mark_of_token[tokenizer.token_id(name)] = mark

    def __deepcopy__(self, memo: dict[int, Any]) -> "Renderer":
        return self  # it never changes: gymnasium's deep copies of keyword arguments may share it

    # What a family says.

    @abstractmethod
    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write what opens a conversation: its first message if that is a system message, and the tools."""

    @abstractmethod
    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a message that is not the assistant's. Of its neighbours only what `seam` says may matter."""

    @abstractmethod
    def emit_reply(self, out: Emission, message: Message) -> None:
        """Write what an assistant samples: from behind the generation prompt to the end of its turn."""

    @abstractmethod
    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """What the official chat template shows of `messages[settled:]`.

        Args:
            messages: A conversation.
            settled: So many messages at its start are known to stay as they are. If it is not 0, one of them
                `settles` what came before it, or nothing does that before `messages[settled]`.

        Returns:
            As many messages as `messages[settled:]` has; one that stays as it is is the same object.
        """

    @abstractmethod
    def settles(self, message: Message) -> bool:
        """Whether nothing before this message can change any more, once it is shown (Qwen3: a user query)."""

    @abstractmethod
    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """Read a reply. Accepts any tokens; what is wrong with them is in `Message.errors`.

        Args:
            tokens: What was sampled, shape (n,).
            prompt_tail: The end of the prompt, from the assistant's opening on: an empty block, a prefill. It is read
                as the beginning of the reply.
            tools: JSON schemas of the tools that the model has. A family that writes the values of a call as bare text
                reads each of them by the type that its parameter has; without a schema they are text.
        """

    def emit_past_reply(self, out: Emission, message: Message) -> None:
        """Write an assistant's message as it stands in the past; mostly as it is sampled."""
        self.emit_reply(out, message)

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """How many tokens at the end of a reply do not stay if `messages` come next, a `template` break.

        Those are what the family's own history writes in another way, or a sampled opener of another message (GLM).
        """
        return 0

    @property
    def chat_template(self) -> ChatTemplateSource | None:
        """The chat template that came with the tokenizer; a conformance check compares with it."""
        return self.tokenizer.chat_template

    @property
    def generation_prompt(self) -> str:
        """The scaffold that asks for a reply."""
        return self.opening

    def specification(self) -> dict[str, Any]:
        """The renderer as JSON: its name and the options that are not the default."""
        return {"name": self.name, **({"unsafe_content": True} if self.unsafe_content else {})}

    def end_of_turn(self, following: Message | None) -> str:
        """What stands behind a past reply; it may depend on the message that comes next (GLM)."""
        return self.after_turn

    def check_tools(self, tools: Sequence[ToolSchema]) -> None:  # noqa: B027 - most have nothing to refuse here
        """Refuse what cannot be said at all with these tools, before an episode begins.

        Raises:
            RenderError: If the family has no place for them.
        """

    def check_episode(  # noqa: B027 - see above
        self, messages: Sequence[Message], turns: "Sequence[HandedOut]", tools: Sequence[ToolSchema]
    ) -> None:
        """Look at an episode when it has ended; only a renderer of any chat template has something to prove.

        Args:
            messages: What the model saw.
            turns: What was handed out behind its replies.
            tools: The tools that it had.

        Raises:
            TemplateUnsupported: If something was handed out that the template would not have written.
        """

    def seam(self, message: Message, neighbour: Message | None) -> object:
        """What of its neighbour the tokens of a message depend on; the same value, the same tokens."""
        return None if neighbour is None else neighbour.role

    # What follows from it.

    @cached_property
    def opening_tokens(self) -> "NDArray[np.int32]":
        """How an assistant's message begins, as tokens."""
        out = self.emission()
        out.scaffold(self.opening)
        return out.tokens()[0]

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The ids that end a reply."""
        return tuple(self.tokenizer.token_id(name) for name in self.stop_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = False,
        history: Literal["template", "keep"] = "template",
    ) -> Rendered:
        """Render a whole conversation.

        Args:
            messages: The conversation, at least one message.
            tools: JSON schemas of the tools that the model may call.
            generation_prompt: Whether to ask for a reply at the end.
            history: `"template"` gives what the model's official chat template gives, which may hide earlier
                reasoning; `"keep"` renders the messages as they are.

        Raises:
            RenderError: If there is no message, or the family cannot express one.
        """
        if not messages:
            raise RenderError("there is no message to render")
        if history not in ("template", "keep"):
            raise RenderError(f"history is {history!r}; expected 'template' or 'keep'")
        shown = self.visible(messages) if history == "template" else messages
        out = self.emission()
        self.emit_conversation(out, shown, tools=tools)
        if generation_prompt:
            self.emit_generation_prompt(out, len(messages))
        return Rendered(out)

    def extend(
        self, reply: TokenIds, messages: Sequence[Message], *, generation_prompt: bool = True
    ) -> "NDArray[np.int32]":
        """What follows a finished or cut reply: its end, as far as it lacks one, then the messages.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            messages: What the environment says next.
            generation_prompt: Whether to ask for a reply at the end.

        Returns:
            The tokens to append, int32 of shape (m,). None of them was sampled.
        """
        return self.extension(reply, messages, generation_prompt=generation_prompt).tokens

    def extension(
        self,
        reply: TokenIds,
        messages: Sequence[Message],
        *,
        history: Sequence[Message] = (),
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = True,
        prefill: str | Message | None = None,
    ) -> Rendered:
        """As `extend`, and tells where each message starts.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            messages: What the environment says next.
            history: The conversation so far; the reply is its last message. A family reads that one, at most.
            tools: The tools that the model has; only a renderer of any chat template has to know.
            generation_prompt: Whether to ask for a reply at the end.
            prefill: What the next reply will begin with.
        """
        out = self.emission()
        out.scaffold(self.closing(reply, messages[0] if messages else None))
        self.emit_conversation(out, [history[-1] if history else _REPLY, *messages], first=1)
        if generation_prompt:
            self.emit_generation_prompt(out, len(messages) + 1, prefill)
        return Rendered(out)

    def reply(self, message: Message) -> "NDArray[np.int32]":
        """The tokens that a model would sample to say `message`: int32, shape (n,), the stop token included."""
        out = self.emission()
        self.emit_reply(out, message)
        return out.tokens()[0]

    def prefill(self, start: str | Message) -> "NDArray[np.int32]":
        """The tokens with which an assistant's message begins before the model goes on with it.

        Args:
            start: A text, which stands as it is behind the generation prompt. Or an assistant's message: if it says
                nothing of its `content`, its reasoning goes on, else its content does (`content=""` closes the
                reasoning and says nothing yet).

        Returns:
            int32 of shape (n,); they stand behind the generation prompt that `emit_generation_prompt` writes for them.
        """
        out = self.emission()
        if isinstance(start, str):
            out.content(start)
            return out.tokens()[0]
        part = "content" if _says_content(start) else "reasoning"
        self.emit_reply(out, start.model_copy(update={part: (getattr(start, part) or "") + _HERE}))
        out.cut_at(_HERE)
        return out.tokens()[0]

    def continuation(self, reply: TokenIds, addition: str | Message) -> "tuple[int, NDArray[np.int32]]":
        """What is put inside a reply that goes on.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            addition: A text, which is appended as it is. Or an assistant's message: its reasoning goes on with a block
                that is open; if it says anything of its `content`, the block is closed and the content follows.

        Returns:
            How many tokens of the reply stay, which are those before its first stop token, and the tokens that follow
            them: int32 of shape (m,).

        Raises:
            RenderError: If there is reasoning, but no block is open that it could go on with.
        """
        tokens = np.asarray(reply, dtype=np.int32)
        stops = np.isin(tokens, self.stop_token_ids)
        kept = int(np.argmax(stops)) if stops.any() else len(tokens)
        out = self.emission()
        if isinstance(addition, str):
            out.content(addition)
            return kept, out.tokens()[0]
        closing = self._close_open_block(tokens[:kept])
        if addition.reasoning and closing != next(iter(self.blocks.values()), None):
            raise RenderError("the reply cannot go on with reasoning: it has no open think block")
        out.content(addition.reasoning or "")
        if _says_content(addition):
            out.scaffold(closing)
            out.content(addition.content)
        return kept, out.tokens()[0]

    def closing(self, reply: TokenIds, following: Message | None = None) -> str:
        """The scaffold that closes a reply: an open block, the turn itself, and what stands behind a turn.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            following: The message that comes next, if any; what ends a turn may depend on it (GLM).
        """
        if len(reply) and int(reply[-1]) == self.stop_token_ids[0]:
            return self.after_turn
        return self._close_open_block(reply) + self.stop_tokens[0] + self.after_turn

    def is_closed(self, reply: TokenIds) -> bool:
        """Whether the reply ended its turn itself, as the family's history has it."""
        return self.closing(reply) == self.after_turn

    def emission(self) -> Emission:
        """An empty emission for this renderer."""
        return Emission(self._encoder)

    def emit_conversation(
        self,
        out: Emission,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        first: int = 0,
        stop: int | None = None,
    ) -> None:
        """Write `messages[first:stop]`; the others are only their neighbours. The tools go with message 0.

        Raises:
            RenderError: If the family cannot express a message.
        """
        for index in range(first, len(messages) if stop is None else stop):
            message = messages[index]
            if message.role not in self.roles:
                raise RenderError(
                    f"message {index} has the role {message.role!r}, which {self.name!r} cannot express: its roles are "
                    f"{', '.join(sorted(self.roles))}"
                )
            if index == 0:
                is_system = message.role == "system"
                out.begin(0 if is_system else -1, "system")
                self.emit_start(out, message if is_system else None, tools)
                if is_system:
                    continue
                out.attribute(0, message.role)
            else:
                out.begin(index, message.role)
            self._emit(out, messages, index)

    def emit_generation_prompt(self, out: Emission, index: int, prefill: str | Message | None = None) -> None:
        """Write what asks for the reply that will be message `index`; a prefill with reasoning has its own block."""
        out.begin(index, "assistant")
        has_block = isinstance(prefill, Message) and prefill.reasoning is not None
        out.scaffold(self.opening if has_block else self.generation_prompt)

    def _emit(self, out: Emission, messages: Sequence[Message], index: int) -> None:
        message = messages[index]
        if message.role != "assistant":
            previous = messages[index - 1] if index else None
            following = messages[index + 1] if index + 1 < len(messages) else None
            self.emit_message(out, message, previous, following)
            return
        out.scaffold(self.opening)
        out.attribute(index, message.role, is_sampled=True)
        self.emit_past_reply(out, message)
        out.attribute(index, message.role)
        out.scaffold(self.end_of_turn(messages[index + 1] if index + 1 < len(messages) else None))

    def split(self, tokens: TokenIds) -> SplitReply:
        """Cut a reply at the control tokens that mean something to the family, up to its first stop token."""
        array = np.asarray(tokens, dtype=np.int32)
        marks = self._marks_in(array)
        pieces = self.tokenizer.token_bytes(array)
        segments: list[Segment] = []
        control, start = "", 0
        for position in marks.nonzero()[0].tolist():
            name = self._marks[int(marks[position]) - 1]
            segments.append(Segment(control, _text(pieces[start:position])))
            control, start = name, position + 1
            if name in self.stop_tokens:
                return SplitReply(segments, True, _text(pieces[start:]))
        segments.append(Segment(control, _text(pieces[start:])))
        return SplitReply(segments, False, "")

    def _close_open_block(self, reply: TokenIds) -> str:
        """The scaffold that closes the block that is open at the end of a reply, or nothing.

        A generation prompt that opens a block leaves it to the reply to close it.
        """
        marks = self._marks_in(np.asarray(reply, dtype=np.int32))
        opened = self._open_at_start
        for mark in marks[marks > 0].tolist():
            control = self._marks[int(mark) - 1]
            if control in opened:
                opened = ""
            elif not opened:
                opened = self.blocks.get(control, "")
        return opened

    @cached_property
    def _open_at_start(self) -> str:
        """The scaffold that closes the block that the generation prompt opened, if it does."""
        controls = [piece.text for piece in self._encoder.scaffold(self.generation_prompt) if piece.control >= 0]
        last = controls[-1] if controls else ""
        return self.blocks.get(last, "")

    def behind_opening(self, prompt_tail: TokenIds) -> TokenIds:
        """What of the end of a prompt is the assistant's already: an empty think block, a prefill."""
        count = len(self.opening_tokens)
        has_opening = len(prompt_tail) >= count and np.array_equal(prompt_tail[:count], self.opening_tokens)
        return prompt_tail[count:] if has_opening else prompt_tail

    def _marks_in(self, tokens: "NDArray[np.int32]") -> "NDArray[np.uint8]":
        """For each token which of the family's control tokens it is, counted from 1, or 0."""
        return self._mark_of_token.take(tokens, mode="clip")


def _says_content(start: Message) -> bool:
    return start.reasoning is None or "content" in start.model_fields_set


def _text(pieces: list[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", errors="replace")


_REPLY = Message(role="assistant")
