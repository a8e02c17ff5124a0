"""The front end of logged requests: `from_requests`, for logs of another proxy or server.

Contexts are recognized by the meaning of the requests, as in the gateway itself. The tokens are those of the log: each
step's delta is computed from its logged prompt and the tokens that its context held.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from .._visible import brief, type_of
from ..contexts._edits import among
from ..errors import ConfigError, InvalidRecord, RenderError
from ..images import PlacedImage
from ..limits import StopReason
from ..messages import Message, ToolSchema
from ..rendering.renderer import Renderer
from ..trainers.atif import from_atif as from_atif
from ..trainers.foreign._importer import Change, Importer, finish_reason_of
from ..trainers.foreign._importer import ImportResult as ImportResult
from ..trainers.foreign._values import LARGEST_ID
from ..trajectories._trajectory import Status
from ._conversations import Continues, Conversations, Repeats
from ._protocols import WIRE_FORMATS
from ._records import Exchange, LoggedAnswer, RecordReader, with_unique_call_ids
from ._requests import ModelReply


def from_requests(
    records: Iterable[Mapping[str, Any]],
    *,
    renderer: "str | Renderer | None" = None,
    tokenizer: Any = None,
    protocol: str | None = None,
    reward: float | Mapping[str, float] | None = None,
    temperature: float = 1.0,
    role_of: Callable[[Sequence[Message]], str | None] | None = None,
    trainable_roles: Collection[str] | None = None,
    id: str = "imported",
    env: str = "imported",
    group_id: str | None = None,
    status: Status = "terminated",
    error: str | None = None,
    vocab_size: int = 0,
) -> ImportResult:
    """Make a trajectory from the exchanges of one session, as a proxy or an inference server logged them.

    Requests are recognized by their meaning, like those of a program at the gateway: which context each one continues,
    what the program changed, which are sub-agents. The tokens of each prompt are the logged ones. A prompt that begins
    with all that its context held extends it. Otherwise the break is declared: `edit` if the program changed messages,
    tools or the system message; `thinking_stripped` if only the reasoning of earlier replies is gone; `template` if the
    server rendered the same messages differently; `undeclared` if the tokens of a reply differ from the sampled ones,
    which usually means that its text was tokenized again.

    A record is a mapping with these keys:

    - `request`: the parsed body of the request: Chat Completions, Responses, or Anthropic Messages.
    - `response`: the parsed body of the response; or, if it was streamed, the list of its parsed events: the
      chunks of Chat Completions, the events of Responses or Anthropic Messages. A record whose response is None, an
      `error`, or a stream that ends before the reply does is left out.
    - `protocol`: `"chat"`, `"responses"` or `"anthropic"`. Optional: a request with `input` is `responses`, a response
      with `content`, or events with `type`, are `anthropic`, and anything else is `chat`.
    - `headers`: the headers of the request, of which `x-envsdk-context` and `x-envsdk-role` count. Optional.
    - `reward`: the reward of the reply, a number or numbers by name. Optional.
    - `policy_version`: the version of the weights. Optional.

    Token ids are read where vLLM (`return_token_ids`), SGLang (`return_prompt_token_ids`, `return_meta_info`), LiteLLM,
    agent-lightning and NeMo Gym put them. Log-probabilities have to be those of the distribution that was sampled from:
    vLLM's are, with `--logprobs-mode processed_logprobs`.

    Images are read as the gateway reads them: `data:` URLs, and base64 in Anthropic's form. In a logged prompt, they
    are at the placeholders that the renderer's processor makes.

    A reply without the ids of its prompt and its tokens cannot be a step. It becomes supervised samples if a renderer
    is given, and a note in any case.

    Args:
        records: The records of one session, each after those whose replies it contains.
        renderer: The renderer of the model, or its name. It makes the supervised samples, and its tokenizer identifies
            the vocabulary.
        tokenizer: Anything that `load_tokenizer` accepts, for a renderer that is given by its name.
        protocol: The protocol of all records that do not name one.
        reward: The reward of the whole session, which counts for the last step. None if the records have rewards.
        temperature: The sampling temperature of requests that do not name one.
        role_of: Returns the role of a new context, given its messages; None for the built-in rule.
        trainable_roles: The roles whose contexts are trained; None trains all.
        id: The id of the trajectory.
        env: The name of the environment or source of the log.
        group_id: The id that sessions of the same task share.
        status: How the session ended. With `"error"`, the trajectory gives no samples.
        error: The error, as a string. The status is then `"error"`.
        vocab_size: The size of the vocabulary, if there is no renderer. Token ids must be smaller. 0 if it is unknown.

    Raises:
        InvalidRecord: If a record is damaged; the message names the record and the field. Or if a logged prompt has
            image placeholders that differ from those of the renderer's processor. Or if no reply has token ids,
            and there is no renderer for supervised samples.
        ConfigError: If another argument is invalid.
    """
    importer = Importer(
        id, renderer=renderer, tokenizer=tokenizer, vocab_size=vocab_size, trainable_roles=trainable_roles
    )
    given: Any = temperature
    if protocol is not None and protocol not in WIRE_FORMATS:
        raise ConfigError(
            f"protocol is {brief(protocol)}; expected one of {tuple(WIRE_FORMATS)}, or None to recognize it"
        )
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < LARGEST_ID:
        raise ConfigError(f"temperature is {brief(temperature)}; expected a number of at least 0")
    if status not in get_args(Status):
        raise ConfigError(f"status is {brief(status)}; expected one of {get_args(Status)}")
    if isinstance(records, (str, bytes, Mapping)) or not isinstance(records, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"records is {type_of(records)}; expected the records of one session, in order")
    reader = RecordReader(protocol)
    exchanges, renamed = with_unique_call_ids([reader.read(record, index) for index, record in enumerate(records)])
    placement = Conversations(lambda request: None if role_of is None else role_of(request.all_messages))
    session = _LoggedSession(placement, importer, temperature, renamed)
    for exchange in exchanges:
        session.add(exchange)
    for context in session.conversations:
        session.train(context)
    session.settle()
    return importer.finish(reward=reward, stop_reason=StopReason(status), error=error, env=env, group_id=group_id)


@dataclass(slots=True)
class _Conversation:
    """The conversation of a context.

    Attributes:
        messages: The messages as the last request has them, and the reply.
        tools: The tools.
        change: A description of the change since the last step.
        base: The context whose messages it begins with, or None.
        untrained: The indices of the replies without ids that are not trained yet.
    """

    messages: list[Message]
    tools: Sequence[ToolSchema]
    change: Change
    base: str | None = None
    untrained: list[int] = field(default_factory=list[int])


@dataclass(eq=False, repr=False)
class _LoggedSession:
    """The exchanges of a session, one after another.

    Args:
        placement: Finds the context of each request.
        importer: Takes the contexts and the replies.
        temperature: The sampling temperature of requests that do not name one.
        renamed: The ids of calls that the log has, by the unique ones that the exchanges have instead.

    Attributes:
        conversations: The conversations of the contexts, by name.
    """

    _placement: Conversations
    _importer: Importer
    _temperature: float
    _renamed: Mapping[str, str]
    _restored: dict[int, tuple[Message, Message]] = field(default_factory=dict[int, tuple[Message, Message]])
    conversations: dict[str, _Conversation] = field(default_factory=dict[str, _Conversation])
    _replies: dict[str, str] = field(default_factory=dict[str, str])  # the ids of replies by those of their responses
    _count: int = 0

    def add(self, exchange: Exchange) -> None:
        """Add an exchange."""
        if not exchange.answers:
            self._importer.note("left_out", exchange.where, exchange.left_out)
            return
        request = replace(exchange.request, previous=self._replies.get(exchange.request.previous or ""))
        placed = self._placement.place(request)
        assert not isinstance(placed, Repeats)  # no request is reported as failed
        if placed.was_choice:
            text = f"it fits several contexts; it was read as part of {placed.context!r}, the one that replied last"
            self._importer.note("ambiguous", exchange.where, text)
        replies: list[ModelReply] = []
        for answer in exchange.answers:
            if replies:
                placed = self._placement.branch(request)
            if isinstance(placed, Continues):
                self._continue(placed)
            else:
                known = self.conversations
                log = self._importer.open(
                    placed.context, placed.role, placed.base or placed.parent, is_handoff=bool(known)
                )
                messages = list(known[placed.base].messages[: placed.keep]) if placed.base is not None else []
                log.messages += messages
                if not messages or messages[0].role != "system" or messages[0].content != placed.system:
                    log.messages += _set_system(messages, placed.system or "")
                new = [self._as_logged(message) for message in placed.messages]
                messages += new
                log.messages += new
                log.tools = [dict(tool) for tool in placed.tools]
                change = Change(detail=placed.detail)
                self.conversations[placed.context] = _Conversation(messages, placed.tools, change, placed.base)
            self._answer(exchange, answer, placed.context)
            self._count += 1
            replies.append(ModelReply(f"reply_{self._count}", answer.message, "stop", 0, ()))
        self._placement.answer(request, replies)
        if exchange.id is not None:
            self._replies[exchange.id] = replies[0].id
        self._importer.earn(exchange.rewards)

    def _continue(self, placed: Continues) -> None:
        """Continue the conversation of a context."""
        conversation, log = self.conversations[placed.context], self._importer.log(placed.context)
        changed = [name for name, value in (("system", placed.system), ("tools", placed.tools)) if value is not None]
        reasons = [f"new {' and '.join(changed)}"] if changed else []
        if placed.keep is not None:
            reasons.append(placed.changed)
        if reasons:
            self.train(placed.context)
        messages = [self._as_logged(message) for message in placed.messages]
        new = among(messages, conversation.messages, are=False)
        del conversation.messages[len(conversation.messages) if placed.keep is None else placed.keep :]
        if placed.system is not None:
            log.messages += _set_system(conversation.messages, placed.system)
        if placed.tools is not None:
            conversation.tools = placed.tools
            log.tools = [dict(tool) for tool in placed.tools]
        conversation.messages += messages
        log.messages += new
        if reasons:
            before = conversation.change.detail if conversation.change.reason else ""
            conversation.change = Change("edit", "; ".join([before, *reasons] if before else reasons))

    def _as_logged(self, message: Message) -> Message:
        """Return a message with the ids of calls that the log has. The same message is the same object."""
        if not self._renamed:
            return message
        known = self._restored.get(id(message))
        if known is None:
            ids, answered = self._renamed, message.tool_call_id or ""
            restored = message
            if answered in ids:
                restored = message.model_copy(update={"tool_call_id": ids[answered]})
            elif any(call.id in ids for call in message.tool_calls):
                calls = [call.model_copy(update={"id": ids.get(call.id or "", call.id)}) for call in message.tool_calls]
                restored = message.model_copy(update={"tool_calls": tuple(calls)})
            known = self._restored[id(message)] = message, restored
        return known[1]

    def _answer(self, exchange: Exchange, answer: LoggedAnswer, context: str) -> None:
        """Add a reply to its context: as a step if its ids were logged, else as a message."""
        message, conversation = self._as_logged(answer.message), self.conversations[context]
        conversation.messages.append(message)
        reply = self._importer.reply(
            exchange.where,
            answer.ids,
            answer.message,
            finish_reason=finish_reason_of(answer.finish_reason),
            temperature=self._temperature if exchange.temperature is None else exchange.temperature,
            policy_version=exchange.policy_version,
        )
        log = self._importer.log(context)
        if reply is None:
            log.messages.append(message)
            conversation.untrained.append(len(conversation.messages) - 1)
            return
        images = [image for earlier in conversation.messages[:-1] for image in earlier.images]
        media: list[PlacedImage] = []
        if images:
            renderer = self._importer.renderer
            if renderer is None or renderer.vision is None:
                raise InvalidRecord(
                    f"{exchange.where}: the request has images, whose tokens in the logged prompt are found with the "
                    "model's processor: pass renderer= of a vision model with processor="
                )
            try:
                media = renderer.vision.places(reply.prompt, images)
            except RenderError as error:
                raise InvalidRecord(
                    f"{exchange.where}: the tokens of the images in the logged prompt are not those of the renderer's "
                    f"processor: {error}"
                ) from error
        change, conversation.change = conversation.change, Change()
        self._importer.add(context, reply, message, base=conversation.base, change=change, media=media)

    def settle(self) -> None:
        """Give the contexts the roles that they have now that all requests are known."""
        for name, role in self._placement.roles().items():
            self._importer.set_role(name, role)

    def train(self, context: str) -> None:
        """Make supervised samples of the replies without ids in a conversation, before it changes."""
        conversation = self.conversations[context]
        indices, conversation.untrained = conversation.untrained, []
        self._importer.train(context, conversation.messages, indices, conversation.tools)


def _set_system(messages: list[Message], system: str) -> list[Message]:
    """Replace the system message of a conversation; an empty string removes it. Returns the new one."""
    new = [Message(role="system", content=system)] if system else []
    messages[: bool(messages) and messages[0].role == "system"] = new
    return new
