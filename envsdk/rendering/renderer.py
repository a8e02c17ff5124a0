"""The interface of renderers: messages to tokens, and sampled tokens back to a message, for one model family.

Knows nothing about environments and history policies. `FamilyRenderer` and `WholeRenderer` are the base classes of the
two kinds of renderers.
"""

import inspect
import pickle
import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from .._arguments import explain_arguments
from .._visible import brief
from ..errors import ConfigError, PlainTagsWarning, RenderError, TokenizerError
from ..messages import Message, ToolSchema
from .emission import Emission, EmittedDelta, Encoder, Rendered, WrittenPrompt
from .reading import Marks, ReplyReader, Segment, SplitReply, WholeReader
from .tokenizers import Tokenizer

__all__ = ["Rendered", "Renderer", "TokenIds", "errors_at_end"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..images import Image
    from ._vision import Vision
    from .tokenizers import ChatTemplateSource

TokenIds: TypeAlias = "Sequence[int] | NDArray[np.int32]"
"""Token ids, shape (n,)."""

NOT_ENDED = "the turn was not ended: there is no stop token"
"""The error of a reply without a stop token."""
_KNOWN_TAGS = (
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<|channel|>"),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
)
"""The tags that data sets write, also for families whose vocabulary has no such control tokens."""
_PREFILL_END = "\ue000"  # a private-use character that marks where in a reply a prefill ends


def errors_at_end(*, is_ended: bool, overrun: str) -> list[str]:
    """Return the errors at the end of a reply: text after its first stop token, or no stop token."""
    errors = [f"there is text after the end of the turn: {brief(overrun, 40)}"] if overrun else []
    return errors if is_ended else [*errors, NOT_ENDED]


class Renderer(ABC):
    """Converts messages to tokens and sampled tokens back to a message, for one model family.

    There are two kinds: a `FamilyRenderer` specifies how each message is written, and a `WholeRenderer` writes only
    whole conversations, as a chat template does.

    Args:
        tokenizer: The model's tokenizer.
        unsafe_content: Match control tokens inside content, as chat templates do. It is meant for parity tests: a user
            or a tool can then forge a turn.
        processor: The processor of a vision model: a processor of transformers, a folder, a name on the hub, or a
            mapping with the options of an image processor (see `Vision`). By default, the processor in the tokenizer's
            folder, if it has one. Without a processor, images are refused.

    Raises:
        TokenizerError: If the tokenizer lacks a control token of the family.
    """

    name: ClassVar[str]
    """The name in the registry."""
    roles: ClassVar[frozenset[str]]
    """The roles that the family can express."""
    stop_tokens: tuple[str, ...]
    """The tokens that end a reply; the first is the one that the family's history shows."""
    opening: str
    """The scaffold that begins an assistant's message; never sampled."""
    blocks: Mapping[str, str]
    """For each control token that opens a block inside a reply, the scaffold that closes it; reasoning comes first."""
    structure: tuple[str, ...]
    """The other control tokens that `parse` distinguishes from text."""
    chosen_because: str = ""
    """The reason why `renderer="auto"` chose this renderer, if it did."""
    known_differences: ClassVar[Mapping[str, str]] = {}
    """The differences from the family's chat template, keyed by words in the name of a conformance check."""
    stop_strings: ClassVar[tuple[str, ...]] = ()
    """Strings that also end a reply, for models without a stop token; the policy receives them through `info`."""
    writes_images: ClassVar[bool] = False
    """True if the family can write images. To do so, a renderer also needs a processor."""

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False, processor: Any = None) -> None:
        if not isinstance(unsafe_content, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"unsafe_content is {unsafe_content!r}; expected True or False")
        names = [*self.stop_tokens, *self.blocks, *self.structure]
        missing = [name for name in names if name not in tokenizer.control_tokens]
        if missing:
            raise TokenizerError(
                f"the tokenizer {tokenizer.name!r} lacks control tokens that the renderer {self.name!r} needs: "
                f"{', '.join(missing)}. Use a tokenizer of that model family, or another renderer"
            )
        self.tokenizer = tokenizer
        self.stop_token_ids: tuple[int, ...] = tuple(tokenizer.token_id(name) for name in self.stop_tokens)
        """The ids that end a reply."""
        self.unsafe_content = unsafe_content
        self.marks = Marks(tokenizer, names, self.stop_tokens)
        """The control tokens at which a reply is cut."""
        self._processor = processor
        if processor is not None:
            if not self.writes_images:
                raise ConfigError(
                    f"processor= is given, but the model family of {self.name!r} cannot write images; leave it out"
                )
            from ._vision import Vision  # only models with images need it

            self.vision = Vision(processor, tokenizer)

    # Methods that a family implements.

    @abstractmethod
    def emit_reply(self, out: Emission, message: Message) -> None:
        """Write the part of a message that the model samples: from the generation prompt to the end of its turn."""

    @abstractmethod
    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Return `messages[settled:]` as the official chat template shows them.

        Args:
            messages: A conversation.
            settled: The number of messages at its start that are known to be shown unchanged. If it is not 0, either
                one of them `settles` the messages before it, or none of them settles anything.

        Returns:
            One message for each of `messages[settled:]`; an unchanged message is the same object.
        """

    @abstractmethod
    def settles(self, message: Message) -> bool | None:
        """Return whether earlier messages cannot change anymore once this message follows (Qwen3: a user query).

        Returns:
            None if it is not known; then only a rendering of the whole conversation shows what the template shows.
        """

    @abstractmethod
    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """Parse a reply. Any tokens are accepted; `Message.errors` reports what is wrong with them.

        Args:
            tokens: The sampled tokens, shape (n,).
            prompt_tail: The end of the prompt, from the assistant's opening on, such as an empty block or a prefill. It
                is parsed as the beginning of the reply.
            tools: JSON schemas of the tools that the model has. A family that writes the values of a call as bare text
                parses each of them by the type of its parameter; without a schema, they are text.
        """

    @abstractmethod
    def extension(
        self,
        reply: TokenIds,
        messages: Sequence[Message],
        *,
        history: Sequence[Message] = (),
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = True,
        prefill: str | Message | None = None,
        drops_end: bool = False,
    ) -> Rendered:
        """Do the same as `extend`, and also return where each message starts.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            messages: The messages that the environment returns next.
            history: The conversation so far, which ends with the reply. A family reads only its last message.
            tools: The tools that the model has; only `fixed_base` reads them.
            generation_prompt: Whether to end with the generation prompt.
            prefill: The beginning of the next reply.
            drops_end: Whether tokens at the end of the reply may be dropped, which is a `template` break: tokens that
                the family's own history writes differently, or a sampled opener of the next message (GLM).
                `Rendered.dropped` is their number.
        """

    @abstractmethod
    def rewrite(
        self,
        prompt: WrittenPrompt,
        start: int,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        as_template: bool = False,
    ) -> int:
        """Replace the messages of a prompt from `start` on, or write the first ones. The generation prompt stays.

        A rewrite renders as little as possible. Messages that stay are copied, token for token. If a reply lost its
        reasoning, the rest of it is copied if the cut falls on a token boundary.

        Args:
            prompt: The prompt. It is changed in place, but stays unchanged if an error is raised.
            start: The index of the first message that changes.
            messages: The messages from there on.
            tools: The tools of the model, if they change. The whole prompt is then rendered again.
            as_template: For a `WholeRenderer`: render as its template does, not by joining replies and deltas.

        Returns:
            The number of tokens that stay: those before the first message that is rendered differently.

        Raises:
            RenderError: If the family cannot express a message.
        """

    @abstractmethod
    def measure(self, prompt: WrittenPrompt, index: int, message: Message) -> int:
        """Return the number of tokens that a message would have in place of message `index` of a prompt."""

    @abstractmethod
    def _emit_whole(
        self,
        out: Emission,
        messages: Sequence[Message],
        history: Literal["template", "keep"],
        *,
        tools: Sequence[ToolSchema],
        generation_prompt: bool,
    ) -> None:
        """Write a whole conversation without its generation prompt; the arguments are those of `render`."""

    # Members that a family may override.

    @property
    def reasoning_in_content(self) -> tuple[str, str] | None:
        """The tags between which the official template reads reasoning at the start of an assistant's content.

        None if it does not read reasoning there.
        """
        return None

    @property
    def generation_prompt(self) -> str:
        """The scaffold after which a model samples a reply."""
        return self.opening

    @property
    def history_note(self) -> str:
        """A description of the measured rule for the past, for reports; empty if the family specifies the rule."""
        return ""

    @property
    def rewriting_note(self) -> str:
        """An example of how the official chat template rewrites earlier text of users or the system, for reports.

        A prompt keeps that text as the model first saw it. Empty if there is no such example, or it is not known.
        """
        return ""

    @property
    def settling_messages(self) -> int:
        """N, where messages before the last N messages for which `settles` is true cannot change anymore."""
        return 1

    @property
    def chat_template(self) -> "ChatTemplateSource | None":
        """The tokenizer's chat template. A conformance check compares the renderer with it."""
        return self.tokenizer.chat_template

    @property
    def template_form(self) -> Callable[[Message], dict[str, Any]]:
        """A function that converts a message to the form that the chat template expects, usually OpenAI's."""
        return Message.to_openai

    @property
    def proved_reading(self) -> str | None:
        """A description of what was proved about the reading of replies; None if the family measures nothing.

        Raises:
            RenderError: If replies with calls cannot be read back, or the family does not write calls.
        """
        return None

    def specification(self) -> dict[str, Any]:
        """Return the renderer as JSON: its name and the options that differ from their defaults.

        An option is a keyword-only parameter that the renderer keeps as an attribute of that name.
        """
        parameters = inspect.signature(type(self)).parameters.values()
        options = {option.name: option.default for option in parameters if option.kind is option.KEYWORD_ONLY}
        given = {name: getattr(self, name, default) for name, default in options.items() if name != "processor"}
        differing = {name: value for name, value in given.items() if value != options[name]}
        processor = {} if self._processor is None else {"processor": self._processor_name}
        return {"name": self.name, **differing, **processor}

    def check_episode(  # noqa: B027 - most families have nothing to prove
        self, messages: Sequence[Message], deltas: Sequence[EmittedDelta], tools: Sequence[ToolSchema]
    ) -> None:
        """Validate an episode when it has ended. Only `fixed_base` overrides this.

        Args:
            messages: The messages that the model saw.
            deltas: The tokens that were emitted after its replies.
            tools: The tools that the model had.

        Raises:
            TemplateUnsupported: If a delta is not what the template would have written.
        """

    # Members that are derived from these.

    @cached_property
    def opening_tokens(self) -> "NDArray[np.int32]":
        """The tokens of `opening`, int32 of shape (n,)."""
        out = self._emission()
        out.scaffold(self.opening)
        return out.tokens()[0]

    @cached_property
    def writes_reasoning(self) -> bool:
        """True if `emit_reply` writes the reasoning of a message."""
        out = self._emission()
        self.emit_reply(out, Message(role="assistant", content="x", reasoning=_PREFILL_END))
        return _PREFILL_END in out.text()

    @cached_property
    def open_at_start(self) -> str:
        """The scaffold that closes the block that the generation prompt opens; empty if it opens none."""
        controls = [piece.text for piece in self.encoder.cut(self.generation_prompt) if piece.control >= 0]
        return self.blocks.get(controls[-1], "") if controls else ""

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of scaffold and content."""
        return Encoder(self.tokenizer, unsafe_content=self.unsafe_content, vision=self.vision)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = False,
        history: Literal["template", "keep"] = "template",
    ) -> Rendered:
        """Render a whole conversation; see also `as_given`.

        Args:
            messages: The conversation, at least one message.
            tools: JSON schemas of the tools that the model may call.
            generation_prompt: Whether to end with the generation prompt.
            history: `"template"` renders as the model's official chat template does, which may drop earlier reasoning;
                `"keep"` renders the messages as they are.

        Raises:
            RenderError: If `messages` is empty, or the family cannot express a message.
        """
        if not messages:
            raise RenderError("messages is empty; expected at least one message")
        if history not in ("template", "keep"):
            raise RenderError(f"history is {history!r}; expected 'template' or 'keep'")
        given = [as_given(self, message) for message in messages]
        return self._render(given, history, tools=tools, generation_prompt=generation_prompt)

    def _render(
        self,
        messages: Sequence[Message],
        history: Literal["template", "keep"],
        *,
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = False,
        prefill: str | Message | None = None,
    ) -> Rendered:
        """Do the same as `render`, for messages to which `as_given` was applied already."""
        out = self._emission()
        self._emit_whole(out, messages, history, tools=tools, generation_prompt=generation_prompt)
        return self._prompted(out, len(messages), prefill) if generation_prompt else Rendered(out)

    def _prompted(self, out: Emission, index: int, prefill: str | Message | None) -> Rendered:
        """Add the generation prompt of message `index` and a prefill, and return all of it."""
        self._emit_generation_prompt(out, index, prefill)
        return Rendered(out, None if prefill is None else self._prefill(prefill))

    def extend(
        self, reply: TokenIds, messages: Sequence[Message], *, generation_prompt: bool = True
    ) -> "NDArray[np.int32]":
        """Return the tokens to append after a finished or cut reply: the rest of its turn, then the messages.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            messages: The messages that the environment returns next.
            generation_prompt: Whether to end with the generation prompt.

        Returns:
            int32 of shape (m,). None of these tokens was sampled.
        """
        return self.extension(reply, messages, generation_prompt=generation_prompt).tokens

    def reply(self, message: Message) -> "NDArray[np.int32]":
        """Return the tokens that a model would sample for `message`: int32, shape (n,), with the stop token.

        `as_given` is applied to the message.

        Raises:
            RenderError: If the family cannot express the message, or would read different arguments from its tokens.
        """
        return self._written_reply(as_given(self, message))

    def _written_reply(self, message: Message) -> "NDArray[np.int32]":
        """Return the tokens of a reply after the generation prompt, which may hold the start of a think block."""
        out = self._emission()
        self.emit_reply(out, message)
        return out.tokens()[0]

    @cached_property
    def _prompt_tail(self) -> "NDArray[np.int32]":
        """The tokens of the generation prompt: int32, shape (n,)."""
        out = self._emission()
        self._emit_generation_prompt(out, 0)
        return out.tokens()[0]

    def _prefill(self, start: str | Message) -> "NDArray[np.int32]":
        """Return the tokens that begin an assistant's message before the model continues it.

        Args:
            start: A string, which follows the generation prompt verbatim; or an assistant's message. If the message's
                `content` is not set, the model continues its reasoning, else its content (`content=""` closes the
                reasoning and leaves the content to the model).

        Returns:
            int32 of shape (n,); they follow the generation prompt that `_emit_generation_prompt` writes for them.

        Raises:
            RenderError: If the prefill has reasoning, but the family writes none.
        """
        out = self._emission()
        if isinstance(start, str):
            out.content(start)
            return out.tokens()[0]
        if start.reasoning is not None and not self.writes_reasoning:
            raise RenderError(f"a reply cannot begin with reasoning: {self.name!r} has no think block")
        part = "content" if sets_content(start) else "reasoning"
        self.emit_reply(out, start.model_copy(update={part: (getattr(start, part) or "") + _PREFILL_END}))
        out.cut_at(_PREFILL_END)
        return out.tokens()[0]

    def continuation(self, reply: TokenIds, addition: str | Message) -> "tuple[int, NDArray[np.int32]]":
        """Return the tokens to append inside a reply that the model continues.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            addition: A string, which is appended verbatim; or an assistant's message. The message's reasoning is
                appended to the open think block; if its `content` is set, the block is closed and the content follows.

        Returns:
            The number of the reply's tokens that stay, which are those before its first stop token, and the tokens to
            append to them: int32 of shape (m,).

        Raises:
            RenderError: If `addition` has reasoning, but the family writes none, or no think block is open.
        """
        tokens = np.asarray(reply, dtype=np.int32)
        stops = np.isin(tokens, self.stop_token_ids)
        kept = int(np.argmax(stops)) if stops.any() else len(tokens)
        out = self._emission()
        if isinstance(addition, str):
            warn_of_tags(self, addition)
            out.content(addition)
            return kept, out.tokens()[0]
        warn_of_tags(self, addition.content)
        if addition.reasoning and not self.writes_reasoning:
            raise RenderError(f"the reply cannot be continued with reasoning: {self.name!r} has no think block")
        closing = self._close_open_block(tokens[:kept])
        if addition.reasoning and closing != next(iter(self.blocks.values()), None):
            raise RenderError("the reply cannot be continued with reasoning: it has no open think block")
        out.content(addition.reasoning or "")
        if sets_content(addition):
            out.scaffold(closing)
            out.content(addition.content)
        return kept, out.tokens()[0]

    def reader(self, *, tools: Sequence[ToolSchema] = (), prompt_tail: TokenIds = ()) -> ReplyReader:
        """Return a reader of one reply, which receives tokens as they are sampled and returns events.

        The last event holds the message that `parse` returns for the same tokens. A family that cannot read partial
        replies reports everything at the end.

        Args:
            tools: JSON schemas of the tools that the model has; see `parse`.
            prompt_tail: The end of the prompt, from the assistant's opening on; see `parse`.
        """
        return WholeReader(lambda tokens: self.parse(tokens, prompt_tail=prompt_tail, tools=tools))

    def _split_reply(self, tokens: TokenIds, prompt_tail: TokenIds) -> tuple[list[Segment], SplitReply]:
        """Return the beginning of a reply that is in the prompt, and the sampled rest, cut at the control tokens."""
        begun = self.after_opening(prompt_tail)
        return self.marks.split(begun).segments if len(begun) else [], self.marks.split(tokens)

    def after_opening(self, prompt_tail: TokenIds) -> TokenIds:
        """Return the part of a prompt's end that belongs to the reply, such as an empty think block or a prefill."""
        count = len(self.opening_tokens)
        has_opening = np.array_equal(prompt_tail[:count], self.opening_tokens)
        return prompt_tail[count:] if has_opening else prompt_tail

    def _emission(self) -> Emission:
        """Return an empty emission for this renderer."""
        return Emission(self.encoder)

    def _emit_generation_prompt(self, out: Emission, index: int, prefill: str | Message | None = None) -> None:
        """Write the generation prompt of message `index`. A prefill with reasoning writes its own think block."""
        out.begin(index, "assistant")
        has_block = isinstance(prefill, Message) and prefill.reasoning is not None
        out.scaffold(self.opening if has_block else self.generation_prompt)

    def _close_open_block(self, reply: TokenIds) -> str:
        """Return the scaffold that closes the block that is open at the end of a reply, or an empty string.

        A block that the generation prompt opened has to be closed by the reply.
        """
        closing = self.open_at_start
        for _, control in self.marks.places(reply):
            if control in closing:
                rest = closing.partition(control)[2]  # a block may be closed by several control tokens
                closing = rest if any(piece.control >= 0 for piece in self.encoder.cut(rest)) else ""
            elif self.blocks.get(control, "").endswith(closing):
                closing = self.blocks.get(control, "")
        return closing

    # Images.

    @cached_property
    def vision(self) -> "Vision | None":
        """The processor of images; None if the renderer refuses images."""
        if not self.writes_images:
            return None
        from ._vision import Vision, find_processor

        found = find_processor(self.tokenizer)
        return None if found is None else Vision(found, self.tokenizer)

    @property
    def images_note(self) -> str:
        """A note for reports: the processor that writes images, or why they are refused. It does not load anything."""
        if not self.writes_images:
            return f"images are refused: {self.name!r} cannot write them"
        given = self._processor_name
        return (
            "images are refused without processor=" if given is None else f"images are written with {brief(given, 200)}"
        )

    @property
    def images_advice(self) -> str:
        """Advice for errors if the renderer cannot write images; empty if it can. It does not load a processor."""
        if not self.writes_images:
            return "use the renderer of a vision model"
        return "" if self._processor_name is not None else "give the model's processor, processor='FOLDER'"

    @property
    def _processor_name(self) -> Any:
        """The folder or name that the processor is loaded from, its options, or its class; None without a processor."""
        given = self._processor
        if given is None:
            from ._vision import find_processor

            return find_processor(self.tokenizer)
        if isinstance(given, Mapping):
            return dict(cast("Mapping[str, Any]", given))
        return str(given) if isinstance(given, (str, Path)) else type(given).__name__

    # A renderer as an object.

    def __repr__(self) -> str:
        options = {name: value for name, value in self.specification().items() if name != "name"}
        given = "".join(f", {name}={reprlib.repr(value)}" for name, value in options.items())
        return f"<{type(self).__name__} renderer, tokenizer {self.tokenizer.name!r}{given}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Renderer":
        return self  # it is immutable, so gymnasium's deep copies of keyword arguments may share it

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle.

        Raises:
            ConfigError: If the processor of images is an object that cannot be pickled.
        """
        processor = self._processor
        if processor is not None and not isinstance(processor, (str, Path, Mapping)):
            try:
                pickle.dumps(processor)
            except Exception as error:  # of any type: objects raise what they like
                raise ConfigError(
                    f"the processor {type(processor).__name__} cannot be pickled for another process: "
                    f"{type(error).__name__}: {error}. Give processor= as a folder, a name on the hub, or the options "
                    "of an image processor"
                ) from error
        return {name: value for name, value in vars(self).items() if name != "encoder"}  # it is made again


def refuse_images(renderer: Renderer, messages: Sequence[Message], first: int = 0) -> None:
    """Raise an error if messages have images and the renderer cannot write them.

    Args:
        renderer: The renderer.
        messages: The messages that will be rendered.
        first: The index of the first of them in the conversation.

    Raises:
        RenderError: If a message has an image. The error names its index.
    """
    for index, message in enumerate(messages, start=first):
        if message.parts is not None and message.images and renderer.vision is None:
            problem = f"message {index} ({message.role}) has an image, which {renderer.name!r} cannot write"
            raise RenderError(f"{problem}: {renderer.images_advice}")


def check_image(renderer: Renderer, image: "Image | None") -> None:
    """Check that a renderer can write an image, or any images if `image` is None. The result is cached.

    Raises:
        RenderError: If it cannot.
        ConfigError: If the processor of images cannot be loaded.
    """
    if renderer.vision is None:
        raise RenderError(f"{renderer.name!r} cannot write images: {renderer.images_advice}")
    if image is not None:
        renderer.vision.process(image)


def as_given(renderer: Renderer, message: Message) -> Message:
    """Prepare a message for rendering that was not sampled here: an author, a data set or a client wrote it.

    Reasoning between tags at the start of an assistant's content becomes its `reasoning` if the official template reads
    it there (`Renderer.reasoning_in_content`). All other names of control tokens in an assistant's content stay plain
    text, with a `PlainTagsWarning`. Content of other roles is always plain text.

    Returns:
        The message itself if it is unchanged.
    """
    if message.role != "assistant":
        return message
    found = _reasoning_in(renderer, message.content) if message.reasoning is None else {}
    if "content" in found:
        message = message.model_copy(update={**found, "parts": None})
    warn_of_tags(renderer, message.content)
    return message


def as_prefill(renderer: Renderer, start: str | Message) -> str | Message:
    """Prepare the beginning of a reply for rendering; see `as_given`.

    A string that begins with the family's reasoning tag is reasoning. The model continues it if the tag is not closed.
    """
    text = start if isinstance(start, str) else start.content if start.reasoning is None else ""
    found = _reasoning_in(renderer, text)
    begun = Message(role="assistant", **found) if found else start
    warn_of_tags(renderer, begun if isinstance(begun, str) else begun.content)
    return begun


def _reasoning_in(renderer: Renderer, text: str) -> dict[str, Any]:
    """Return the fields `reasoning` and `content` of a string with reasoning tags; empty if there is nothing to read.

    `content` is missing if the tag is not closed. Templates lose text before the tags and further tags, or read them in
    different ways, so such a string is not read.
    """
    tags = None if renderer.unsafe_content else renderer.reasoning_in_content
    if tags is None or not any(tag in text for tag in tags):
        return {}
    opening, closing = tags
    is_open = bool(renderer.open_at_start) and opening not in text  # the generation prompt has the opening tag
    before, _, inside = ("", "", text) if is_open else text.partition(opening)
    reasoning, closed, content = inside.partition(closing)
    if before.strip() or any(tag in reasoning + content for tag in tags):
        return {}
    if not closed:
        return {"reasoning": reasoning.lstrip("\n")}
    return {"reasoning": reasoning.strip("\n"), "content": content.lstrip("\n")}


def warn_of_tags(renderer: Renderer, text: str) -> None:
    """Warn of names of control tokens, and of known tags, in an assistant's text that no model sampled."""
    if renderer.unsafe_content:
        return
    controls = [piece.text for piece in renderer.encoder.cut(text) if piece.control >= 0]
    names = dict.fromkeys([*controls, *(tag for tag in _KNOWN_TAGS if tag in text)])
    if names:
        warnings.warn(
            f"an assistant's content has {', '.join(map(repr, [*names][:8]))}, which the renderer {renderer.name!r} "
            "writes as plain text there. Pass reasoning as reasoning_content= and calls as "
            "tool_calls= of the message; begin or continue a reply with a Message instead of a string",
            PlainTagsWarning,
            stacklevel=3,
        )


def sets_content(start: Message) -> bool:
    """Return whether a prefill or an addition sets the content, so that its reasoning is complete."""
    return start.reasoning is None or "content" in start.model_fields_set


def writable(message: Message) -> Message:
    """Return a reply without the arguments of unreadable calls, which some chat templates refuse to write.

    Returns:
        The message itself if all of its calls could be read.
    """
    if all(call.error is None and not isinstance(call.arguments, str) for call in message.tool_calls):
        return message
    calls = [
        call
        if call.error is None and not isinstance(call.arguments, str)
        else call.model_copy(update={"arguments": {}})
        for call in message.tool_calls
    ]
    return message.model_copy(update={"tool_calls": tuple(calls)})


explain_arguments(globals())
